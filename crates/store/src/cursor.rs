//! Where a page of sandboxes ended.
//!
//! Pages are cut by the key that they are sorted by, not by counting: rows that come or go between two pages neither
//! repeat nor hide another one. The text is 16 hexadecimal digits of the instant and the bare id; nobody outside needs
//! to know, and whatever does not read back as itself was not given out by us.

use std::fmt;

use jiff::Timestamp;
use wakeful_model::{Sandbox, SandboxId};

use crate::Error;

const DIGITS: usize = 16;
/// The longest piece of a refused cursor that an error repeats.
const SHOWN: usize = 80;

/// The last row of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) created_at: Timestamp,
    pub(crate) id: SandboxId,
}

impl Cursor {
    pub(crate) fn of(row: &Sandbox) -> Self {
        Self { created_at: row.created_at, id: row.id.clone() }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        Self::read(text)
            .filter(|cursor| cursor.to_string() == text)
            .ok_or_else(|| Error::InvalidCursor(text.chars().take(SHOWN).collect()))
    }

    fn read(text: &str) -> Option<Self> {
        let (instant, id) = text.split_at_checked(DIGITS)?;
        let microseconds = u64::from_str_radix(instant, 16).ok()?.cast_signed();
        Some(Self { created_at: Timestamp::from_microsecond(microseconds).ok()?, id: id.parse().ok()? })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{}", self.created_at.as_microsecond(), self.id.bare())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_give_out_reads_back() {
        for microseconds in [i64::from(i32::MIN), -1, 0, 1, 1_800_000_000_000_000] {
            let cursor = Cursor {
                created_at: Timestamp::from_microsecond(microseconds).expect("in range"),
                id: SandboxId::random(),
            };
            assert_eq!(Cursor::parse(&cursor.to_string()).expect("ours"), cursor);
        }
    }

    #[test]
    fn nothing_else_does() {
        let id = SandboxId::random();
        let bare = id.bare();
        for text in [
            String::new(),
            "0".into(),
            "é".repeat(20),
            format!("000000000000000{bare}"),
            format!("{:016x}{id}", 1),
            format!("{:016X}{bare}", 0xabc),
            format!("+00000000000000f{bare}"),
            format!("{:016x}{bare}", i64::MAX),
            format!("{:016x}{bare}x", 1),
            format!("{:016x}{}", 1, bare.to_uppercase()),
            "x".repeat(1 << 20),
        ] {
            match Cursor::parse(&text) {
                Err(Error::InvalidCursor(shown)) => assert!(shown.chars().count() <= SHOWN),
                other => panic!("{other:?} for {}", text.chars().take(60).collect::<String>()),
            }
        }
    }
}
