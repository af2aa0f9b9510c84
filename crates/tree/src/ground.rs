//! The directory that a tree is unpacked into, touched only through descriptors.
//!
//! The kernel resolves every parent inside of the directory, so that symlinks of lower layers work (`var/run -> /run`)
//! and none leads out. What stands at the last part of a name is never followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use crate::error::Error;
use crate::resolve::{self, MAX_HOPS};

/// Directories inside each other that are removed; each level holds a descriptor.
const MAX_DEPTH: usize = 256;

pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A path inside the ground, by its parts: no `.`, no `..`, nothing empty.
pub(crate) fn join(parts: &[&[u8]]) -> Vec<u8> {
    if parts.is_empty() { b".".to_vec() } else { parts.join(&b'/') }
}

pub(crate) struct Ground {
    root: OwnedFd,
}

impl Ground {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty());
        let root = root.map_err(|error| Error::Root { path: path.to_owned(), source: error.into() })?;
        Ok(Self { root })
    }

    /// Opens a path, its last part included in what is resolved unless the flags say otherwise.
    pub(crate) fn resolve(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        resolve::in_root(self.root.as_fd(), path, flags)
    }

    /// A directory, symlinks on the way to it and at its end resolved.
    pub(crate) fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// A directory, with whatever is missing of it, also of what a symlink on the way names. `made` hears of each one.
    pub(crate) fn make_directory(
        &self,
        parts: &[&[u8]],
        owner: (Uid, Gid),
        made: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<OwnedFd, Error> {
        self.make_hop(parts, owner, made, MAX_HOPS)
    }

    fn make_hop(
        &self,
        parts: &[&[u8]],
        owner: (Uid, Gid),
        made: &mut dyn FnMut() -> Result<(), Error>,
        hops: u32,
    ) -> Result<OwnedFd, Error> {
        let whole = join(parts);
        let failed = |error: Errno| Error::entry(&whole, "make the directory", error);
        let mut current = self.directory(b".").map_err(failed)?;
        for end in 1..=parts.len() {
            let part = parts[end - 1];
            let so_far = join(&parts[..end]);
            current = match self.directory(&so_far) {
                Ok(next) => next,
                Err(Errno::NOENT) => match fs::mkdirat(&current, part, Mode::from(0o755)) {
                    Ok(()) => {
                        made()?;
                        let next = fs::openat(&current, part, DIRECTORY, Mode::empty()).map_err(failed)?;
                        // Whatever the umask is.
                        fs::fchmod(&next, Mode::from(0o755)).map_err(failed)?;
                        fs::fchown(&next, Some(owner.0), Some(owner.1)).map_err(failed)?;
                        next
                    }
                    Err(Errno::EXIST) => {
                        let target = fs::readlinkat(&current, part, Vec::new()).map_err(failed)?.into_bytes();
                        let hops = hops.checked_sub(1).ok_or_else(|| failed(Errno::LOOP))?;
                        let before = if target.starts_with(b"/") { &[][..] } else { &parts[..end - 1] };
                        let behind = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
                        let beyond: Vec<&[u8]> = before.iter().copied().chain(behind).collect();
                        if join(&beyond).len() > crate::MAX_NAME {
                            return Err(failed(Errno::NAMETOOLONG));
                        }
                        self.make_hop(&beyond, owner, made, hops)?
                    }
                    Err(error) => return Err(failed(error)),
                },
                Err(error) => return Err(failed(error)),
            };
        }
        Ok(current)
    }
}

/// What stands there, not what it points to.
pub(crate) fn look(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Removes whatever stands there, with all that is in it. Nothing there is fine.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    remove_but(parent, name, &mut Vec::new(), &|_| false).map(|_| ())
}

/// Removes whatever stands there except what `keep` claims, and says whether all of it went. `path` is what the thing is
/// called for `keep`, which claims a directory if it claims anything in it.
pub(crate) fn remove_but(
    parent: BorrowedFd<'_>,
    name: &[u8],
    path: &mut Vec<u8>,
    keep: &dyn Fn(&[u8]) -> bool,
) -> Result<bool, Errno> {
    remove_level(parent, name, path, keep, MAX_DEPTH)
}

fn remove_level(
    parent: BorrowedFd<'_>,
    name: &[u8],
    path: &mut Vec<u8>,
    keep: &dyn Fn(&[u8]) -> bool,
    depth: usize,
) -> Result<bool, Errno> {
    let kept = keep(path);
    if !kept {
        match fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error),
        }
    }
    let directory = match fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(true),
        Err(Errno::NOTDIR | Errno::LOOP) if kept => return Ok(false),
        Err(error) => return Err(error),
    };
    let depth = depth.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
    empty_level(directory.as_fd(), path, keep, depth)?;
    if kept {
        return Ok(false);
    }
    match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Removes what is in a directory, except what `keep` claims.
pub(crate) fn empty(directory: BorrowedFd<'_>, path: &mut Vec<u8>, keep: &dyn Fn(&[u8]) -> bool) -> Result<(), Errno> {
    empty_level(directory, path, keep, MAX_DEPTH)
}

fn empty_level(
    directory: BorrowedFd<'_>,
    path: &mut Vec<u8>,
    keep: &dyn Fn(&[u8]) -> bool,
    depth: usize,
) -> Result<(), Errno> {
    // Read to its end first: what a directory says while it changes is anybody's guess.
    for child in names(directory)? {
        let length = path.len();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&child);
        let removed = remove_level(directory, &child, path, keep, depth);
        path.truncate(length);
        removed?;
    }
    Ok(())
}

/// Names in a directory, in the order of the file system.
pub(crate) fn names(directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}
