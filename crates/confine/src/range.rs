//! A range of ids that no other engine on this host has, for a user namespace.
//!
//! Such an engine inherits no descriptor, so a range is held by a name instead of a lock: a link in a directory that all
//! daemons of a host share, which leads to the engine's run directory. A range whose run directory is gone is free again,
//! whoever removed it. Only the taking needs a lock, that of the directory itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::files;

/// Where the ranges of all engines on this host are taken.
pub const RANGES: &str = "/run/wakeful/ranges";
/// Ids in a range.
pub const IDS: u32 = 65_536;
/// The first id of the first range: above those of single uids, and what is below 2^31 is understood by everybody.
const FIRST: u32 = 2_000_000_000;
const COUNT: u32 = 2000;

/// The range of the engine in this run directory, which must exist: mostly the same one again, if nobody has it. Gives
/// its first id.
///
/// # Errors
/// If all are taken, or the directory cannot be written to.
pub fn take(dir: &Path, run: &Path) -> io::Result<u32> {
    files::make_dir(dir, 0o700)?;
    let lock = File::open(dir)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let digest = blake3::hash(run.as_os_str().as_encoded_bytes());
    let number = u32::from_le_bytes(digest.as_bytes()[..4].try_into().expect("four bytes")) % COUNT;
    for first in (0..COUNT).map(|step| FIRST + (number + step) % COUNT * IDS) {
        let link = dir.join(first.to_string());
        match fs::read_link(&link) {
            Ok(owner) if owner == run => return Ok(first),
            Ok(owner) if owner.exists() => continue,
            Ok(_) => fs::remove_file(&link)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        symlink(run, &link)?;
        return Ok(first);
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "no range of ids is free for an engine"))
}

/// The links of ranges that nobody has any more.
#[must_use]
pub fn stale(dir: &Path) -> Vec<PathBuf> {
    let links = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    links.filter(|link| fs::read_link(link).is_ok_and(|run| !run.exists())).collect()
}

/// Removes one of those; one that is taken again stays.
///
/// # Errors
/// If the directory cannot be written to.
pub fn remove_stale(link: &Path) -> io::Result<()> {
    let Some(dir) = link.parent() else { return Ok(()) };
    let lock = File::open(dir)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if fs::read_link(link).is_ok_and(|run| !run.exists()) { fs::remove_file(link) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_engines_have_one_range() {
        let dir = tempfile::tempdir().expect("can be made");
        let (ranges, run) = (dir.path().join("ranges"), |name: &str| dir.path().join(name));
        for name in ["a", "b"] {
            fs::create_dir(run(name)).expect("can be made");
        }
        let (a, b) = (take(&ranges, &run("a")).expect("free"), take(&ranges, &run("b")).expect("free"));
        assert!(a.abs_diff(b) >= IDS);
        assert_eq!(take(&ranges, &run("a")).expect("it has one"), a, "asking twice gives the same");
        assert!(stale(&ranges).is_empty());
        // Somebody who would get the same one.
        fs::remove_file(ranges.join(b.to_string())).expect("is there");
        symlink(run("a"), ranges.join(b.to_string())).expect("can be made");
        assert_ne!(take(&ranges, &run("b")).expect("another is free"), b);
        fs::remove_dir(run("a")).expect("is there");
        assert_eq!(stale(&ranges).len(), 2);
        for link in stale(&ranges) {
            remove_stale(&link).expect("can be removed");
        }
        assert_eq!(take(&ranges, &run("b")).expect("it is free again"), b);
        assert!(u64::from(FIRST) + u64::from(COUNT) * u64::from(IDS) < 1 << 31);
    }
}
