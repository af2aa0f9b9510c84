//! How registries are spoken to.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::Credentials;

/// What the operator says about registries, and the caller about one pull.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where names without a host live; see [`Reference::parse`](crate::Reference::parse).
    pub default_registry: Option<String>,
    /// Registries that are answered for by another host than the one in references. Credentials kept under either name are
    /// used.
    pub aliases: BTreeMap<String, String>,
    /// `host` or `host:port` spoken to in plain HTTP. Loopback needs no mention: it is tried without TLS if it has none.
    pub insecure: Vec<String>,
    /// For the registry of the reference; these go before Docker's file.
    pub credentials: Option<Credentials>,
    /// Docker's `config.json`, read for every pull. Its credential helpers are not run.
    pub docker_config: Option<PathBuf>,
    /// One more PEM file of authorities.
    pub authority: Option<PathBuf>,
    /// What is refused before it is fetched.
    pub limits: ImageLimits,
    /// Layers fetched at once.
    pub parallel: usize,
    /// A connection that gives no byte for so long is given up.
    pub silence: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_registry: None,
            aliases: BTreeMap::new(),
            insecure: Vec::new(),
            credentials: None,
            docker_config: None,
            authority: None,
            limits: ImageLimits::default(),
            parallel: 4,
            silence: Duration::from_secs(30),
        }
    }
}

/// What an image may be before it is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// All of its parts together, compressed as they are.
    pub image_bytes: u64,
    /// How many layers.
    pub layers: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { image_bytes: 20 << 30, layers: 128 }
    }
}
