//! What lies in a server's data directory.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::DurationText;

/// `POST /v1/prune`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PruneRequest {
    /// Of what builds keep for the next: what nobody used for so long. All of it, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused: Option<DurationText>,
}

/// What was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pruned {
    /// How many things.
    pub count: u64,
    /// What they took on disk.
    pub bytes: u64,
}

/// One kind of file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Space {
    /// What it is.
    pub kind: String,
    /// How many there are.
    pub count: u64,
    /// What they take on disk.
    pub bytes: u64,
    /// How large they would be without their holes.
    pub apparent_bytes: u64,
    /// What `POST /v1/prune` would give back.
    pub reclaimable_bytes: u64,
}

/// `GET /v1/df`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Kind by kind.
    pub kinds: Vec<Space>,
    /// Free on the file system of the data directory.
    pub free_bytes: u64,
    /// Its size.
    pub total_bytes: u64,
}
