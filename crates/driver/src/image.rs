//! What a saved engine consists of.
//!
//! An [`Image`] is the driver's own account of the files that it wrote. It is kept in the sandbox's row (the one
//! database write that commits a suspend), so that what the files must be is known from a place that no engine can write.

use serde::{Deserialize, Serialize};

/// Which file the memory of a saved engine is a difference to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryBase {
    /// The memory file of a golden snapshot, by the snapshot's directory. Shared, never written.
    Golden(std::path::PathBuf),
    /// The sandbox's own `mem.base`.
    Own,
}

/// One file of an image, and what it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFile {
    /// Name inside the image's directory.
    pub name: String,
    /// Its exact length.
    pub bytes: u64,
    /// BLAKE3 of what is checked at every load: the whole of a small file, header and index of a bulk one.
    pub digest: String,
    /// BLAKE3 of the bulk (pages), for a background check; never on the way of a wake.
    pub bulk_digest: Option<String>,
}

/// A saved engine: golden snapshot or checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// [`EngineInfo::key`](crate::EngineInfo) of the engine that wrote it: it fits only this one.
    pub engine: String,
    /// What the files must be.
    pub files: Vec<ImageFile>,
    /// What the memory is a difference to; `None` in a golden snapshot, which is a base itself.
    pub base: Option<MemoryBase>,
    /// What only the driver understands.
    pub detail: serde_json::Value,
}

impl Image {
    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}
