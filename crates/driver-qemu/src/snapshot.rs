//! Images on disk: written by a stopped engine, checked before another one loads them.
//!
//! ```text
//!   golden       mem (the memory itself)   overlay.ext4   dev.state
//!   checkpoint   dev.state   mem.diff      over golden/mem or the sandbox's own mem.base
//! ```
//!
//! The engine writes no file here: device state goes through memory, and pages are taken from outside. So whatever an
//! engine does, an image's files are ours, a full disk is found by us, and what is loaded is byte for byte what was
//! checked.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use wakeful_driver::{Error, Image, ImageFile, Machine, MemoryBase};
use wakeful_sys::copy;
use wakeful_sys::pages::{self, Method, PAGE};

use crate::diff::{self, Diff};
use crate::engines::Pinned;
use crate::jail::Jail;
use crate::place::{self, Memory, Record};
use wakeful_confine::files;
use wakeful_confine::process::Process;

pub(crate) const STATE: &str = "dev.state";
pub(crate) const PAGES: &str = "mem.diff";
pub(crate) const OVERLAY: &str = "overlay.ext4";
/// Device state has some 20 KB; far more is none.
const LARGEST_STATE: u64 = 64 << 20;

/// What the driver writes into [`Image::detail`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detail {
    /// Name of the kept engine that can load it.
    pub(crate) engine: String,
    pub(crate) accel: String,
    pub(crate) machine: Machine,
    /// Bulk digest of the sandbox's own base, if it stands on one. Images of before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) own_base: Option<String>,
}

impl Detail {
    pub(crate) fn of(image: &Image) -> Result<Self, Error> {
        serde_json::from_value(image.detail.clone())
            .map_err(|error| Error::Unfit { reason: format!("its account cannot be understood: {error}") })
    }
}

/// Files that go away again unless they are kept.
#[derive(Debug, Default)]
pub(crate) struct Made(Vec<PathBuf>);

impl Made {
    pub(crate) fn create(&mut self, path: PathBuf) -> io::Result<File> {
        let file = files::create_new(&path)?;
        self.0.push(path);
        Ok(file)
    }

    pub(crate) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// A file in memory, and the same file for writing only: an engine insists on exactly that.
pub(crate) fn memory_file() -> io::Result<(File, File)> {
    let file = File::from(rustix::fs::memfd_create("device-state", MemfdFlags::CLOEXEC)?);
    let writer = File::options().write(true).open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?;
    Ok((file, writer))
}

/// What is written, and by whom.
pub(crate) struct Saving {
    pub(crate) process: Arc<Process>,
    pub(crate) record: Record,
    pub(crate) data: PathBuf,
    pub(crate) into: PathBuf,
    /// The device state that the engine has written.
    pub(crate) state: File,
    pub(crate) jail: Jail,
    pub(crate) engine: Pinned,
}

impl Saving {
    /// Writes and syncs everything but the overlay. Blocks.
    pub(crate) fn write(mut self) -> Result<(Made, Image), Error> {
        let failed = |source| Error::io("save the engine", source);
        let mut made = Made::default();
        let mut image = Image {
            engine: self.record.key.clone(),
            files: vec![self.write_state(&mut made).map_err(failed)?],
            base: None,
            detail: serde_json::to_value(Detail {
                engine: self.record.engine.clone(),
                accel: self.record.accel.clone(),
                machine: self.record.machine,
                own_base: self.record.memory_digest.clone(),
            })
            .map_err(|error| failed(error.into()))?,
        };
        match self.record.memory.clone() {
            Memory::Shared => image.files.extend(self.golden().map_err(failed)?),
            Memory::Private(base) => {
                image.files.push(self.write_pages(&mut made).map_err(failed)?);
                image.base = Some(base);
            }
        }
        files::sync_dir(&self.into).map_err(failed)?;
        if self.process.has_ended() {
            // What was read may be anything then.
            return Err(Error::Ended { doing: "save the engine", output: String::new() });
        }
        Ok((made, image))
    }

