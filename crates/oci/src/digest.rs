//! How content is named: by its SHA-256. Everything from a registry or an archive is known by such a name and is checked
//! against it before anybody reads it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// `sha256:` and 64 lower-case hexadecimal digits; there is no other value of this type, so it is safe in a path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// What is no digest of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no SHA-256 digest")]
pub struct NoDigest {
    text: String,
}

const PREFIX: &str = "sha256:";

impl Digest {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hasher(Sha256::new_with_prefix(bytes))
    }

    pub(crate) fn from_hasher(hasher: Sha256) -> Self {
        let mut text = String::with_capacity(PREFIX.len() + 64);
        text.push_str(PREFIX);
        for byte in hasher.finalize() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).expect("four bits are a digit"));
            }
        }
        Self(text)
    }

    /// With its `sha256:`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The 64 digits alone.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0[PREFIX.len()..]
    }

    /// The first twelve digits, as people see them.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.hex()[..12]
    }
}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let hex = |digits: &str| digits.len() == 64 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if text.strip_prefix(PREFIX).is_some_and(hex) {
            Ok(Self(text.into()))
        } else {
            Err(NoDigest { text: crate::error::tame(text) })
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = NoDigest;

    fn try_from(text: String) -> Result<Self, NoDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nothing() {
        let digest = Digest::of(b"");
        assert_eq!(digest.as_str(), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(digest.short(), "e3b0c44298fc");
        assert_eq!(digest.as_str().parse(), Ok(digest));
    }

    #[test]
    fn others_are_refused() {
        let upper = format!("sha256:{}", "A".repeat(64));
        let path = format!("sha256:{}", "../".repeat(22));
        for text in ["", "sha256:", "sha512:00", &upper, &path, &"é".repeat(40)] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
