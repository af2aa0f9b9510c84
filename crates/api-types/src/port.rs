//! Ports on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Instant;

/// A port of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Port {
    /// Its number.
    pub port: u16,
    /// Its preview needs no credentials.
    pub public: bool,
    /// Where its preview is.
    pub url: String,
}

/// `GET …/ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortList {
    /// Those that something was said about, by number; all others are private.
    pub ports: Vec<Port>,
}

/// `PUT …/ports/{port}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutPort {
    /// Its preview shall need no credentials.
    pub public: bool,
}

/// `POST …/ports/{port}/session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortSession {
    /// Where a browser gets in, once.
    pub url: String,
    /// Until when.
    pub expires_at: Instant,
}