    fn write_state(&mut self, made: &mut Made) -> io::Result<ImageFile> {
        let mut state = Vec::new();
        self.state.rewind()?;
        Read::by_ref(&mut self.state).take(LARGEST_STATE + 1).read_to_end(&mut state)?;
        if state.is_empty() || state.len() as u64 > LARGEST_STATE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the engine's device state has no sensible length"));
        }
        let mut file = made.create(self.into.join(STATE))?;
        file.write_all(&state)?;
        file.sync_all()?;
        let digest = blake3::hash(&state).to_hex().to_string();
        Ok(ImageFile { name: STATE.to_owned(), bytes: state.len() as u64, digest, bulk_digest: None })
    }

    fn write_pages(&self, made: &mut Made) -> io::Result<ImageFile> {
        let (pid, bytes) = (self.process.pid(), self.record.memory_bytes);
        let mappings = pages::private_mappings(pid, self.record.memory_inode, bytes)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the engine does not map its memory's base"))?;
        let mut file = made.create(self.into.join(PAGES))?;
        let account = diff::write(pid, &mappings, Method::Best, bytes, &mut file, PAGES)?;
        file.sync_all()?;
        Ok(account)
    }

    /// Memory and disk of a golden snapshot are there already; from here on the memory is nobody's to write.
    fn golden(&self) -> io::Result<Vec<ImageFile>> {
        let memory = files::open_regular(&self.data.join("mem"), false)?;
        let overlay = files::open_regular(&self.data.join(OVERLAY), false)?;
        memory.sync_all()?;
        self.jail.seal(&memory, &self.engine)?;
        memory.sync_all()?;
        Ok(vec![bulk_account("mem", &memory, &|| true)?, bulk_account(OVERLAY, &overlay, &|| true)?])
    }
}

/// A large sparse file: nothing of it is checked at a load but its length. Its bulk digest is over number and content of
/// every page that is not all zeroes, so that it does not depend on where the holes are. `go_on` is asked now and then.
fn bulk_account(name: &str, file: &File, go_on: &dyn Fn() -> bool) -> io::Result<ImageFile> {
    let bytes = file.metadata()?.len();
    let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; 1 << 20]);
    copy::for_each_extent(file, bytes, |start, end| {
        let mut at = start / PAGE * PAGE;
        while at < end {
            if !go_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let wanted = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(buffer.len());
            let part = wanted.min(usize::try_from((end - at).next_multiple_of(PAGE)).unwrap_or(wanted));
            file.read_exact_at(&mut buffer[..part], at)?;
            for page in buffer[..part].chunks(PAGE as usize) {
                if !diff::is_zero(page) {
                    hasher.update(&(at / PAGE).to_le_bytes()).update(page);
                }
                at += page.len() as u64;
            }
        }
        Ok(())
    })?;
    let bulk_digest = Some(hasher.finalize().to_hex().to_string());
    Ok(ImageFile { name: name.to_owned(), bytes, digest: digest_of_nothing(), bulk_digest })
}

/// Also the bulk digest of a file that is nothing but a hole.
pub(crate) fn digest_of_nothing() -> String {
    blake3::hash(&[]).to_hex().to_string()
}

fn account<'a>(image: &'a Image, name: &str) -> Option<&'a ImageFile> {
    image.files.iter().find(|file| file.name == name)
}

fn damaged(file: &str, reason: impl Into<Box<dyn std::error::Error>>) -> Error {
    Error::Damaged { file: file.to_owned(), reason: reason.into().to_string() }
}

/// Opens a file that an image's account names.
fn open_listed(dir: &Path, name: &str) -> Result<File, Error> {
    files::open_regular(&dir.join(name), false).map_err(|error| damaged(name, error))
}

/// The device state, checked, as a file in memory for reading only: what is loaded is what was checked.
pub(crate) fn open_state(dir: &Path, image: &Image) -> Result<File, Error> {
    let account = account(image, STATE).ok_or_else(|| damaged(STATE, "the account does not name it"))?;
    let file = open_listed(dir, STATE)?;
    let length = file.metadata().map_err(|error| damaged(STATE, error))?.len();
    if length != account.bytes || length > LARGEST_STATE {
        return Err(damaged(STATE, "its length is wrong"));
    }
    let mut state = vec![0; usize::try_from(length).map_err(|_| damaged(STATE, "it is too long"))?];
    file.read_exact_at(&mut state, 0).map_err(|error| damaged(STATE, error))?;
    if blake3::hash(&state).to_hex().as_str() != account.digest {
        return Err(damaged(STATE, "its digest is wrong"));
    }
    let failed = |source| Error::io("hand device state to the engine", source);
    let (memory, mut writer) = memory_file().map_err(failed)?;
    writer.write_all(&state).map_err(failed)?;
    File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).map_err(failed)
}

