//! Whether the guest itself is at work: programs inside that hold a lease, processes that were started with `keep_awake`.
//!
//! The guest is the truth, so a restart of the daemon loses nothing. It is asked before an idle sandbox is put to sleep,
//! and when somebody looks at the sandbox, at most every two seconds; none of that counts as activity.
//!
//! ```text
//!   idle for long enough ─▶ ask ─▶ nobody ─▶ sleep
//!                            ▲       └ somebody ─▶ awake because of it, until the next answer
//!                            └──── when a lease ends, at the latest every five seconds
//! ```
//!
//! A guest that does not answer is not busy, or a hung one would never sleep; only what it has said a moment ago is
//! believed for two more tries.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::debug;
use wakeful_guest_client::{Error as GuestError, Guest};
use wakeful_guest_proto::control::Busy;
use wakeful_model::{Mode, State};

use crate::owner::Handle;
use crate::view::{Awake, AwakeReason};

/// How long the agent may take: an emulated guest that works hard is slow.
const DEADLINE: Duration = Duration::from_secs(5);
/// An answer is as good as new for so long.
const FRESH: Duration = Duration::from_secs(2);
/// Leases are given back early and processes end: a busy guest is asked again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// Not more often than this, whatever the guest says of its leases.
const LEAST: Duration = Duration::from_millis(100);
/// So many silent tries take back what the guest has said before.
const TRIES: u32 = 3;
/// How long somebody who looks waits for a new answer.
const LOOK: Duration = Duration::from_millis(300);

type Answer = Result<Busy, GuestError>;

/// What the owner knows of its guest's work, and how it finds out.
pub(crate) struct Inquiry {
    looks: mpsc::Receiver<oneshot::Sender<()>>,
    waiting: Vec<oneshot::Sender<()>>,
    asking: Option<AbortOnDropHandle<Answer>>,
    known: Vec<Awake>,
    told_at: Option<Instant>,
    ask_at: Option<Instant>,
    failures: u32,
}

/// What the owner's inbox gets from here.
pub(crate) enum Knock {
    /// The guest has answered, or not.
    Told(Result<Answer, JoinError>),
    /// Somebody looks.
    Look(oneshot::Sender<()>),
    /// It is time to ask again.
    Due,
}

/// How others make the owner ask.
pub(crate) type Looks = mpsc::Sender<oneshot::Sender<()>>;

/// Lets the owner find out what keeps a running sandbox awake, if it does not know; returns soon in any case.
pub(crate) async fn look(handle: &Handle) {
    {
        let live = handle.live.borrow();
        if live.row.state != State::Running || live.row.policy.mode() != Mode::Persistent {
            return;
        }
    }
    let (reply, answer) = oneshot::channel();
    if handle.looks.try_send(reply).is_ok() {
        let _ = tokio::time::timeout(LOOK, answer).await;
    }
}

impl Inquiry {
    pub(crate) fn new() -> (Self, Looks) {
        let (sender, looks) = mpsc::channel(16);
        let inquiry = Self {
            looks,
            waiting: Vec::new(),
            asking: None,
            known: Vec::new(),
            told_at: None,
            ask_at: None,
            failures: 0,
        };
        (inquiry, sender)
    }

    /// # Cancel safety
    /// Only reads are raced.
    pub(crate) async fn next(&mut self) -> Knock {
        let (asking, ask_at) = (&mut self.asking, self.ask_at);
        let idle = asking.is_none();
        let told = async {
            match asking {
                Some(task) => task.await,
                None => std::future::pending().await,
            }
        };
        let due = async {
            match ask_at {
                Some(at) if idle => tokio::time::sleep_until(at).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            told = told => Knock::Told(told),
            Some(look) = self.looks.recv() => Knock::Look(look),
            () = due => Knock::Due,
        }
    }

    /// Takes in what [`next`](Self::next) brought. `guest` is there if the sandbox runs and its agent can be asked.
    pub(crate) fn heard(&mut self, knock: Knock, guest: Option<&Guest>, tasks: &TaskTracker, now: Timestamp) {
        match knock {
            Knock::Told(answer) => {
                self.asking = None;
                match answer {
                    Ok(Ok(busy)) => self.learn(&busy, now),
                    Ok(Err(error)) => self.missed(&error.to_string()),
                    Err(panic) => self.missed(&panic.to_string()),
                }
            }
            Knock::Look(reply) => {
                self.waiting.push(reply);
                if !self.is_fresh() {
                    self.ask(guest, tasks);
                }
            }
            Knock::Due => self.ask(guest, tasks),
        }
    }

    /// Whether the guest must be asked before it is put to sleep; if so, that has begun.
    pub(crate) fn must_ask(&mut self, guest: Option<&Guest>, tasks: &TaskTracker) -> bool {
        if self.is_fresh() && self.is_quiet() {
            return false;
        }
        self.ask(guest, tasks);
        self.asking.is_some()
    }

    /// Whether nobody inside is known to be at work, and nothing is being found out.
    pub(crate) fn is_quiet(&self) -> bool {
        self.known.is_empty() && self.asking.is_none()
    }

    /// Why it is awake as far as the guest goes. Its word about ages counts no further back than `born`.
    pub(crate) fn awake_because(&self, born: Timestamp) -> impl Iterator<Item = Awake> + '_ {
        self.known.iter().cloned().map(move |awake| Awake { since: awake.since.max(born), ..awake })
    }

    /// Lets those go who looked; to be called when others can see what is known now.
    pub(crate) fn answer(&mut self) {
        if self.asking.is_none() {
            for reply in self.waiting.drain(..) {
                let _ = reply.send(());
            }
        }
    }

