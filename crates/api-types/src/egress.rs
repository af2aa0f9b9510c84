//! What left a sandbox, and what was kept from leaving.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Egress;

/// `GET /v1/sandboxes/{id}/egress`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressReport {
    /// The policy that holds.
    pub egress: Egress,
    /// Bytes that left it, since the daemon started.
    pub bytes_out: u64,
    /// Bytes that came back.
    pub bytes_in: u64,
    /// What was refused, most frequent first; kept for an hour after the last try, and for as long as the daemon runs.
    pub blocked: Vec<Blocked>,
}

/// Attempts that were refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blocked {
    /// Which rule stopped it: `policy`, `denied_range`, `private`, `link_local`, `host`, `dns`, `name` and so on.
    pub reason: String,
    /// Where to, if it was an address.
    pub address: Option<String>,
    /// Where to, if it was a name.
    pub name: Option<String>,
    /// `tcp`, `udp`, `icmp` and so on.
    pub protocol: Option<String>,
    /// The port, if the protocol has ports.
    pub port: Option<u16>,
    /// How often.
    pub count: u64,
    /// What the policy would have to name; null if no policy allows it.
    pub allowed_by: Option<AllowedBy>,
}

/// A piece of an egress policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllowedBy {
    /// Ranges to allow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_cidrs: Vec<String>,
    /// Names to allow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_domains: Vec<String>,
    /// Ranges that must no longer be denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_deny_cidrs: Vec<String>,
    /// Ports, if the policy limits them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_ports: Vec<u16>,
}
