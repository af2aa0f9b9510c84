//! The certificate: read at the start, read again whenever its files change, or at SIGHUP.
//!
//! A pair that cannot be used is refused at the start; later it is logged, and the one before stays. Certificate and key are
//! two files, so between the two writes of whoever renews them they do not fit: that is logged too, and soon over.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("could not read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is nothing of the kind in it.
    #[error("{path} holds no {what} in PEM: {reason}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What should be there.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The two do not make a pair.
    #[error("the certificate {cert} and the key {key} cannot be used together")]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
}

/// The certificate in use.
pub(crate) struct Tls {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.cert).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Tls {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Tls {
    pub(crate) fn load(cert: &Path, key: &Path) -> Result<Arc<Self>, Error> {
        let current = RwLock::new(Arc::new(read_pair(cert, key)?));
        Ok(Arc::new(Self { cert: cert.to_owned(), key: key.to_owned(), current }))
    }

    /// HTTP/2 and HTTP/1.1, with whichever certificate is the current one when a client comes.
    pub(crate) fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, Error> {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| Error::Pair { cert: self.cert.clone(), key: self.key.clone(), source })?;
        let mut config = config.with_no_client_auth().with_cert_resolver(Arc::clone(self) as Arc<_>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Reads the files again when they change, until `stop`.
    pub(crate) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let mut hang_up = signal(SignalKind::hangup())
            .inspect_err(|error| warn!(%error, "cannot listen for SIGHUP: a changed certificate is found by looking"))
            .ok();
        let mut seen = self.stamps();
        loop {
            let asked = tokio::select! {
                () = stop.cancelled() => return,
                _ = async { hang_up.as_mut()?.recv().await }, if hang_up.is_some() => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            let now = self.stamps();
            if asked || now != seen {
                seen = now;
                let this = Arc::clone(&self);
                let _ = tokio::task::spawn_blocking(move || this.reload()).await;
            }
        }
    }

    fn reload(&self) {
        match read_pair(&self.cert, &self.key) {
            Ok(pair) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(pair);
                info!(cert = %self.cert.display(), "certificate read again");
            }
            Err(error) => {
                let reason = std::error::Error::source(&error).map_or_else(String::new, ToString::to_string);
                warn!(%error, reason, "the new certificate cannot be used, the one before stays");
            }
        }
    }

    /// What changes when the files do.
    fn stamps(&self) -> [Option<(SystemTime, u64)>; 2] {
        [&self.cert, &self.key].map(|path| {
            let about = fs::metadata(path).ok()?;
            Some((about.modified().ok()?, about.len()))
        })
    }
}

fn read_pair(cert: &Path, key: &Path) -> Result<CertifiedKey, Error> {
    let read = |path: &Path| fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source });
    let wrong = |path: &Path, what: &'static str, reason: String| Error::Pem { path: path.to_owned(), what, reason };
    let chain = CertificateDer::pem_slice_iter(&read(cert)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(cert, "certificate", error.to_string()))?;
    if chain.is_empty() {
        return Err(wrong(cert, "certificate", "it has none".to_owned()));
    }
    let secret =
        PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| wrong(key, "private key", error.to_string()))?;
    CertifiedKey::from_der(chain, secret, &ring::default_provider()).map_err(|source| Error::Pair {
        cert: cert.to_owned(),
        key: key.to_owned(),
        source,
    })
}
