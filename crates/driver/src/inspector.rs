//! Looking after what engines wrote and left, without being able to run one.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::{Error, Image, Place};

/// What kind of thing was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrayKind {
    /// The limits of an engine, and perhaps an engine in them.
    Cgroup,
    /// A uid that nobody runs under any more.
    Uid,
    /// Half of an engine or kernel that was being copied.
    HalfMade,
}

/// Something of an engine's that no [`Place`] leads to any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// What it is.
    pub kind: StrayKind,
    /// Where it is.
    pub path: PathBuf,
}

/// What can be known of engines and their images on a host where none may be usable: no probe, no copy, no kernel is needed
/// for it, and looking changes nothing.
#[async_trait]
pub trait Inspector: Send + Sync {
    /// As [`Driver::disk_file`](crate::Driver::disk_file).
    fn disk_file(&self) -> &'static str;

    /// Reads everything that an image consists of, bulk and own memory base (in `data`) too, and compares it with its
    /// account. Of a golden snapshot that it stands on only the length: that one has an account of its own.
    ///
    /// # Errors
    /// `Damaged` or `Unfit` if it is not what its account says.
    async fn verify(&self, data: &Path, dir: &Path, image: &Image) -> Result<(), Error>;

    /// Whether an engine lives in `place`.
    async fn lives(&self, place: &Place) -> Result<bool, Error>;

    /// What engines whose run directories were in `run` have left elsewhere.
    async fn strays(&self, run: &Path) -> Result<Vec<Stray>, Error>;

    /// Removes one of them. Fine if it is gone; one that is in use again stays.
    async fn remove(&self, stray: &Stray) -> Result<(), Error>;

    /// As [`Driver::reap`](crate::Driver::reap).
    async fn reap(&self, place: &Place) -> Result<(), Error>;
}
