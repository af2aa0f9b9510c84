//! A caller's hold on a running guest.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use wakeful_guest_client::{Again, Exec, ExecOutput, Guest};
use wakeful_model::{Code, Op, Refusal, Sandbox, SandboxId, State};

use crate::Error;
use crate::activity::Activity;
use crate::owner::{Ask, Reply, ReplyTo};
use crate::uses::UseGuard;
use crate::view::{AwakeReason, Live};

/// How long the owner may take to find out why a channel broke.
const FIND_OUT: Duration = Duration::from_secs(2);
/// How long a guest may stand still until its user gives up.
const STANDSTILL: Duration = Duration::from_secs(60);

/// The problems that an agent can have with a call.
const SAYABLE: [Code; 13] = [
    Code::WorkdirNotFound,
    Code::UnknownUser,
    Code::NoShell,
    Code::CommandNotFound,
    Code::NotExecutable,
    Code::PathNotFound,
    Code::IsDirectory,
    Code::NotADirectory,
    Code::GuestDiskFull,
    Code::InvalidPath,
    Code::ProcessNotFound,
    Code::NameTaken,
    Code::StdinClosed,
];

/// What a guest is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A command in the foreground.
    Exec,
    /// A file on its way.
    Transfer,
    /// A short look.
    List,
    /// A terminal, a tunnel, a stream of output or events: counts by its last byte ([`Access::touch`]), not by being open.
    Stream,
}

impl Use {
    /// Whether it keeps the sandbox awake for as long as it lasts.
    pub(crate) const fn holds(self) -> bool {
        match self {
            Self::Exec | Self::Transfer | Self::List => true,
            Self::Stream => false,
        }
    }

    pub(crate) const fn awake_reason(self) -> AwakeReason {
        match self {
            Self::Exec => AwakeReason::Exec,
            Self::Transfer => AwakeReason::Transfer,
            Self::List | Self::Stream => AwakeReason::RecentActivity,
        }
    }
}

/// What a hold is made of.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) guest: Guest,
    pub(crate) row: Arc<Sandbox>,
    pub(crate) live: watch::Receiver<Live>,
    pub(crate) owner: mpsc::WeakSender<(Ask, ReplyTo)>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) draining: CancellationToken,
}

/// A running guest, kept awake for as long as this is held, unless it is held for a [`Use::Stream`].
pub struct Access {
    link: Link,
    why: Use,
    guard: Option<UseGuard>,
}

impl Access {
    pub(crate) fn new(link: Link, why: Use, guard: Option<UseGuard>) -> Self {
        Self { link, why, guard }
    }

    /// The same guest for a [`Use::Stream`] beside this use, which may end before it.
    #[must_use]
    pub fn stream(&self) -> Self {
        Self { link: self.link.clone(), why: Use::Stream, guard: None }
    }

    /// The same guest by another channel, when this one was lost to a standstill: a snapshot, a fork, a suspend that came to
    /// nothing. None if it has slept since, or is not there.
    pub async fn again(&self) -> Option<Self> {
        let generation = self.link.row.runtime_generation;
        let mut live = self.link.live.clone();
        let at_rest = live.wait_for(|live| live.row.transition.is_none());
        {
            let live = tokio::time::timeout(STANDSTILL, at_rest).await.ok()?.ok()?;
            if live.row.state != State::Running || live.row.runtime_generation != generation {
                return None;
            }
        }
        let (reply, answer) = oneshot::channel();
        self.link.owner.upgrade()?.send((Ask::Access { why: self.why }, reply)).await.ok()?;
        match tokio::time::timeout(STANDSTILL, answer).await.ok()?.ok()?.ok()? {
            Reply::Access(access) if access.row().runtime_generation == generation => Some(*access),
            Reply::Access(_) | Reply::Done => None,
        }
    }

    /// A byte went through: the idle timer starts anew. Cheap enough for every one of them.
    pub fn touch(&self) {
        self.link.activity.touch();
    }

    /// Says more about this use to those who ask why the sandbox is awake.
    pub fn detail(&self, detail: String) {
        if let Some(guard) = &self.guard {
            guard.detail(detail);
        }
    }

    /// Resolves when the daemon is about to end: streams end then, their processes go on.
    pub async fn draining(&self) {
        self.link.draining.cancelled().await;
    }

