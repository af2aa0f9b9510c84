//! Instants and durations as they are written on the wire.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wakeful_model::{InvalidDuration, parse_duration};

/// An instant: RFC 3339, UTC, `Z`, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub Timestamp);

impl From<Timestamp> for Instant {
    fn from(instant: Timestamp) -> Self {
        Self(instant)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// A duration in a request: `"90s"`, `"1h30m"`, or a number of seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DurationText {
    /// Whole seconds.
    Seconds(u64),
    /// As people write it.
    Text(String),
}

impl DurationText {
    /// What it means.
    ///
    /// # Errors
    /// If the text is none, or the number of seconds does not fit into 64 bits of milliseconds.
    pub fn parse(&self) -> Result<Duration, InvalidDuration> {
        match self {
            Self::Text(text) => parse_duration(text),
            Self::Seconds(seconds) => seconds
                .checked_mul(1000)
                .map(Duration::from_millis)
                .ok_or_else(|| InvalidDuration { text: seconds.to_string() }),
        }
    }
}

impl From<&str> for DurationText {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for DurationText {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Duration> for DurationText {
    fn from(duration: Duration) -> Self {
        Self::Text(format!("{}ms", duration.as_millis()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn instants_have_milliseconds_always() {
        for (nanos, text) in [
            (1_775_399_400_000_000_000_i128, "\"2026-04-05T14:30:00.000Z\""),
            (1_775_399_400_123_999_999, "\"2026-04-05T14:30:00.123Z\""),
        ] {
            let instant = Instant(Timestamp::from_nanosecond(nanos).unwrap());
            assert_eq!(serde_json::to_string(&instant).unwrap(), text);
        }
        assert_eq!(
            serde_json::from_str::<Instant>("\"2026-04-05T16:30:00+02:00\"").unwrap(),
            serde_json::from_str::<Instant>("\"2026-04-05T14:30:00Z\"").unwrap()
        );
    }

    #[test]
    fn durations_are_text_or_seconds() {
        let read = |json: &str| serde_json::from_str::<DurationText>(json).unwrap().parse();
        assert_eq!(read("\"1h30m\""), Ok(Duration::from_secs(5400)));
        assert_eq!(read("90"), Ok(Duration::from_secs(90)));
        assert!(read("\"90\"").is_err());
        assert!(read("18446744073709551615").is_err());
        assert!(serde_json::from_str::<DurationText>("1.5").is_err());
        assert!(serde_json::from_str::<DurationText>("-1").is_err());
    }

    proptest! {
        #[test]
        fn a_duration_comes_back(millis in 0_u64..1 << 50) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(DurationText::from(duration).parse(), Ok(duration));
        }
    }
}
