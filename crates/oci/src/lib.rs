//! Users bring images. This crate gets them, from a registry or out of an archive, and lays them out as files; nothing in
//! them is believed before it is checked.
//!
//! ```text
//! Reference ── pull ──► manifest ► config ► layers, side by side ─┐
//!                                                                 ├─► Cache ── unpack ──► root/
//! file, directory ── open_archive ────────────────────────────────┘
//! ```
//!
//! What is promised: no byte gets into the cache under a name that it does not have; every size is bounded before it is
//! fetched, and every stream while it is read; no wait is without end; passwords go to the registry they are for (and to the
//! giver of tokens that it names), never along a redirect and never from https to http. A download that breaks goes on where
//! it broke, in this process or the next.
//!
//! The registry's protocol is spoken by a small client of our own on `reqwest`. `oci-client` was looked at: it reads manifests
//! and blobs without a bound and follows redirects from https to http. `oci-spec` was not needed for the few fields that are
//! read. What images share is shared: whoever may pull an image that names a layer by its digest gets the layer that is in the
//! cache, without that registry being asked for it again.

mod archive;
mod blob;
mod cache;
mod challenge;
mod config;
mod credentials;
mod decompress;
mod digest;
mod error;
mod guard;
mod manifest;
mod progress;
mod pull;
mod reference;
mod registry;
mod settings;
mod tls;
mod unpack;

pub use archive::open_archive;
pub use cache::{Cache, Swept};
pub use challenge::{Challenge, parse_challenges};
pub use config::{Config, Healthcheck, Platform, parse_config};
pub use credentials::Credentials;
pub use digest::{Digest, NoDigest};
pub use error::{Error, Fault};
pub use manifest::{Descriptor, Entry, Manifest, parse_manifest};
pub use progress::{Event, Phase, Progress};
pub use pull::pull;
pub use reference::Reference;
pub use settings::{ImageLimits, Settings};
pub use unpack::{Summary, unpack};

use serde::{Deserialize, Serialize};

/// An image whose layers are in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The reference with the digest that was found; of an archive, what the image is called there, or nothing.
    pub reference: String,
    /// Of its manifest; of an archive of `docker save`, of its configuration, as Docker does.
    pub digest: Digest,
    /// How it is run.
    pub config: Config,
    /// Lowest first.
    pub layers: Vec<Layer>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Of its bytes as they are stored, perhaps compressed.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
    /// Of the bytes uncompressed.
    pub diff_id: Digest,
}

impl Image {
    /// For messages.
    fn name(&self) -> String {
        if self.reference.is_empty() { self.digest.to_string() } else { self.reference.clone() }
    }
}

/// What a stream holds: itself, or what it was before gzip or zstd, as its first bytes say.
///
/// # Errors
/// If it cannot be read.
pub fn decompressed<R: std::io::Read>(reader: R) -> std::io::Result<impl std::io::Read + use<R>> {
    decompress::Decompressed::new(reader)
}

/// Files and hashes have no place on the runtime's threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime ends.
        Err(_) => Err(Error::Cancelled { image: "an image".into() }),
    }
}
