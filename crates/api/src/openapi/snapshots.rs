//! Snapshots and forks.

use serde_json::{Value, json};
use wakeful_api_types::{CreateSnapshot, ForkRequest, Forked, Snapshot, SnapshotList};
use wakeful_model::Code;

use super::entry::{Entry, delete, get, post};

/// What keeps a sandbox from being copied.
const CUT: [Code; 9] = [
    Code::SandboxDestroyed,
    Code::SandboxFailed,
    Code::NotRunning,
    Code::NotSuspendable,
    Code::GuestUnresponsive,
    Code::Busy,
    Code::ShuttingDown,
    Code::RuntimeUnavailable,
    Code::DiskFull,
];

fn snapshot() -> Value {
    json!({
        "id": "snp_k3v7q2m5x6a4b2c7d5ef", "name": "before-upgrade", "sandbox_id": "sbx_k3v7q2m5x6a4b2c7d5ef",
        "template": "python", "memory": true, "own_bytes": 12_713_984, "shared_bytes": 184_549_376,
        "created_at": "2026-04-05T14:30:00.000Z"
    })
}

pub(super) fn entries() -> Vec<Entry> {
    let query = [Code::UnknownField, Code::InvalidField];
    vec![
        post("/v1/sandboxes/{id}/fork", "forkSandbox", "Make children of a sandbox")
            .about(
                "Awake or asleep; the source is afterwards what it was. Each child has the source's files, memory and \
                 processes as of one instant, and goes on as itself: with an id, a name, random numbers and a network of \
                 its own. What is left out is as the source has it.",
            )
            .idempotent()
            .body::<ForkRequest>(&json!({"count": 2, "mode": "ephemeral", "timeout": "10m"}))
            .answers::<Forked>(201, "Those that came to be, and why the others did not; at least one did")
            .refuses(&CUT)
            .refuses(&[
                Code::InvalidMode,
                Code::InvalidDuration,
                Code::InvalidCombination,
                Code::QuotaExceeded,
                Code::InsufficientCapacity,
            ]),
        post("/v1/sandboxes/{id}/snapshots", "createSnapshot", "Keep a copy of a sandbox")
            .about("Awake or asleep; the sandbox is afterwards what it was. A create takes the id in the place of a template.")
            .idempotent()
            .body::<CreateSnapshot>(&json!({"name": "before-upgrade"}))
            .answers_as::<Snapshot>(201, "The snapshot", &snapshot())
            .located()
            .refuses(&CUT)
            .refuses(&[Code::InvalidName, Code::NameTaken]),
        get("/v1/snapshots", "listSnapshots", "List snapshots, newest first")
            .answers::<SnapshotList>(200, "All of them")
            .refuses(&query),
        get("/v1/snapshots/{id}", "getSnapshot", "Look at a snapshot")
            .answers_as::<Snapshot>(200, "The snapshot", &snapshot())
            .refuses(&query)
            .refuses(&[Code::SnapshotNotFound]),
        delete("/v1/snapshots/{id}", "deleteSnapshot", "Delete a snapshot")
            .about("Sandboxes that began with it live on.")
            .empty(204, "It is gone")
            .refuses(&query)
            .refuses(&[Code::SnapshotNotFound]),
    ]
}
