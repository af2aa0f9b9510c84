//! Creates under way, counted: what is done ahead of time gives way to what somebody waits for.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

/// Whoever has just got a sandbox is about to use it.
const BREATH: Duration = Duration::from_millis(100);

/// How many there are.
pub(crate) struct Creates(watch::Sender<usize>);

impl Default for Creates {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

/// One of them, until it is dropped.
pub(crate) struct Create<'a>(&'a Creates);

impl Drop for Create<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

impl Creates {
    pub(crate) fn begin(&self) -> Create<'_> {
        self.0.send_modify(|count| *count += 1);
        Create(self)
    }

    /// Waits until there has been none for a moment, but no longer than `patience`: where creates never end, work that
    /// gives way must be done beside them.
    pub(crate) async fn quiet(&self, patience: Duration) {
        let (mut count, deadline) = (self.0.subscribe(), Instant::now() + patience);
        loop {
            // The sender is ours, so it is never closed.
            if timeout_at(deadline, count.wait_for(|count| *count == 0)).await.is_err() {
                return;
            }
            tokio::select! {
                () = sleep(BREATH) => return,
                _ = count.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gives_way_but_not_for_ever() {
        let (creates, patience) = (Creates::default(), Duration::from_secs(60));
        let began = Instant::now();
        creates.quiet(patience).await;
        assert!(began.elapsed() >= BREATH);
        let one = creates.begin();
        let (began, end) = (Instant::now(), async {
            sleep(BREATH).await;
            drop(one);
        });
        tokio::join!(creates.quiet(patience), end);
        assert!((2 * BREATH..patience).contains(&began.elapsed()));
        let (_endless, began) = (creates.begin(), Instant::now());
        creates.quiet(2 * BREATH).await;
        assert!((2 * BREATH..patience).contains(&began.elapsed()));
    }
}
