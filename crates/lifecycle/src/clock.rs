//! What time it is. A test has a clock of its own, so that none has to wait for a deadline.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

/// A clock. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<watch::Sender<Timestamp>>>);

impl Clock {
    /// One that stands still until it is [moved](Self::advance).
    #[must_use]
    pub fn by_hand(now: Timestamp) -> Self {
        Self(Some(Arc::new(watch::Sender::new(now))))
    }

    /// Moves a clock that stands still, and wakes whoever has waited for that; the host's clock moves by itself.
    pub fn advance(&self, by: Duration) {
        if let Some(clock) = &self.0 {
            clock.send_modify(|now| *now = now.checked_add(by).unwrap_or(Timestamp::MAX));
        }
    }

    /// The time, to the microsecond as it is stored.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        wakeful_model::at_microseconds(self.0.as_ref().map_or_else(Timestamp::now, |clock| *clock.borrow()))
    }

    /// Waits until it is `at`, but not longer than `most` by the host's clock, which may be set while one sleeps.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn wait_until(&self, at: Timestamp, most: Duration) {
        match &self.0 {
            // Whoever holds the clock lives longer than those who wait for it.
            Some(clock) => drop(clock.subscribe().wait_for(|now| *now >= at).await),
            None => {
                let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
                tokio::time::sleep(left.min(most)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_stands_still_wakes_those_who_wait_when_it_is_moved() {
        let start = Timestamp::from_second(1000).expect("a small number");
        let clock = Clock::by_hand(start);
        let due = start.checked_add(Duration::from_secs(60)).expect("a small number");
        let mut waiting = std::pin::pin!(clock.wait_until(due, Duration::ZERO));
        clock.advance(Duration::from_secs(59));
        assert!(tokio::time::timeout(Duration::from_millis(5), &mut waiting).await.is_err() && clock.now() < due);
        clock.advance(Duration::from_secs(1));
        waiting.await;
        assert_eq!(clock.now(), due);
    }
}
