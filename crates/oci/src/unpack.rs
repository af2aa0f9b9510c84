//! An image's layers, one over the other, as a tree of files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::decompress::Decompressed;
use crate::error::chain;
use crate::guard::Guard;
use crate::{Cache, Digest, Error, Event, Image, Layer, Phase, Progress};

/// What was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many layers.
    pub layers: usize,
    /// Their files, directories and links, also those that a later layer removed.
    pub entries: u64,
    /// The content of the files.
    pub bytes: u64,
    /// Device nodes and sockets, which are left out.
    pub skipped: u64,
}

/// What an entry may take in the stream beside its content: its header, the long names before it, padding.
const OVERHEAD: u64 = 4096;
/// How much of a layer is read between two words about it.
const TELL: u64 = 1 << 20;

/// Lays the layers into `root`, which should be empty. The limits are for all of them together, and each must be, unpacked,
/// what the image's configuration says. After an error `root` holds what came before it: throw it away.
///
/// Blocks; give it a thread.
///
/// # Errors
/// Which layer, and what is wrong with it. A layer that was damaged in the cache is removed from it, so that the next pull
/// fetches it again.
pub fn unpack(
    image: &Image,
    cache: &Cache,
    root: &Path,
    limits: wakeful_tree::Limits,
    progress: &dyn Progress,
) -> Result<Summary, Error> {
    let mut sum = Summary { layers: image.layers.len(), ..Summary::default() };
    for (index, layer) in image.layers.iter().enumerate() {
        let work = Work { image, cache, number: index + 1, layer, limits, progress };
        let left = wakeful_tree::Limits {
            bytes: limits.bytes.saturating_sub(sum.bytes),
            entries: limits.entries.saturating_sub(sum.entries),
        };
        let done = work.run(root, left)?;
        sum.entries += done.entries;
        sum.bytes += done.bytes;
        sum.skipped += done.skipped;
    }
    Ok(sum)
}

struct Work<'a> {
    image: &'a Image,
    cache: &'a Cache,
    number: usize,
    layer: &'a Layer,
    limits: wakeful_tree::Limits,
    progress: &'a dyn Progress,
}

impl Work<'_> {
    fn run(&self, root: &Path, left: wakeful_tree::Limits) -> Result<wakeful_tree::Summary, Error> {
        let Some(file) = self.cache.blob(&self.layer.digest)? else {
            return Err(Error::Missing { image: self.name(), what: self.what() });
        };
        let cancelled = || self.progress.cancelled();
        let stored = Told { file, work: self, done: 0, told: 0 };
        self.tell(0);
        let raw = left.bytes.saturating_add(left.entries.saturating_mul(OVERHEAD)).saturating_add(1 << 20);
        let inner = Decompressed::new(stored).map_err(|error| self.damaged(error.to_string()))?;
        let mut reader = Hashed { inner: Guard::new(inner, raw, &cancelled), hasher: Sha256::new() };
        let options = wakeful_tree::Unpack {
            limits: left,
            whiteouts: wakeful_tree::Whiteouts::Apply,
            owner: wakeful_tree::Owner::Archived,
            open_end: true,
            ..Default::default()
        };
        let result = wakeful_tree::unpack(&mut reader, root, &options);
        // An archive ends before its stream does, and the digest is that of the stream.
        let rest = if result.is_ok() { io::copy(&mut reader, &mut io::sink()).map(drop) } else { Ok(()) };
        let guard = &reader.inner;
        if guard.cancelled() {
            return Err(Error::Cancelled { image: self.name() });
        }
        if guard.exceeded() {
            return Err(self.too_large(self.limits.bytes, "bytes"));
        }
        if let Some(detail) = guard.failed() {
            return Err(self.suspect(|| self.damaged(detail.to_owned())));
        }
        let summary = match result {
            Ok(summary) => summary,
            Err(wakeful_tree::Error::TooLarge { .. }) => return Err(self.too_large(self.limits.bytes, "bytes")),
            Err(wakeful_tree::Error::TooMany { .. }) => return Err(self.too_large(self.limits.entries, "entries")),
            Err(error) => {
                let archive = error.fault() == wakeful_tree::Fault::Archive;
                let error = self.failed(&error);
                return Err(if archive { self.suspect(|| error) } else { error });
            }
        };
        rest.map_err(|error| self.damaged(error.to_string()))?;
        let got = Digest::from_hasher(reader.hasher);
        if got != self.layer.diff_id {
            let (what, expected) = (format!("{}, unpacked,", self.what()), self.layer.diff_id.clone());
            return Err(self.suspect(|| Error::WrongDigest { image: self.name(), what, expected, got }));
        }
        self.tell(self.layer.size);
        Ok(summary)
    }

    fn name(&self) -> String {
        self.image.name()
    }

    fn count(&self) -> usize {
        self.image.layers.len()
    }

    fn what(&self) -> String {
        format!("layer {} of {} ({})", self.number, self.count(), self.layer.digest.short())
    }

    fn too_large(&self, limit: u64, unit: &'static str) -> Error {
        Error::TooLarge { image: self.name(), what: "the unpacked content".into(), limit, unit }
    }

    fn damaged(&self, detail: String) -> Error {
        let digest = self.layer.digest.short().into();
        Error::Damaged { image: self.name(), number: self.number, count: self.count(), digest, detail }
    }

    fn failed(&self, error: &wakeful_tree::Error) -> Error {
        let digest = self.layer.digest.short().into();
        let detail = chain(error);
        Error::Layer {
            image: self.name(),
            number: self.number,
            count: self.count(),
            digest,
            fault: error.fault(),
            detail,
        }
    }

    /// The image's fault, or that of the disk the cache is on.
    fn suspect(&self, otherwise: impl FnOnce() -> Error) -> Error {
        match self.cache.damaged(&self.layer.digest) {
            Ok(true) => self.damaged("its copy in the cache was spoilt and is removed, get the image again".into()),
            Ok(false) => otherwise(),
            Err(error) => error,
        }
    }

    fn tell(&self, done: u64) {
        self.progress.event(Event {
            phase: Phase::Unpack,
            layer: self.number,
            layers: self.count(),
            digest: self.layer.digest.short(),
            done,
            total: self.layer.size,
            cached: false,
        });
    }
}

/// The stored layer; tells how far it is read.
struct Told<'a> {
    file: File,
    work: &'a Work<'a>,
    done: u64,
    told: u64,
}

impl Read for Told<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.done += read as u64;
        if self.done >= self.told + TELL {
            self.told = self.done;
            self.work.tell(self.done);
        }
        Ok(read)
    }
}

struct Hashed<R> {
    inner: R,
    hasher: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
