//! What was refused, so that the owner of a sandbox can see which name is missing from its list.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

const KEPT: usize = 256;
const LONGEST: usize = 253;

/// Where a refusal happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum What {
    /// The resolver was asked for a name, or for a kind of record, that is not allowed.
    Dns,
    /// A TLS client named a host that is not allowed.
    Sni,
    /// An HTTP request named a host that is not allowed.
    Host,
    /// A name is allowed, but the address is not one that it was answered with, or is a private one.
    Address,
    /// A TLS client hid the name (encrypted client hello).
    Hidden,
    /// Nothing that has a name in it, or something broken; the name is `address:port`.
    Protocol,
}

/// Something that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The name, as far as there was one; at most 253 printable characters.
    pub name: String,
    /// Where.
    pub what: What,
    /// How often.
    pub count: u64,
    /// When it happened last.
    pub last: SystemTime,
}

#[derive(Default)]
pub(crate) struct Refusals {
    kept: Mutex<HashMap<(String, What), (u64, SystemTime)>>,
}

impl Refusals {
    pub(crate) fn note(&self, name: &str, what: What) {
        // Guests choose these bytes, people read them.
        let name: String = name.chars().filter(char::is_ascii_graphic).take(LONGEST).collect();
        tracing::debug!(name, %what, "refused");
        let now = SystemTime::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name, what);
        if !kept.contains_key(&key)
            && kept.len() >= KEPT
            && let Some(oldest) = kept.iter().min_by_key(|(_, (_, last))| *last).map(|(key, _)| key.clone())
        {
            kept.remove(&oldest);
        }
        let (count, last) = kept.entry(key).or_insert((0, now));
        *count += 1;
        *last = now;
    }

    /// The latest first.
    pub(crate) fn list(&self) -> Vec<Refused> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let all = kept.iter().map(|((name, what), (count, last))| Refused {
            name: name.clone(),
            what: *what,
            count: *count,
            last: *last,
        });
        let mut all: Vec<_> = all.collect();
        drop(kept);
        all.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| a.name.cmp(&b.name)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_and_bounded() {
        let refusals = Refusals::default();
        for i in 0..1000 {
            refusals.note(&format!("n{i}\n\u{1b}[1m{}", "x".repeat(300)), What::Dns);
            refusals.note("often.org", What::Sni);
        }
        let list = refusals.list();
        assert_eq!(list.len(), KEPT);
        assert!(list.iter().all(|r| r.name.len() <= LONGEST && r.name.bytes().all(|b| b.is_ascii_graphic())));
        let often = list.iter().find(|r| r.what == What::Sni).expect("is kept");
        assert_eq!((often.name.as_str(), often.count), ("often.org", 1000));
    }
}
