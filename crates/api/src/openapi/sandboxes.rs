//! Sandboxes and what happened to them.

use serde_json::{Value, json};
use utoipa::ToSchema;
use wakeful_api_types::{
    CreateSandbox, EgressReport, EventList, KeepaliveRequest, PatchSandbox, Sandbox, SandboxList, SuspendRequest,
};
use wakeful_model::{Code, State};

use super::entry::{Entry, delete, flag, get, number, patch, post, text, words};

/// What keeps a guest from being reached.
pub(super) const ACCESS: [Code; 13] = [
    Code::SandboxDestroyed,
    Code::SandboxFailed,
    Code::SandboxSuspended,
    Code::SuspendedDuringExec,
    Code::NotRunning,
    Code::QuotaExceeded,
    Code::GuestUnresponsive,
    Code::Busy,
    Code::ShuttingDown,
    Code::RuntimeUnavailable,
    Code::WakeTimeout,
    Code::InsufficientCapacity,
    Code::DiskFull,
];

fn sandbox() -> Value {
    json!({
        "id": "sbx_k3v7q2m5x6a4b2c7d5ef", "status": "running", "transition": null, "mode": "persistent",
        "template": "python", "template_id": "tpl_k3v7q2m5x6a4b2c7d5ef", "size": "shared-cpu-1x", "cpu": 1,
        "memory_mb": 256, "disk_mb": 2048, "env_keys": ["OPENAI_API_KEY"], "metadata": {"team": "search"},
        "egress": {"mode": "allow_all", "allow_cidrs": [], "deny_cidrs": [], "allow_ports": [], "allow_domains": []},
        "runtime": "qemu", "accel": "tcg",
        "capabilities": {
            "isolation": "microvm", "memory_survives_suspend": true, "fork": true, "network": true,
            "hardware_virtualization": false, "cancel_resets_connections": false, "outside_tcp": "reset",
            "dirty_pages": true, "golden_clones": true, "obstacles": false, "io_limits": true
        },
        "runtime_generation": 1, "restored_memory": null, "auto_resume": true,
        "created_at": "2026-04-05T14:30:00.000Z", "updated_at": "2026-04-05T14:30:00.107Z",
        "started_at": "2026-04-05T14:30:00.107Z", "suspended_at": null, "destroyed_at": null,
        "last_activity_at": "2026-04-05T14:31:00.000Z", "expires_at": null, "timeout_seconds": null,
        "idle_timeout_seconds": 600, "hard_expires_at": null,
        "awake_because": [{"reason": "exec", "since": "2026-04-05T14:31:00.000Z", "detail": "pid 214"}],
        "sleeps_at": null,
        "storage": {"disk_bytes": 184_320, "checkpoint_bytes": 0, "shared_bytes": 184_549_376},
        "parent_id": null, "failure": null
    })
}

fn egress() -> Value {
    json!({
        "egress": {
            "mode": "deny_all", "allow_cidrs": [], "deny_cidrs": [], "allow_ports": [443],
            "allow_domains": ["example.org"]
        },
        "bytes_out": 18_230, "bytes_in": 941_020,
        "blocked": [{
            "reason": "policy", "address": "203.0.113.9", "name": null, "protocol": "tcp", "port": 22, "count": 3,
            "allowed_by": {"allow_cidrs": ["203.0.113.9/32"], "allow_ports": [22]}
        }]
    })
}

fn events() -> Value {
    json!({
        "events": [{
            "seq": 7, "at": "2026-04-05T14:41:00.031Z", "type": "suspended", "cause": "idle", "actor": null,
            "duration_ms": 31, "runtime_generation": 2, "detail": {}
        }],
        "next_after": 7
    })
}

/// A call that answers with the sandbox.
fn shows(entry: Entry, status: u16, about: &str) -> Entry {
    entry.answers_as::<Sandbox>(status, about, &sandbox())
}

fn keeps<T: ToSchema>(entry: Entry, example: &Value) -> Entry {
    entry.body::<T>(example)
}

