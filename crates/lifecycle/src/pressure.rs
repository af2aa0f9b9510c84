//! When the host runs short of memory, the longest idle sleep first.
//!
//! A sandbox that nobody uses costs memory until its idle timeout; when the host has none left, the kernel ends whichever
//! engine it likes, and all that was in it is lost. A suspend loses nothing, and the next access wakes it.
//!
//! ```text
//!   every interval: figures ─▶ enough ─▶ nothing
//!                        └ too little ─▶ press the longest idle ─▶ its owner asks the guest ─▶ suspend, cause `pressure`
//! ```
//!
//! Members of the pool go before anybody sleeps. One at a time, and the figures are read again before the next. Only those sleep that would do so by themselves some
//! time: persistent, unused, with nothing at work inside, and woken by access. A suspend for pressure gives way to an
//! access like one for idleness.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};
use wakeful_model::{SandboxId, State};

use crate::lifecycle::{Inner, Lifecycle};
use crate::view::Live;

/// How long one that was pressed may take to sleep.
const ASLEEP: Duration = Duration::from_secs(30);
/// How long one that did not sleep is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// What counts as pressure, and how it is known.
#[derive(Clone, Debug)]
pub struct Pressure {
    /// Less available memory than this, in per cent of all.
    pub available_percent: Option<u32>,
    /// More time than this, in per cent of the last ten seconds, in which somebody waited for memory.
    pub stall_percent: Option<u32>,
    /// How long nobody must have used a sandbox.
    pub idle: Duration,
    /// How often the figures are read.
    pub interval: Duration,
    /// Where the available memory is told, as `/proc/meminfo` does.
    pub meminfo: PathBuf,
    /// Where waiting is told, as `/proc/pressure/memory` does.
    pub stalls: PathBuf,
}

impl Pressure {
    /// Why there is pressure, if there is. A figure that cannot be read is none: some kernels do not count.
    async fn now(&self) -> Option<String> {
        if let Some(least) = self.available_percent
            && let Some(available) = read(&self.meminfo).await.as_deref().and_then(available_percent)
            && available < f64::from(least)
        {
            return Some(format!("{available:.1} % of the host's memory are available"));
        }
        if let Some(most) = self.stall_percent
            && let Some(stalled) = read(&self.stalls).await.as_deref().and_then(stall_percent)
            && stalled > f64::from(most)
        {
            return Some(format!("somebody waits for memory {stalled:.1} % of the time"));
        }
        None
    }
}

async fn read(path: &Path) -> Option<String> {
    tokio::fs::read_to_string(path).await.ok()
}

/// Of `/proc/meminfo`.
fn available_percent(text: &str) -> Option<f64> {
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()
    };
    let total = kib("MemTotal").filter(|total| *total > 0.0)?;
    Some(kib("MemAvailable")? * 100.0 / total)
}

