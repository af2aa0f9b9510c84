//! Files as a tar stream.
//!
//! The walk goes by descriptors, follows no symlink, and hands entries out by name, a directory before what is in it, so
//! that the same tree gives the same bytes. The tree may change meanwhile: what vanishes is left out, what becomes
//! shorter is filled with zeros and counted ([`Summary::changed`]), since one rotated log should not cost an export.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{self, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::MAX_NAME;
use crate::block::Fields;
use crate::error::Error;
use crate::ground::{self, DIRECTORY, Ground};
use crate::options::{Owner, Summary};
use crate::resolve;
use crate::unpack::is_kept;
use crate::write::{Item, Writer};

const BUFFER: usize = 128 * 1024;
/// Directories above the current one that stay open; those above them are opened again when the walk comes back.
const MAX_OPEN: usize = 64;
/// Pieces of a sparse file; what is behind them counts as data.
const MAX_PIECES: usize = 100_000;
/// What the kernel allows for all names, and for one value.
const MAX_XATTRS: usize = 64 * 1024;

/// Names and values.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// How a tree is packed.
pub struct Pack<'a> {
    /// Do not go into other mounts; their mount points are packed as empty directories.
    pub one_file_system: bool,
    /// What to leave out: hears the path below `what` and whether it is a directory, which is then not entered.
    pub skip: &'a dyn Fn(&Path, bool) -> bool,
    /// Whose the files are said to be.
    pub owner: Owner,
    /// If `what` itself is a symlink, pack what it names, inside the root, instead of the symlink.
    pub follow: bool,
}

impl Default for Pack<'_> {
    fn default() -> Self {
        Self { one_file_system: false, skip: &|_, _| false, owner: Owner::Archived, follow: false }
    }
}

impl std::fmt::Debug for Pack<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { one_file_system, skip: _, owner, follow } = self;
        f.debug_struct("Pack")
            .field("one_file_system", one_file_system)
            .field("owner", owner)
            .field("follow", follow)
            .finish_non_exhaustive()
    }
}

/// Packs `what`, a path below `root` whose parents are resolved inside of it. A directory gives `./` and its content,
/// anything else one entry under its own name. Sockets and device nodes are left out.
///
/// # Errors
/// [`Error::Missing`] if `what` is not there; [`Error::Write`]; [`Error::Entry`] for what cannot be read. The archive is
/// not ended then.
pub fn pack(root: &Path, what: &Path, writer: impl Write, options: &Pack<'_>) -> Result<Summary, Error> {
    let ground = Ground::open(root)?;
    let path = what.as_os_str().as_bytes();
    let path = if path.is_empty() { b"." } else { path };
    let nofollow = if options.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let failed = |error: Errno| match error {
        Errno::NOENT | Errno::NOTDIR => Error::Missing { path: what.to_owned() },
        error => Error::entry(path, "open", error),
    };
    let top = ground.resolve(path, OFlags::PATH | nofollow).map_err(failed)?;
    let stat = fs::fstat(&top).map_err(failed)?;
    let mut work = Work {
        writer: Writer::new(BufWriter::with_capacity(BUFFER, writer)),
        options,
        links: HashMap::new(),
        buffer: vec![0; BUFFER],
        summary: Summary::default(),
    };
    if ground::kind(&stat) == FileType::Directory {
        let top = fs::openat(&top, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        work.walk(&top)?;
    } else {
        let name = what.file_name().map(OsStr::as_bytes).ok_or_else(|| Error::Missing { path: what.to_owned() })?;
        if (options.skip)(Path::new(OsStr::from_bytes(name)), false) {
            work.finish()?;
            return Ok(work.summary);
        }
        let thing = Thing::At { top: top.as_fd(), ground: &ground, path };
        work.leaf(&thing, name, &stat)?;
    }
    work.finish()?;
    Ok(work.summary)
}

/// A directory that is being walked.
struct Level {
    /// Its path below the top; empty for the top.
    path: Vec<u8>,
    /// What is still to come, last first.
    names: Vec<Vec<u8>>,
    open: Option<OwnedFd>,
}

/// Where something that is not a directory is found.
enum Thing<'a> {
    /// In an open directory.
    In { parent: BorrowedFd<'a>, name: &'a [u8] },
    /// It is what was asked for.
    At { top: BorrowedFd<'a>, ground: &'a Ground, path: &'a [u8] },
}

impl Thing<'_> {
    fn open(&self) -> Result<OwnedFd, Errno> {
        // Does not wait for a fifo's writer, should it have become one.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match self {
            Self::In { parent, name } => fs::openat(parent, *name, flags | OFlags::NOFOLLOW, Mode::empty()),
            Self::At { ground, path, .. } => ground.resolve(path, flags),
        }
    }

    fn target(&self) -> Result<Vec<u8>, Errno> {
        let target = match self {
            Self::In { parent, name } => fs::readlinkat(parent, *name, Vec::new()),
            Self::At { top, .. } => fs::readlinkat(top, "", Vec::new()),
        };
        target.map(std::ffi::CString::into_bytes)
    }
}

