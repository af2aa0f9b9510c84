//! Durations as people write them: "90s", "1h30m", or a number of seconds.

use std::time::Duration;

/// A duration that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration such as \"90s\" or \"1h30m\"")]
pub struct InvalidDuration {
    /// What was given, shortened.
    pub text: String,
}

/// Reads `^([0-9]+(ms|s|m|h|d))+$`.
///
/// # Errors
/// For everything else, also for what does not fit into 64 bits of milliseconds.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration { text: text.chars().take(40).collect() };
    let mut rest = text;
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = &rest[digits..];
        // "ms" before "m" and "s": the longest unit wins.
        let (unit, length) = match rest.as_bytes() {
            [b'm', b's', ..] => (1, 2),
            [b's', ..] => (1_000, 1),
            [b'm', ..] => (60_000, 1),
            [b'h', ..] => (3_600_000, 1),
            [b'd', ..] => (86_400_000, 1),
            _ => return Err(invalid()),
        };
        rest = &rest[length..];
        total = number.checked_mul(unit).and_then(|n| total.checked_add(n)).ok_or_else(invalid)?;
    }
    Ok(Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, millis) in
            [("90s", 90_000), ("1h30m", 5_400_000), ("250ms", 250), ("1d", 86_400_000), ("0s", 0), ("1m1ms", 60_001)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", "10", "s", "1.5s", "-1s", " 1s", "1s ", "1w", "99999999999999999999s", "18446744073709551615d", "1é"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,30}") {
            let _ = parse_duration(&text);
        }
    }
}
