//! One task per sandbox: the only one that decides about it and the only one that writes its row.
//!
//! Asks and facts come in, facts first: a dead engine beats a suspend request. An operation runs in a task of its own with
//! a copy of the row; while it is under way the owner writes nothing, keeps answering, and lets callers wait. When it
//! ends, it hands the row back, and everybody who waited is answered or decided upon again.

use std::sync::Arc;
use std::time::Duration;

use crate::access::{Access, Link, Use};
use crate::busy::{Inquiry, Knock, Looks};
use crate::compaction::Compaction;
use crate::deadline::{self, Deadline};
use crate::lifecycle::{Inner, error_chain};
use crate::ops::Cut;
use crate::patch::Patch;
use crate::snapshots::Origin;
use crate::uses::{News, Uses};
use crate::view::{Awake, AwakeReason, Live};
use crate::{Error, guest, ops, tenants};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use wakeful_driver::{Engine, Exit};
use wakeful_guest_client::Guest;
use wakeful_model::{
    Cause, Code, Event, EventType, Fact, Failure, Mode, Op, Outcome, Sandbox, State, Transition, Verdict, machine,
};

/// How long an automatic operation that failed is left alone.
const AUTOMATIC_RETRY: Duration = Duration::from_secs(10);
/// How long a suspend that nobody asked for is put off after something in the sandbox was in its way; doubled each time.
const FIRST_PUT_OFF: SignedDuration = SignedDuration::from_secs(30);
const LAST_PUT_OFF: SignedDuration = SignedDuration::from_secs(600);
/// Deadlines are looked at at least this often, so that a clock that jumps does no harm.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);
/// How long a broken channel is tried again while a caller waits.
const RECONNECT: Duration = Duration::from_secs(6);
/// How long a wish for it to sleep is good: it may be at work just now.
const PRESSED: SignedDuration = SignedDuration::from_secs(10);
/// How often use is written down.
const TOUCH_INTERVAL: SignedDuration = SignedDuration::from_secs(5);

/// What somebody wants of one sandbox.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Access { why: Use },
    Suspend { memory: bool },
    Wake { join: bool },
    Keepalive { timeout: Option<Duration> },
    Patch { patch: Box<Patch>, cause: Cause },
    Cut(Cut),
    Destroy { cause: Cause },
}

/// The answer.
pub(crate) enum Reply {
    Done,
    Access(Box<Access>),
}

pub(crate) type ReplyTo = oneshot::Sender<Result<Reply, Error>>;

/// How others reach an owner.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) asks: mpsc::Sender<(Ask, ReplyTo)>,
    pub(crate) live: watch::Receiver<Live>,
    pub(crate) looks: Looks,
    /// Makes it sleep soon, if nobody uses it: the host is short of memory.
    pub(crate) press: Arc<Notify>,
}

/// What an operation hands back.
pub(crate) struct Finished {
    pub(crate) row: Sandbox,
    pub(crate) held: Held,
    pub(crate) result: Result<(), Error>,
}

/// What a running sandbox has.
#[derive(Clone, Default)]
pub(crate) struct Held {
    pub(crate) engine: Option<Arc<dyn Engine>>,
    pub(crate) guest: Option<Guest>,
}

/// Where an owner begins.
pub(crate) struct Start {
    pub(crate) row: Sandbox,
    pub(crate) held: Held,
    /// An operation to begin with: a create, or what a crash interrupted.
    pub(crate) first: Option<(Plan, Option<ReplyTo>)>,
}

/// An operation and what it needs to know.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Create { from: Option<Arc<Origin>> },
    Suspend { memory: bool, cause: Cause },
    Wake { cause: Cause },
    Cut(Cut),
    Destroy { cause: Cause },
}

impl Plan {
    pub(crate) const fn op(&self) -> Op {
        match self {
            Self::Create { .. } => Op::Create,
            Self::Cut(Cut { name: Some(_), .. }) => Op::Snapshot,
            Self::Cut(Cut { name: None, .. }) => Op::Fork,
            Self::Suspend { .. } => Op::Suspend,
            Self::Wake { .. } => Op::Wake,
            Self::Destroy { .. } => Op::Destroy,
        }
    }

