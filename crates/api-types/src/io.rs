//! How much a sandbox may ask of its disk.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Limits on reading and writing together; null is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IoLimits {
    /// Operations a second, kept up.
    pub ops_per_sec: Option<u64>,
    /// Operations a second, in a burst of a second.
    pub burst_ops: Option<u64>,
    /// Megabytes (of 1,000,000 bytes) a second, kept up.
    pub bandwidth_mbps: Option<u64>,
    /// Megabytes a second, in a burst of a second.
    pub burst_mbps: Option<u64>,
}

impl From<wakeful_model::IoLimits> for IoLimits {
    fn from(io: wakeful_model::IoLimits) -> Self {
        Self {
            ops_per_sec: io.ops_per_sec,
            burst_ops: io.burst_ops,
            bandwidth_mbps: io.bandwidth_mbps,
            burst_mbps: io.burst_mbps,
        }
    }
}
