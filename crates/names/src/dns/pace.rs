//! How many questions a guest may ask in a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Far above what any resolver library asks, far below what costs the host anything.
const EACH: Duration = Duration::from_millis(2);
const AT_ONCE: u32 = 1000;
/// How long to wait before the next try.
pub(super) const REST: Duration = Duration::from_millis(20);

/// A bucket that fills with time: it holds the moment at which it would be full.
pub(super) struct Pace {
    full: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { full: Mutex::new(Instant::now()) }
    }

    /// Whether one more question may be asked now.
    pub(super) fn step(&self) -> bool {
        self.step_at(Instant::now())
    }

    fn step_at(&self, now: Instant) -> bool {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let next = (*full).max(now) + EACH;
        let allowed = next <= now + EACH * AT_ONCE;
        if allowed {
            *full = next;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_pace_holds() {
        let (pace, start) = (Pace::new(), Instant::now());
        assert_eq!((0..5000).filter(|_| pace.step_at(start)).count(), 1000);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..5000).filter(|_| pace.step_at(later)).count(), 500);
    }
}
