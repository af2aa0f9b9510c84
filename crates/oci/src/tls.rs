//! Whom a registry must be known by: this machine's authorities, and one more if the operator names it.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::Error;

pub(crate) fn config(authority: Option<&Path>) -> Result<ClientConfig, Error> {
    // `reqwest` without a provider of its own wants a default for the process; somebody else may have been faster.
    let _ = ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    // A machine may have some that nobody can read; what counts is whether the registry's is among the others.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = authority {
        let wrong = |detail: String| Error::Settings { detail: format!("{}: {detail}", path.display()) };
        let mut count = 0;
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            count += 1;
        }
        if count == 0 {
            return Err(wrong("it holds no certificate in PEM".into()));
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Settings { detail: error.to_string() })?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
