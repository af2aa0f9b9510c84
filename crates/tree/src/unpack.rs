//! What the entries of an archive become below a directory.
//!
//! An archive is applied in one pass, in its order. Three things are remembered meanwhile, all bounded: which paths it
//! made (a whiteout removes only what was there before), which of its symlinks lead out (nothing of it may lead through
//! them), and the times of directories, which are set when nothing changes them any more. An error leaves what was
//! unpacked so far; the caller throws the directory away.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::error::{Error, shown};
use crate::ground::{self, DIRECTORY, Ground, join};
use crate::options::{Owner, Shape, Summary, Unpack, Whiteouts};
use crate::read::{Entry, Kind, Reader};
use crate::seen::Seen;
use crate::{MAX_NAME, MAX_PART};

/// Blocks of zeros of this size become holes.
const HOLE: usize = 4096;
const BUFFER: usize = 128 * 1024;
/// Names of directories whose times are set at the end.
const MAX_LATER: usize = 256 << 20;

/// Unpacks an archive below `root`, which must exist. Nothing is read behind the blocks that end the archive, except
/// for what a buffer takes.
///
/// # Errors
/// Any [`Error`] but [`Missing`](Error::Missing) and [`Write`](Error::Write). What was unpacked so far stays.
pub fn unpack(reader: impl Read, root: &Path, options: &Unpack) -> Result<Summary, Error> {
    let ground = Ground::open(root)?;
    let prefix = parts(options.prefix.as_os_str().as_bytes())?;
    let mut work = Work {
        reader: Reader::new(reader, options.limits, options.open_end),
        ground,
        options,
        near: None,
        made: Seen::default(),
        outward: Seen::default(),
        later: Vec::new(),
        later_cost: 0,
        buffer: vec![0; BUFFER],
        summary: Summary::default(),
        single: false,
    };
    if !prefix.is_empty() {
        let root = (Uid::ROOT, Gid::ROOT);
        work.ground.make_directory(&prefix, root, &mut || Ok(()))?;
    }
    while let Some(entry) = work.reader.next()? {
        work.take(&prefix, &entry)?;
    }
    if matches!(options.shape, Shape::Single { .. }) && !work.single {
        return Err(Error::NotSingle { found: "none" });
    }
    work.settle();
    Ok(work.summary)
}

struct Work<'a, R> {
    reader: Reader<R>,
    ground: Ground,
    options: &'a Unpack,
    /// The parent of the last entry: most entries stand beside each other.
    near: Option<(Vec<u8>, Rc<OwnedFd>)>,
    /// What this archive made, and every directory on the way to it. Only kept where whiteouts are applied.
    made: Seen,
    /// Symlinks of this archive that lead out of the tree.
    outward: Seen,
    /// Directories whose times are still to be set, and whether they may be reached through a symlink.
    later: Vec<(Vec<u8>, (i64, u32), bool)>,
    later_cost: usize,
    buffer: Vec<u8>,
    summary: Summary,
    /// Whether the one entry has come, where only one may.
    single: bool,
}

