//! A caller's hold on a running guest.

use std::ops::Deref;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wakeful_guest_client::{Exec, ExecOutput, Guest};
use wakeful_model::{Code, Op, Refusal, Sandbox, State};

use crate::Error;
use crate::owner::UseEnded;
use crate::view::{AwakeReason, Live};

/// How long the owner may take to find out why a channel broke.
const FIND_OUT: Duration = Duration::from_secs(2);

/// The problems that an agent can have with a call.
const SAYABLE: [Code; 12] = [
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
}

impl Use {
    pub(crate) const fn awake_reason(self) -> AwakeReason {
        match self {
            Self::Exec => AwakeReason::Exec,
            Self::Transfer => AwakeReason::Transfer,
            Self::List => AwakeReason::RecentActivity,
        }
    }
}

/// Tells the owner when a use ends, however it ends.
pub(crate) struct UseGuard {
    number: u64,
    ended: mpsc::UnboundedSender<UseEnded>,
}

impl UseGuard {
    pub(crate) fn new(number: u64, ended: mpsc::UnboundedSender<UseEnded>) -> Self {
        Self { number, ended }
    }
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        // An owner that is gone needs no telling.
        let _ = self.ended.send(self.number);
    }
}

/// A running guest, kept awake for as long as this is held.
pub struct Access {
    guest: Guest,
    row: Sandbox,
    live: watch::Receiver<Live>,
    _guard: UseGuard,
}

impl Access {
    pub(crate) fn new(guest: Guest, row: Sandbox, live: watch::Receiver<Live>, guard: UseGuard) -> Self {
        Self { guest, row, live, _guard: guard }
    }

    /// The sandbox as it was when access was granted.
    #[must_use]
    pub fn row(&self) -> &Sandbox {
        &self.row
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// With the codes of the contract: what the agent refuses, and what came between.
    pub async fn exec(&self, exec: &Exec) -> Result<ExecOutput, Error> {
        match self.guest.exec(exec).await {
            Ok(output) => Ok(output),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// What a guest's error means for the caller: the agent's own refusal, or what became of the sandbox meanwhile.
    pub async fn explain(&self, error: wakeful_guest_client::Error) -> Error {
        use wakeful_guest_client::Error as Guest;
        let id = self.row.id.clone();
        match error {
            Guest::Refused { wakeful_code, code, message, .. } => {
                // The guest is hostile: it may say what went wrong inside, and nothing about us.
                let said = wakeful_code.and_then(|code| code.parse().ok()).filter(|code| SAYABLE.contains(code));
                match said {
                    Some(code) => Error::Guest { code, detail: message },
                    None => Error::Unresponsive { id, detail: format!("its agent refused ({code}): {message}") },
                }
            }
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

    /// The channel broke: by a suspend, a destroy, the engine's death, or for no reason that we know.
    async fn came_between(&self) -> Option<Error> {
        let id = self.row.id.clone();
        let generation = self.row.runtime_generation;
        let mut live = self.live.clone();
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

impl Deref for Access {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}
