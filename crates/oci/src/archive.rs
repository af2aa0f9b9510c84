//! Images that come as a file or directory: what `docker save` writes, and OCI layouts.
//!
//! A file is unpacked into a scratch directory of the cache by the same careful hands that unpack layers, so both are read
//! as directories: every name from a manifest is resolved by the kernel beneath that directory and nowhere else. What the
//! image needs is hashed and moved into the cache; the rest goes with the scratch directory.

mod docker;
mod layout;
mod select;

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::cache::{copy, hash};
use crate::decompress::Decompressed;
use crate::guard::Guard;
use crate::manifest::DOCUMENT_MAX;
use crate::{Cache, Digest, Error, Event, Image, ImageLimits, Layer, Phase, Platform, Progress};

/// Files and links in an archive of an image: three for each layer at the most, and some.
const ENTRIES: u64 = 100_000;

/// Reads an image out of what `docker save` or an OCI tool wrote, as a tar archive (also compressed as a whole) or as a
/// directory, and puts its layers into the cache. An archive of several images needs the `tag` of one.
///
/// Blocks; give it a thread.
///
/// # Errors
/// [`Error::Archive`] if it is none or is damaged, [`Error::Choose`] with what there is, and those about an image.
pub fn open_archive(
    path: &Path,
    tag: Option<&str>,
    cache: &Cache,
    limits: &ImageLimits,
    platform: &Platform,
    progress: &dyn Progress,
) -> Result<Image, Error> {
    let scratch = cache.scratch()?;
    let wrong = |error: &io::Error| Error::Archive { path: path.into(), detail: error.to_string() };
    let metadata = fs::metadata(path).map_err(|error| wrong(&error))?;
    let (root, owned) = if metadata.is_dir() {
        (path.to_owned(), false)
    } else if !metadata.is_file() {
        // One that never ends, or that never begins.
        return Err(Error::Archive { path: path.into(), detail: "it is neither a file nor a directory".into() });
    } else {
        let root = scratch.path().join("tree");
        fs::create_dir(&root).map_err(Error::io("make", &root))?;
        let file = File::open(path).map_err(|error| wrong(&error))?;
        spread(path, file, &root, limits, progress)?;
        (root, true)
    };
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&root, flags, Mode::empty()).map_err(|error| wrong(&error.into()))?;
    let archive = Archive { path, scratch: scratch.path(), directory, owned, cache, limits, platform, progress };
    if let Some(index) = archive.small("index.json")? {
        layout::open(&archive, tag, &index)
    } else if let Some(manifest) = archive.small("manifest.json")? {
        docker::open(&archive, tag, &manifest)
    } else {
        Err(archive.damaged("it holds neither manifest.json of docker save nor index.json of an OCI layout"))
    }
}

/// Unpacks the archive itself.
fn spread(path: &Path, file: File, root: &Path, limits: &ImageLimits, progress: &dyn Progress) -> Result<(), Error> {
    let image = path.display().to_string();
    let damaged = |detail: String| Error::Archive { path: path.into(), detail };
    let too_large = |limit, unit| Error::TooLarge { image: image.clone(), what: "the content".into(), limit, unit };
    let inner = Decompressed::new(file).map_err(|error| damaged(error.to_string()))?;
    let cancelled = || progress.cancelled();
    let mut reader = Guard::new(inner, limits.image_bytes.saturating_add(ENTRIES * 1024), &cancelled);
    let options = wakeful_tree::Unpack {
        limits: wakeful_tree::Limits { bytes: limits.image_bytes, entries: ENTRIES },
        owner: wakeful_tree::Owner::Fixed {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        },
        mode: Some(0o700),
        ..Default::default()
    };
    let result = wakeful_tree::unpack(&mut reader, root, &options);
    if reader.cancelled() {
        return Err(Error::Cancelled { image });
    }
    match result {
        Ok(_) => Ok(()),
        Err(_) if reader.exceeded() => Err(too_large(limits.image_bytes, "bytes")),
        Err(wakeful_tree::Error::TooLarge { limit }) => Err(too_large(limit, "bytes")),
        Err(wakeful_tree::Error::TooMany { limit }) => Err(too_large(limit, "files")),
        Err(error) if error.fault() == wakeful_tree::Fault::Space => {
            Err(Error::io("unpack an archive in", root)(io::Error::from(io::ErrorKind::StorageFull)))
        }
        Err(error) => Err(damaged(crate::error::chain(&error))),
    }
}

struct Archive<'a> {
    path: &'a Path,
    scratch: &'a Path,
    directory: OwnedFd,
    /// It is our own copy, whose files may be moved away.
    owned: bool,
    cache: &'a Cache,
    limits: &'a ImageLimits,
    platform: &'a Platform,
    progress: &'a dyn Progress,
}