/// The pages of a checkpoint, checked; `None` if it has none because they are in its base.
pub(crate) fn open_pages(dir: &Path, image: &Image, base_size: u64) -> Result<Option<Diff>, Error> {
    let Some(account) = account(image, PAGES) else { return Ok(None) };
    let file = open_listed(dir, PAGES)?;
    Diff::open(file, account, base_size).map(Some).map_err(|error| damaged(PAGES, error))
}

/// The memory file that an image is over, with the length that the machine's memory has.
pub(crate) fn open_memory(path: &Path, memory_mb: u32) -> Result<(File, u64), Error> {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let file = files::open_regular(path, false).map_err(|error| damaged(&name, error))?;
    let length = file.metadata().map_err(|error| damaged(&name, error))?.len();
    if length != u64::from(memory_mb) << 20 {
        return Err(damaged(&name, "its length is not that of the machine's memory"));
    }
    Ok((file, length))
}

/// Makes an empty base for a boot: nothing but a hole.
pub(crate) fn fresh_base(data: &Path, memory_mb: u32) -> io::Result<File> {
    let (mut made, new) = (Made::default(), data.join("mem.base.new"));
    files::absent_is_fine(fs::remove_file(&new))?;
    let file = made.create(new.clone())?;
    file.set_len(u64::from(memory_mb) << 20)?;
    fs::rename(&new, data.join("mem.base"))?;
    made.keep();
    Ok(file)
}

/// Whether a compaction shall go on; the rename is done under the same lock, so that a cancelled one never comes late.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancelled(Arc<Mutex<bool>>);

