//! Busy leases: how a program inside says that it works although nobody outside is watching.
//!
//! ```text
//!   program ──▶ /run/wakeful.sock ──▶ Leases ◀── GET /_wakeful/busy, asked by the host before an idle sandbox is put to sleep
//! ```
//!
//! A lease ends by the guest's wall clock, which is set right after every wake: one that ran out during a sleep is over. A
//! clock that is set back does not lengthen it, since it also ends by the clock that cannot be set. A lease that is bound
//! to a process ends with that process; until then the agent renews it.

pub(crate) mod command;
pub(crate) mod socket;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use wakeful_guest_proto::control::{BusyLease, MAX_BUSY, MAX_LEASE_MS, MAX_LEASE_NAME};

use crate::process;

/// Why there is no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("name must have 1 to {MAX_LEASE_NAME} characters of A-Z a-z 0-9 . _ -")]
    Name,
    #[error("ttl must be more than 0 and at most 1h; renew it by asking again")]
    Ttl,
    #[error("there are {MAX_BUSY} leases already")]
    TooMany,
    #[error("the process that asked is gone")]
    Process,
}

/// All that are held, by name.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<BTreeMap<String, Lease>>,
}

struct Lease {
    ttl: Duration,
    /// When it was first taken.
    since: Instant,
    renewed: (Instant, SystemTime),
    /// The process that it is bound to.
    process: Option<Bound>,
}

impl Lease {
    /// What is left of it; `None` once it is over.
    fn left(&self, now: (Instant, SystemTime)) -> Option<Duration> {
        if let Some(process) = &self.process {
            return process.runs().then_some(self.ttl);
        }
        // A wall clock that was set back says nothing.
        let by_wall = now.1.duration_since(self.renewed.1).unwrap_or_default();
        let passed = by_wall.max(now.0.duration_since(self.renewed.0));
        self.ttl.checked_sub(passed).filter(|left| !left.is_zero())
    }
}

/// A process that a lease ends with.
enum Bound {
    Handle(OwnedFd),
    /// gVisor has no handles of processes. It gives a number away again only after all others.
    Number(u32),
}

impl Bound {
    /// `None` if there is no such process.
    fn to(pid: Pid) -> Option<Self> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Some(Self::Handle(handle)),
            Err(Errno::NOSYS) => Some(Self::Number(pid.as_raw_nonzero().get().unsigned_abs())).filter(Self::runs),
            Err(_) => None,
        }
    }

    fn runs(&self) -> bool {
        match self {
            // It becomes readable when the process ends.
            Self::Handle(handle) => {
                let mut fds = [PollFd::new(handle, PollFlags::IN)];
                matches!(poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
            }
            Self::Number(pid) => process::alive(*pid),
        }
    }
}

impl Leases {
    /// Takes a lease or renews the one of that name; with a process it lasts as long as that.
    pub(crate) fn take(&self, name: &str, ttl: Duration, process: Option<Pid>) -> Result<(), Refused> {
        self.take_at(name, ttl, process, (Instant::now(), SystemTime::now()))
    }

    fn take_at(
        &self,
        name: &str,
        ttl: Duration,
        process: Option<Pid>,
        now: (Instant, SystemTime),
    ) -> Result<(), Refused> {
        if !is_name(name) {
            return Err(Refused::Name);
        }
        if ttl.is_zero() || ttl > Duration::from_millis(MAX_LEASE_MS) {
            return Err(Refused::Ttl);
        }
        let process = match process {
            Some(pid) => Some(Bound::to(pid).ok_or(Refused::Process)?),
            None => None,
        };
        let mut held = self.lock();
        held.retain(|_, lease| lease.left(now).is_some());
        if held.len() >= MAX_BUSY && !held.contains_key(name) {
            return Err(Refused::TooMany);
        }
        let since = held.get(name).map_or(now.0, |lease| lease.since);
        held.insert(name.to_owned(), Lease { ttl, since, renewed: now, process });
        Ok(())
    }

    /// Gives one back; fine if there is none.
    pub(crate) fn drop(&self, name: &str) {
        self.lock().remove(name);
    }

    /// Those that are not over.
    pub(crate) fn list(&self) -> Vec<BusyLease> {
        self.list_at((Instant::now(), SystemTime::now()))
    }

