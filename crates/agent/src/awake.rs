//! Time that passes only while the sandbox is awake.
//!
//! A virtual machine's clock stands still while it sleeps; on other engines it runs on, and everything that was due
//! meanwhile is due at the wake. Who gives somebody a time to finish means time to work in: so it is waited for in pieces,
//! of which a sleep takes a few at most.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// A long time is waited for in so many pieces.
const PIECES: u32 = 20;
const SHORTEST: Duration = Duration::from_secs(1);
/// A piece counts for what it took, up to so many times its length: a busy guest is late, but not by hours.
const LATE: u32 = 4;

/// Resolves when so much time has passed, without that of any sleep (but for a fifth of it, or four seconds).
pub(crate) async fn pass(time: Duration) {
    let piece = (time / PIECES).max(SHORTEST);
    let mut left = time;
    while !left.is_zero() {
        let begun = Instant::now();
        sleep(left.min(piece)).await;
        left = left.saturating_sub(begun.elapsed().min(piece * LATE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn awake_it_is_time_as_any_other() {
        for whole in [Duration::ZERO, Duration::from_millis(30), Duration::from_millis(1100)] {
            let begun = Instant::now();
            pass(whole).await;
            assert!(begun.elapsed() >= whole && begun.elapsed() < whole + Duration::from_secs(20), "{whole:?}");
        }
    }
}
