//! A build's own directory, which is gone when the build is, however it ends.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Error;

const PREFIX: &str = "build-";
/// Processes that were just killed may still write for a moment.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// The directory. Dropping it removes it on a thread for blocking work, where there is a runtime.
#[derive(Debug)]
pub(crate) struct Workplace(Option<Tree>);

impl Workplace {
    /// Makes one in `work`.
    pub(crate) fn make(work: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(work).map_err(Error::io("make", work))?;
        let work = work.canonicalize().map_err(Error::io("find", work))?;
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&work);
        let dir = made.map_err(Error::io("make a directory in", &work))?.keep();
        Ok(Self(Some(Tree(dir))))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), |tree| &tree.0)
    }

    /// Removes it, and waits for that.
    pub(crate) async fn clear(mut self) {
        if let Some(tree) = self.0.take() {
            let _ = tokio::task::spawn_blocking(move || drop(tree)).await;
        }
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // If the runtime ends before the closure begins, it drops the tree, which then is removed there.
        if let (Some(tree), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn_blocking(move || drop(tree));
        }
    }
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
struct Tree(PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "could not remove what a build left");
        }
    }
}

/// Removes what builds left in `work` when the whole process was killed. Must not run beside a build in the same `work`.
///
/// # Errors
/// [`Error::Io`] for the first that could not be removed.
pub fn clear_leftovers(work: &Path) -> Result<(), Error> {
    let entries = match std::fs::read_dir(work) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("read", work)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(Error::io("read", work))?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            remove(&entry.path()).map_err(Error::io("remove", entry.path()))?;
        }
    }
    Ok(())
}

/// Removes a tree that killed processes may still be writing to, and in which mounts may have been left.
fn remove(dir: &Path) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        unmount_below(dir);
        // not std's: this one stops at another file system, should a mount have come back between
        let rm = Command::new("rm")
            .args(["-rf", "--one-file-system", "--"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        let gone = || std::fs::symlink_metadata(dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if gone() {
            pause();
            if gone() {
                return Ok(());
            }
        }
        if Instant::now() > until {
            return Err(io::Error::other(format!("rm ended with {rm}, and {} is still there", dir.display())));
        }
        pause();
    }
}

#[expect(clippy::disallowed_methods, reason = "runs on threads for blocking work only")]
fn pause() {
    std::thread::sleep(PAUSE);
}

/// Detaches every mount below `dir`, the innermost first. There are none where mount namespaces are private, which they
/// cannot be made in a chroot whose root is no mount point.
fn unmount_below(dir: &Path) {
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return };
    for point in mount_points(&table).into_iter().rev() {
        if point.starts_with(dir) {
            let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// The mount points in a `mountinfo`, in the order in which they were made.
pub(crate) fn mount_points(table: &str) -> Vec<PathBuf> {
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(|field| PathBuf::from(unescape(field))).collect()
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
fn unescape(field: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read() {
        let table =
            "22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:5 / /tmp/a\\040b/proc rw,nosuid - proc proc rw\nbroken\n";
        assert_eq!(mount_points(table), [PathBuf::from("/"), PathBuf::from("/tmp/a b/proc")]);
    }

    #[tokio::test]
    async fn cleared_dropped_and_left_over() {
        let work = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(work.path()).unwrap().count();
        let one = Workplace::make(work.path()).unwrap();
        std::fs::create_dir_all(one.path().join("root/etc")).unwrap();
        std::fs::write(one.path().join("root/etc/passwd"), "x").unwrap();
        assert_eq!(count(), 1);
        one.clear().await;
        assert_eq!(count(), 0);

        drop(Workplace::make(work.path()).unwrap());
        let until = Instant::now() + Duration::from_secs(10);
        while count() > 0 && Instant::now() < until {
            tokio::time::sleep(PAUSE).await;
        }
        assert_eq!(count(), 0);

        std::fs::create_dir_all(work.path().join("build-abc/root")).unwrap();
        std::fs::create_dir_all(work.path().join("other")).unwrap();
        clear_leftovers(work.path()).unwrap();
        assert_eq!(count(), 1);
        clear_leftovers(&work.path().join("missing")).unwrap();
    }
}