struct Work<'a, W: Write> {
    writer: Writer<BufWriter<W>>,
    options: &'a Pack<'a>,
    /// Names of what has several, by device and inode.
    links: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    summary: Summary,
}

impl<W: Write> Work<'_, W> {
    fn walk(&mut self, top: &OwnedFd) -> Result<(), Error> {
        let failed = |error: Errno| Error::entry(b".", "read the directory", error);
        self.directory(top.as_fd(), b"")?;
        let first = Level { path: Vec::new(), names: listing(top.as_fd()).map_err(failed)?, open: None };
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let path = if level.path.is_empty() { name.clone() } else { [&level.path[..], b"/", &name].concat() };
            let failed = |error: Errno| Error::entry(&path, "read", error);
            let open = match level.open.take() {
                Some(open) => open,
                None => match again(top, &level.path) {
                    Ok(open) => open,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                        levels.pop();
                        continue;
                    }
                    Err(error) => return Err(failed(error)),
                },
            };
            let next = self.step(open.as_fd(), &name, &path)?;
            level.open = Some(open);
            if let Some(next) = next {
                levels.push(next);
                if let Some(above) = levels.len().checked_sub(MAX_OPEN) {
                    levels[above].open = None;
                }
            }
        }
        Ok(())
    }

    /// Packs one thing of a directory; if it is a directory to be entered, says what is in it.
    fn step(&mut self, parent: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Option<Level>, Error> {
        let failed = |error: Errno| Error::entry(path, "read", error);
        let Some(stat) = ground::look(parent, name).map_err(failed)? else { return Ok(None) };
        let is_directory = ground::kind(&stat) == FileType::Directory;
        if (self.options.skip)(Path::new(OsStr::from_bytes(path)), is_directory) {
            return Ok(None);
        }
        if path.len() > MAX_NAME {
            return Err(failed(Errno::NAMETOOLONG));
        }
        if !is_directory {
            self.leaf(&Thing::In { parent, name }, path, &stat)?;
            return Ok(None);
        }
        let (open, enter) = match resolve::beside(parent, name, !self.options.one_file_system) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        self.directory(open.as_fd(), path)?;
        if !enter {
            return Ok(None);
        }
        let names = listing(open.as_fd()).map_err(failed)?;
        Ok(Some(Level { path: path.to_vec(), names, open: Some(open) }))
    }

    fn directory(&mut self, directory: BorrowedFd<'_>, path: &[u8]) -> Result<(), Error> {
        let failed = |error: Errno| Error::entry(path, "read", error);
        let stat = fs::fstat(directory).map_err(failed)?;
        let xattrs = attributes(directory).map_err(failed)?;
        let name = if path.is_empty() { b"./".to_vec() } else { [path, b"/"].concat() };
        self.begin(&name, b'5', b"", &stat, 0, &xattrs, None)?;
        self.end()
    }

    /// Anything but a directory.
    fn leaf(&mut self, thing: &Thing<'_>, name: &[u8], stat: &Stat) -> Result<(), Error> {
        let failed = |error: Errno| Error::entry(name, "read", error);
        let kind = ground::kind(stat);
        if !matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Fifo) {
            self.summary.skipped += 1;
            return Ok(());
        }
        let inode = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(first) = self.links.get(&inode).cloned()
        {
            self.begin(name, b'1', &first, stat, 0, &[], None)?;
            return self.end();
        }
        let packed = match kind {
            FileType::Symlink => match thing.target() {
                Ok(target) => {
                    self.begin(name, b'2', &target, stat, 0, &[], None)?;
                    self.end()?;
                    true
                }
                Err(Errno::NOENT | Errno::INVAL) => false,
                Err(error) => return Err(failed(error)),
            },
            FileType::Fifo => {
                self.begin(name, b'6', b"", stat, 0, &[], None)?;
                self.end()?;
                true
            }
            _ => self.file(thing, name)?,
        };
        if packed && stat.st_nlink > 1 {
            self.links.insert(inode, name.to_vec());
        }
        Ok(())
    }

    /// A regular file; false if it is none any more.
    fn file(&mut self, thing: &Thing<'_>, name: &[u8]) -> Result<bool, Error> {
        let failed = |error: Errno| Error::entry(name, "read", error);
        let file = match thing.open() {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(false),
            Err(error) => return Err(failed(error)),
        };
        let stat = fs::fstat(&file).map_err(failed)?;
        if ground::kind(&stat) != FileType::RegularFile {
            return Ok(false);
        }
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let xattrs = attributes(file.as_fd()).map_err(failed)?;
        let pieces = if u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512) < size {
            data_of(file.as_fd(), size).map_err(failed)?
        } else {
            vec![(0, size)]
        };
        let whole = pieces == [(0, size)] || size == 0;
        self.begin(name, b'0', b"", &stat, size, &xattrs, (!whole).then_some(&pieces[..]))?;
        let file = File::from(file);
        let mut short = false;
        for (offset, length) in pieces {
            short |= self.piece(&file, name, offset, length)?;
        }
        self.end()?;
        self.summary.bytes += size;
        self.summary.changed += u64::from(short);
        Ok(true)
    }

    /// A piece of a file's data; true if the file ended before it did.
    fn piece(&mut self, file: &File, name: &[u8], offset: u64, length: u64) -> Result<bool, Error> {
        let (mut at, end) = (offset, offset + length);
        let mut short = false;
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
            let count = if short { 0 } else { read_at(file, &mut self.buffer[..wanted], at, name)? };
            if count == 0 {
                short = true;
                self.buffer[..wanted].fill(0);
            }
            let count = if short { wanted } else { count };
            self.writer.data(&self.buffer[..count]).map_err(|source| Error::Write { source })?;
            at += count as u64;
        }
        Ok(short)
    }

    #[allow(clippy::too_many_arguments)]
    fn begin(
        &mut self,
        name: &[u8],
        kind: u8,
        link: &[u8],
        stat: &Stat,
        size: u64,
        xattrs: &[(Vec<u8>, Vec<u8>)],
        pieces: Option<&[(u64, u64)]>,
    ) -> Result<(), Error> {
        let (uid, gid) = match self.options.owner {
            Owner::Archived => (stat.st_uid, stat.st_gid),
            Owner::Fixed { uid, gid } => (uid, gid),
        };
        let mode = stat.st_mode & 0o7777;
        let fields = Fields { name, kind, link, mode, uid: uid.into(), gid: gid.into(), size, mtime: stat.st_mtime };
        self.summary.entries += 1;
        self.writer.begin(&Item { fields, xattrs, pieces }).map_err(|source| Error::Write { source })
    }

    fn end(&mut self) -> Result<(), Error> {
        self.writer.end().map_err(|source| Error::Write { source })
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.writer.finish().map_err(|source| Error::Write { source })
    }
}

