//! The directory that a build takes its files from.
//!
//! Its content comes from a caller and is trusted with nothing: names are looked up below the directory only, symbolic
//! links are followed by hand and never out of it, and what is opened is opened without following any
//! (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`), so that a link put there meanwhile is an error.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use crate::action::CopyStep;
use crate::archive::Format;
use crate::error::Error;
use crate::ignore::{Ignore, MAX_LIST};
use crate::key::{Digest, Hasher};
use crate::walk::Selection;

/// A directory to copy from.
#[derive(Debug)]
pub struct Context {
    pub(crate) root: PathBuf,
    pub(crate) fd: OwnedFd,
    pub(crate) ignore: Ignore,
    /// Links that lead out are an error; otherwise the directory is their root, as in a stage's own tree.
    pub(crate) strict: bool,
}

/// Something of a context that is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Where it is in the context; free of symbolic links, except that it may be one.
    pub path: PathBuf,
    /// What it is called below the destination.
    pub name: PathBuf,
    /// What it is.
    pub kind: SelectedKind,
    /// Its permissions.
    pub mode: u32,
    /// Its length, if it is a file.
    pub size: u64,
    /// Whether it was named by a source itself, not found below one.
    pub(crate) top: bool,
}

/// What something selected is. Sockets, pipes and devices are not selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectedKind {
    /// A file.
    File,
    /// A directory; its content is selected beside it.
    Directory,
    /// A symbolic link, copied as one.
    Symlink,
    /// An archive whose entries are copied in its place.
    Archive(Format),
}

impl Context {
    /// Opens a build's context. What `<Dockerfile>.dockerignore`, or else `.dockerignore`, hides does not exist.
    ///
    /// # Errors
    /// The directory or the list cannot be read, or the list is wrong.
    pub fn open(dir: &Path, dockerfile: &Path) -> Result<Self, Error> {
        let mut context = Self::bare(dir)?;
        context.strict = true;
        let mut own = dir.join(dockerfile).into_os_string();
        own.push(".dockerignore");
        for path in [PathBuf::from(own), dir.join(".dockerignore")] {
            if let Some(text) = read_list(&path)? {
                context.ignore = Ignore::parse(&text, &path)?;
                break;
            }
        }
        Ok(context)
    }

    /// Opens a directory as the root of a stage or an image: nothing is hidden, and links are read as from inside.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn bare(dir: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(dir, flags, Mode::empty()).map_err(|why| Error::io("open directory", dir)(why.into()))?;
        Ok(Self { root: dir.to_owned(), fd, ignore: Ignore::default(), strict: false })
    }

    /// What a COPY or ADD takes from here, directories before what is in them. Errors have no line yet: see
    /// [`Error::with_line`].
    ///
    /// # Errors
    /// A source that is not there, that is hidden, or that leads out of the context; an archive of a format that is not
    /// known; several files for a destination that is not a directory.
    pub fn select(&self, copy: &CopyStep) -> Result<Vec<Selected>, Error> {
        let mut selection = Selection::new(self, &copy.excludes)?;
        selection.parents = copy.parents;
        for source in &copy.sources {
            selection.add(source)?;
        }
        let mut selected = selection.finish();
        if copy.unpack_archives {
            for one in selected.iter_mut().filter(|one| one.top && one.kind == SelectedKind::File) {
                if let Some(format) = Format::of(|| self.read(&one.path).map(|(file, _)| file), &one.path)? {
                    one.kind = SelectedKind::Archive(format);
                }
            }
        }
        copy.placement(&selected)?;
        Ok(selected)
    }

    /// The same for sources by themselves: nothing is unpacked, nothing is said about a destination.
    ///
    /// # Errors
    /// As [`Self::select`].
    pub fn select_paths(&self, sources: &[String], excludes: &[String]) -> Result<Vec<Selected>, Error> {
        let mut selection = Selection::new(self, excludes)?;
        for source in sources {
            selection.add(source)?;
        }
        Ok(selection.finish())
    }

    /// What was selected, by its content: names, kinds, permissions, link targets and bytes. Times do not count.
    ///
    /// # Errors
    /// A file that cannot be read, or that changed meanwhile.
    pub fn digest(&self, selected: &[Selected]) -> Result<Digest, Error> {
        let mut hasher = Hasher::new("context");
        let mut buffer = vec![0; 1 << 16];
        hasher.number(selected.len() as u64);
        for one in selected {
            hasher.bytes(one.name.as_os_str().as_encoded_bytes());
            hasher.number(u64::from(one.mode));
            match one.kind {
                SelectedKind::Directory => hasher.text("directory"),
                SelectedKind::Symlink => {
                    hasher.text("symlink");
                    hasher.bytes(&self.link(&one.path)?);
                }
                SelectedKind::File | SelectedKind::Archive(_) => {
                    hasher.text(if one.kind == SelectedKind::File { "file" } else { "archive" });
                    hasher.number(one.size);
                    let (file, _) = self.read(&one.path)?;
                    let mut file = file.take(one.size);
                    let mut left = one.size;
                    loop {
                        let count = file.read(&mut buffer).map_err(Error::io("read", &one.path))?;
                        if count == 0 {
                            break;
                        }
                        hasher.piece(&buffer[..count]);
                        left -= count as u64;
                    }
                    if left > 0 {
                        return Err(changed(&one.path));
                    }
                }
            }
        }
        Ok(Digest::finish(&hasher))
    }

    /// Opens a file, with its time of change.
    pub(crate) fn read(&self, path: &Path) -> Result<(File, i64), Error> {
        let fail = |why: rustix::io::Errno| Error::io("open", path)(why.into());
        let fd = rustix::fs::openat2(
            &self.fd,
            path,
            // Whatever stands there now, opening it must not wait for another side.
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        )
        .map_err(fail)?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(changed(path));
        }
        Ok((File::from(fd), stat.st_mtime))
    }

    /// Where a link points.
    pub(crate) fn link(&self, path: &Path) -> Result<Vec<u8>, Error> {
        rustix::fs::readlinkat(&self.fd, path, Vec::new())
            .map(std::ffi::CString::into_bytes)
            .map_err(|why| Error::io("read link", path)(why.into()))
    }
}

pub(crate) fn changed(path: &Path) -> Error {
    Error::source(path.to_string_lossy(), "it changed while it was read")
}

fn read_list(path: &Path) -> Result<Option<String>, Error> {
    let fd = match rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        Mode::empty(),
    ) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(why) => return Err(Error::io("open", path)(why.into())),
    };
    let mut bytes = Vec::new();
    File::from(fd).take(MAX_LIST + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    let wrong = |detail: &str| Error::Ignore { path: path.to_owned(), line: 1, detail: detail.to_owned() };
    if bytes.len() as u64 > MAX_LIST {
        return Err(wrong("the list is too long"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| wrong("the list is not UTF-8"))
}
