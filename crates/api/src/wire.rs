//! Rows and views as the contract writes them.

use jiff::{SignedDuration, Timestamp};
use wakeful_api_types as wire;
use wakeful_lifecycle::{BuildLine, Cancel, Capabilities, Defaults, RuntimeInfo, SandboxView, SnapshotView, Usage};
use wakeful_model::{Op, SIZES, State, Template};

fn instant(at: Option<Timestamp>) -> Option<wire::Instant> {
    at.map(wire::Instant)
}

/// Whole seconds, rounded up: a lease of 500 ms is not one of 0 s.
fn seconds(duration: SignedDuration) -> u64 {
    let whole = u64::try_from(duration.as_secs()).unwrap_or(0);
    whole + u64::from(duration.subsec_nanos() > 0)
}

fn status(state: State) -> wire::Status {
    match state {
        State::Creating => wire::Status::Creating,
        State::Running => wire::Status::Running,
        State::Suspended(_) => wire::Status::Suspended,
        State::Failed(_) => wire::Status::Failed,
        State::Destroyed => wire::Status::Destroyed,
    }
}

/// A create under way is the status `creating` and no transition beside it.
fn transition_kind(op: Op) -> Option<wire::TransitionKind> {
    match op {
        Op::Create => None,
        Op::Suspend => Some(wire::TransitionKind::Suspending),
        Op::Wake => Some(wire::TransitionKind::Waking),
        Op::Destroy => Some(wire::TransitionKind::Destroying),
        Op::Snapshot => Some(wire::TransitionKind::Snapshotting),
        Op::Fork => Some(wire::TransitionKind::Forking),
    }
}

