//! A duration as the file writes it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A duration that reads and prints as `"5m"`; a whole number means seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// So many seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        let mut rest = millis;
        for (unit, length) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            if rest / length > 0 {
                write!(f, "{}{unit}", rest / length)?;
                rest %= length;
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"90s\" or \"1h30m\", or a whole number of seconds")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
                wakeful_model::parse_duration(text).map(Span).map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, seconds: i64) -> Result<Span, E> {
                u64::try_from(seconds).map(Span::seconds).map_err(|_| E::custom("a duration is not negative"))
            }

            fn visit_u64<E: serde::de::Error>(self, seconds: u64) -> Result<Span, E> {
                Ok(Span::seconds(seconds))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::Span;

    #[test]
    fn prints_what_it_reads() {
        for text in ["5m", "1d", "1h30m", "250ms", "1d1h1m1s1ms", "0s"] {
            assert_eq!(Span(wakeful_model::parse_duration(text).unwrap()).to_string(), text);
        }
        assert_eq!(Span::seconds(5400).to_string(), "1h30m");
    }
}
