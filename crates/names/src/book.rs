//! Which names an address was given for.
//!
//! The resolver writes it, the proxy reads it. It is bounded, because a guest below an allowed wildcard can ask for as
//! many names as it likes: then the oldest are forgotten, which costs that guest a connection and nobody else
//! anything.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const ADDRESSES: usize = 4096;
const NAMES_EACH: usize = 32;

struct Entry {
    /// Each with the end of its life, in the order of learning.
    names: Vec<(String, Instant)>,
    /// How long the packet filter holds it open, as far as we have asked.
    admitted: Option<Instant>,
    touched: Instant,
}

pub(crate) struct Book {
    entries: Mutex<HashMap<Ipv4Addr, Entry>>,
    lifetime: Duration,
}

impl Book {
    pub(crate) fn new(lifetime: Duration) -> Self {
        Self { entries: Mutex::default(), lifetime }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Ipv4Addr, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the filter holds the address open until then already.
    pub(crate) fn admitted(&self, address: Ipv4Addr, until: Instant) -> bool {
        self.lock().get(&address).and_then(|entry| entry.admitted).is_some_and(|at| at >= until)
    }

    /// Notes that a name was answered with an address, and until when the filter holds it open.
    pub(crate) fn learn(&self, address: Ipv4Addr, name: &str, admitted: Option<Instant>, now: Instant) {
        let mut entries = self.lock();
        if !entries.contains_key(&address) && entries.len() >= ADDRESSES {
            entries.retain(|_, entry| entry.names.iter().any(|(_, end)| *end > now));
            if entries.len() >= ADDRESSES
                && let Some(oldest) = entries.iter().min_by_key(|(_, entry)| entry.touched).map(|(at, _)| *at)
            {
                entries.remove(&oldest);
            }
        }
        let entry = entries.entry(address).or_insert_with(|| Entry { names: vec![], admitted: None, touched: now });
        entry.touched = now;
        entry.admitted = entry.admitted.max(admitted);
        entry.names.retain(|(known, end)| *end > now && known != name);
        if entry.names.len() >= NAMES_EACH {
            entry.names.remove(0);
        }
        entry.names.push((name.to_owned(), now + self.lifetime));
    }

    /// The names that an address was given for and that are still remembered.
    pub(crate) fn names(&self, address: Ipv4Addr, now: Instant) -> Vec<String> {
        let entries = self.lock();
        let names = entries.get(&address).map(|entry| entry.names.as_slice()).unwrap_or_default();
        names.iter().filter(|(_, end)| *end > now).map(|(name, _)| name.clone()).collect()
    }

    /// Whether the address was given for this name.
    pub(crate) fn knows(&self, address: Ipv4Addr, name: &str, now: Instant) -> bool {
        let known = |entry: &Entry| entry.names.iter().any(|(known, end)| known == name && *end > now);
        self.lock().get(&address).is_some_and(known)
    }

    /// Forgets what the filter holds open, so that each next answer admits anew.
    pub(crate) fn forget_admissions(&self) {
        for entry in self.lock().values_mut() {
            entry.admitted = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn names_are_forgotten_in_time() {
        let (book, start) = (Book::new(MINUTE), Instant::now());
        let later = start + Duration::from_secs(40);
        book.learn(AT, "a.org", None, start);
        book.learn(AT, "b.org", None, later);
        assert!(book.knows(AT, "a.org", later) && book.knows(AT, "b.org", later) && !book.knows(AT, "c.org", later));
        assert_eq!(book.names(AT, start + MINUTE), ["b.org"]);
    }

    #[test]
    fn the_book_is_bounded() {
        let (book, start) = (Book::new(MINUTE), Instant::now());
        for i in 0..u32::try_from(ADDRESSES + 10).expect("small") {
            book.learn(Ipv4Addr::from(i), "a.org", None, start + Duration::from_nanos(u64::from(i)));
        }
        assert_eq!(book.lock().len(), ADDRESSES);
        assert!(!book.knows(Ipv4Addr::from(3), "a.org", start) && book.knows(Ipv4Addr::from(4000), "a.org", start));
        for i in 0..100 {
            book.learn(AT, &format!("n{i}.a.org"), None, start);
        }
        assert_eq!(book.names(AT, start).len(), NAMES_EACH);
    }

    #[test]
    fn an_admission_is_remembered_until_told_otherwise() {
        let (book, start) = (Book::new(MINUTE), Instant::now());
        book.learn(AT, "a.org", Some(start + MINUTE), start);
        book.learn(AT, "b.org", None, start);
        assert!(book.admitted(AT, start + MINUTE) && !book.admitted(AT, start + MINUTE * 2));
        book.forget_admissions();
        assert!(!book.admitted(AT, start + MINUTE));
    }
}
