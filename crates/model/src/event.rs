//! What happened to a sandbox, written in the transaction that commits it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What happened.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::EnumString, strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum EventType {
    Created,
    SuspendStarted,
    SuspendCancelled,
    Suspended,
    WakeStarted,
    Woken,
    Keepalive,
    Snapshot,
    Forked,
    EgressChanged,
    Failed,
    Destroyed,
    Adopted,
    CheckpointRejected,
}

/// Why it happened.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::EnumString, strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the contract's")]
pub enum Cause {
    Api,
    Cli,
    Idle,
    Timeout,
    HardTtl,
    Access,
    GuestExit,
    OutOfMemory,
    EngineDied,
    Recovery,
    Shutdown,
    Pressure,
}

/// One event. Its sequence number is given by the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// What.
    pub kind: EventType,
    /// Why.
    pub cause: Cause,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// The generation after it.
    pub runtime_generation: u64,
    /// More, for people.
    pub detail: Option<String>,
}
