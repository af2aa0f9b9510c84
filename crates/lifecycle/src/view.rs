//! What a caller sees of a sandbox.

use jiff::Timestamp;
use wakeful_driver::Capabilities;
use wakeful_model::{Sandbox, State};

use crate::files;
use crate::lifecycle::Inner;

/// Why a sandbox is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum AwakeReason {
    /// A command in the foreground.
    Exec,
    /// A process that asked for it.
    KeepAwake,
    /// A busy lease.
    Lease,
    /// A file on its way.
    Transfer,
    /// Someone used it a moment ago.
    RecentActivity,
    /// It should sleep, and something in it is in the way of that.
    NotSuspendable,
}

/// One reason, with its age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awake {
    /// The reason.
    pub reason: AwakeReason,
    /// Since when.
    pub since: Timestamp,
    /// More, for people.
    pub detail: Option<String>,
}

/// What it takes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Blocks of its own disk.
    pub disk_bytes: u64,
    /// Blocks of its checkpoint and own memory base.
    pub checkpoint_bytes: u64,
    /// Blocks of the base and golden snapshot that it shares with others.
    pub shared_bytes: u64,
}

/// A sandbox as it is now.
#[derive(Clone, Debug)]
pub struct SandboxView {
    /// The committed row, with what is under way.
    pub row: Sandbox,
    /// What its engine can do; `None` as long as its runtime has not been opened.
    pub capabilities: Option<Capabilities>,
    /// Why it is awake; empty unless it is running and persistent.
    pub awake_because: Vec<Awake>,
    /// When it would sleep; `None` while anything but recent activity keeps it awake.
    pub sleeps_at: Option<Timestamp>,
    /// What it takes on disk.
    pub storage: Storage,
}

/// What everyone may see of a live sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) row: Sandbox,
    pub(crate) awake_because: Vec<Awake>,
    pub(crate) sleeps_at: Option<Timestamp>,
}

impl Live {
    pub(crate) fn at_rest(row: Sandbox) -> Self {
        Self { row, awake_because: Vec::new(), sleeps_at: None }
    }

    /// Looks at files: not for the runtime's threads.
    pub(crate) fn into_view(self, inner: &Inner) -> SandboxView {
        let layout = &inner.layout;
        let storage = match self.row.state {
            State::Destroyed => Storage::default(),
            State::Creating | State::Running | State::Suspended(_) | State::Failed(_) => {
                let dir = layout.sandbox(&self.row.id);
                // A disk may stand on layers that others stand on too; what else lies there is small.
                let (disk_bytes, layers) = files::own_and_shared(&dir, |name| !name.starts_with("mem."));
                Storage {
                    disk_bytes,
                    checkpoint_bytes: files::blocks(&layout.checkpoint(&self.row.id, self.row.runtime_generation))
                        + files::blocks(&dir.join("mem.base")),
                    shared_bytes: layers + files::blocks(&layout.base(&self.row.base)),
                }
            }
        };
        SandboxView {
            capabilities: inner.capabilities(&self.row.runtime),
            row: self.row,
            awake_because: self.awake_because,
            sleeps_at: self.sleeps_at,
            storage,
        }
    }
}