    /// Something else begins: all of it will have to be found out anew.
    pub(crate) fn forget(&mut self) {
        (self.asking, self.told_at, self.ask_at, self.failures) = (None, None, None, 0);
        self.known.clear();
    }

    fn is_fresh(&self) -> bool {
        self.told_at.is_some_and(|at| at.elapsed() < FRESH)
    }

    fn ask(&mut self, guest: Option<&Guest>, tasks: &TaskTracker) {
        self.ask_at = None;
        if self.asking.is_some() {
            return;
        }
        let Some(guest) = guest.cloned() else { return self.forget() };
        // In a task of its own: the owner has others to answer.
        let task = tasks.spawn(async move { guest.busy(DEADLINE).await });
        self.asking = Some(AbortOnDropHandle::new(task));
    }

    fn learn(&mut self, busy: &Busy, now: Timestamp) {
        let since = |milliseconds: u64| {
            let age = SignedDuration::from_millis(i64::try_from(milliseconds).unwrap_or(i64::MAX));
            now.checked_sub(age).unwrap_or(Timestamp::MIN)
        };
        let leases = busy.leases.iter().map(|lease| Awake {
            reason: AwakeReason::Lease,
            since: since(lease.since_ms),
            detail: Some(lease.name.clone()),
        });
        let processes = busy.keep_awake.iter().map(|process| Awake {
            reason: AwakeReason::KeepAwake,
            since: since(process.since_ms),
            detail: Some(format!("pid {}", process.pid)),
        });
        self.known = leases.chain(processes).collect();
        self.failures = 0;
        self.told_at = Some(Instant::now());
        self.ask_at = (!self.known.is_empty()).then(|| {
            let first = busy.leases.iter().map(|lease| Duration::from_millis(lease.ttl_ms)).min();
            Instant::now() + first.unwrap_or(AGAIN).clamp(LEAST, AGAIN)
        });
    }

    fn missed(&mut self, error: &str) {
        self.failures += 1;
        debug!(error, failures = self.failures, "the guest did not tell whether it is busy");
        if self.failures >= TRIES || self.known.is_empty() {
            self.forget();
            self.told_at = Some(Instant::now());
        } else {
            self.ask_at = Some(Instant::now() + FRESH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wakeful_guest_proto::control::{BusyLease, BusyProcess};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a small number")
    }

    fn busy(ttl_ms: u64) -> Busy {
        let lease = BusyLease { name: "build".into(), ttl_ms, since_ms: 3000 };
        Busy { leases: vec![lease], keep_awake: vec![BusyProcess { pid: 7, since_ms: u64::MAX }] }
    }

    /// When it will be asked again.
    fn again(inquiry: &Inquiry) -> Option<Duration> {
        inquiry.ask_at.map(|at| at.duration_since(inquiry.told_at.expect("it was told something")))
    }

    #[test]
    fn what_the_guest_says_counts_until_it_says_something_else() {
        let (mut inquiry, _looks) = Inquiry::new();
        assert!(inquiry.is_quiet() && !inquiry.is_fresh());
        inquiry.learn(&busy(60_000), at(100));
        assert!(!inquiry.is_quiet());
        let awake: Vec<Awake> = inquiry.awake_because(at(50)).collect();
        let told = |reason, since, detail: &str| Awake { reason, since, detail: Some(detail.into()) };
        // Nobody is older than the sandbox, whatever the guest claims.
        assert_eq!(awake, [told(AwakeReason::Lease, at(97), "build"), told(AwakeReason::KeepAwake, at(50), "pid 7")]);
        inquiry.learn(&Busy::default(), at(105));
        assert!(inquiry.is_quiet() && inquiry.is_fresh() && inquiry.ask_at.is_none());
    }

    #[test]
    fn it_is_asked_again_when_a_lease_ends_but_not_all_the_time() {
        let (mut inquiry, _looks) = Inquiry::new();
        for (ttl_ms, wait) in [(60_000, AGAIN), (700, Duration::from_millis(700)), (1, LEAST)] {
            inquiry.learn(&busy(ttl_ms), at(100));
            let again = again(&inquiry).expect("it is busy");
            assert!(again >= wait && again < wait + Duration::from_millis(500), "{ttl_ms}: {again:?}");
        }
    }

    #[tokio::test]
    async fn the_time_to_ask_comes() {
        let (mut inquiry, _looks) = Inquiry::new();
        inquiry.learn(&busy(1), at(100));
        assert!(matches!(inquiry.next().await, Knock::Due));
    }

    #[test]
    fn silence_is_not_work_but_does_not_undo_at_once_what_was_said() {
        let (mut inquiry, _looks) = Inquiry::new();
        inquiry.missed("late");
        assert!(inquiry.is_quiet() && inquiry.is_fresh(), "it may be put to sleep");
        inquiry.learn(&busy(60_000), at(100));
        for _ in 1..TRIES {
            inquiry.missed("late");
            assert!(!inquiry.is_quiet() && inquiry.ask_at.is_some());
        }
        inquiry.missed("late");
        assert!(inquiry.is_quiet() && inquiry.is_fresh());
    }

    #[tokio::test]
    async fn without_a_guest_nobody_is_asked_and_nobody_waits() {
        let (mut inquiry, looks) = Inquiry::new();
        let tasks = TaskTracker::new();
        assert!(!inquiry.must_ask(None, &tasks));
        let (reply, answer) = oneshot::channel();
        looks.try_send(reply).expect("room");
        let knock = inquiry.next().await;
        inquiry.heard(knock, None, &tasks, at(100));
        inquiry.answer();
        answer.await.expect("answered");
    }
}
