//! Sandboxes on the wire.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wakeful_model::{EgressMode, Mode, SandboxId, TemplateId};

use crate::{DurationText, Instant, IoLimits, schema};

/// A committed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its first engine is not up yet.
    Creating,
    /// Ready for use.
    Running,
    /// Asleep.
    Suspended,
    /// Its engine is gone and nobody wanted that.
    Failed,
    /// Gone.
    Destroyed,
}

impl Status {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Failed => "failed",
            Self::Destroyed => "destroyed",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum TransitionKind {
    Suspending,
    Waking,
    Destroying,
    Snapshotting,
    Forking,
}

/// What is under way, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transition {
    /// What.
    pub kind: TransitionKind,
    /// Since when.
    pub since: Instant,
    /// Nobody asked for it: a deadline or idleness did.
    pub automatic: bool,
}

/// Which outside addresses it may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Egress {
    /// What happens to the rest.
    #[schema(value_type = schema::EgressMode)]
    pub mode: EgressMode,
    /// Allowed ranges.
    pub allow_cidrs: Vec<String>,
    /// Denied ranges.
    pub deny_cidrs: Vec<String>,
    /// Ports that limit the allow lists.
    pub allow_ports: Vec<u16>,
    /// Allowed names.
    pub allow_domains: Vec<String>,
}

impl From<wakeful_model::Egress> for Egress {
    fn from(egress: wakeful_model::Egress) -> Self {
        let wakeful_model::Egress { mode, allow_cidrs, deny_cidrs, allow_ports, allow_domains } = egress;
        Self { mode, allow_cidrs, deny_cidrs, allow_ports, allow_domains }
    }
}

/// What its engine can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Capabilities {
    /// How it is kept apart from the host.
    pub isolation: String,
    /// Memory and processes survive a suspend.
    pub memory_survives_suspend: bool,
    /// It can be forked.
    pub fork: bool,
    /// It has a network.
    pub network: bool,
    /// The processor runs its code itself.
    pub hardware_virtualization: bool,
    /// A suspend that is called off, a snapshot and a fork reset its connections to the outside.
    pub cancel_resets_connections: bool,
    /// What a suspend does to connections to the outside: `reset` from there, or `dropped` by the engine.
    pub outside_tcp: String,
    /// A checkpoint holds only the memory that has changed.
    pub dirty_pages: bool,
    /// It is a clone of a golden snapshot; else it was started from its template's files.
    pub golden_clones: bool,
    /// Some things that processes hold, as deleted files, are in the way of keeping memory: such a suspend, snapshot or fork is
    /// refused with `not_suspendable`.
    pub obstacles: bool,
    /// What it asks of its disk can be limited.
    pub io_limits: bool,
}

/// Why it is awake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AwakeBecause {
    /// `exec`, `keep_awake`, `lease`, `transfer`, `recent_activity` or `not_suspendable`.
    pub reason: String,
    /// Since when.
    pub since: Instant,
    /// More, for people.
    pub detail: Option<String>,
}

/// What it takes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Storage {
    /// Its own disk.
    pub disk_bytes: u64,
    /// Its checkpoint.
    pub checkpoint_bytes: u64,
    /// What it shares with others.
    pub shared_bytes: u64,
}

/// Why it failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// A short word.
    pub code: String,
    /// For people.
    pub detail: String,
    /// When.
    pub at: Instant,
    /// Whether a wake can boot it from its disk.
    pub bootable: bool,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Its id.
    #[schema(value_type = schema::SandboxId)]
    pub id: SandboxId,
    /// What it is.
    pub status: Status,
    /// What is under way.
    pub transition: Option<Transition>,
    /// How it ends.
    #[schema(value_type = schema::Mode)]
    pub mode: Mode,
    /// The template's name when it was made.
    pub template: String,
    /// The template.
    #[schema(value_type = schema::TemplateId)]
    pub template_id: TemplateId,
    /// The preset, if one was asked for.
    pub size: Option<String>,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mb: u32,
    /// Disk in MiB.
    pub disk_mb: u32,
    /// Names of its variables; values are never sent.
    pub env_keys: Vec<String>,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// Egress policy.
    pub egress: Egress,
    /// What it may ask of its disk.
    pub io: IoLimits,
    /// Its driver.
    pub runtime: String,
    /// How its code is run.
    pub accel: String,
    /// What its engine can do; `null` as long as its runtime was not used since the daemon's start.
    pub capabilities: Option<Capabilities>,
    /// 1 at create, one more at every wake.
    pub runtime_generation: u64,
    /// What the last wake did; `null` before the first.
    pub restored_memory: Option<bool>,
    /// Access wakes it.
    pub auto_resume: bool,
    /// Since when it exists.
    pub created_at: Instant,
    /// Last change.
    pub updated_at: Instant,
    /// Start of the present run.
    pub started_at: Option<Instant>,
    /// Since when it sleeps.
    pub suspended_at: Option<Instant>,
    /// Since when it is gone.
    pub destroyed_at: Option<Instant>,
    /// Last time someone used it.
    pub last_activity_at: Instant,
    /// End of its lease.
    pub expires_at: Option<Instant>,
    /// How long a lease is that names no length.
    pub timeout_seconds: Option<u64>,
    /// Idleness before it sleeps.
    pub idle_timeout_seconds: Option<u64>,
    /// Destroyed then, whatever else holds.
    pub hard_expires_at: Option<Instant>,
    /// Why it is awake.
    pub awake_because: Vec<AwakeBecause>,
    /// When it would sleep.
    pub sleeps_at: Option<Instant>,
    /// What it takes on disk.
    pub storage: Storage,
    /// What it was forked from, or whose snapshot it began with.
    #[schema(value_type = Option<schema::SandboxId>)]
    pub parent_id: Option<SandboxId>,
    /// Why it failed.
    pub failure: Option<Failure>,
}

/// `GET /v1/sandboxes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    /// Newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Where the next page begins.
    pub next_cursor: Option<String>,
}

/// Egress as it is asked for. Lists without a mode mean `deny_all`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EgressRequest {
    /// What happens to the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::EgressMode>)]
    pub mode: Option<String>,
    /// Allowed ranges.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_cidrs: Vec<String>,
    /// Denied ranges.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_cidrs: Vec<String>,
    /// Ports that limit the allow lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_ports: Vec<i64>,
    /// Allowed names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_domains: Vec<String>,
}

/// `POST /v1/sandboxes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateSandbox {
    /// Template name, `name:tag` or id, or the id of a snapshot.
    pub template: String,
    /// `ephemeral` or `persistent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Mode>)]
    pub mode: Option<String>,
    /// Lease; ephemeral only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
    /// Idleness before it sleeps; persistent only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<DurationText>,
    /// Destroyed after this, whatever else holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_ttl: Option<DurationText>,
    /// A preset,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// or processors
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// and memory in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Disk in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    /// Variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Egress, if not the template's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressRequest>,
    /// What it may ask of its disk; the template's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoLimits>,
    /// Access wakes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// Which runtime, if not the template's or the daemon's; `auto` leaves it to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
}

/// `POST …/keepalive`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KeepaliveRequest {
    /// From now; as created, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
}

/// `POST …/suspend`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SuspendRequest {
    /// Keep memory and processes; yes, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}
