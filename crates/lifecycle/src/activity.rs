//! The last byte of all streams of a sandbox.
//!
//! A terminal or a tunnel calls [`Activity::touch`] for every piece that goes through it. That is one store; once in a
//! second the owner is told as well, and before it acts upon idleness it looks here for the exact instant.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::uses::News;

/// Microseconds between two tellings.
const TELL_EVERY: i64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Activity {
    clock: Clock,
    /// Microseconds since 1970.
    last: AtomicI64,
    told: AtomicI64,
    news: mpsc::UnboundedSender<News>,
}

impl Activity {
    pub(crate) fn new(clock: Clock, news: mpsc::UnboundedSender<News>) -> Self {
        Self { clock, last: AtomicI64::new(i64::MIN), told: AtomicI64::new(i64::MIN), news }
    }

    pub(crate) fn touch(&self) {
        self.touch_at(self.clock.now().as_microsecond());
    }

    fn touch_at(&self, now: i64) {
        self.last.fetch_max(now, Ordering::Relaxed);
        let told = self.told.load(Ordering::Relaxed);
        // Of several that come at once, one tells.
        if now.saturating_sub(told) >= TELL_EVERY
            && self.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            // An owner that is gone needs no telling.
            let _ = self.news.send(News::Touched);
        }
    }

    /// When the last byte went through, if any has.
    pub(crate) fn last(&self) -> Option<Timestamp> {
        Timestamp::from_microsecond(self.last.load(Ordering::Relaxed)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_told_once_a_second_and_the_last_byte_is_exact() {
        let (news, mut inbox) = mpsc::unbounded_channel();
        let activity = Activity::new(Clock::default(), news);
        assert_eq!(activity.last(), None);
        for now in [5_000_000, 5_000_001, 5_999_999, 6_000_000, 6_500_000, 6_400_000] {
            activity.touch_at(now);
        }
        assert_eq!(activity.last(), Timestamp::from_microsecond(6_500_000).ok());
        let mut told = 0;
        while let Ok(News::Touched) = inbox.try_recv() {
            told += 1;
        }
        assert_eq!(told, 2);
    }
}