    const fn cause(&self) -> Cause {
        match self {
            Self::Create { .. } | Self::Cut(_) => Cause::Api,
            Self::Suspend { cause, .. } | Self::Wake { cause } | Self::Destroy { cause } => *cause,
        }
    }
}

/// It should sleep, and cannot.
struct PutOff {
    /// Since when.
    since: Timestamp,
    /// What is in the way.
    detail: String,
    /// Not before then.
    until: Timestamp,
    /// How long it waits this time.
    wait: SignedDuration,
}

/// What is under way.
struct Operation {
    plan: Plan,
    /// It gives way to whoever needs the sandbox: nobody did when it began.
    yields: bool,
    /// Calls it off, while that is possible.
    off: CancellationToken,
    task: JoinHandle<Finished>,
}

struct Waiter {
    ask: Ask,
    reply: ReplyTo,
    /// The operation under way is what it asked for: if that fails, so does the ask.
    bound: bool,
}

pub(crate) fn spawn(inner: &Arc<Inner>, start: Start) -> Handle {
    let (asks, ask_inbox) = mpsc::channel(256);
    let (uses, news_inbox) = Uses::new(inner.clock.clone());
    let (busy, looks) = Inquiry::new();
    let (live, watching) = watch::channel(Live::at_rest(start.row.clone()));
    let press = Arc::new(Notify::new());
    let owner = Owner {
        inner: Arc::clone(inner),
        row: start.row,
        held: start.held,
        operation: None,
        waiters: Vec::new(),
        uses,
        busy,
        touched_at: Timestamp::UNIX_EPOCH,
        quiet_until: Timestamp::UNIX_EPOCH,
        put_off: None,
        door: asks.downgrade(),
        press: Arc::clone(&press),
        pressed_until: None,
        compaction: None,
        live,
    };
    inner.tasks.spawn(owner.run(start.first, ask_inbox, news_inbox));
    Handle { asks, live: watching, looks, press }
}

pub(crate) struct Owner {
    inner: Arc<Inner>,
    row: Sandbox,
    held: Held,
    operation: Option<Operation>,
    waiters: Vec<Waiter>,
    uses: Uses,
    /// What the guest does of itself.
    busy: Inquiry,
    touched_at: Timestamp,
    /// Automatic operations wait until then.
    quiet_until: Timestamp,
    /// So do sleeps, for longer, if something inside is in their way.
    put_off: Option<PutOff>,
    /// For those who have to come back.
    door: mpsc::WeakSender<(Ask, ReplyTo)>,
    press: Arc<Notify>,
    /// It is to sleep before its time, if nobody uses it until then.
    pressed_until: Option<Timestamp>,
    compaction: Option<Compaction>,
    live: watch::Sender<Live>,
}

enum Happening {
    News(News),
    Busy(Knock),
    Compacted(Option<Sandbox>),
    Finished(Result<Finished, tokio::task::JoinError>),
    EngineEnded(Exit),
    Ask(Ask, ReplyTo),
    Pressed,
    Deadline,
    Draining,
}

