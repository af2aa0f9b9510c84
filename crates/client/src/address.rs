//! Where calls go: the server's address and the paths below it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;

use crate::Error;

/// Everything but what RFC 3986 calls unreserved.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A server.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// Without a slash at the end.
    base: String,
    /// It is this machine, so no proxy stands between.
    pub(crate) loopback: bool,
    /// By TLS.
    pub(crate) secure: bool,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let invalid = |why: &str| Error::Invalid { detail: format!("{text:?} is not the address of a server: {why}") };
        let url = Url::parse(text).map_err(|e| invalid(&e.to_string()))?;
        let secure = url.scheme() == "https";
        if !secure && url.scheme() != "http" {
            return Err(invalid("it must begin with http:// or https://"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("it must have neither a query nor a fragment"));
        }
        let host = url.host_str().ok_or_else(|| invalid("it has no host"))?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let loopback = bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        Ok(Self { base: url.as_str().trim_end_matches('/').to_owned(), loopback, secure })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.base
    }

    /// The address of `segments`, each of which becomes exactly one segment of the path.
    pub(crate) fn join(&self, segments: &[&str]) -> Result<Url, Error> {
        let mut text = self.base.clone();
        for segment in segments {
            // URLs cannot say these, not even percent-encoded: a parser resolves them.
            if matches!(*segment, "." | ".." | "") {
                return Err(Error::Invalid { detail: format!("{segment:?} is not a name") });
            }
            text.push('/');
            text.extend(utf8_percent_encode(segment, SEGMENT));
        }
        Url::parse(&text).map_err(|e| Error::Invalid { detail: format!("{text:?} is not an address: {e}") })
    }

    /// The address of a file in a sandbox.
    pub(crate) fn file(&self, id: &str, path: &str) -> Result<Url, Error> {
        let mut url = self.join(&["v1", "sandboxes", id, "files"])?;
        let mut text = String::from(url.path());
        let mut names = 0;
        for segment in path.split('/').filter(|s| !matches!(*s, "" | ".")) {
            if segment == ".." {
                return Err(Error::Invalid { detail: format!("{path:?} has a segment \"..\"") });
            }
            text.push('/');
            text.extend(utf8_percent_encode(segment, SEGMENT));
            names += 1;
        }
        if names == 0 {
            text.push('/');
        }
        url.set_path(&text);
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let address = Address::parse("http://localhost:8080/").unwrap();
        assert!(address.loopback);
        assert_eq!(address.as_str(), "http://localhost:8080");
        assert!(Address::parse("http://[::1]:8080").unwrap().loopback);
        assert!(Address::parse("https://localhost").unwrap().secure && !address.secure);
        assert!(!Address::parse("http://10.0.0.1:8080").unwrap().loopback);
        for bad in ["", "localhost:8080", "ftp://localhost", "unix:/x", "http://", "http://h/?a=b"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_stay_one_segment() {
        let address = Address::parse("http://h:1/prefix").unwrap();
        let url = address.join(&["v1", "templates", "a/b?c#d e"]).unwrap();
        assert_eq!(url.as_str(), "http://h:1/prefix/v1/templates/a%2Fb%3Fc%23d%20e");
        assert!(address.join(&["v1", ".."]).is_err());
    }

    #[test]
    fn files() {
        let address = Address::parse("http://h:1").unwrap();
        let file = |path: &str| address.file("x", path).map(|url| url.as_str().to_owned());
        assert_eq!(file("/home/user/a b%.txt").unwrap(), "http://h:1/v1/sandboxes/x/files/home/user/a%20b%25.txt");
        assert_eq!(file("home//./user/é").unwrap(), "http://h:1/v1/sandboxes/x/files/home/user/%C3%A9");
        assert_eq!(file("/").unwrap(), "http://h:1/v1/sandboxes/x/files/");
        assert!(file("/home/../etc").is_err());
        // Encoded dots are a name here: the server decodes once.
        assert_eq!(file("/%2e%2e/x").unwrap(), "http://h:1/v1/sandboxes/x/files/%252e%252e/x");
    }
}