/// Of `/proc/pressure/memory`: some task waited, over ten seconds.
fn stall_percent(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

impl Lifecycle {
    /// Watches the host's memory until the daemon drains, and suspends the longest idle while it is short.
    pub fn watch_pressure(&self, pressure: Pressure) {
        if pressure.available_percent.is_none() && pressure.stall_percent.is_none() {
            return;
        }
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.spawn(async move {
            let _ = inner.draining.run_until_cancelled(watch(&inner, &pressure)).await;
        });
    }
}

async fn watch(inner: &Arc<Inner>, pressure: &Pressure) {
    let mut left_alone: HashMap<SandboxId, Instant> = HashMap::new();
    let mut pressed = false;
    loop {
        tokio::time::sleep(pressure.interval).await;
        let Some(why) = pressure.now().await else {
            if std::mem::take(&mut pressed) {
                info!("the host has enough memory again");
                inner.press_pool(false).await;
            }
            continue;
        };
        if !std::mem::replace(&mut pressed, true) {
            warn!(why, "the host is short of memory: the longest idle sleep first");
        }
        // They hold nothing that anybody would miss.
        if inner.press_pool(true).await {
            continue;
        }
        left_alone.retain(|_, until| *until > Instant::now());
        let Some(id) = longest_idle(inner, pressure.idle, &left_alone) else { continue };
        info!(sandbox_id = %id, why, "the longest idle");
        if !sleeps(inner, &id).await {
            left_alone.insert(id, Instant::now() + LEFT_ALONE);
        }
    }
}

fn longest_idle(inner: &Inner, idle: Duration, left_alone: &HashMap<SandboxId, Instant>) -> Option<SandboxId> {
    let before = inner.now().checked_sub(idle).ok()?;
    let owners = inner.owners.lock().expect("no panic while it is held");
    let candidates = owners.iter().filter(|(id, _)| !left_alone.contains_key(*id)).filter_map(|(id, handle)| {
        let live = handle.live.borrow();
        (may_sleep(&live) && live.row.last_activity_at <= before).then(|| (live.row.last_activity_at, id.clone()))
    });
    candidates.min().map(|(_, id)| id)
}

/// As far as others see. What goes on inside its owner finds out.
fn may_sleep(live: &Live) -> bool {
    let row = &live.row;
    row.state == State::Running && row.transition.is_none() && row.policy.auto_resume && live.sleeps_at.is_some()
}

/// Presses one, and waits until it sleeps. Whether it does.
async fn sleeps(inner: &Inner, id: &SandboxId) -> bool {
    let Some(mut handle) = inner.owner(id) else { return false };
    handle.press.notify_one();
    let asleep = handle.live.wait_for(|live| live.row.state != State::Running);
    matches!(tokio::time::timeout(ASLEEP, asleep).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::tests::{at, row};
    use jiff::SignedDuration;
    use wakeful_model::Memory;

    const MEMINFO: &str = "MemTotal:       1000000 kB\nMemFree:          10000 kB\nMemAvailable:     123000 kB\n";
    const STALLS: &str = "some avg10=7.25 avg60=0.10 avg300=0.02 total=2784982\nfull avg10=1.01 avg60=0.03 total=9\n";

    #[test]
    fn figures_are_read() {
        assert_eq!(available_percent(MEMINFO), Some(12.3));
        assert_eq!(stall_percent(STALLS), Some(7.25));
        for nothing in ["", "MemTotal: 0 kB\nMemAvailable: 1 kB\n", "some\n", "MemTotal: 5 kB\n"] {
            assert_eq!((available_percent(nothing), stall_percent(nothing)), (None, None));
        }
    }

    #[tokio::test]
    async fn pressure_is_what_was_said_to_be() {
        let dir = tempfile::tempdir().expect("can be made");
        let (meminfo, stalls) = (dir.path().join("meminfo"), dir.path().join("memory"));
        std::fs::write(&meminfo, MEMINFO).expect("can be written");
        std::fs::write(&stalls, STALLS).expect("can be written");
        for (available_percent, stall_percent, pressed) in [
            (None, None, false),
            (Some(12), Some(8), false),
            (Some(13), None, true),
            (Some(12), Some(7), true),
            (None, Some(7), true),
        ] {
            let (idle, interval) = (Duration::ZERO, Duration::ZERO);
            let (meminfo, stalls) = (meminfo.clone(), stalls.clone());
            let pressure = Pressure { available_percent, stall_percent, idle, interval, meminfo, stalls };
            assert_eq!(pressure.now().await.is_some(), pressed, "{pressure:?}");
            let unreadable = dir.path().join("nothing");
            let pressure = Pressure { meminfo: unreadable.clone(), stalls: unreadable, ..pressure };
            assert_eq!(pressure.now().await, None, "what is not known is no reason");
        }
    }

    #[test]
    fn only_those_sleep_that_would_anyway() {
        let idle = |policy: &mut wakeful_model::Policy| policy.idle_timeout = Some(SignedDuration::from_secs(10));
        let live = |row, sleeps_at| Live { row, awake_because: Vec::new(), sleeps_at };
        assert!(may_sleep(&live(row(State::Running, idle), Some(at(110)))));
        assert!(!may_sleep(&live(row(State::Running, idle), None)), "something keeps it awake");
        assert!(!may_sleep(&live(row(State::Suspended(Memory::Kept), idle), Some(at(110)))));
        let refuses = row(State::Running, |policy| {
            idle(policy);
            policy.auto_resume = false;
        });
        assert!(!may_sleep(&live(refuses, Some(at(110)))), "nobody could use it any more");
    }
}
