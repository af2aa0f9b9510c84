//! A copy of a sandbox's memory and disk at one instant.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Egress, Entry, IoLimits, Sandbox, SandboxId, SnapshotId, TemplateId};

/// A snapshot's record. It is never changed: it comes to be when its files are whole, and goes before they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Whose it is.
    pub tenant: String,
    /// What it is called; none is one that a fork is under way from, which goes with it.
    pub name: Option<String>,
    /// What it was taken of.
    pub sandbox_id: SandboxId,
    /// When.
    pub created_at: Timestamp,
    /// What a sandbox needs to begin with it.
    pub content: Content,
}

/// What a sandbox that begins with a snapshot takes from it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The template's name.
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
    /// Who runs commands.
    pub user: String,
    /// Where.
    pub workdir: String,
    /// Variables. Never sent back, never logged.
    pub env: BTreeMap<String, String>,
    /// Names of those that a caller gave.
    pub env_keys: Vec<String>,
    /// Egress policy.
    pub egress: Egress,
    /// What it may ask of its disk.
    #[serde(default)]
    pub io: IoLimits,
    /// What runs in it from its first moment.
    #[serde(default)]
    pub entry: Option<Entry>,
    /// The driver's name.
    pub runtime: String,
    /// How guest code is run.
    pub accel: String,
    /// The driver's account of the memory, as JSON; none if only the disk was kept.
    pub image: Option<String>,
    /// What the agent in that memory knows. Never sent, never logged.
    pub secret: [u8; 32],
}

impl Content {
    /// What `row` has to give, with the driver's account of its memory.
    #[must_use]
    pub fn of(row: &Sandbox, image: Option<String>) -> Self {
        let row = row.clone();
        Self {
            template: row.template,
            template_id: row.template_id,
            base: row.base,
            size: row.size,
            cpu: row.cpu,
            memory_mb: row.memory_mb,
            disk_mb: row.disk_mb,
            user: row.user,
            workdir: row.workdir,
            env: row.env,
            env_keys: row.env_keys,
            egress: row.egress,
            io: row.io,
            entry: row.entry,
            runtime: row.runtime,
            accel: row.accel,
            image,
            secret: row.secret,
        }
    }
}

impl std::fmt::Debug for Content {
    /// Without what must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content")
            .field("template", &self.template)
            .field("base", &self.base)
            .field("memory", &self.image.is_some())
            .finish_non_exhaustive()
    }
}
