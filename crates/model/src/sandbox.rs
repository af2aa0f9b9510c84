//! A sandbox's row: the committed truth about it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Egress, Entry, IoLimits, Op, OperationId, Policy, SandboxId, State, TemplateId};

/// An operation under way: the journal entry that a restart finishes or undoes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The operation.
    pub id: OperationId,
    /// Its kind.
    pub op: Op,
    /// Since when.
    pub since: Timestamp,
    /// Nobody asked for it: a deadline or idleness did.
    pub automatic: bool,
}

/// Why a sandbox failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A short word.
    pub code: String,
    /// For people.
    pub detail: String,
    /// When.
    pub at: Timestamp,
    /// Whether its disk can be booted again.
    pub bootable: bool,
}

/// The row.
#[derive(Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// Compare-and-swap.
    pub version: i64,
    /// Its tenant.
    pub tenant: String,
    /// What it is.
    pub state: State,
    /// What is under way.
    pub transition: Option<Transition>,
    /// The template's name when it was made.
    pub template: String,
    /// The template.
    pub template_id: TemplateId,
    /// Digest of the base image it stands on.
    pub base: String,
    /// The preset's name, if one was asked for.
    pub size: Option<String>,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mb: u32,
    /// Disk in MiB.
    pub disk_mb: u32,
    /// User, workdir and variables of the template, frozen at create.
    pub user: String,
    /// Where commands run.
    pub workdir: String,
    /// Template's and sandbox's variables, merged. Never sent back, never logged.
    pub env: BTreeMap<String, String>,
    /// Names of the variables that the caller gave.
    pub env_keys: Vec<String>,
    /// The caller's labels.
    pub metadata: BTreeMap<String, String>,
    /// Egress policy.
    pub egress: Egress,
    /// What it may ask of its disk.
    pub io: IoLimits,
    /// What runs in it from its first moment; started again by every boot.
    pub entry: Option<Entry>,
    /// The driver's name.
    pub runtime: String,
    /// How guest code is run.
    pub accel: String,
    /// 1 at create, one more at every committed wake.
    pub runtime_generation: u64,
    /// What the last wake did; `None` before the first.
    pub restored_memory: Option<bool>,
    /// When it sleeps and ends.
    pub policy: Policy,
    /// The driver's account of the checkpoint, as JSON, while one is kept.
    pub checkpoint: Option<String>,
    /// What the agent and we both know. Never sent, never logged.
    pub secret: [u8; 32],
    /// Since when it exists.
    pub created_at: Timestamp,
    /// Last change of the row.
    pub updated_at: Timestamp,
    /// Start of the present run.
    pub started_at: Option<Timestamp>,
    /// Since when it sleeps.
    pub suspended_at: Option<Timestamp>,
    /// Since when it is gone.
    pub destroyed_at: Option<Timestamp>,
    /// Last time someone used it.
    pub last_activity_at: Timestamp,
    /// What it was forked from.
    pub parent_id: Option<SandboxId>,
    /// Why it failed.
    pub failure: Option<Failure>,
}

impl std::fmt::Debug for Sandbox {
    /// Without what must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox")
            .field("id", &self.id)
            .field("version", &self.version)
            .field("state", &self.state)
            .field("transition", &self.transition)
            .field("template", &self.template)
            .field("runtime_generation", &self.runtime_generation)
            .finish_non_exhaustive()
    }
}