impl Owner {
    async fn run(
        mut self,
        first: Option<(Plan, Option<ReplyTo>)>,
        mut asks: mpsc::Receiver<(Ask, ReplyTo)>,
        mut news: mpsc::UnboundedReceiver<News>,
    ) {
        if let Some((plan, reply)) = first {
            if let Some(reply) = reply {
                self.waiters.push(Waiter { ask: Ask::Wake { join: true }, reply, bound: true });
            }
            Box::pin(self.begin(plan, false)).await;
        }
        self.publish();
        loop {
            match self.next(&mut asks, &mut news).await {
                Happening::News(news) => {
                    if let Some(at) = self.uses.heard(news) {
                        self.note_activity(at);
                    }
                }
                Happening::Busy(knock) => {
                    self.busy.heard(knock, awake(&self.held), &self.inner.tasks, self.inner.now());
                }
                Happening::Compacted(row) => {
                    self.compaction = None;
                    self.row = row.unwrap_or_else(|| self.row.clone());
                }
                // In boxes of their own: a thousand owners that only wait should not each carry room for all of it.
                Happening::Finished(finished) => Box::pin(self.on_finished(finished)).await,
                Happening::EngineEnded(exit) => Box::pin(self.on_engine_ended(exit)).await,
                Happening::Ask(ask, reply) => Box::pin(self.on_ask(ask, reply)).await,
                Happening::Pressed => self.pressed_until = self.inner.now().checked_add(PRESSED).ok(),
                Happening::Deadline => Box::pin(self.on_deadline()).await,
                Happening::Draining => return,
            }
            self.publish();
            self.busy.answer();
            if self.row.state == State::Destroyed && self.operation.is_none() {
                self.inner.owners.lock().expect("no panic while it is held").remove(&self.row.id);
                return;
            }
        }
    }

    /// # Cancel safety
    /// Only reads are raced; nothing is lost by the branch not taken.
    async fn next(
        &mut self,
        asks: &mut mpsc::Receiver<(Ask, ReplyTo)>,
        news: &mut mpsc::UnboundedReceiver<News>,
    ) -> Happening {
        let busy = self.operation.is_some();
        let engine = if busy { None } else { self.held.engine.clone() };
        let due = self.next_deadline().map(|deadline| deadline.at);
        tokio::select! {
            biased;
            finished = async { (&mut self.operation.as_mut().expect("guarded").task).await }, if busy => Happening::Finished(finished),
            exit = async { engine.as_ref().expect("guarded").exited().await }, if engine.is_some() => Happening::EngineEnded(exit),
            row = async { self.compaction.as_mut().expect("guarded").finished().await }, if self.compaction.is_some() => Happening::Compacted(row),
            Some(told) = news.recv() => Happening::News(told),
            knock = self.busy.next() => Happening::Busy(knock),
            // An operation under way reaches its end first; a crash in the middle is the other, rarer path.
            () = self.inner.draining.cancelled(), if !busy => Happening::Draining,
            Some((ask, reply)) = asks.recv() => Happening::Ask(ask, reply),
            () = self.press.notified() => Happening::Pressed,
            () = self.inner.clock.wait_until(due.unwrap_or(Timestamp::MAX), LONGEST_SLEEP), if due.is_some() => Happening::Deadline,
        }
    }

    fn under_way(&self) -> Option<Op> {
        self.operation.as_ref().map(|operation| operation.plan.op())
    }

    // ---- asks

    async fn on_ask(&mut self, ask: Ask, reply: ReplyTo) {
        if let (Ask::Keepalive { .. }, Mode::Persistent) = (&ask, self.row.policy.mode()) {
            let _ = reply.send(Err(Error::NotEphemeral(self.row.id.clone())));
            return;
        }
        let question = match ask {
            Ask::Access { .. } => machine::Ask::Access { auto_resume: self.row.policy.auto_resume },
            Ask::Suspend { .. } => machine::Ask::Suspend,
            Ask::Wake { join } => machine::Ask::Wake { join },
            Ask::Keepalive { .. } => machine::Ask::Keepalive,
            Ask::Patch { .. } => machine::Ask::Change,
            Ask::Cut(ref cut) => machine::Ask::Cut { fork: cut.name.is_none() },
            Ask::Destroy { .. } => machine::Ask::Destroy,
        };
        if let Some(operation) = &mut self.operation {
            if operation.yields && machine::calls_off(question, operation.plan.op()) {
                operation.off.cancel();
            }
            // From here on somebody did ask for it.
            operation.yields &= !matches!(ask, Ask::Suspend { .. });
        }
        match self.inner.decide(&self.row.id, self.row.state, self.under_way(), question) {
            Verdict::Start(op) => {
                let plan = match (&ask, op) {
                    (Ask::Suspend { memory }, _) => Plan::Suspend { memory: *memory, cause: Cause::Api },
                    (Ask::Destroy { cause }, _) => Plan::Destroy { cause: *cause },
                    (Ask::Cut(cut), _) => Plan::Cut(cut.clone()),
                    (Ask::Access { .. }, _) => Plan::Wake { cause: Cause::Access },
                    (Ask::Wake { .. } | Ask::Keepalive { .. } | Ask::Patch { .. }, _) => {
                        Plan::Wake { cause: Cause::Api }
                    }
                };
                self.waiters.push(Waiter { ask, reply, bound: true });
                self.begin(plan, false).await;
            }
            Verdict::Join(_) => self.waiters.push(Waiter { ask, reply, bound: true }),
            Verdict::After(op) => {
                // An access that waits for a wake shares its fate; else a broken wake would be tried once per caller.
                let bound = op == Op::Wake && matches!(ask, Ask::Access { .. });
                self.waiters.push(Waiter { ask, reply, bound });
            }
            Verdict::Already => self.grant(ask, reply).await,
            Verdict::Refuse(refusal) => {
                let _ = reply.send(Err(Error::Refused { id: self.row.id.clone(), refusal }));
            }
        }
    }

