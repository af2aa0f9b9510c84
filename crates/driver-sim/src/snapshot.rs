//! Saved memory: two small files that say what a large one would.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use wakeful_driver::{Error, Image, ImageFile, MemoryBase};

use crate::process::Memory;

/// Holds the image's number.
const STATE: &str = "dev.state";
/// Holds the memory.
const PAGES: &str = "mem.diff";
/// Holds the memory after a compaction.
pub(crate) const BASE: &str = "mem.base";
/// What the pages take, without taking it: enough to be worth a compaction.
const PAGES_LENGTH: u64 = 64 << 20;
/// The part of them that says something.
const HEAD: usize = 512;

/// What an image holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) number: u64,
    pub(crate) memory: Memory,
    /// The disk's size as far as the guest knows.
    pub(crate) disk_mb: u32,
}

pub(crate) fn write(into: &Path, engine: &str, base: Option<MemoryBase>, saved: &Saved) -> Result<Image, Error> {
    let text = serde_json::to_vec(saved).expect("plain data");
    let written = (|| {
        std::fs::write(into.join(STATE), &text)?;
        let pages = std::fs::File::create(into.join(PAGES))?;
        io::Write::write_all(&mut &pages, &text)?;
        pages.set_len(PAGES_LENGTH)
    })();
    written.map_err(|source| Error::io("write an image", source))?;
    let file = |name: &str, bytes| ImageFile {
        name: name.to_owned(),
        bytes,
        digest: blake3::hash(&text).to_hex().to_string(),
        bulk_digest: None,
    };
    let files = vec![file(STATE, text.len() as u64), file(PAGES, PAGES_LENGTH)];
    Ok(Image { engine: engine.to_owned(), files, base, detail: serde_json::Value::Null })
}

/// What the image holds, if its files are what its account says.
pub(crate) fn read(dir: &Path, data: &Path, engine: &str, image: &Image) -> Result<Saved, Error> {
    if image.engine != engine {
        return Err(Error::Unfit { reason: format!("it was written by {}", image.engine) });
    }
    let mut saved = None;
    for file in &image.files {
        let meta = std::fs::symlink_metadata(dir.join(&file.name)).map_err(|error| damaged(&file.name, &error))?;
        if !meta.is_file() || meta.len() != file.bytes {
            return Err(damaged(&file.name, &"it is no file of this length"));
        }
        let text = head(&dir.join(&file.name)).map_err(|error| damaged(&file.name, &error))?;
        if blake3::hash(&text).to_hex().as_str() != file.digest {
            return Err(damaged(&file.name, &"its digest is another"));
        }
        saved = serde_json::from_slice(&text).ok();
    }
    if image.files.iter().all(|file| file.name != PAGES) && image.base == Some(MemoryBase::Own) {
        let text = head(&data.join(BASE)).map_err(|error| damaged(BASE, &error))?;
        saved = serde_json::from_slice(&text).ok();
    }
    saved.ok_or_else(|| damaged(PAGES, &"it holds nothing"))
}

fn damaged(file: &str, reason: &dyn std::fmt::Display) -> Error {
    Error::Damaged { file: file.to_owned(), reason: reason.to_string() }
}

/// What is before the holes.
fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD];
    let n = io::Read::read(&mut std::fs::File::open(path)?, &mut bytes)?;
    bytes.truncate(n);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    Ok(bytes)
}

/// The memory becomes a base of the sandbox's own.
pub(crate) fn compact(dir: &Path, data: &Path, image: &Image) -> Result<Image, Error> {
    let folded = (|| {
        let text = head(&dir.join(PAGES))?;
        std::fs::write(data.join("mem.base.new"), text)?;
        std::fs::rename(data.join("mem.base.new"), data.join(BASE))
    })();
    folded.map_err(|source| Error::io("compact an image", source))?;
    let files = image.files.iter().filter(|file| file.name != PAGES).cloned().collect();
    Ok(Image { files, base: Some(MemoryBase::Own), ..image.clone() })
}
