//! What the server says about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Capabilities, Instant};

/// `GET /healthz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`; a draining server answers with a problem instead.
    pub status: String,
    /// The server's version.
    pub version: String,
    /// The runtime that new sandboxes get; `null` if none is usable.
    pub runtime: Option<String>,
}

/// One runtime, as `doctor` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuntimeInfo {
    /// Its name.
    pub name: String,
    /// How guest code is run.
    pub accel: String,
    /// Whether it can be used.
    pub available: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The one command that would help.
    pub fix: Option<String>,
    /// The engine's version.
    pub version: Option<String>,
    /// When this was found out.
    pub probed_at: Option<Instant>,
}

/// A size preset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SizeInfo {
    /// Its name.
    pub name: String,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mb: u32,
}

/// What a request cannot exceed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Longest lease; longer ones are clamped.
    pub max_timeout_seconds: u64,
    /// Longest command; longer ones are refused.
    pub max_exec_timeout_seconds: u64,
    /// Largest uploaded file.
    pub upload_bytes: u64,
    /// Largest JSON body.
    pub body_bytes: u64,
    /// Output that is kept per stream of a command.
    pub output_bytes: u64,
}

/// What a request that names none gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DefaultsInfo {
    /// Size, where the template names none.
    pub size: String,
    /// Lease of an ephemeral sandbox.
    pub timeout_seconds: u64,
    /// Idleness before a persistent one sleeps.
    pub idle_timeout_seconds: u64,
    /// Time of a command.
    pub exec_timeout_seconds: u64,
    /// Disk in MiB.
    pub disk_mb: u32,
}

/// `GET /v1/info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Info {
    /// The server's version.
    pub version: String,
    /// The runtime that new sandboxes get.
    pub selected_runtime: Option<String>,
    /// All runtimes.
    pub runtimes: Vec<RuntimeInfo>,
    /// What those runtimes can do, by name, that were used since the daemon's start.
    pub capabilities: BTreeMap<String, Capabilities>,
    /// Size presets, smallest first.
    pub sizes: Vec<SizeInfo>,
    /// What a request cannot exceed.
    pub limits: Limits,
    /// What a request that names none gets.
    pub defaults: DefaultsInfo,
    /// Who is asking.
    pub tenant: String,
}