impl Archive<'_> {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn damaged(&self, detail: impl Into<String>) -> Error {
        Error::Archive { path: self.path.into(), detail: detail.into() }
    }

    /// A regular file by its name in the archive; symlinks are followed inside of it.
    fn open(&self, name: &str) -> Result<Option<File>, Error> {
        let wrong = |detail: &str| self.damaged(format!("{:?} {detail}", crate::error::tame(name)));
        let name = name.trim_start_matches("./");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = match rustix::fs::openat2(&self.directory, name, flags, Mode::empty(), resolve) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::XDEV | Errno::LOOP) => return Err(wrong("leads out of it")),
            Err(error) => return Err(wrong(&format!("cannot be opened: {}", io::Error::from(error)))),
        };
        let metadata = file.metadata().map_err(|error| wrong(&error.to_string()))?;
        if metadata.is_file() { Ok(Some(file)) } else { Err(wrong("is no file")) }
    }

    /// All of a document.
    fn small(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let Some(file) = self.open(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = file.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.damaged(error.to_string()))?;
        if bytes.len() as u64 > DOCUMENT_MAX {
            return Err(self.damaged(format!("{:?} is too long", crate::error::tame(name))));
        }
        Ok(Some(bytes))
    }

    fn missing(&self, what: impl Into<String>) -> Error {
        Error::Missing { image: self.name(), what: what.into() }
    }

    /// Takes a layer into the cache. What is there already is read all the same: whoever brings an archive gets what it
    /// holds, and nothing that only somebody else had.
    fn import(&self, name: &str, (number, count): (usize, usize)) -> Result<(Digest, u64), Error> {
        let what = format!("layer {number} of {count}");
        let mut file = self.open(name)?.ok_or_else(|| self.missing(&what))?;
        let broken = |error: io::Error| self.damaged(format!("{what} cannot be read: {error}"));
        let total = file.metadata().map_err(broken)?.len();
        let cancelled = || self.progress.cancelled();
        let mut reader = Guard::new(&mut file, self.limits.image_bytes, &cancelled);
        let place = self.scratch.join("layer");
        let _ = fs::remove_file(&place);
        let done = if self.owned {
            hash(&mut reader)
        } else {
            let mut into = File::create_new(&place).map_err(Error::io("make", &place))?;
            copy(&mut reader, &mut into)
        };
        let (exceeded, stopped) = (reader.exceeded(), reader.cancelled());
        let (digest, size) = match done {
            _ if stopped => return Err(Error::Cancelled { image: self.name() }),
            Err(_) if exceeded => {
                let limit = self.limits.image_bytes;
                return Err(Error::TooLarge { image: self.name(), what, limit, unit: "bytes" });
            }
            other => other.map_err(broken)?,
        };
        if !self.cache.has(&digest, size)? {
            if self.owned {
                self.link(&mut file, &place)?;
            }
            self.cache.adopt(&place, &digest)?;
        }
        let digest_text = digest.short();
        self.progress.event(Event {
            phase: Phase::Pull,
            layer: number,
            layers: count,
            digest: digest_text,
            done: size,
            total,
            cached: false,
        });
        Ok((digest, size))
    }

    /// One more name for an open file of ours; a copy where the file system has no such thing.
    fn link(&self, file: &mut File, place: &PathBuf) -> Result<(), Error> {
        let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        if rustix::fs::linkat(CWD, descriptor, CWD, place, AtFlags::SYMLINK_FOLLOW).is_ok() {
            return Ok(());
        }
        let copied = io::Seek::rewind(file).and_then(|()| {
            let mut into = File::create_new(place)?;
            io::copy(file, &mut into)
        });
        copied.map(drop).map_err(Error::io("copy a layer to", place))
    }

    /// Layers by name, each checked against what it should be if that is known.
    fn layers(&self, names: &[(String, Option<(Digest, u64)>)], diff_ids: Vec<Digest>) -> Result<Vec<Layer>, Error> {
        let count = names.len();
        if count != diff_ids.len() {
            let detail = format!("it has {count} layers, and its configuration speaks of {}", diff_ids.len());
            return Err(Error::Malformed { image: self.name(), detail });
        }
        let mut layers = Vec::with_capacity(count);
        let mut sum = 0u64;
        for (index, ((name, expected), diff_id)) in names.iter().zip(diff_ids).enumerate() {
            let (digest, size) = self.import(name, (index + 1, count))?;
            if let Some((expected, expected_size)) = expected {
                let what = format!("layer {} of {count}", index + 1);
                if size != *expected_size {
                    return Err(Error::WrongSize { image: self.name(), what, expected: *expected_size, got: size });
                }
                if digest != *expected {
                    return Err(Error::WrongDigest {
                        image: self.name(),
                        what,
                        expected: expected.clone(),
                        got: digest,
                    });
                }
            }
            sum = sum.saturating_add(size);
            if sum > self.limits.image_bytes {
                let limit = self.limits.image_bytes;
                return Err(Error::TooLarge { image: self.name(), what: "the content".into(), limit, unit: "bytes" });
            }
            layers.push(Layer { digest, size, diff_id });
        }
        Ok(layers)
    }
}