impl<R: Read> Work<'_, R> {
    fn take(&mut self, prefix: &[&[u8]], entry: &Entry) -> Result<(), Error> {
        let mut name = parts(&entry.name)?;
        match entry.kind {
            Kind::Device | Kind::Other => {
                self.summary.skipped += 1;
                return Ok(());
            }
            Kind::Directory if self.options.shape != Shape::Tree => return Ok(()),
            _ => {}
        }
        if let Shape::Single { name: wanted } = &self.options.shape {
            if std::mem::replace(&mut self.single, true) {
                return Err(Error::NotSingle { found: "more than one" });
            }
            name = match wanted {
                Some(wanted) => vec![wanted.as_bytes()],
                None => name.last().copied().into_iter().collect(),
            };
            if name
                .iter()
                .any(|part| part.len() > MAX_PART || matches!(*part, b"" | b"." | b"..") || part.contains(&b'/'))
            {
                return Err(Error::refused(&entry.name, "it has no usable name"));
            }
        }
        let full: Vec<&[u8]> = prefix.iter().copied().chain(name.iter().copied()).collect();
        if full.iter().map(|part| part.len() + 1).sum::<usize>() > MAX_NAME {
            return Err(Error::refused(&entry.name, "its name is longer than 4096 bytes"));
        }
        if self.options.whiteouts == Whiteouts::Apply && self.whiteout(&full, entry)? {
            return Ok(());
        }
        let Some((last, before)) = full[prefix.len()..].split_last() else {
            if entry.kind != Kind::Directory {
                return Err(Error::refused(&entry.name, "it has no name"));
            }
            return self.top(prefix, entry);
        };
        let before = &full[..prefix.len() + before.len()];
        let parent = self.parent(before, entry)?;
        let path = join(&full);
        let place = Place { parent: parent.as_fd(), name: last, path: &path };
        // A hard link may be to itself and change nothing; whatever else comes replaces the symlink that stood here.
        if entry.kind != Kind::Hard && self.outward.contains(&path) {
            self.outward.remove(&path);
            // Also where symlinks to directories are kept: this one is the archive's own.
            self.clear(&place)?;
        }
        match entry.kind {
            Kind::File => self.file(&place, entry)?,
            Kind::Directory => self.directory(&place, entry)?,
            Kind::Symlink => self.symlink(&place, entry, before.len())?,
            Kind::Hard => self.hard_link(&place, entry, prefix)?,
            Kind::Fifo => self.fifo(&place, entry)?,
            Kind::Device | Kind::Other => {}
        }
        self.summary.entries += 1;
        self.summary.bytes += entry.size;
        self.remember(&full)
    }

    /// Keeps in mind that this archive has brought a path.
    fn remember(&mut self, full: &[&[u8]]) -> Result<(), Error> {
        if self.options.whiteouts == Whiteouts::Apply {
            for end in (1..=full.len()).rev() {
                if !self.made.insert(&join(&full[..end]))? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Applies an entry if it is a whiteout. Only what lower layers brought goes, whatever the order of entries.
    fn whiteout(&mut self, full: &[&[u8]], entry: &Entry) -> Result<bool, Error> {
        let Some((last, before)) = full.split_last() else { return Ok(false) };
        let opaque = *last == b".wh..wh..opq";
        let theirs = |part: &&[u8]| part.starts_with(b".wh..wh.");
        if before.iter().any(theirs) || (theirs(last) && !opaque) {
            // What AUFS kept for itself.
            self.summary.skipped += 1;
            return Ok(true);
        }
        let Some(name) = last.strip_prefix(b".wh.") else { return Ok(false) };
        if !opaque && matches!(name, b"" | b"." | b"..") {
            return Err(Error::refused(&entry.name, "it is a whiteout of nothing"));
        }
        self.check_way(before, entry)?;
        let failed = |error: Errno| Error::entry(&entry.name, "apply the whiteout", error);
        self.summary.whiteouts += 1;
        self.near = None;
        let directory = match self.ground.resolve(&join(before), OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(true),
            Err(error) => return Err(failed(error)),
        };
        let keep = |path: &[u8]| self.made.contains(path);
        let mut path = before.join(&b'/');
        if opaque {
            ground::empty(directory.as_fd(), &mut path, &keep).map_err(failed)?;
        } else {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            ground::remove_but(directory.as_fd(), name, &mut path, &keep).map_err(failed)?;
        }
        Ok(true)
    }

    /// The archive's own root, which is the prefix.
    fn top(&mut self, prefix: &[&[u8]], entry: &Entry) -> Result<(), Error> {
        self.summary.entries += 1;
        if self.options.keep_top {
            return Ok(());
        }
        let path = join(prefix);
        let failed = |error: Errno| Error::entry(&path, "open the directory", error);
        let directory = self.ground.resolve(&path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        self.describe(directory.as_fd(), &path, entry)?;
        self.set_later(&path, entry, true)
    }

    /// The directory that an entry goes into, with whatever is missing of it.
    fn parent(&mut self, before: &[&[u8]], entry: &Entry) -> Result<Rc<OwnedFd>, Error> {
        let path = join(before);
        if let Some((near, directory)) = &self.near
            && *near == path
        {
            return Ok(Rc::clone(directory));
        }
        self.check_way(before, entry)?;
        let directory = match self.ground.directory(&path) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => {
                let owner = match self.options.owner {
                    Owner::Fixed { .. } => self.owner(entry)?,
                    Owner::Archived => (Uid::ROOT, Gid::ROOT),
                };
                let reader = &mut self.reader;
                self.ground.make_directory(before, owner, &mut || reader.count())?
            }
            Err(error) => return Err(Error::entry(&entry.name, "open the directory of", error)),
        };
        let directory = Rc::new(directory);
        self.near = Some((path, Rc::clone(&directory)));
        Ok(directory)
    }

    /// Refuses a way through a symlink of this archive that leads out. The kernel would keep it inside; but no tree that
    /// somebody had looks like that.
    fn check_way(&self, before: &[&[u8]], entry: &Entry) -> Result<(), Error> {
        if self.outward.is_empty() {
            return Ok(());
        }
        for end in 1..=before.len() {
            let link = join(&before[..end]);
            if self.outward.contains(&link) {
                return Err(Error::Escape { entry: shown(&entry.name), link: shown(&link) });
            }
        }
        Ok(())
    }

    /// Clears the place for something that is not a directory, after the first try found it taken.
    fn clear(&mut self, place: &Place<'_>) -> Result<(), Error> {
        // It may be a directory on the way to the last entry's parent.
        self.near = None;
        ground::remove(place.parent, place.name).map_err(|error| place.failed("replace", error))
    }

    /// Makes something at a place, replacing what is there.
    fn make<T>(
        &mut self,
        place: &Place<'_>,
        attempted: &'static str,
        make: impl Fn(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, Error> {
        match make(place.parent, place.name) {
            Err(Errno::EXIST) => {
                self.clear(place)?;
                make(place.parent, place.name).map_err(|error| place.failed(attempted, error))
            }
            done => done.map_err(|error| place.failed(attempted, error)),
        }
    }

    fn file(&mut self, place: &Place<'_>, entry: &Entry) -> Result<(), Error> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = self.make(place, "make", |parent, name| fs::openat(parent, name, flags, Mode::from(0o600)))?;
        let file = File::from(file);
        let mut end = 0;
        for (offset, length) in &entry.pieces {
            self.write(&file, place, *offset, *length, &mut end)?;
        }
        if end < entry.size {
            fs::ftruncate(&file, entry.size).map_err(|error| place.failed("write", error))?;
        }
        self.describe(file.as_fd(), place.path, entry)?;
        fs::futimens(&file, &times(entry.mtime)).map_err(|error| place.failed("set the time of", error))
    }

    /// Writes a piece of data, leaving holes where it is zero. `end` becomes the end of what was written.
    fn write(&mut self, file: &File, place: &Place<'_>, offset: u64, length: u64, end: &mut u64) -> Result<(), Error> {
        let (mut at, last) = (offset, offset + length);
        while at < last {
            // Chunks end where blocks of the file end, so that its blocks of zeros are seen as such.
            let room = (BUFFER - (at % HOLE as u64) as usize) as u64;
            let count = room.min(last - at) as usize;
            self.reader.data(&mut self.buffer[..count])?;
            let chunk = &self.buffer[..count];
            let mut run: Option<usize> = None;
            let mut from = 0;
            while from < count {
                let to = (from + HOLE - ((at + from as u64) % HOLE as u64) as usize).min(count);
                let zero = is_zero(&chunk[from..to]);
                if let (true, Some(start)) = (zero, run) {
                    file.write_all_at(&chunk[start..from], at + start as u64)
                        .map_err(|error| place.failed("write", error))?;
                    *end = at + from as u64;
                }
                run = if zero { None } else { run.or(Some(from)) };
                from = to;
            }
            if let Some(start) = run {
                file.write_all_at(&chunk[start..], at + start as u64).map_err(|error| place.failed("write", error))?;
                *end = at + count as u64;
            }
            at += count as u64;
        }
        Ok(())
    }

    fn directory(&mut self, place: &Place<'_>, entry: &Entry) -> Result<(), Error> {
        let mut followed = false;
        let directory = match fs::mkdirat(place.parent, place.name, Mode::from(0o700)) {
            Ok(()) => open_directory(place)?,
            Err(Errno::EXIST) => {
                let found = ground::look(place.parent, place.name).map_err(|error| place.failed("look at", error))?;
                match found.as_ref().map(ground::kind) {
                    Some(FileType::Directory) => open_directory(place)?,
                    Some(FileType::Symlink) if self.options.keep_directory_links => {
                        match self.ground.resolve(place.path, OFlags::RDONLY | OFlags::DIRECTORY) {
                            Ok(directory) => {
                                followed = true;
                                directory
                            }
                            Err(_) => self.directory_instead(place)?,
                        }
                    }
                    _ => self.directory_instead(place)?,
                }
            }
            Err(error) => return Err(place.failed("make the directory", error)),
        };
        self.describe(directory.as_fd(), place.path, entry)?;
        self.set_later(place.path, entry, followed)
    }

    fn directory_instead(&mut self, place: &Place<'_>) -> Result<OwnedFd, Error> {
        self.clear(place)?;
        fs::mkdirat(place.parent, place.name, Mode::from(0o700))
            .map_err(|error| place.failed("make the directory", error))?;
        open_directory(place)
    }

    fn symlink(&mut self, place: &Place<'_>, entry: &Entry, depth: usize) -> Result<(), Error> {
        if entry.link.is_empty() || entry.link.len() >= MAX_NAME || entry.link.contains(&0) {
            return Err(Error::refused(&entry.name, "it is a symlink to nowhere"));
        }
        self.make(place, "make the symlink", |parent, name| fs::symlinkat(entry.link.as_slice(), parent, name))?;
        if leads_out(&entry.link, depth) {
            self.outward.insert(place.path)?;
            self.near = None;
        }
        let (uid, gid) = self.owner(entry)?;
        fs::chownat(place.parent, place.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| place.failed("set the owner of", error))?;
        fs::utimensat(place.parent, place.name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| place.failed("set the time of", error))
    }

    /// A further name for something that stands below the same prefix, from this archive or a lower layer.
    fn hard_link(&mut self, place: &Place<'_>, entry: &Entry, prefix: &[&[u8]]) -> Result<(), Error> {
        let refused = |why| Error::Link { entry: shown(&entry.name), target: shown(&entry.link), why };
        let target = parts(&entry.link).map_err(|_| refused("is no name inside the tree"))?;
        let Some((last, before)) = target.split_last() else { return Err(refused("is the tree itself")) };
        let before: Vec<&[u8]> = prefix.iter().chain(before).copied().collect();
        self.check_way(&before, entry)?;
        let directory = match self.ground.directory(&join(&before)) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(refused("does not exist")),
            Err(error) => return Err(place.failed("find the target of", error)),
        };
        let found =
            ground::look(directory.as_fd(), last).map_err(|error| place.failed("look at the target of", error))?;
        let Some(found) = found else { return Err(refused("does not exist")) };
        match ground::kind(&found) {
            FileType::RegularFile | FileType::Symlink | FileType::Fifo => {}
            FileType::Directory => return Err(refused("is a directory")),
            _ => return Err(refused("is a device or a socket")),
        }
        let here = ground::look(place.parent, place.name).map_err(|error| place.failed("look at", error))?;
        if here.is_some_and(|here| (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino)) {
            // Already so; to clear the place first could remove the last name of what it links to.
            return Ok(());
        }
        self.make(place, "make the hard link", |parent, name| {
            fs::linkat(&directory, *last, parent, name, AtFlags::empty())
        })
    }

    fn fifo(&mut self, place: &Place<'_>, entry: &Entry) -> Result<(), Error> {
        self.make(place, "make the fifo", |parent, name| {
            fs::mknodat(parent, name, FileType::Fifo, Mode::from(0o600), 0)
        })?;
        // Does not wait for a writer, and gives a descriptor that cannot become something else meanwhile.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fifo = fs::openat(place.parent, place.name, flags, Mode::empty());
        let fifo = fifo.map_err(|error| place.failed("open the fifo", error))?;
        self.describe(fifo.as_fd(), place.path, entry)?;
        fs::futimens(&fifo, &times(entry.mtime)).map_err(|error| place.failed("set the time of", error))
    }

    /// Owner, mode and attributes, in the order in which the kernel lets them stand: a new owner clears the others.
    fn describe(&self, thing: BorrowedFd<'_>, path: &[u8], entry: &Entry) -> Result<(), Error> {
        let (uid, gid) = self.owner(entry)?;
        fs::fchown(thing, Some(uid), Some(gid)).map_err(|error| Error::entry(path, "set the owner of", error))?;
        let mode = self.options.mode.unwrap_or(entry.mode) & 0o7777;
        fs::fchmod(thing, Mode::from(mode)).map_err(|error| Error::entry(path, "set the mode of", error))?;
        for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name)) {
            match fs::fsetxattr(thing, name.as_slice(), value, fs::XattrFlags::empty()) {
                Ok(()) | Err(Errno::NOTSUP) => {}
                Err(error) => return Err(Error::entry(path, "set an attribute of", error)),
            }
        }
        Ok(())
    }

    fn owner(&self, entry: &Entry) -> Result<(Uid, Gid), Error> {
        let (uid, gid) = match self.options.owner {
            Owner::Fixed { uid, gid } => (uid, gid),
            Owner::Archived => {
                let (Ok(uid), Ok(gid)) = (u32::try_from(entry.uid), u32::try_from(entry.gid)) else {
                    return Err(Error::refused(&entry.name, "its owner is no number of a user"));
                };
                (uid, gid)
            }
        };
        // To the kernel this means "leave it".
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Error::refused(&entry.name, "its owner is no number of a user"));
        }
        Ok((Uid::from_raw(uid), Gid::from_raw(gid)))
    }

    fn set_later(&mut self, path: &[u8], entry: &Entry, followed: bool) -> Result<(), Error> {
        self.later_cost += path.len() + size_of::<(Vec<u8>, (i64, u32), bool)>();
        if self.later_cost > MAX_LATER {
            return Err(Error::TooMany { limit: self.later.len() as u64 });
        }
        self.later.push((path.to_vec(), entry.mtime, followed));
        Ok(())
    }

    /// Sets the times of directories. One that the archive itself replaced since has none to set.
    fn settle(&mut self) {
        for (path, mtime, followed) in &self.later {
            let follow = if *followed { OFlags::empty() } else { OFlags::NOFOLLOW };
            if let Ok(directory) = self.ground.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY | follow) {
                let _ = fs::futimens(&directory, &times(*mtime));
            }
        }
    }
}