/// What an engine can do. Words have the driver's own spelling.
pub(crate) fn capabilities(can: &Capabilities) -> wire::Capabilities {
    let word = |value: serde_json::Result<serde_json::Value>| {
        value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    wire::Capabilities {
        isolation: word(serde_json::to_value(can.isolation)),
        memory_survives_suspend: can.memory_checkpoint,
        fork: can.fork,
        network: can.network,
        hardware_virtualization: can.hardware_virtualization,
        cancel_resets_connections: can.cancel == Cancel::ResetsConnections,
        outside_tcp: word(serde_json::to_value(can.outside_tcp)),
        dirty_pages: can.dirty_pages,
        golden_clones: can.golden,
        obstacles: can.obstacles,
        io_limits: can.io_limits,
    }
}

/// A sandbox.
pub(crate) fn sandbox(view: SandboxView) -> wire::Sandbox {
    let SandboxView { row, capabilities, awake_because, sleeps_at, storage } = view;
    wire::Sandbox {
        status: status(row.state),
        transition: row.transition.and_then(|transition| {
            let kind = transition_kind(transition.op)?;
            Some(wire::Transition { kind, since: transition.since.into(), automatic: transition.automatic })
        }),
        mode: row.policy.mode(),
        capabilities: capabilities.as_ref().map(self::capabilities),
        awake_because: awake_because
            .into_iter()
            .map(|awake| wire::AwakeBecause {
                reason: awake.reason.to_string(),
                since: awake.since.into(),
                detail: awake.detail,
            })
            .collect(),
        sleeps_at: instant(sleeps_at),
        storage: wire::Storage {
            disk_bytes: storage.disk_bytes,
            checkpoint_bytes: storage.checkpoint_bytes,
            shared_bytes: storage.shared_bytes,
        },
        failure: row.failure.map(|failure| wire::Failure {
            code: failure.code,
            detail: failure.detail,
            at: failure.at.into(),
            bootable: failure.bootable,
        }),
        auto_resume: row.policy.auto_resume,
        expires_at: instant(row.policy.expires_at),
        timeout_seconds: row.policy.timeout.map(seconds),
        idle_timeout_seconds: row.policy.idle_timeout.map(seconds),
        hard_expires_at: instant(row.policy.hard_expires_at),
        id: row.id,
        template: row.template,
        template_id: row.template_id,
        size: row.size,
        cpu: row.cpu,
        memory_mb: row.memory_mb,
        disk_mb: row.disk_mb,
        env_keys: row.env_keys,
        metadata: row.metadata,
        egress: row.egress.into(),
        io: row.io.into(),
        runtime: row.runtime,
        accel: row.accel,
        runtime_generation: row.runtime_generation,
        restored_memory: row.restored_memory,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
        started_at: instant(row.started_at),
        suspended_at: instant(row.suspended_at),
        destroyed_at: instant(row.destroyed_at),
        last_activity_at: row.last_activity_at.into(),
        parent_id: row.parent_id,
    }
}

/// A snapshot.
pub(crate) fn snapshot(view: SnapshotView) -> wire::Snapshot {
    let SnapshotView { snapshot, own_bytes, shared_bytes } = view;
    wire::Snapshot {
        name: snapshot.name.unwrap_or_else(|| snapshot.id.to_string()),
        id: snapshot.id,
        sandbox_id: snapshot.sandbox_id,
        template: snapshot.content.template,
        memory: snapshot.content.image.is_some(),
        own_bytes,
        shared_bytes,
        created_at: snapshot.created_at.into(),
    }
}

fn build_error(error: wakeful_model::BuildError) -> wire::BuildError {
    wire::BuildError { step: error.step, line: error.line, detail: error.detail }
}

/// A template.
pub(crate) fn template(row: Template) -> wire::Template {
    wire::Template {
        id: row.id,
        name: row.name,
        tags: row.tags,
        description: row.description,
        status: row.status,
        build_error: row.build_error.map(build_error),
        source: row.source,
        user: row.user,
        workdir: row.workdir,
        env_keys: row.env.into_keys().collect(),
        default_size: row.default_size,
        egress: row.egress.into(),
        disk_mb: row.disk_mb,
        io: row.io.into(),
        entry: row.entry.map(|entry| wire::Entry {
            start: entry.start,
            ready: entry.ready,
            ready_seconds: entry.ready_seconds,
            warm: entry.warm,
        }),
        runtime: row.asked.runtime,
        base: row.base,
        disk_bytes: row.disk_bytes,
        created_at: row.created_at.into(),
        built_at: instant(row.built_at),
    }
}

/// A line of a build's log.
pub(crate) fn build_line(line: BuildLine) -> wire::BuildEvent {
    let layer = line.layer.map(|layer| wire::BuildLayer {
        number: layer.number,
        count: layer.count,
        digest: layer.digest,
        done: layer.done,
        total: layer.total,
    });
    wire::BuildEvent::Progress { at: line.at.into(), step: line.step, fraction: line.fraction, line: line.line, layer }
}

/// The last line of a build's log.
pub(crate) fn build_end(row: Template) -> wire::BuildEvent {
    wire::BuildEvent::End { status: row.status, build_error: row.build_error.map(build_error) }
}

/// What lies in the data directory.
pub(crate) fn usage(usage: Usage) -> wire::Usage {
    let kinds = usage.kinds.into_iter().map(|space| wire::Space {
        kind: space.kind.to_owned(),
        count: space.count,
        bytes: space.bytes,
        apparent_bytes: space.apparent_bytes,
        reclaimable_bytes: space.reclaimable_bytes,
    });
    wire::Usage { kinds: kinds.collect(), free_bytes: usage.free_bytes, total_bytes: usage.total_bytes }
}

/// A runtime.
pub(crate) fn runtime(info: RuntimeInfo) -> wire::RuntimeInfo {
    wire::RuntimeInfo {
        name: info.name,
        accel: info.accel,
        available: info.available,
        reason: info.reason,
        fix: info.fix,
        version: info.version,
        probed_at: instant(info.probed_at),
    }
}

/// What a request cannot exceed.
pub(crate) fn limits(defaults: &Defaults) -> wire::Limits {
    wire::Limits {
        max_timeout_seconds: defaults.max_timeout.as_secs(),
        max_exec_timeout_seconds: defaults.max_exec_timeout.as_secs(),
        upload_bytes: defaults.upload_bytes,
        body_bytes: crate::body::LIMIT as u64,
        output_bytes: crate::execute::OUTPUT as u64,
    }
}

/// What a request that names nothing gets.
pub(crate) fn defaults(defaults: &Defaults) -> wire::DefaultsInfo {
    wire::DefaultsInfo {
        size: defaults.template_size.clone(),
        timeout_seconds: defaults.timeout.as_secs(),
        idle_timeout_seconds: defaults.idle_timeout.as_secs(),
        exec_timeout_seconds: defaults.exec_timeout.as_secs(),
        disk_mb: defaults.disk_mb,
    }
}

/// All presets.
pub(crate) fn sizes() -> Vec<wire::SizeInfo> {
    SIZES
        .iter()
        .map(|size| wire::SizeInfo { name: size.name.into(), cpu: size.cpu, memory_mb: size.memory_mb })
        .collect()
}
