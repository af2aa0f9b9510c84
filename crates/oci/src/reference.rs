//! What people call an image: `python:3.12`, `localhost:5000/team/app@sha256:…`.

use std::fmt;

use crate::{Digest, Error};

/// Where an image is and which one is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Docker's own bound for a name; a tag and a digest come on top.
const NAME_MAX: usize = 255;
const TAG_MAX: usize = 128;
const TEXT_MAX: usize = 512;

impl Reference {
    /// Reads a reference as Docker does. A name whose first part is no host gets the default registry, which may carry a path
    /// for names of one part: with `registry.invalid/library`, `python` is `registry.invalid/library/python` and `team/app`
    /// is `registry.invalid/team/app`.
    ///
    /// # Errors
    /// [`Error::Reference`] says what is wrong; [`Error::NoRegistry`] for a bare name without a default registry.
    pub fn parse(text: &str, default_registry: Option<&str>) -> Result<Self, Error> {
        let wrong = |detail| Error::Reference { text: crate::error::tame(text), detail };
        if text.len() > TEXT_MAX {
            return Err(wrong("it is too long"));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().map_err(|_| wrong("its digest is no SHA-256 digest"))?)),
            None => (text, None),
        };
        let name_end = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[name_end..].find(':') {
            Some(colon) => (&rest[..name_end + colon], Some(&rest[name_end + colon + 1..])),
            None => (rest, None),
        };
        if tag.is_some_and(|tag| !valid_tag(tag)) {
            return Err(wrong("its tag must be letters, digits, `_`, `.` and `-`, 128 at most"));
        }
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if is_host(first) => (first.to_owned(), rest.to_owned()),
            _ => {
                let default = default_registry.ok_or_else(|| Error::NoRegistry { name: crate::error::tame(text) })?;
                match default.split_once('/') {
                    Some((host, path)) if !name.contains('/') && !path.is_empty() => {
                        (host.into(), format!("{}/{name}", path.trim_end_matches('/')))
                    }
                    Some((host, _)) => (host.into(), name.into()),
                    None => (default.into(), name.into()),
                }
            }
        };
        if !valid_registry(&registry) {
            return Err(wrong("its registry is no host name with an optional port"));
        }
        if repository.len() > NAME_MAX || !repository.split('/').all(valid_component) {
            return Err(wrong(
                "a repository's name is lower-case letters and digits, with `.`, `_`, `-` and `/` between",
            ));
        }
        let tag = tag.map(str::to_owned).or_else(|| digest.is_none().then(|| "latest".into()));
        Ok(Self { registry, repository, tag, digest })
    }

    /// Host and perhaps port.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path in the registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// `latest` if neither tag nor digest was given.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// What the image must be; goes before the tag.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What the registry is asked for.
    pub(crate) fn version(&self) -> &str {
        self.digest.as_ref().map(Digest::as_str).or(self.tag.as_deref()).unwrap_or("latest")
    }

    /// The same, nailed to one content.
    pub(crate) fn at(&self, digest: &Digest) -> String {
        Self { digest: Some(digest.clone()), ..self.clone() }.to_string()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// Docker's rule: a first part with a dot, a port or capitals is a host, and so is `localhost`.
fn is_host(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn valid_registry(registry: &str) -> bool {
    let (host, port) = split_port(registry);
    let named = |host: &str| {
        host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
    };
    let host_fits = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.len() <= 253 && named(host),
    };
    host_fits && port.is_none_or(|port| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok())
}

/// The port is what follows the last colon outside an address in brackets.
pub(crate) fn split_port(registry: &str) -> (&str, Option<&str>) {
    let from = registry.rfind(']').map_or(0, |bracket| bracket + 1);
    match registry[from..].find(':') {
        Some(colon) => (&registry[..from + colon], Some(&registry[from + colon + 1..])),
        None => (registry, None),
    }
}

/// `[a-z0-9]+` joined by `.`, `_`, `__` or any number of `-`.
fn valid_component(component: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    if !bytes.first().copied().is_some_and(plain) || !bytes.last().copied().is_some_and(plain) {
        return false;
    }
    bytes
        .split(|b| plain(*b))
        .all(|joint| matches!(joint, b"" | b"." | b"_" | b"__") || joint.iter().all(|b| *b == b'-'))
}

fn valid_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= TAG_MAX
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full(text: &str) -> String {
        Reference::parse(text, Some("registry.invalid/library")).map_or_else(|e| e.to_string(), |r| r.to_string())
    }

    #[test]
    fn as_docker_reads_them() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (text, wanted) in [
            ("python", "registry.invalid/library/python:latest"),
            ("python:3.12", "registry.invalid/library/python:3.12"),
            ("team/app", "registry.invalid/team/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/a/b:v1", "localhost:5000/a/b:v1"),
            ("registry.example/x", "registry.example/x:latest"),
            ("[::1]:5000/x:1", "[::1]:5000/x:1"),
            ("127.0.0.1:80/a__b/c--d.e:_x", "127.0.0.1:80/a__b/c--d.e:_x"),
        ] {
            assert_eq!(full(text), wanted, "{text}");
        }
        assert_eq!(full(&format!("a/b@{digest}")), format!("registry.invalid/a/b@{digest}"));
        assert_eq!(full(&format!("a/b:1@{digest}")), format!("registry.invalid/a/b:1@{digest}"));
    }

    #[test]
    fn refused() {
        let long = "a".repeat(600);
        for text in [
            "",
            ":",
            "@",
            "/",
            "a/",
            "/a",
            "A",
            "a:",
            "a: b",
            "a@sha256:1",
            "a//b",
            "a..b",
            "a/../b",
            "a_-b",
            "-a",
            "a-",
            "x.y:/a",
            "x.y:port/a",
            "x.y:99999/a",
            "x..y/a",
            "user@host.x/a",
            "http://x/a",
            "[::1/a",
            "a:b:c",
            "é",
            "a\nb",
            &long,
        ] {
            assert!(Reference::parse(text, Some("registry.invalid")).is_err(), "{text:?}");
        }
        assert!(matches!(Reference::parse("python", None), Err(Error::NoRegistry { .. })));
    }

    proptest! {
        #[test]
        fn what_is_read_reads_back(text in "[a-zA-Z0-9.:/@_\\[\\]-]{0,80}") {
            if let Ok(reference) = Reference::parse(&text, Some("registry.invalid")) {
                let again = Reference::parse(&reference.to_string(), None).unwrap();
                prop_assert_eq!(again, reference);
            }
        }

        #[test]
        fn never_panics(text in any::<String>(), default in any::<Option<String>>()) {
            let _ = Reference::parse(&text, default.as_deref());
        }
    }
}