    async fn grant(&mut self, ask: Ask, reply: ReplyTo) {
        let answer = match ask {
            Ask::Access { why } => self.grant_access(why).await,
            Ask::Keepalive { timeout } => self.extend_lease(timeout).await.map(|()| Reply::Done),
            Ask::Patch { patch, cause } => self.change(*patch, cause).await.map(|()| Reply::Done),
            Ask::Wake { .. } => {
                self.note_activity(self.inner.now());
                Ok(Reply::Done)
            }
            Ask::Suspend { .. } | Ask::Cut(_) | Ask::Destroy { .. } => Ok(Reply::Done),
        };
        let _ = reply.send(answer);
    }

    async fn grant_access(&mut self, why: Use) -> Result<Reply, Error> {
        let guest = match &self.held.guest {
            Some(guest) if !guest.is_closed() => guest.clone(),
            Some(_) | None => self.reconnect().await?,
        };
        let now = self.inner.now();
        self.note_activity(now);
        let guard = self.uses.begin(why, now);
        let link = Link {
            guest,
            row: Arc::new(self.row.clone()),
            live: self.live.subscribe(),
            owner: self.door.clone(),
            activity: Arc::clone(self.uses.activity()),
            draining: self.inner.draining.clone(),
        };
        Ok(Reply::Access(Box::new(Access::new(link, why, guard))))
    }

    /// The channel broke although the engine runs: one more try, on this caller's time.
    async fn reconnect(&mut self) -> Result<Guest, Error> {
        let id = &self.row.id;
        let Some(engine) = &self.held.engine else {
            // Its runtime may have been gone when the daemon started.
            self.inner.driver_of(&self.row).await?;
            return Err(Error::Unresponsive { id: id.clone(), detail: "it has no engine".into() });
        };
        self.held.guest = None;
        warn!(sandbox_id = %id, "channel to the agent was lost, connecting again");
        let guest = guest::reach(id, engine, &self.row.secret, RECONNECT).await?;
        self.held.guest = Some(guest.clone());
        Ok(guest)
    }

    async fn extend_lease(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let defaults = &self.inner.defaults;
        let created_with = self.row.policy.timeout.and_then(|t| Duration::try_from(t).ok());
        let lease = timeout.or(created_with).unwrap_or(defaults.timeout).min(defaults.max_timeout);
        let now = self.inner.now();
        let mut row = self.row.clone();
        row.policy.expires_at = now.checked_add(lease).ok();
        row.updated_at = now;
        let event = ops::event(&row, EventType::Keepalive, Cause::Api, None, None);
        self.row = ops::swap(&self.inner, row, Some(&event)).await?;
        self.note_activity(now);
        Ok(())
    }

