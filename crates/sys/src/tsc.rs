//! The rate of the processor's time stamp counter.
//!
//! Under emulation the guest's `rdtsc` is the host's, and a microvm has nothing else to calibrate it with, so the host
//! measures the rate and tells the guest. Two samples some 200 ms apart give it; the caller waits in between.

use rustix::time::{ClockId, clock_gettime};

/// The counter and the raw clock at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    ticks: u64,
    nanoseconds: i128,
}

/// Reads both. The counter is read between two readings of the clock, and the tightest of a few tries is taken, so that
/// being scheduled away in between does not spoil it.
#[must_use]
pub fn sample() -> Sample {
    let mut best: Option<(i128, Sample)> = None;
    for _ in 0..16 {
        let before = raw_clock();
        // SAFETY: `rdtsc` has no preconditions; every x86-64 processor has it.
        let ticks = unsafe { core::arch::x86_64::_rdtsc() };
        let after = raw_clock();
        let width = after - before;
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            best = Some((width, Sample { ticks, nanoseconds: before + width / 2 }));
        }
    }
    best.expect("there was at least one try").1
}

/// Ticks per millisecond between two samples; `None` if no time has passed.
#[must_use]
pub fn khz(first: Sample, second: Sample) -> Option<u64> {
    let elapsed = second.nanoseconds - first.nanoseconds;
    let ticks = i128::from(second.ticks) - i128::from(first.ticks);
    (elapsed > 0 && ticks > 0).then(|| u64::try_from((ticks * 1_000_000 + elapsed / 2) / elapsed).ok())?
}

fn raw_clock() -> i128 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn measure() -> u64 {
        let (first, start) = (sample(), Instant::now());
        while start.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        khz(first, sample()).expect("time has passed")
    }

    #[test]
    fn two_measurements_agree() {
        let (a, b) = (measure(), measure());
        assert!(a > 100_000, "{a} kHz is no processor of today");
        assert!(a.abs_diff(b) * 200 < a, "{a} and {b} differ by more than half a per cent");
    }

    #[test]
    fn no_time_gives_no_rate() {
        let now = sample();
        assert_eq!(khz(now, now), None);
    }
}