    fn list_at(&self, now: (Instant, SystemTime)) -> Vec<BusyLease> {
        let mut held = self.lock();
        held.retain(|_, lease| lease.left(now).is_some());
        let told = held.iter().map(|(name, lease)| BusyLease {
            name: name.clone(),
            // Rounded up: a lease of which anything is left must not look like one that is over.
            ttl_ms: lease.left(now).map_or(0, |left| millis(left).saturating_add(1)).min(millis(lease.ttl)).max(1),
            since_ms: millis(now.0.duration_since(lease.since)),
        });
        told.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Lease>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn is_name(name: &str) -> bool {
    (1..=MAX_LEASE_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// A duration as everywhere in the contract: `90s`, `1h30m`, `250ms`.
fn parse_duration(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (0_u64, text);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, behind) = rest.split_at(digits);
        let unit = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_lowercase()).len();
        let (unit, behind) = behind.split_at(unit);
        let factor = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(factor)?)?;
        rest = behind;
    }
    Some(Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn names(leases: &[BusyLease]) -> Vec<&str> {
        leases.iter().map(|lease| lease.name.as_str()).collect()
    }

    #[test]
    fn leases_are_taken_renewed_given_back_and_end() {
        let leases = Leases::default();
        let begin = (Instant::now(), SystemTime::now());
        let after = |seconds: u64| (begin.0 + Duration::from_secs(seconds), begin.1 + Duration::from_secs(seconds));
        leases.take_at("build", MINUTE, None, begin).unwrap();
        leases.take_at("test", 2 * MINUTE, None, begin).unwrap();
        let held = leases.list_at(after(20));
        assert_eq!((names(&held), held[0].since_ms), (vec!["build", "test"], 20_000));
        assert!((40_000..=40_001).contains(&held[0].ttl_ms), "{held:?}");
        leases.take_at("build", MINUTE, None, after(50)).unwrap();
        let held = leases.list_at(after(100));
        assert_eq!((names(&held), held[0].since_ms), (vec!["build", "test"], 100_000));
        leases.drop("test");
        leases.drop("test");
        assert_eq!(names(&leases.list_at(after(109))), ["build"]);
        assert!(leases.list_at(after(110)).is_empty());
    }

    #[test]
    fn a_sleep_counts_and_a_clock_that_is_set_back_does_not_lengthen() {
        let leases = Leases::default();
        let begin = (Instant::now(), SystemTime::now());
        leases.take_at("a", MINUTE, None, begin).unwrap();
        let slept = (begin.0 + Duration::from_secs(1), begin.1 + Duration::from_secs(7200));
        assert!(leases.list_at(slept).is_empty());
        leases.take_at("a", MINUTE, None, begin).unwrap();
        let set_back = (begin.0 + Duration::from_secs(59), begin.1 - Duration::from_secs(7200));
        assert_eq!(leases.list_at(set_back).len(), 1);
        let set_back = (begin.0 + Duration::from_secs(60), begin.1 - Duration::from_secs(7200));
        assert!(leases.list_at(set_back).is_empty());
    }

    #[test]
    fn one_that_is_bound_to_a_process_ends_with_it() {
        let leases = Leases::default();
        let mut child = std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let begin = (Instant::now(), SystemTime::now());
        leases.take_at("a", MINUTE, pid, begin).unwrap();
        let much_later = (begin.0 + 100 * MINUTE, begin.1 + 100 * MINUTE);
        assert_eq!(leases.list_at(much_later)[0].ttl_ms, 60_000);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(leases.list_at(begin).is_empty());
        assert_eq!(leases.take_at("a", MINUTE, pid, begin), Err(Refused::Process));
    }

    #[test]
    fn there_are_bounds() {
        let leases = Leases::default();
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert_eq!(leases.take(bad, MINUTE, None), Err(Refused::Name), "{bad}");
        }
        for bad in [Duration::ZERO, Duration::from_millis(MAX_LEASE_MS + 1)] {
            assert_eq!(leases.take("a", bad, None), Err(Refused::Ttl));
        }
        for n in 0..MAX_BUSY {
            leases.take(&format!("lease-{n}"), Duration::from_millis(MAX_LEASE_MS), None).unwrap();
        }
        assert_eq!(leases.take("one-more", MINUTE, None), Err(Refused::TooMany));
        leases.take("lease-0", MINUTE, None).expect("renewed");
    }

    #[test]
    fn durations() {
        for (text, milliseconds) in
            [("60s", 60_000), ("1h30m", 5_400_000), ("250ms", 250), ("0s", 0), ("1d", 86_400_000)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for bad in ["", "60", "s", "1 s", "-1s", "1.5h", "1w", "99999999999999999999s", "1S"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