    /// One write, or none if nothing changes.
    async fn change(&mut self, patch: Patch, cause: Cause) -> Result<(), Error> {
        if patch.clone().apply(&self.row, self.inner.now())? == self.row {
            return Ok(());
        }
        let compacting = self.stop_compaction().await;
        let after = patch.apply(&self.row, self.inner.now())?;
        let egress = after.egress != self.row.egress;
        let event = egress.then(|| ops::event(&after, EventType::EgressChanged, cause, None, None));
        let written = if after.disk_mb == self.row.disk_mb {
            ops::swap(&self.inner, after, event.as_ref()).await
        } else {
            self.admit_growth(after, event.as_ref()).await
        };
        let mut written = written.map(|row| self.row = row);
        if egress && written.is_ok() {
            written = self.inner.uplinks.steer(&self.row).await;
        }
        if compacting {
            self.compaction = Compaction::begin(&self.inner, &self.row);
        }
        written
    }

    /// Writes the row with its larger disk, if host and tenant have the room; others see it before they count.
    async fn admit_growth(&mut self, after: Sandbox, event: Option<&Event>) -> Result<Sandbox, Error> {
        let inner = Arc::clone(&self.inner);
        let _turn = inner.admissions.lock().await;
        inner.check_disk(u64::from(after.disk_mb - self.row.disk_mb))?;
        self.row = tenants::admit_growth(&inner, after, event).await?;
        self.publish();
        Ok(self.row.clone())
    }

    // ---- operations

    /// It writes the row, as whoever calls this is about to do. Whether there was one.
    async fn stop_compaction(&mut self) -> bool {
        let Some(compaction) = self.compaction.take() else { return false };
        self.row = compaction.cancel().await.unwrap_or_else(|| self.row.clone());
        true
    }

    /// Writes the intent and starts the operation. If the intent cannot be written, whoever waits for it is told.
    async fn begin(&mut self, plan: Plan, automatic: bool) {
        self.stop_compaction().await;
        let now = self.inner.now();
        let mut row = self.row.clone();
        row.transition =
            Some(Transition { id: wakeful_model::OperationId::random(), op: plan.op(), since: now, automatic });
        row.updated_at = now;
        let event = match plan {
            Plan::Suspend { cause, .. } => Some(ops::event(&row, EventType::SuspendStarted, cause, None, None)),
            Plan::Wake { cause } => Some(ops::event(&row, EventType::WakeStarted, cause, None, None)),
            Plan::Create { .. } | Plan::Cut(_) | Plan::Destroy { .. } => None,
        };
        // A create's row was inserted with its intent. Every other operation writes one, also over an older one: if the row
        // is no longer what we know (a commit that nobody could vouch for), this fails before anything is touched.
        if !matches!(plan, Plan::Create { .. }) {
            let written = match plan {
                Plan::Wake { .. } => self.admit_wake(row, event.as_ref()).await,
                _ => ops::swap(&self.inner, row, event.as_ref()).await,
            };
            match written {
                Ok(row) => self.row = row,
                Err(error @ (Error::QuotaExceeded { .. } | Error::InsufficientCapacity { .. })) => {
                    info!(sandbox_id = %self.row.id, %error, "not woken");
                    self.answer_bound(&Arc::new(error));
                    return;
                }
                Err(error) => {
                    self.quiet_until = now.checked_add(AUTOMATIC_RETRY).unwrap_or(now);
                    error!(sandbox_id = %self.row.id, error = error_chain(&error), "could not write an intent");
                    self.answer_bound(&Arc::new(error));
                    return;
                }
            }
        }
        info!(sandbox_id = %self.row.id, op = %plan.op(), cause = %plan.cause(), "operation begins");
        self.busy.forget();
        let held = std::mem::take(&mut self.held);
        let off = CancellationToken::new();
        let operation = ops::run(Arc::clone(&self.inner), self.row.clone(), held, plan.clone(), off.clone());
        self.pressed_until = None;
        let yields = automatic && yields(plan.cause());
        self.operation = Some(Operation { plan, yields, off, task: self.inner.tasks.spawn(operation) });
    }

