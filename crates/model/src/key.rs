//! API keys: what they look like, what is kept of them, what they allow.
//!
//! A key is `wkf_` and 40 hexadecimal digits. Kept is the SHA-256 of the digits: they are random, so nothing slower is
//! needed, and whoever reads the database cannot call. The same digits behind `e2b_` are the same key, since older SDKs
//! of that system insist on its prefix.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest as _, Sha256};

use crate::KeyId;

const PREFIX: &str = "wkf_";
const FOREIGN_PREFIX: &str = "e2b_";
const DIGITS: usize = 40;

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::EnumIter)]
pub enum Scope {
    /// Look at sandboxes and what is in them.
    SandboxRead,
    /// Make, use and end sandboxes.
    SandboxWrite,
    /// Both.
    Sandbox,
    /// Look at templates.
    TemplateRead,
    /// Build and delete templates.
    TemplateWrite,
    /// Both.
    Template,
    /// All of the above, in every tenant, and keys, tenants, pools and metrics.
    Admin,
}

impl Scope {
    /// Its text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SandboxRead => "sandbox:read",
            Self::SandboxWrite => "sandbox:write",
            Self::Sandbox => "sandbox:*",
            Self::TemplateRead => "template:read",
            Self::TemplateWrite => "template:write",
            Self::Template => "template:*",
            Self::Admin => "admin",
        }
    }

    /// Every scope.
    pub const ALL: [Self; 7] = [
        Self::SandboxRead,
        Self::SandboxWrite,
        Self::Sandbox,
        Self::TemplateRead,
        Self::TemplateWrite,
        Self::Template,
        Self::Admin,
    ];

    /// Whether it allows what needs `needed`. Writing does not include reading: a key that only makes sandboxes need not
    /// see what others made.
    #[must_use]
    pub const fn allows(self, needed: Self) -> bool {
        match self {
            Self::Admin => true,
            Self::Sandbox => matches!(needed, Self::SandboxRead | Self::SandboxWrite | Self::Sandbox),
            Self::Template => matches!(needed, Self::TemplateRead | Self::TemplateWrite | Self::Template),
            Self::SandboxRead => matches!(needed, Self::SandboxRead),
            Self::SandboxWrite => matches!(needed, Self::SandboxWrite),
            Self::TemplateRead => matches!(needed, Self::TemplateRead),
            Self::TemplateWrite => matches!(needed, Self::TemplateWrite),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A string that is no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no scope {0:?}")]
pub struct InvalidScope(String);

impl FromStr for Scope {
    type Err = InvalidScope;

    fn from_str(text: &str) -> Result<Self, InvalidScope> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| InvalidScope(text.chars().take(80).collect()))
    }
}

impl serde::Serialize for Scope {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for Scope {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What is kept of a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Of any secret.
    #[must_use]
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Whether two are the same, in a time that does not tell where they differ.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let differing = self.0.iter().zip(&other.0).fold(0u8, |seen, (a, b)| std::hint::black_box(seen | (a ^ b)));
        differing == 0
    }
}

impl fmt::Debug for Digest {
    /// It is no secret, but no log needs it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// A key's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its id.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// What is kept of the secret.
    pub digest: Digest,
    /// Since when it exists.
    pub created_at: Timestamp,
    /// When it was last shown, give or take a minute.
    pub last_used_at: Option<Timestamp>,
}

impl Key {
    /// Whether it allows what needs `needed`.
    #[must_use]
    pub fn allows(&self, needed: Scope) -> bool {
        self.scopes.iter().any(|scope| scope.allows(needed))
    }
}

/// A new key and what is kept of it.
#[must_use]
pub fn new_key() -> (SecretString, Digest) {
    let mut bytes = [0u8; DIGITS / 2];
    getrandom::fill(&mut bytes).expect("the operating system has random bytes");
    let digits = bytes.iter().fold(String::with_capacity(DIGITS), |mut text, byte| {
        for half in [byte >> 4, byte & 15] {
            text.push(char::from_digit(half.into(), 16).expect("four bits are a digit"));
        }
        text
    });
    let digest = Digest::of(&digits);
    (SecretString::from(format!("{PREFIX}{digits}")), digest)
}

/// What would be kept of a key that somebody shows; `None` for what no key looks like.
#[must_use]
pub fn read_key(shown: &SecretString) -> Option<Digest> {
    let text = shown.expose_secret();
    let digits = text.strip_prefix(PREFIX).or_else(|| text.strip_prefix(FOREIGN_PREFIX))?;
    let good = digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    good.then(|| Digest::of(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_made() {
        let (key, digest) = new_key();
        assert_eq!(key.expose_secret().len(), 44);
        assert_eq!(read_key(&key), Some(digest));
        let (_, other) = new_key();
        assert!(digest.same(&digest) && !digest.same(&other) && digest != other);
        let digits = key.expose_secret().strip_prefix("wkf_").unwrap();
        assert_eq!(read_key(&format!("e2b_{digits}").into()), Some(digest));
        for bad in [digits.to_owned(), format!("wkf_{digits}0"), format!("sk_{digits}"), String::new(), "wkf_".into()] {
            assert_eq!(read_key(&bad.into()), None);
        }
        assert_eq!(read_key(&format!("wkf_{}", "A".repeat(40)).into()), None);
        assert!(!format!("{key:?} {digest:?}").contains(digits));
    }

    #[test]
    fn the_digest_is_that_of_the_digits() {
        let digits = "0123456789abcdef0123456789abcdef01234567";
        let hex: String =
            read_key(&format!("wkf_{digits}").into()).unwrap().0.iter().map(|b| format!("{b:02x}")).collect();
        // printf %s 0123456789abcdef0123456789abcdef01234567 | sha256sum
        assert_eq!(hex, "deb87fabd17715bb31ad4cf4ffb9494eeb15f8d33d85b031a301c64ab3417eaa");
    }

    #[test]
    fn what_scopes_allow() {
        use Scope::*;
        for scope in Scope::ALL {
            assert!(scope.allows(scope) && Admin.allows(scope));
            assert_eq!(scope.as_str().parse(), Ok(scope));
            assert_eq!(scope.allows(Admin), scope == Admin);
        }
        assert!(Sandbox.allows(SandboxRead) && Sandbox.allows(SandboxWrite) && !Sandbox.allows(TemplateRead));
        assert!(Template.allows(TemplateRead) && Template.allows(TemplateWrite) && !Template.allows(SandboxRead));
        assert!(!SandboxRead.allows(SandboxWrite) && !SandboxWrite.allows(SandboxRead));
        for bad in ["", "*", "sandbox", "Sandbox:read", "sandbox:read ", "root"] {
            assert!(bad.parse::<Scope>().is_err(), "{bad}");
        }
    }
}
