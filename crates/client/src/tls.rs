//! Whom an https server must be known by: this machine's authorities, and one more if the user names it.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::Error;

/// Makes ring the process's default for TLS, which every `reqwest` client of this build needs, also one that never speaks
/// it. Making a [`Client`](crate::Client) does it too.
pub fn use_ring() {
    // Somebody was faster: there is a default, and that is all that is wanted.
    let _ = ring::default_provider().install_default();
}

/// For a server that is spoken to in the clear there is nobody to know, and nothing to read.
pub(crate) fn config(secure: bool, authority: Option<&[u8]>) -> Result<ClientConfig, Error> {
    let invalid = |detail: String| Error::Invalid { detail };
    use_ring();
    let mut roots = RootCertStore::empty();
    if secure {
        // A machine may have some that nobody can read; what counts is whether the server's is among the others.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if let Some(pem) = authority {
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let wrong = |error: String| invalid(format!("the authority's certificate cannot be used: {error}"));
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            count += 1;
        }
        if count == 0 {
            return Err(invalid("the authority's file holds no certificate in PEM".into()));
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        assert!(config(false, None).is_ok());
        assert!(config(true, None).is_ok());
        assert!(config(true, Some(b"nothing of the kind")).is_err());
    }
}
