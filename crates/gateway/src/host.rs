//! `<port>-<bare id>.<domain>`.

use wakeful_model::SandboxId;

/// What a host name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A port of a sandbox.
    Preview {
        /// The sandbox.
        id: SandboxId,
        /// The port.
        port: u16,
    },
    /// It looks like one, and there can be none of this name.
    NoPreview,
    /// Something else.
    Other,
}

impl Host {
    /// Reads `host[:port]` as clients send it.
    #[must_use]
    pub fn read(host: &str, domain: &str) -> Self {
        let name = host.split_once(':').map_or(host, |(name, _)| name);
        let name = name.strip_suffix('.').unwrap_or(name);
        let Some(at) = name.len().checked_sub(domain.len() + 1) else { return Self::Other };
        if domain.is_empty() || !name.is_char_boundary(at) || !name.is_char_boundary(at + 1) {
            return Self::Other;
        }
        if name.as_bytes()[at] != b'.' || !name[at + 1..].eq_ignore_ascii_case(domain) {
            return Self::Other;
        }
        // Only the innermost name counts: what stands before it could be anybody's idea of a name below a preview.
        let label = name[..at].rsplit('.').next().unwrap_or("").to_ascii_lowercase();
        let Some((port, id)) = label.split_once('-') else { return Self::Other };
        if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Self::Other;
        }
        if label.len() != at || port.starts_with('0') {
            return Self::NoPreview;
        }
        match (port.parse(), format!("sbx_{id}").parse()) {
            (Ok(port), Ok(id)) => Self::Preview { id, port },
            _ => Self::NoPreview,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "k3v7q2m5x6a4b2c7d5ef";

    #[test]
    fn names() {
        let preview = |port| Host::Preview { id: format!("sbx_{ID}").parse().unwrap(), port };
        for (host, domain, port) in [
            (format!("3000-{ID}.localhost:8080"), "localhost", 3000),
            (format!("3000-{ID}.localhost"), "localhost", 3000),
            (format!("1-{}.LOCALHOST.:1", ID.to_uppercase()), "localhost", 1),
            (format!("65535-{ID}.a.example"), "A.example", 65535),
        ] {
            assert_eq!(Host::read(&host, domain), preview(port), "{host}");
        }
        for host in [
            format!("0-{ID}.localhost"),
            format!("03000-{ID}.localhost"),
            format!("65536-{ID}.localhost"),
            format!("3000-sbx_{ID}.localhost"),
            format!("3000-{ID}x.localhost"),
            format!("www.3000-{ID}.localhost"),
            "3000-.localhost".to_owned(),
            "3000-abc.localhost".to_owned(),
        ] {
            assert_eq!(Host::read(&host, "localhost"), Host::NoPreview, "{host}");
        }
        for host in [
            "localhost",
            "localhost:8080",
            "",
            ".localhost",
            "127.0.0.1:8080",
            "[::1]:8080",
            "api.localhost",
            "my-api.localhost",
            "é-.localhost",
            "-x.localhost",
            &format!("3000-{ID}.evil.example"),
            &format!("3000-{ID}"),
            &format!("3000-{ID}localhost"),
        ] {
            assert_eq!(Host::read(host, "localhost"), Host::Other, "{host}");
        }
        assert_eq!(Host::read(&format!("3000-{ID}."), ""), Host::Other);
    }
}