pub(super) fn entries() -> Vec<Entry> {
    let create = post("/v1/sandboxes", "createSandbox", "Create a sandbox")
        .about("It is running and usable when this is answered. A field of the other mode is refused.")
        .idempotent()
        .body::<CreateSandbox>(&json!({"template": "base", "mode": "persistent", "idle_timeout": "10m"}))
        .refuses(&[
            Code::MissingField,
            Code::InvalidSize,
            Code::InvalidMode,
            Code::InvalidDuration,
            Code::InvalidCombination,
            Code::InvalidEgress,
            Code::TemplateNotFound,
            Code::SnapshotNotFound,
            Code::TemplateNotReady,
            Code::QuotaExceeded,
            Code::ShuttingDown,
            Code::RuntimeUnavailable,
            Code::InsufficientCapacity,
            Code::DiskFull,
            Code::GuestUnresponsive,
            Code::NotReady,
            Code::CommandNotFound,
            Code::NotExecutable,
            Code::WorkdirNotFound,
            Code::UnknownUser,
            Code::UnsupportedByRuntime,
        ]);
    let list = get("/v1/sandboxes", "listSandboxes", "List sandboxes, newest first")
        .about("Destroyed ones only if asked for by status. `metadata.K=V` filters by a label, as often as wanted.")
        .query("status", words(&State::NAMES), "In this state")
        .query("mode", words(&["ephemeral", "persistent"]), "Of this mode")
        .query("template", text(), "Made from this template, by name or id")
        .query("limit", number(1, 1000), "At most so many; 100 if absent")
        .query("cursor", text(), "Where the last page ended: its `next_cursor`")
        .answers::<SandboxList>(200, "A page")
        .refuses(&[Code::InvalidMode]);
    let change = patch("/v1/sandboxes/{id}", "updateSandbox", "Change a sandbox")
        .about(
            "Awake or asleep; nobody is woken, and it is no use of the sandbox. A disk can only grow, and only while the \
             sandbox is suspended: it has the room after its next start.",
        )
        .body::<PatchSandbox>(&json!({"metadata": {"team": "search"}, "auto_resume": false}))
        .refuses(&[
            Code::InvalidDuration,
            Code::InvalidCombination,
            Code::InvalidEgress,
            Code::InvalidSize,
            Code::NotSuspended,
            Code::SandboxDestroyed,
            Code::QuotaExceeded,
            Code::InsufficientCapacity,
            Code::Busy,
            Code::ShuttingDown,
        ]);
    let destroy = delete("/v1/sandboxes/{id}", "destroySandbox", "Destroy a sandbox")
        .about("From every state, and twice.")
        .empty(204, "Nothing is left of it")
        .refuses(&[Code::ShuttingDown, Code::RuntimeUnavailable]);
    let keepalive = post("/v1/sandboxes/{id}/keepalive", "keepaliveSandbox", "Give an ephemeral sandbox a new lease")
        .about("Counted from now; it may be shorter than what is left.");
    let keepalive = keeps::<KeepaliveRequest>(keepalive, &json!({"timeout": "30m"})).refuses(&[
        Code::InvalidDuration,
        Code::NotEphemeral,
        Code::NotRunning,
        Code::SandboxDestroyed,
        Code::ShuttingDown,
    ]);
    let suspend = post("/v1/sandboxes/{id}/suspend", "suspendSandbox", "Put a sandbox to sleep")
        .query("wait", flag(), "false: answer when it has begun")
        .body::<SuspendRequest>(&json!({"memory": true}))
        .refuses(&ACCESS)
        .refuses(&[Code::NotSuspendable]);
    let wake = post("/v1/sandboxes/{id}/wake", "wakeSandbox", "Wake a sandbox")
        .about("One that has failed is booted from its disk, if that can be done.")
        .query("wait", flag(), "true: wait for a wake that is under way, instead of a conflict")
        .refuses(&ACCESS)
        .refuses(&[Code::NotWakeable, Code::WakeInProgress, Code::InvalidJson, Code::BodyTooLarge]);
    vec![
        shows(create, 201, "The sandbox").located(),
        list,
        shows(get("/v1/sandboxes/{id}", "getSandbox", "Look at a sandbox"), 200, "The sandbox")
            .about("Looking is no use of it. A destroyed one can be looked at for a day."),
        shows(change, 200, "The sandbox, changed"),
        destroy,
        shows(keepalive, 200, "The sandbox"),
        shows(shows(suspend, 200, "It sleeps"), 202, "It goes to sleep"),
        shows(wake, 200, "It is awake"),
        get("/v1/sandboxes/{id}/egress", "getEgress", "What left a sandbox, and what was kept from leaving")
            .about("Looking is no use of it. Each line tells which rule would have allowed it.")
            .answers_as::<EgressReport>(200, "The policy, and what came of it", &egress()),
        get("/v1/sandboxes/{id}/events", "listEvents", "What happened to a sandbox")
            .about("With `Accept: text/event-stream` as it happens, until it is destroyed.")
            .query("after", number(0, u64::from(u32::MAX)), "Only those with a higher number")
            .query("limit", number(1, 1000), "At most so many; 100 if absent")
            .header("Last-Event-ID", number(0, u64::from(u32::MAX)), "Where a stream goes on")
            .answers_as::<EventList>(200, "Events, oldest first", &events())
            .sends(200, "text/event-stream", ""),
    ]
}
