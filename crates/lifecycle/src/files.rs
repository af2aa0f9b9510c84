//! Small durable file work: written, synced, renamed; moved to the trash, then removed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Error;

/// Runs blocking file work off the runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    doing: impl Into<String>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let doing = doing.into();
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|source| Error::Io { doing, source }),
        Err(panic) => Err(Error::Internal(format!("{doing}: {panic}"))),
    }
}

/// Makes a directory that only we can look into. Fine if it exists.
pub(crate) fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes a new file and syncs it; the caller syncs the directory.
pub(crate) fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Syncs every file directly in a directory; the caller syncs the directory.
pub(crate) fn sync_files(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        File::open(entry?.path())?.sync_all()?;
    }
    Ok(())
}

/// Renames a complete directory into place and makes that durable.
pub(crate) fn publish_dir(from: &Path, to: &Path) -> io::Result<()> {
    sync_dir(from)?;
    fs::rename(from, to)?;
    sync_dir(to.parent().unwrap_or(Path::new("/")))
}

/// Removes a directory so that a crash leaves it either whole or in the trash, which every start empties.
pub(crate) fn discard_dir(path: &Path, trash: &Path) -> io::Result<()> {
    to_trash(path, trash)?.map_or(Ok(()), |there| remove_dir(&there))
}

/// Removes what is in the trash, but not the trash itself: others may be about to put something there.
pub(crate) fn empty(trash: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(trash) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let removed =
            if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        // Who put it there may remove it at the same time.
        gone(removed)?;
    }
    Ok(())
}

/// Moves a file or directory to the trash, which takes no time however large it is; where it is now, if it was there.
pub(crate) fn to_trash(path: &Path, trash: &Path) -> io::Result<Option<PathBuf>> {
    make_private_dir(trash)?;
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let random = u64::from_le_bytes(random);
    let target: PathBuf = trash.join(format!("{name}-{random:016x}"));
    match fs::rename(path, &target) {
        Ok(()) => Ok(Some(target)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What removing something that is not there comes to.
pub(crate) fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a directory where it is; fine if it is not there.
pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    gone(fs::remove_dir_all(path))
}

/// Disk blocks of a file, or of all files directly in a directory; 0 if it is not there.
pub(crate) fn blocks(path: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(path) else { return 0 };
    if !meta.is_dir() {
        return meta.blocks() * 512;
    }
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}

/// Disk blocks of the files directly in a directory, as far as these have a name in no other, and of the others.
pub(crate) fn own_and_shared(dir: &Path, counts: impl Fn(&str) -> bool) -> (u64, u64) {
    let (mut own, mut shared) = (0, 0);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_file() && counts(&entry.file_name().to_string_lossy()) {
            *(if meta.nlink() > 1 { &mut shared } else { &mut own }) += meta.blocks() * 512;
        }
    }
    (own, shared)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn discarding_twice_is_fine() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (victim, trash) = (dir.path().join("victim"), dir.path().join("trash"));
        make_private_dir(&victim).expect("made");
        write_new(&victim.join("file"), b"x").expect("written");
        discard_dir(&victim, &trash).expect("first");
        discard_dir(&victim, &trash).expect("second");
        assert!(!victim.exists());
        assert_eq!(fs::read_dir(&trash).expect("trash").count(), 0);
    }

    #[test]
    fn what_is_discarded_while_the_trash_is_emptied_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (trash, done) = (dir.path().join("trash"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    empty(&trash).unwrap();
                }
            });
            for number in 0..500 {
                let path = dir.path().join(format!("sandbox-{number}"));
                fs::create_dir_all(path.join("checkpoint-1")).unwrap();
                fs::write(path.join("disk"), "x").unwrap();
                discard_dir(&path, &trash).unwrap();
                assert!(!path.exists(), "{number}");
            }
            done.store(true, Ordering::Relaxed);
        });
        empty(&trash).unwrap();
        assert_eq!(fs::read_dir(&trash).unwrap().count(), 0);
    }
}
