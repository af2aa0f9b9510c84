//! `openat2`, and the same by hand for kernels that do not have it: gVisor, where the agent packs and unpacks too.
//!
//! By hand every directory on the way is held by a descriptor that was opened by name without following anything, and `..`
//! goes back to the one before it, so that nothing which is moved meanwhile leads out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::ground::DIRECTORY;

/// As many symlinks as the kernel follows.
pub(crate) const MAX_HOPS: u32 = 40;
/// A rename elsewhere can make the kernel unsure whether a path stayed inside.
const TRIES: u32 = 16;

/// Opens a path as if `root` were the root directory.
pub(crate) fn in_root(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut tries = TRIES;
    loop {
        match fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), inside) {
            Err(Errno::AGAIN) if tries > 0 => tries -= 1,
            Err(Errno::NOSYS) => return in_root_by_hand(root, path, flags | OFlags::CLOEXEC),
            done => return done,
        }
    }
}

/// Opens a directory below `top` by a path that leads through no symlink.
pub(crate) fn plainly(top: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match fs::openat2(top, path, DIRECTORY, Mode::empty(), inside) {
        Err(Errno::NOSYS) => plainly_by_hand(top, path),
        done => done,
    }
}

/// Opens a directory, and says whether it is on the same mount as its parent; always, if `anywhere`.
pub(crate) fn beside(parent: BorrowedFd<'_>, name: &[u8], anywhere: bool) -> Result<(OwnedFd, bool), Errno> {
    // The kernel knows mounts better than device numbers do: a bind mount of the same file system is one too.
    let flags = if anywhere { ResolveFlags::empty() } else { ResolveFlags::NO_XDEV };
    match fs::openat2(parent, name, DIRECTORY, Mode::empty(), flags) {
        Ok(open) => Ok((open, true)),
        Err(Errno::XDEV) => Ok((fs::openat(parent, name, DIRECTORY, Mode::empty())?, false)),
        Err(Errno::NOSYS) => beside_by_hand(parent, name, anywhere),
        Err(error) => Err(error),
    }
}

fn beside_by_hand(parent: BorrowedFd<'_>, name: &[u8], anywhere: bool) -> Result<(OwnedFd, bool), Errno> {
    let open = fs::openat(parent, name, DIRECTORY, Mode::empty())?;
    let same = anywhere || fs::fstat(&open)?.st_dev == fs::fstat(parent)?.st_dev;
    Ok((open, same))
}

fn in_root_by_hand(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let (mut way, mut ahead, mut hops): (Vec<OwnedFd>, Vec<Vec<u8>>, u32) = (Vec::new(), parts(path), MAX_HOPS);
    while let Some(part) = ahead.pop() {
        if part == b".." {
            way.pop();
            continue;
        }
        let (at, last) = (way.last().map_or(root, |open| open.as_fd()), ahead.is_empty());
        if last && flags.contains(OFlags::NOFOLLOW) {
            return fs::openat(at, part, flags, Mode::empty());
        }
        let found = fs::statat(at, &part[..], AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            hops = hops.checked_sub(1).ok_or(Errno::LOOP)?;
            let target = fs::readlinkat(at, part, Vec::new())?.into_bytes();
            if target.is_empty() {
                return Err(Errno::NOENT);
            }
            if target.starts_with(b"/") {
                way.clear();
            }
            ahead.extend(parts(&target));
            if ahead.len() > crate::MAX_NAME {
                return Err(Errno::NAMETOOLONG);
            }
            continue;
        }
        // If it has become a symlink meanwhile, it is not followed.
        if last {
            return fs::openat(at, part, flags | OFlags::NOFOLLOW, Mode::empty());
        }
        way.push(fs::openat(at, part, OFlags::PATH | DIRECTORY, Mode::empty())?);
    }
    let at = way.last().map_or(root, |open| open.as_fd());
    fs::openat(at, ".", flags, Mode::empty())
}

fn plainly_by_hand(top: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut open = fs::openat(top, ".", DIRECTORY, Mode::empty())?;
    for part in parts(path).into_iter().rev() {
        if part == b".." {
            return Err(Errno::XDEV);
        }
        open = fs::openat(&open, part, DIRECTORY, Mode::empty())?;
    }
    Ok(open)
}

/// What a path goes through, last first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    parts.map(<[u8]>::to_vec).rev().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// What a path leads to, by both ways: the same file or the same error.
    #[test]
    fn by_hand_it_is_as_by_the_kernel() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("a/b/c")).expect("made");
        std::fs::create_dir(dir.path().join("outside")).expect("made");
        std::fs::write(root.join("a/file"), "x").expect("made");
        for (target, name) in [
            ("/a/b", "absolute"),
            ("b/c", "a/relative"),
            ("../../../outside", "a/out"),
            ("..", "a/b/up"),
            ("loop", "loop"),
            ("nowhere", "dangling"),
            ("a/file", "to-file"),
            ("/", "a/b/c/top"),
        ] {
            symlink(target, root.join(name)).expect("made");
        }
        let open = fs::open(&root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("there");
        let identity = |found: Result<OwnedFd, Errno>| {
            let stat = fs::fstat(found?).expect("open");
            Ok::<_, Errno>((stat.st_dev, stat.st_ino))
        };
        let nofollow = OFlags::PATH | OFlags::NOFOLLOW;
        for path in [
            ".",
            "/",
            "..",
            "../..",
            "a",
            "a/b/..",
            "a/b/../..",
            "/../a/file",
            "absolute",
            "absolute/c",
            "a/relative",
            "a/out",
            "a/out/x",
            "a/b/up",
            "a/b/up/b/up/file",
            "loop",
            "loop/x",
            "dangling",
            "to-file",
            "to-file/x",
            "a/file",
            "a/b/c/top/a",
            "a//b/./c",
            "nothing",
            "nothing/x",
            "",
        ] {
            for flags in [OFlags::PATH, nofollow, OFlags::PATH | OFlags::DIRECTORY, OFlags::RDONLY | OFlags::NOFOLLOW] {
                let kernel = identity(in_root(open.as_fd(), path.as_bytes(), flags));
                let hand = identity(in_root_by_hand(open.as_fd(), path.as_bytes(), flags | OFlags::CLOEXEC));
                assert_eq!(kernel, hand, "{path} {flags:?}");
            }
        }
        for path in [".", "a", "a/b/c", "absolute", "absolute/c", "nothing", "a/file"] {
            let kernel = identity(plainly(open.as_fd(), path.as_bytes()));
            let hand = identity(plainly_by_hand(open.as_fd(), path.as_bytes()));
            assert_eq!(kernel.is_ok(), hand.is_ok(), "{path}");
            assert_eq!(kernel.ok(), hand.ok(), "{path}");
        }
        assert!(plainly_by_hand(open.as_fd(), b"a/..").is_err());
    }

    #[test]
    fn another_mount_is_told() {
        let root = fs::open("/", DIRECTORY, Mode::empty()).expect("there");
        for (anywhere, same) in [(false, false), (true, true)] {
            assert_eq!(beside(root.as_fd(), b"proc", anywhere).expect("there").1, same);
            assert_eq!(beside_by_hand(root.as_fd(), b"proc", anywhere).expect("there").1, same);
        }
        assert!(beside_by_hand(root.as_fd(), b"etc", false).expect("there").1);
    }
}
