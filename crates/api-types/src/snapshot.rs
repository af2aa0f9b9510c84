//! Snapshots and forks on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wakeful_model::{SandboxId, SnapshotId};

use crate::{DurationText, Instant, Sandbox, schema};

/// A kept copy of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its id; a create takes it in the place of a template.
    #[schema(value_type = schema::SnapshotId)]
    pub id: SnapshotId,
    /// What it is called.
    pub name: String,
    /// What it was taken of; that may be gone by now.
    #[schema(value_type = schema::SandboxId)]
    pub sandbox_id: SandboxId,
    /// The template's name when that was made.
    pub template: String,
    /// Whether it has memory and processes, and not only the disk.
    pub memory: bool,
    /// What it takes on disk by itself.
    pub own_bytes: u64,
    /// What it shares with others.
    pub shared_bytes: u64,
    /// When it was taken.
    pub created_at: Instant,
}

/// `GET /v1/snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Newest first.
    pub snapshots: Vec<Snapshot>,
}

/// `POST …/snapshots`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateSnapshot {
    /// What to call it; its id, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `POST …/fork`. What is left out is as the source has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ForkRequest {
    /// How many children; one, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<u32>,
    /// `ephemeral` or `persistent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Mode>)]
    pub mode: Option<String>,
    /// Their lease; ephemeral only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
    /// Idleness before they sleep; persistent only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<DurationText>,
}

/// What came of a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forked {
    /// The children, each running.
    pub sandboxes: Vec<Sandbox>,
    /// Why the others did not come to be, one for each.
    pub errors: Vec<ForkError>,
}

/// Why a child did not come to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkError {
    /// Which problem, as in a problem's `code`.
    pub code: String,
    /// For people.
    pub detail: String,
}
