//! When a sandbox sleeps and when it ends. The surfaces are dialects of this.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// How `/v1` spells the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::EnumString)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Mode {
    /// A lease; destroyed when it ends.
    Ephemeral,
    /// Sleeps when idle, wakes on access.
    Persistent,
}

/// What happens when the lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::EnumString)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OnExpiry {
    /// It is destroyed.
    Destroy,
    /// It is suspended.
    Suspend,
}

/// The row's policy fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// End of the lease.
    pub expires_at: Option<Timestamp>,
    /// What happens then.
    pub on_expiry: OnExpiry,
    /// How long a lease is given by a keepalive that names none.
    pub timeout: Option<SignedDuration>,
    /// Suspended after this much idleness.
    pub idle_timeout: Option<SignedDuration>,
    /// Destroyed then, whatever else holds.
    pub hard_expires_at: Option<Timestamp>,
    /// Access wakes it.
    pub auto_resume: bool,
    /// Shortest lease after an automatic wake.
    pub resume_lease: Option<SignedDuration>,
    /// An automatic suspend keeps memory.
    pub suspend_memory: bool,
}

impl Policy {
    /// How `/v1` calls it: a sandbox that sleeps when idle is persistent.
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.idle_timeout.is_some() { Mode::Persistent } else { Mode::Ephemeral }
    }

    /// When a running sandbox would be suspended for idleness, were nothing keeping it awake.
    #[must_use]
    pub fn sleeps_at(&self, last_activity: Timestamp) -> Option<Timestamp> {
        self.idle_timeout.and_then(|idle| last_activity.checked_add(idle).ok())
    }
}