impl Cancelled {
    fn is_set(&self) -> bool {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unless_set<T>(&self, then: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *set { Err(io::ErrorKind::Interrupted.into()) } else { then() }
    }
}

/// Cancels when it is dropped.
pub(crate) struct CancelOnDrop(pub(crate) Cancelled);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// New base = copy of the old one + pages. Nobody maps the new file before it has its name. Blocks.
pub(crate) fn compact(data: &Path, checkpoint: &Path, image: &Image, cancelled: &Cancelled) -> Result<Image, Error> {
    let failed = |source| Error::io("compact a checkpoint", source);
    let base =
        image.base.as_ref().ok_or_else(|| Error::Unfit { reason: "a golden snapshot is no checkpoint".into() })?;
    let old_path = place::base_path(base, data);
    let old = files::open_regular(&old_path, false).map_err(|error| damaged("mem.base", error))?;
    let size = old.metadata().map_err(failed)?.len();
    let Some(diff) = open_pages(checkpoint, image, size)? else { return Ok(image.clone()) };
    let (mut made, new) = (Made::default(), data.join("mem.base.new"));
    files::absent_is_fine(fs::remove_file(&new)).map_err(failed)?;
    let file = made.create(new.clone()).map_err(failed)?;
    copy::sparse_copy(&old, &file).map_err(failed)?;
    let go_on = || !cancelled.is_set();
    diff.apply(&file, &go_on).map_err(failed)?;
    let own_base = bulk_account("mem.base", &file, &go_on).map_err(failed)?.bulk_digest;
    let detail = Detail { own_base, ..Detail::of(image)? };
    file.sync_all().map_err(failed)?;
    cancelled.unless_set(|| fs::rename(&new, data.join("mem.base"))).map_err(failed)?;
    made.keep();
    files::sync_dir(data).map_err(failed)?;
    Ok(Image {
        engine: image.engine.clone(),
        files: image.files.iter().filter(|file| file.name != PAGES).cloned().collect(),
        base: Some(MemoryBase::Own),
        detail: serde_json::to_value(detail).map_err(|error| failed(error.into()))?,
    })
}

/// Reads all of an image and compares it with its account. Blocks.
pub(crate) fn verify(data: &Path, dir: &Path, image: &Image) -> Result<(), Error> {
    let detail = Detail::of(image)?;
    let size = u64::from(detail.machine.memory_mb) << 20;
    let bulk = |name: &str, file: &File, expected: &str| match bulk_account(name, file, &|| true) {
        Ok(found) if found.bulk_digest.as_deref() == Some(expected) => Ok(()),
        Ok(_) => Err(damaged(name, "the digest of its content is wrong")),
        Err(error) => Err(damaged(name, error)),
    };
    open_state(dir, image)?;
    if let Some(pages) = open_pages(dir, image, size)? {
        let expected = account(image, PAGES).and_then(|account| account.bulk_digest.as_deref());
        let found = pages.bulk_digest().map_err(|error| damaged(PAGES, error))?;
        if expected.is_some_and(|expected| expected != found) {
            return Err(damaged(PAGES, "the digest of its pages is wrong"));
        }
    }
    match &image.base {
        Some(base) => {
            let (file, _) = open_memory(&place::base_path(base, data), detail.machine.memory_mb)?;
            if let (MemoryBase::Own, Some(expected)) = (base, &detail.own_base) {
                bulk("mem.base", &file, expected)?;
            }
        }
        None => {
            for name in ["mem", OVERLAY] {
                let account = account(image, name).ok_or_else(|| damaged(name, "the account does not name it"))?;
                let file = open_listed(dir, name)?;
                if file.metadata().map_err(|error| damaged(name, error))?.len() != account.bytes {
                    return Err(damaged(name, "its length is wrong"));
                }
                if let Some(expected) = &account.bulk_digest {
                    bulk(name, &file, expected)?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(files: Vec<ImageFile>) -> Image {
        Image { engine: String::new(), files, base: None, detail: serde_json::Value::Null }
    }

    #[test]
    fn state_is_checked_before_it_is_handed_over() {
        let dir = tempfile::tempdir().expect("can be made");
        let state = vec![7u8; 20_000];
        fs::write(dir.path().join(STATE), &state).expect("can be written");
        let digest = blake3::hash(&state).to_hex().to_string();
        let good = ImageFile { name: STATE.into(), bytes: 20_000, digest, bulk_digest: None };
        let mut file = open_state(dir.path(), &image(vec![good.clone()])).expect("is sound");
        let mut read = Vec::new();
        file.read_to_end(&mut read).expect("can be read");
        assert_eq!(read, state);
        assert!(file.write_all(b"x").is_err(), "for reading only");

        let is_damaged = |files| matches!(open_state(dir.path(), &image(files)), Err(Error::Damaged { .. }));
        assert!(is_damaged(vec![]));
        assert!(is_damaged(vec![ImageFile { bytes: 20_001, ..good.clone() }]));
        assert!(is_damaged(vec![ImageFile { digest: "0".into(), ..good.clone() }]));
        fs::remove_file(dir.path().join(STATE)).expect("is there");
        assert!(is_damaged(vec![good]));
    }

    #[test]
    fn the_digest_of_a_sparse_file_does_not_depend_on_its_holes() {
        let (sparse, full) = (tempfile::tempfile().expect("can be made"), tempfile::tempfile().expect("can be made"));
        full.write_all_at(&vec![0; 3 << 20], 0).expect("can be written");
        sparse.set_len(3 << 20).expect("can be resized");
        for file in [&sparse, &full] {
            file.write_all_at(b"here", 5000).expect("can be written");
            file.write_all_at(b"and here", (3 << 20) - 8).expect("can be written");
        }
        let account = |file| bulk_account("a", file, &|| true).expect("can be read");
        let (a, b) = (account(&sparse), account(&full));
        assert_eq!(a, b);
        full.write_all_at(b"H", 5000).expect("can be written");
        assert_ne!(a, account(&full));
        assert!(bulk_account("a", &full, &|| false).is_err(), "a cancelled one stops");
        let hole = tempfile::tempfile().expect("can be made");
        hole.set_len(3 << 20).expect("can be resized");
        assert_eq!(account(&hole).bulk_digest, Some(digest_of_nothing()));
    }
}
