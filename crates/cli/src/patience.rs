//! How often and how long a lost server is tried again.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;
use wakeful_client::Error;
use wakeful_model::Code;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);

/// Waits between tries, each longer than the last, until it is over. Every sign of life begins it anew.
pub(crate) struct Patience {
    limit: Duration,
    since: Option<Instant>,
    delays: ExponentialBackoff,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, since: None, delays: delays() }
    }

    /// The server is there.
    pub(crate) fn reset(&mut self) {
        if self.since.take().is_some() {
            self.delays = delays();
        }
    }

    /// How long to wait before the next try; `None`: no more.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.limit {
            return None;
        }
        Some(self.delays.next().unwrap_or(LONGEST))
    }
}

fn delays() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(FIRST)
        .with_max_delay(LONGEST)
        .without_max_times()
        .with_jitter()
        .build()
}

/// Whether the same call may well succeed a little later.
pub(crate) fn passes(error: &Error) -> bool {
    match error {
        Error::Problem(problem) => problem.known_code().is_some_and(code_passes),
        error => error.is_lost(),
    }
}

/// The same of an error in the middle of a stream.
pub(crate) fn code_passes(code: Code) -> bool {
    matches!(code, Code::ShuttingDown | Code::Busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_end() {
        let mut patience = Patience::new(Duration::from_secs(60));
        let waits: Vec<Duration> = std::iter::from_fn(|| patience.next()).take(10).collect();
        assert!(waits[0] >= FIRST && waits[0] <= FIRST * 2, "{waits:?}");
        assert!(waits[9] >= LONGEST && waits[9] <= LONGEST * 2, "{waits:?}");
        patience.reset();
        assert!(patience.next().is_some_and(|wait| wait <= FIRST * 2));
        assert_eq!(Patience::new(Duration::ZERO).next(), None);
    }
}
