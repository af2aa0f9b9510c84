//! A set of paths of which only keyed hashes are kept, so that an archive of a million names costs megabytes.
//!
//! The keys are random, so nobody can prepare two names that look the same.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use crate::error::Error;

/// A quarter of a gigabyte; a million entries need a tenth of it.
const MOST: usize = 1 << 24;

#[derive(Default)]
pub(crate) struct Seen {
    keys: (RandomState, RandomState),
    hashes: HashSet<(u64, u64)>,
}

impl Seen {
    fn hash(&self, path: &[u8]) -> (u64, u64) {
        (self.keys.0.hash_one(path), self.keys.1.hash_one(path))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    pub(crate) fn contains(&self, path: &[u8]) -> bool {
        self.hashes.contains(&self.hash(path))
    }

    /// Adds a path; false if it was there.
    pub(crate) fn insert(&mut self, path: &[u8]) -> Result<bool, Error> {
        if self.hashes.len() >= MOST {
            return Err(Error::TooMany { limit: MOST as u64 });
        }
        Ok(self.hashes.insert(self.hash(path)))
    }

    pub(crate) fn remove(&mut self, path: &[u8]) {
        self.hashes.remove(&self.hash(path));
    }
}