    /// Writes the intent to wake, if host and tenant have the memory; others see it before they count.
    async fn admit_wake(&mut self, row: Sandbox, event: Option<&Event>) -> Result<Sandbox, Error> {
        let inner = Arc::clone(&self.inner);
        let _turn = inner.admissions.lock().await;
        inner.check_memory(u64::from(row.memory_mb))?;
        inner.make_room(u64::from(row.memory_mb), Some(&row.id)).await;
        self.row = tenants::admit_wake(&inner, row, event).await?;
        self.publish();
        Ok(self.row.clone())
    }

    async fn on_finished(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        let Operation { plan, .. } = self.operation.take().expect("an operation has just finished");
        let result = match finished {
            Ok(finished) => {
                self.row = Sandbox {
                    last_activity_at: self.row.last_activity_at.max(finished.row.last_activity_at),
                    ..finished.row
                };
                self.held = finished.held;
                finished.result.map_err(Arc::new)
            }
            Err(panic) => {
                error!(sandbox_id = %self.row.id, op = %plan.op(), %panic, "operation panicked");
                self.inner.metrics.operation(plan.op(), Duration::ZERO, Some(Code::Internal));
                Err(Arc::new(self.fail_after_panic(&plan, panic.to_string()).await))
            }
        };
        match &result {
            Ok(()) => {
                self.put_off = None;
                info!(sandbox_id = %self.row.id, op = %plan.op(), state = self.row.state.name(), "operation done");
            }
            Err(error) if matches!(**error, Error::CalledOff) => {
                info!(sandbox_id = %self.row.id, op = %plan.op(), "operation called off: it is needed");
            }
            Err(error) if matches!(plan, Plan::Suspend { .. } | Plan::Cut(_)) && ops::obstacles::puts_off(error) => {
                self.put_off(&plan, error);
                info!(sandbox_id = %self.row.id, op = %plan.op(), state = self.row.state.name(), error = error_chain(&**error), "operation refused, nothing was touched");
            }
            Err(error) => {
                self.quiet_until = self.inner.now().checked_add(AUTOMATIC_RETRY).unwrap_or(Timestamp::MAX);
                warn!(sandbox_id = %self.row.id, op = %plan.op(), state = self.row.state.name(), error = error_chain(&**error), "operation failed");
            }
        }
        if let (Ok(()), Plan::Wake { .. } | Plan::Create { .. }) = (&result, &plan) {
            self.note_activity(self.inner.now());
        }
        // Whoever is answered next looks at what others see.
        self.publish();
        if let Err(error) = &result
            && !matches!(**error, Error::CalledOff)
        {
            self.answer_bound(error);
        }
        // A sleeper's was stopped by a cut.
        if let (Ok(()), Plan::Suspend { .. }) | (_, Plan::Cut(_)) = (&result, &plan)
            && let State::Suspended(_) = self.row.state
        {
            self.compaction = Compaction::begin(&self.inner, &self.row);
        }
        // Those whose very wish is done come first: an access that waited too may begin to undo it.
        let done = |waiter: &Waiter| {
            waiter.bound
                && match (&plan, &waiter.ask) {
                    (Plan::Create { .. }, _)
                    | (Plan::Suspend { .. }, Ask::Suspend { .. })
                    | (Plan::Cut(_), Ask::Cut(_)) => result.is_ok(),
                    _ => false,
                }
        };
        let (done, others) = std::mem::take(&mut self.waiters).into_iter().partition::<Vec<_>, _>(done);
        for waiter in done {
            let _ = waiter.reply.send(Ok(Reply::Done));
        }
        // Everyone else is decided upon again; what was asked for and is done now is `Already`.
        for waiter in others {
            self.on_ask(waiter.ask, waiter.reply).await;
        }
    }