    /// The sandbox as it was when access was granted.
    #[must_use]
    pub fn row(&self) -> &Sandbox {
        &self.link.row
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// With the codes of the contract: what the agent refuses, and what came between.
    pub async fn exec(&self, exec: &Exec) -> Result<ExecOutput, Error> {
        let started = |pid: u32| self.detail(format!("pid {pid}"));
        match self.link.guest.exec_told(exec, started, Regained { first: self, held: None }).await {
            Ok(output) => Ok(output),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// What a guest's error means for the caller: the agent's own refusal, or what became of the sandbox meanwhile.
    pub async fn explain(&self, error: wakeful_guest_client::Error) -> Error {
        use wakeful_guest_client::Error as Guest;
        let id = self.link.row.id.clone();
        match error {
            error @ Guest::Refused { .. } => refusal(&id, error),
            Guest::Cut { pid, seq } => match self.came_between().await {
                Some(Error::SuspendedDuringExec { id, .. }) => Error::SuspendedDuringExec { id, pid: Some(pid), seq },
                Some(came_between) => came_between,
                None => Error::Unresponsive { id, detail: error.to_string() },
            },
            error => match self.came_between().await {
                Some(came_between) => came_between,
                None => Error::Unresponsive { id, detail: error.to_string() },
            },
        }
    }

    /// What came between, for a stream that simply ended: the agent cuts tunnels off when its session ends, and that looks
    /// like the end that their other side may have made.
    pub async fn interrupted(&self) -> Option<Error> {
        let now = {
            let live = self.link.live.borrow();
            live.row.transition.is_some()
                || live.row.state != State::Running
                || live.row.runtime_generation != self.link.row.runtime_generation
        };
        if now || self.link.guest.is_closed() { self.came_between().await } else { None }
    }

    /// The channel broke: by a suspend, a destroy, the engine's death, or for no reason that we know.
    async fn came_between(&self) -> Option<Error> {
        let id = self.link.row.id.clone();
        let generation = self.link.row.runtime_generation;
        let mut live = self.link.live.clone();
        let changed = live.wait_for(|live| {
            live.row.transition.is_some()
                || live.row.state != State::Running
                || live.row.runtime_generation != generation
        });
        let Ok(changed) = tokio::time::timeout(FIND_OUT, changed).await else { return None };
        // The owner is gone: it was destroyed.
        let Ok(live) = changed else { return Some(Error::Refused { id, refusal: Refusal::Destroyed }) };
        let suspended = || Error::SuspendedDuringExec { id: id.clone(), pid: None, seq: 0 };
        Some(match (live.row.state, live.row.transition.as_ref().map(|t| t.op)) {
            (_, Some(Op::Destroy)) | (State::Destroyed, _) => Error::Refused { id, refusal: Refusal::Destroyed },
            (_, Some(Op::Suspend)) | (State::Suspended(_), _) => suspended(),
            (State::Failed(_), _) => {
                let detail =
                    live.row.failure.as_ref().map_or_else(|| "unknown".into(), |failure| failure.detail.clone());
                Error::Failed { id, detail }
            }
            // It slept and woke in between.
            (State::Running | State::Creating, _) => suspended(),
        })
    }
}

/// What a guest's error means if nothing came between.
pub(crate) fn refusal(id: &SandboxId, error: wakeful_guest_client::Error) -> Error {
    use wakeful_guest_client::Error as Guest;
    let id = id.clone();
    let Guest::Refused { wakeful_code, code, message, .. } = error else {
        return Error::Unresponsive { id, detail: error.to_string() };
    };
    // The guest is hostile: it may say what went wrong inside, and nothing about us.
    let said = wakeful_code.and_then(|code| code.parse().ok()).filter(|code| SAYABLE.contains(code));
    match said {
        Some(code) => Error::Guest { code, detail: message },
        None => Error::Unresponsive { id, detail: format!("its agent refused ({code}): {message}") },
    }
}

/// Finds the guest again, and keeps it awake as the first access does.
struct Regained<'a> {
    first: &'a Access,
    held: Option<Access>,
}

impl Again for Regained<'_> {
    async fn channel(&mut self) -> Option<Guest> {
        let held = self.held.insert(self.first.again().await?);
        Some(held.link.guest.clone())
    }
}

impl Deref for Access {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.link.guest
    }
}