/// Where an entry goes.
struct Place<'a> {
    parent: BorrowedFd<'a>,
    name: &'a [u8],
    /// From the root, for people and for the sets.
    path: &'a [u8],
}

impl Place<'_> {
    fn failed(&self, attempted: &'static str, error: impl Into<std::io::Error>) -> Error {
        Error::entry(self.path, attempted, error)
    }
}

fn open_directory(place: &Place<'_>) -> Result<OwnedFd, Error> {
    fs::openat(place.parent, place.name, DIRECTORY, Mode::empty())
        .map_err(|error| place.failed("open the directory", error))
}

/// Attributes that a tree may bring: those that users set, and file capabilities. Labels of security modules and what
/// only overlay file systems understand are this machine's own.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    name == b"security.capability" || (name.starts_with(b"user.") && name.len() > b"user.".len())
}

/// The parts of a name: `/`, `.` and empty ones do not count.
fn parts(name: &[u8]) -> Result<Vec<&[u8]>, Error> {
    if name.len() > MAX_NAME {
        return Err(Error::refused(name, "its name is longer than 4096 bytes"));
    }
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err(Error::refused(name, "its name leads upwards")),
            _ if part.len() > MAX_PART => {
                return Err(Error::refused(name, "a part of its name is longer than 255 bytes"));
            }
            _ if part.contains(&0) => return Err(Error::refused(name, "its name holds a NUL")),
            _ => parts.push(part),
        }
    }
    Ok(parts)
}