    /// A sleep that nobody asked for comes later; each time longer, for whatever is in its way may stay there.
    fn put_off(&mut self, plan: &Plan, why: &Error) {
        let Plan::Suspend { cause, .. } = plan else { return };
        if *cause == Cause::Api {
            return;
        }
        let now = self.inner.now();
        let (since, wait) = match &self.put_off {
            Some(before) => (before.since, (before.wait + before.wait).min(LAST_PUT_OFF)),
            None => (now, FIRST_PUT_OFF),
        };
        let detail = match why {
            Error::NotSuspendable { detail, .. } => detail.clone(),
            other => other.to_string(),
        };
        let until = now.checked_add(wait).unwrap_or(Timestamp::MAX);
        self.put_off = Some(PutOff { since, detail, until, wait });
    }

    /// Answers those whose wish the failed operation was.
    fn answer_bound(&mut self, error: &Arc<Error>) {
        let (bound, others) = std::mem::take(&mut self.waiters).into_iter().partition::<Vec<_>, _>(|w| w.bound);
        self.waiters = others;
        for waiter in bound {
            let _ = waiter.reply.send(Err(Error::Shared(Arc::clone(error))));
        }
    }

    async fn fail_after_panic(&mut self, plan: &Plan, panic: String) -> Error {
        let problem = Error::Internal(format!("{} panicked: {panic}", plan.op()));
        if let Err(error) = self.inner.reap_row(&self.row).await {
            error!(sandbox_id = %self.row.id, error = error_chain(&error), "could not end the engine of a failed operation");
        }
        // The panicking task may have written the row: look at it again.
        if let Ok(Some(row)) = self.inner.store.sandbox(&self.row.id).await {
            self.row = row;
        }
        self.commit_failure("internal", &problem.to_string(), Cause::EngineDied).await;
        problem
    }

    // ---- facts

    async fn on_engine_ended(&mut self, exit: Exit) {
        self.held = Held::default();
        match self.inner.observe(&self.row.id, self.row.state, self.under_way(), Fact::EngineEnded) {
            Outcome::Move(_) => {
                let status = exit.status.as_deref().unwrap_or("unknown status");
                let (code, detail) = if exit.out_of_memory {
                    ("out_of_memory", "the host ended the engine: it used more memory than it may".to_owned())
                } else {
                    ("engine_ended", format!("the engine ended by itself ({status}){}", quoted(&exit.output)))
                };
                if let Err(error) = self.inner.reap_row(&self.row).await {
                    error!(sandbox_id = %self.row.id, error = error_chain(&error), "could not clear up after a dead engine");
                }
                let cause = if exit.out_of_memory {
                    Cause::OutOfMemory
                } else if exit.status.as_deref().is_some_and(|s| s.contains("signal")) {
                    Cause::EngineDied
                } else {
                    Cause::GuestExit
                };
                self.commit_failure(code, &detail, cause).await;
            }
            Outcome::Begin(_) | Outcome::Later | Outcome::Ignore => {}
        }
    }

    async fn commit_failure(&mut self, code: &str, detail: &str, cause: Cause) {
        let now = self.inner.now();
        let mut row = self.row.clone();
        row.transition = None;
        row.updated_at = now;
        row.checkpoint = None;
        row.state = State::Failed(machine::Bootable::Yes);
        row.failure = Some(Failure { code: code.to_owned(), detail: detail.to_owned(), at: now, bootable: true });
        let event = ops::event(&row, EventType::Failed, cause, None, Some(detail.to_owned()));
        match ops::swap(&self.inner, row, Some(&event)).await {
            Ok(row) => {
                warn!(sandbox_id = %row.id, detail, "sandbox failed");
                self.row = row;
            }
            Err(error) => error!(sandbox_id = %self.row.id, error = error_chain(&error), "could not commit a failure"),
        }
    }

    // ---- time

    /// The next instant at which something is due. While an operation is under way nothing is: its end is looked at first.
    fn next_deadline(&self) -> Option<Deadline> {
        if self.operation.is_some() {
            return None;
        }
        let unused = self.uses.is_empty() && self.busy.is_quiet();
        let pressed = self.pressed_until.filter(|until| unused && self.inner.now() < *until);
        let awake_until = self.put_off.as_ref().map_or(Timestamp::MIN, |put_off| put_off.until);
        let next = match pressed {
            Some(_) if self.row.state == State::Running && awake_until <= self.inner.now() => {
                Deadline { at: self.row.last_activity_at, fact: Fact::IdleElapsed, cause: Cause::Pressure }
            }
            _ => deadline::next(&self.row, unused, self.inner.defaults.limit_awake, awake_until)?,
        };
        Some(Deadline { at: next.at.max(self.quiet_until), ..next })
    }

