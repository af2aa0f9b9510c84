//! What a caller sees of a sandbox.

use jiff::Timestamp;
use wakeful_driver::Capabilities;
use wakeful_model::Sandbox;

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
    /// What its engine can do; `None` as long as no runtime has been opened.
    pub capabilities: Option<Capabilities>,
    /// Why it is awake; empty unless it is running and persistent.
    pub awake_because: Vec<Awake>,
    /// When it would sleep; `None` while anything but recent activity keeps it awake.
    pub sleeps_at: Option<Timestamp>,
    /// What it takes on disk.
    pub storage: Storage,
}
