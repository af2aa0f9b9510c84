//! A base as a directory, for engines that take no block device.
//!
//! ```text
//!   BASES/<digest>/base.ext4 ──mounted where only one thread sees it──▶ cp -a ──▶ root.new-…/tree ──sync, rename──▶ root
//! ```
//!
//! It is made of the image, so that both are the same whatever the template came from, and it is never written after. What
//! is half-made has a name of its own and can go whenever nobody is at it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use wakeful_sys::mounts::{Access, LoopDevice, private_mounts};

use crate::Error;
use crate::draft::FILE;

const ROOT: &str = "root";
const HALF_MADE: &str = "root.new-";
const STEP: &str = "tree";
/// What is told of a copy that failed.
const LONGEST: usize = 2000;

/// Where the tree of a base lies in the base's directory, once it is there.
#[must_use]
pub fn tree_of(base_dir: &Path) -> PathBuf {
    base_dir.join(ROOT)
}

/// What is left in the directory of a base of trees that were being made.
#[must_use]
pub fn half_made_trees(base_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base_dir).into_iter().flatten().flatten();
    let half_made = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(HALF_MADE));
    half_made.map(|entry| entry.path()).collect()
}

/// The tree of the base in this directory; made now if there is none. Blocks, for as long as a copy takes. Two at once make
/// it twice, and one of the two stays.
///
/// # Errors
/// [`Error::Io`], [`Error::Step`], [`Error::DiskFull`]. Nothing is left then.
pub fn ensure_tree(base_dir: &Path) -> Result<PathBuf, Error> {
    let root = tree_of(base_dir);
    if root.is_dir() {
        return Ok(root);
    }
    // Its guard removes it, whatever becomes of the copy.
    let half = tempfile::Builder::new().prefix(HALF_MADE).tempdir_in(base_dir);
    let half = half.map_err(Error::io("make a directory in", base_dir))?;
    let tree = half.path().join("tree");
    fs::create_dir(&tree).map_err(Error::io("make", &tree))?;
    let copied = std::thread::scope(|scope| {
        // A thread of its own: it never finds its way back to the host's mounts.
        let copying = scope.spawn(|| copy(&base_dir.join(FILE), &half.path().join("at"), &tree));
        copying.join().unwrap_or_else(|_| Err(failed("the copy panicked")))
    });
    copied?;
    let synced = File::open(&tree).and_then(|tree| Ok(rustix::fs::syncfs(tree)?));
    synced.map_err(Error::io("write out", &tree))?;
    match fs::rename(&tree, &root) {
        Ok(()) => {}
        // Somebody else was first, and it is the same.
        Err(_) if root.is_dir() => {}
        Err(error) => return Err(Error::io("place the tree at", &root)(error)),
    }
    File::open(base_dir).and_then(|dir| dir.sync_all()).map_err(Error::io("write out", base_dir))?;
    Ok(root)
}

fn failed(detail: impl Into<String>) -> Error {
    Error::Step { step: STEP, detail: detail.into() }
}

/// Copies everything that is in an image: owners, modes, times, attributes, links, devices.
fn copy(image: &Path, at: &Path, to: &Path) -> Result<(), Error> {
    private_mounts().map_err(|error| failed(format!("could not leave the host's mounts: {error}")))?;
    fs::create_dir(at).map_err(Error::io("make", at))?;
    let file = File::open(image).map_err(Error::io("open", image))?;
    let device = LoopDevice::attach(&file, Access::ReadOnly).map_err(Error::io("make a block device of", image))?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    mount(device.path(), at, "ext4", flags, None).map_err(|error| Error::io("mount", image)(io::Error::from(error)))?;
    drop(device);
    let copied = run_copy(at, to);
    let unmounted = unmount(at, UnmountFlags::DETACH).map_err(|error| Error::io("unmount", image)(error.into()));
    copied.and(unmounted)
}

fn run_copy(from: &Path, to: &Path) -> Result<(), Error> {
    let ended = Command::new("cp")
        .args(["-a", "--reflink=auto", "--sparse=auto", "--"])
        .arg(from.join("."))
        .arg(to)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .env("LC_ALL", "C")
        .output()
        .map_err(|error| failed(format!("could not run cp: {error}")))?;
    if ended.status.success() {
        return Ok(());
    }
    let said: String = String::from_utf8_lossy(&ended.stderr).chars().take(LONGEST).collect();
    if said.contains("No space left on device") || said.contains("Disk quota exceeded") {
        return Err(Error::DiskFull { step: STEP });
    }
    Err(failed(format!("cp ended with {}\n{}", ended.status, said.trim_end())))
}