fn read_at(file: &File, into: &mut [u8], at: u64, name: &[u8]) -> Result<usize, Error> {
    loop {
        match file.read_at(into, at) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            done => return done.map_err(|error| Error::entry(name, "read", error)),
        }
    }
}

/// Opens a directory of the walk again, by its path.
fn again(top: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    resolve::plainly(top.as_fd(), path)
}

/// Names by order, last first, to be taken from the end.
fn listing(directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = ground::names(directory)?;
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// The attributes that go along, by name.
fn attributes(thing: BorrowedFd<'_>) -> Result<Attributes, Errno> {
    let mut names = Vec::with_capacity(1024);
    loop {
        match fs::flistxattr(thing, rustix::buffer::spare_capacity(&mut names)) {
            Ok(_) => break,
            Err(Errno::RANGE) if names.capacity() < MAX_XATTRS => names = Vec::with_capacity(MAX_XATTRS),
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    }
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        let mut value = Vec::with_capacity(MAX_XATTRS);
        match fs::fgetxattr(thing, name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => {
                value.shrink_to_fit();
                found.push((name.to_vec(), value));
            }
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Where a file with holes has data.
fn data_of(file: BorrowedFd<'_>, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            Err(Errno::NXIO) => break,
            // A file system that does not tell.
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(vec![(0, size)]),
            Err(error) => return Err(error),
        };
        if pieces.len() >= MAX_PIECES {
            pieces.push((start, size - start));
            break;
        }
        let end = fs::seek(file, SeekFrom::Hole(start))?.min(size);
        if end > start {
            pieces.push((start, end - start));
        }
        at = end.max(at + 1);
    }
    // As GNU tar does: a last hole is said by an empty piece at the end.
    if pieces.last().is_none_or(|(offset, length)| offset + length < size) {
        pieces.push((size, 0));
    }
    Ok(pieces)
}
