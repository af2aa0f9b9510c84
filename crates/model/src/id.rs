//! Ids are types with prefixes, never bare strings.

use std::fmt;
use std::str::FromStr;

/// `a-z2-7`: 32 characters that no one mixes up, valid in a host name.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const LENGTH: usize = 20;

/// A string that is no id of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an id of the form {prefix} and 20 characters of a-z2-7")]
pub struct InvalidId {
    prefix: &'static str,
    text: String,
}

/// 20 random characters, the first a letter; not derived from any clock.
fn random_bare() -> String {
    let mut bytes = [0u8; LENGTH];
    getrandom::fill(&mut bytes).expect("the operating system has random bytes");
    bytes
        .iter()
        .enumerate()
        .map(|(at, byte)| {
            let letters = if at == 0 { 26 } else { 32 };
            // 256 is a multiple of 32; for the first one the bias towards a-v is of no consequence.
            char::from(ALPHABET[usize::from(*byte) % letters])
        })
        .collect()
}

fn is_bare(text: &str) -> bool {
    text.len() == LENGTH && text.bytes().all(|b| ALPHABET.contains(&b)) && text.as_bytes()[0].is_ascii_lowercase()
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// What stands before the 20 characters.
            pub const PREFIX: &'static str = $prefix;

            /// A new one, never given out before.
            #[must_use]
            pub fn random() -> Self {
                Self(format!("{}{}", $prefix, random_bare()))
            }

            /// With its prefix, as every native surface prints it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Without its prefix, as host names and run directories have it.
            #[must_use]
            pub fn bare(&self) -> &str {
                &self.0[$prefix.len()..]
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            /// With or without the prefix.
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let bare = text.strip_prefix($prefix).unwrap_or(text);
                if is_bare(bare) {
                    Ok(Self(format!("{}{bare}", $prefix)))
                } else {
                    Err(InvalidId { prefix: $prefix, text: text.chars().take(80).collect() })
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// A sandbox.
    SandboxId,
    "sbx_"
);
id!(
    /// A template.
    TemplateId,
    "tpl_"
);
id!(
    /// A copy of a sandbox's memory and disk.
    SnapshotId,
    "snp_"
);
id!(
    /// Bytes that a build will need.
    UploadId,
    "upl_"
);
id!(
    /// An API key; not the secret itself.
    KeyId,
    "key_"
);
id!(
    /// An operation under way.
    OperationId,
    "op_"
);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn random_ids_are_valid_and_differ() {
        let ids: HashSet<_> = (0..1000).map(|_| SandboxId::random()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!(id.as_str().parse::<SandboxId>().as_ref(), Ok(&id));
            assert_eq!(id.bare().parse::<SandboxId>().as_ref(), Ok(&id));
            assert_eq!(id.bare().len(), 20);
        }
    }

    #[test]
    fn others_are_refused() {
        for text in [
            "",
            "sbx_",
            "sbx_abc",
            "sbx_1aaaaaaaaaaaaaaaaaaa",
            "2aaaaaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaaaaaA",
            "tpl_aaaaaaaaaaaaaaaaaaaa",
            "sbx_aaaaaaaaaaaaaaaaaaa/",
            "sbx_ééééééééé",
        ] {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }
}
