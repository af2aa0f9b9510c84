//! A uid that no other engine on this host has.
//!
//! Two engines with one uid could signal and trace each other, so uniqueness must not depend on luck, nor on one daemon
//! knowing of another: a uid is a lock file in a directory that all daemons of a host share, and the engine itself holds
//! the lock, by a descriptor that it inherits. It is free again when the engine is gone, whoever saw that, and nothing
//! needs to be written down. An engine that was taken over could let go of its lock; so numbers come from a large range
//! and are not given out in turn.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::files;

/// Where the uids of all engines on this host are claimed, whichever daemon they belong to.
pub const UIDS: &str = "/run/wakeful/uids";
/// How many uids there are. Those from 1.9 billion on belong to nobody: Debian and systemd give out lower ones.
const COUNT: u32 = 1 << 24;
/// So many taken ones in a row are no coincidence.
const TRIES: u32 = 64;

/// Where uids are claimed.
#[derive(Clone, Debug)]
pub struct Claims {
    dir: PathBuf,
    /// The first uid; it is only ever used as a group.
    first: u32,
}

/// A uid, for as long as somebody has the lock open.
#[derive(Debug)]
pub struct Claim {
    /// The uid.
    pub uid: u32,
    /// For the engine to inherit.
    pub lock: File,
    path: PathBuf,
    kept: bool,
}

impl Claims {
    /// Uids from `first` on, claimed in `dir`.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn new(dir: &Path, first: u32) -> io::Result<Self> {
        files::make_dir(dir, 0o700)?;
        Ok(Self { dir: dir.to_owned(), first })
    }

    /// The group of those who may write to the golden memory that they map.
    pub fn shared_group(&self) -> u32 {
        self.first
    }

    /// A uid for the engine of this name: mostly the same one again, if nobody has it.
    pub fn take(&self, name: &str) -> io::Result<Claim> {
        for attempt in 0..TRIES {
            let mut hasher = blake3::Hasher::new();
            hasher.update(name.as_bytes()).update(&attempt.to_le_bytes());
            let digest = hasher.finalize();
            let number = u32::from_le_bytes(digest.as_bytes()[..4].try_into().expect("four bytes"));
            if let Some(claim) = self.claim(self.first + 1 + number % (COUNT - 1))? {
                return Ok(claim);
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "no uid is free for an engine"))
    }

    fn claim(&self, uid: u32) -> io::Result<Option<Claim>> {
        let path = self.path(uid);
        // For reading: a lock needs no more, and the engine gets no file to write to.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = File::from(rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?);
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // Whoever removes the file holds the lock: so one that still has its name is ours.
            Ok(()) if is_named(&lock, &path) => Ok(Some(Claim { uid, lock, path, kept: false })),
            Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes the file of a uid that nobody has any more.
    pub fn release(&self, uid: u32) {
        let path = self.path(uid);
        if let Ok(lock) = File::open(&path)
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_named(&lock, &path)
        {
            let _ = fs::remove_file(path);
        }
    }

    /// What daemons that were killed have left.
    pub fn sweep(&self) {
        listed(&self.dir).for_each(|(uid, _)| self.release(uid));
    }

    fn path(&self, uid: u32) -> PathBuf {
        self.dir.join(uid.to_string())
    }
}

impl Claim {
    /// An engine has it now.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The uids that have a file in `dir`.
fn listed(dir: &Path) -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

/// Files of uids that nobody has. A shared lock is tried, so that two who look do not see each other.
pub fn unclaimed(dir: &Path) -> Vec<PathBuf> {
    let free =
        |path: &PathBuf| File::open(path).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok());
    listed(dir).map(|(_, path)| path).filter(free).collect()
}

fn is_named(file: &File, path: &Path) -> bool {
    let inode = |meta: fs::Metadata| (meta.dev(), meta.ino());
    matches!((file.metadata().map(inode), fs::symlink_metadata(path).map(inode)), (Ok(ours), Ok(named)) if ours == named)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_engines_have_one_uid() {
        let dir = tempfile::tempdir().expect("can be made");
        let claims = Claims::new(dir.path(), 1_900_000_000).expect("can be made");
        // Of another daemon, which knows nothing of the first.
        let others = Claims::new(dir.path(), 1_900_000_000).expect("is there");
        let first = claims.take("sbx_a").expect("one is free");
        let second = others.take("sbx_a").expect("one is free");
        assert_ne!(first.uid, second.uid);
        let held: Vec<Claim> = (0..50).map(|_| claims.take("sbx_a").expect("one is free")).collect();
        let uids: HashSet<u32> = held.iter().map(|claim| claim.uid).chain([first.uid, second.uid]).collect();
        assert_eq!(uids.len(), 52);
        assert!(uids.iter().all(|uid| (1_900_000_001..1_916_777_216).contains(uid)));

        // The engine's copy of the lock is what counts.
        let (uid, engine) = (first.uid, first.lock.try_clone().expect("can be cloned"));
        first.keep();
        others.release(uid);
        others.sweep();
        assert_ne!(others.take("sbx_a").expect("one is free").uid, uid, "the engine lives");
        drop(engine);
        assert_eq!(others.take("sbx_a").expect("it is free again").uid, uid);
        drop((held, second));
        assert_eq!(fs::read_dir(dir.path()).expect("is there").count(), 0, "nothing is left");
    }

    #[test]
    fn what_a_killed_daemon_left_is_swept() {
        let dir = tempfile::tempdir().expect("can be made");
        let claims = Claims::new(dir.path(), 1_900_000_000).expect("can be made");
        claims.take("sbx_a").expect("one is free").keep();
        let alive = claims.take("sbx_b").expect("one is free");
        let stale = unclaimed(dir.path());
        assert_eq!(stale.len(), 1);
        assert_ne!(stale[0].file_name().and_then(|name| name.to_str()), Some(alive.uid.to_string().as_str()));
        claims.sweep();
        assert!(unclaimed(dir.path()).is_empty());
        let left: Vec<_> = fs::read_dir(dir.path()).expect("is there").flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name().to_str(), Some(alive.uid.to_string().as_str()));
    }
}
