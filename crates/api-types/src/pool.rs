//! The warm pool on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Sandboxes of one template and size that are made before they are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// The template's name.
    pub template: String,
    /// The size, a preset.
    pub size: String,
    /// Members that can be claimed now.
    pub ready: u32,
    /// Members that were claimed since the daemon started.
    pub claimed: u64,
    /// How many members there are to be.
    pub target: u32,
    /// What its members may take of the host's memory, in MiB.
    pub memory_mb: u64,
}

/// `GET /v1/pool`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// By template and size.
    pub pools: Vec<Pool>,
}

/// `PUT /v1/pool/{template}/{size}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutPool {
    /// How many members there are to be; 0 for none.
    #[schema(minimum = 0, maximum = 1000)]
    pub target: u32,
}