/// Whether a symlink in a directory `depth` levels below the root names something above the root.
fn leads_out(target: &[u8], depth: usize) -> bool {
    if target.starts_with(b"/") {
        return true;
    }
    let mut depth = depth;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return true,
            },
            _ => depth += 1,
        }
    }
    false
}

fn is_zero(chunk: &[u8]) -> bool {
    const ZEROS: [u8; HOLE] = [0; HOLE];
    chunk == &ZEROS[..chunk.len()]
}

fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        assert_eq!(parts(b"./a//b/./c/").expect("fine"), vec![&b"a"[..], b"b", b"c"]);
        assert_eq!(parts(b"/etc/x").expect("fine"), vec![&b"etc"[..], b"x"]);
        assert!(parts(b"./").expect("fine").is_empty());
        for bad in [&b"../a"[..], b"a/../b", b"a/..", b"..", b"a\0b", &[b'a'; 256], &[b'/'; 4097]] {
            assert!(matches!(parts(bad), Err(Error::Refused { .. })), "{bad:?}");
        }
    }

    #[test]
    fn symlinks_that_lead_out_are_known() {
        for (target, depth) in [(&b"/etc"[..], 3), (b"..", 0), (b"../../x", 1), (b"a/../../..", 1)] {
            assert!(leads_out(target, depth), "{target:?}");
        }
        for (target, depth) in [(&b"x"[..], 0), (b"..", 1), (b"../../x", 2), (b"a/../b", 0), (b"./", 0)] {
            assert!(!leads_out(target, depth), "{target:?}");
        }
    }
}