    async fn on_deadline(&mut self) {
        // The owner is told of bytes once in a second; idleness counts from the very last one.
        if let Some(last) = self.uses.activity().last() {
            self.note_activity(last);
        }
        let Some(Deadline { at, fact, cause }) = self.next_deadline() else { return };
        if at > self.inner.now() {
            return;
        }
        match self.inner.observe(&self.row.id, self.row.state, self.under_way(), fact) {
            Outcome::Begin(Op::Suspend)
                if yields(cause) && self.busy.must_ask(awake(&self.held), &self.inner.tasks) => {}
            Outcome::Begin(Op::Suspend) => {
                let plan = Plan::Suspend { memory: self.row.policy.suspend_memory, cause };
                self.begin(plan, true).await;
            }
            Outcome::Begin(Op::Destroy) => self.begin(Plan::Destroy { cause }, true).await,
            Outcome::Begin(Op::Create | Op::Wake | Op::Snapshot | Op::Fork)
            | Outcome::Move(_)
            | Outcome::Later
            | Outcome::Ignore => {}
        }
    }

    /// The idle timer starts anew. Written down now and then: a restart may see it a few seconds late.
    fn note_activity(&mut self, now: Timestamp) {
        let now = wakeful_model::at_microseconds(now);
        if now > self.row.last_activity_at {
            self.row.last_activity_at = now;
            self.pressed_until = None;
        }
        if now.duration_since(self.touched_at) >= TOUCH_INTERVAL {
            self.touched_at = now;
            let (inner, id) = (Arc::clone(&self.inner), self.row.id.clone());
            self.inner.tasks.spawn(async move {
                if let Err(error) = inner.store.touch_sandbox(&id, now).await {
                    warn!(sandbox_id = %id, error = error_chain(&error), "could not note activity");
                }
            });
        }
    }

    // ---- what others see

    fn publish(&self) {
        let persistent = self.row.policy.mode() == Mode::Persistent;
        let mut awake_because = Vec::new();
        let mut sleeps_at = None;
        if persistent && self.row.state == State::Running {
            awake_because = self.uses.awake_because();
            awake_because.extend(self.busy.awake_because(self.row.created_at));
            awake_because.extend(self.put_off.as_ref().map(|put_off| Awake {
                reason: AwakeReason::NotSuspendable,
                since: put_off.since,
                detail: Some(put_off.detail.clone()),
            }));
            awake_because.sort_by_key(|awake| awake.since);
            if awake_because.iter().all(|awake| awake.reason == AwakeReason::RecentActivity) {
                sleeps_at = self.row.policy.sleeps_at(self.row.last_activity_at);
                if awake_because.is_empty() {
                    let since = self.row.last_activity_at;
                    awake_because.push(Awake { reason: AwakeReason::RecentActivity, since, detail: None });
                }
            }
        }
        self.inner.metrics.state_change(self.live.borrow().row.state, self.row.state);
        self.live.send_replace(Live { row: self.row.clone(), awake_because, sleeps_at });
    }
}

/// Whether a sleep for this cause is one that an access calls off, and that a guest at work puts off.
const fn yields(cause: Cause) -> bool {
    matches!(cause, Cause::Idle | Cause::Pressure)
}

/// The guest that can be asked something: none while an operation has it, or when its channel is broken.
fn awake(held: &Held) -> Option<&Guest> {
    held.guest.as_ref().filter(|guest| !guest.is_closed())
}

fn quoted(output: &str) -> String {
    let output = output.trim();
    if output.is_empty() { String::new() } else { format!(": {output}") }
}
