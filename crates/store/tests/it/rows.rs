//! Rows to store: plain ones, and any that the model allows.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use wakeful_model::{
    Asked, BuildError, Cause, DEFAULT_TENANT, Egress, EgressMode, Entry, Event, EventType, Failure, IoLimits, OnExpiry,
    Op, OperationId, Policy, Sandbox, SandboxId, SnapshotId, State, Template, TemplateId, TemplateSource,
    TemplateStatus, Transition, UploadId,
};

/// Some second of some year, plus this.
pub(crate) fn at(microseconds: i64) -> Timestamp {
    Timestamp::from_microsecond(1_790_000_000_000_000 + microseconds).expect("within range")
}

pub(crate) fn sandbox() -> Sandbox {
    Sandbox {
        id: SandboxId::random(),
        version: 1,
        tenant: DEFAULT_TENANT.into(),
        state: State::Running,
        transition: None,
        template: "python".into(),
        template_id: TemplateId::random(),
        base: "b3:00".into(),
        size: Some("shared-cpu-1x".into()),
        cpu: 1,
        memory_mb: 256,
        disk_mb: 2048,
        user: "user".into(),
        workdir: "/home/user".into(),
        env: BTreeMap::from([("KEY".into(), "value".into())]),
        env_keys: vec!["KEY".into()],
        metadata: BTreeMap::new(),
        egress: Egress::default(),
        io: IoLimits::default(),
        entry: None,
        runtime: "qemu".into(),
        accel: "tcg".into(),
        runtime_generation: 1,
        restored_memory: None,
        policy: Policy {
            expires_at: None,
            on_expiry: OnExpiry::Suspend,
            timeout: None,
            idle_timeout: Some(SignedDuration::from_mins(10)),
            hard_expires_at: None,
            auto_resume: true,
            resume_lease: None,
            suspend_memory: true,
        },
        checkpoint: None,
        secret: [7; 32],
        created_at: at(0),
        updated_at: at(0),
        started_at: Some(at(0)),
        suspended_at: None,
        destroyed_at: None,
        last_activity_at: at(0),
        parent_id: None,
        failure: None,
    }
}

pub(crate) fn event(kind: EventType, cause: Cause) -> Event {
    Event { at: at(1), kind, cause, duration_ms: None, runtime_generation: 1, detail: None }
}

pub(crate) fn template(name: &str) -> Template {
    Template {
        id: TemplateId::random(),
        version: 1,
        tenant: DEFAULT_TENANT.into(),
        name: name.into(),
        status: TemplateStatus::Pending,
        build_error: None,
        source: TemplateSource::Debian { suite: "bookworm".into(), packages: vec!["python3".into()] },
        tags: Vec::new(),
        description: String::new(),
        asked: Asked::default(),
        user: "user".into(),
        workdir: "/home/user".into(),
        env: BTreeMap::new(),
        default_size: "shared-cpu-1x".into(),
        egress: Egress::default(),
        disk_mb: None,
        io: IoLimits::default(),
        entry: None,
        base: None,
        disk_bytes: 0,
        created_at: at(0),
        built_at: None,
    }
}

/// Any text save NUL, which Postgres has no place for.
fn text() -> impl Strategy<Value = String> {
    "[^\0]{0,24}"
}

fn instant() -> impl Strategy<Value = Timestamp> {
    (Timestamp::MIN.as_microsecond()..=Timestamp::MAX.as_microsecond())
        .prop_map(|microseconds| Timestamp::from_microsecond(microseconds).expect("within range"))
}

fn duration() -> impl Strategy<Value = SignedDuration> {
    any::<i64>().prop_map(SignedDuration::from_micros)
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map(any::<String>(), any::<String>(), 0..4)
}

fn egress() -> impl Strategy<Value = Egress> {
    let list = || prop::collection::vec(text(), 0..3);
    let mode = prop_oneof![Just(EgressMode::AllowAll), Just(EgressMode::DenyAll)];
    (mode, list(), list(), prop::collection::vec(any::<u16>(), 0..3), list()).prop_map(
        |(mode, allow_cidrs, deny_cidrs, allow_ports, allow_domains)| Egress {
            mode,
            allow_cidrs,
            deny_cidrs,
            allow_ports,
            allow_domains,
        },
    )
}

fn transition() -> impl Strategy<Value = Transition> {
    let op = prop::sample::select(vec![Op::Create, Op::Suspend, Op::Wake, Op::Destroy]);
    (op, instant(), any::<bool>()).prop_map(|(op, since, automatic)| Transition {
        id: OperationId::random(),
        op,
        since,
        automatic,
    })
}

fn failure() -> impl Strategy<Value = Failure> {
    (text(), text(), instant(), any::<bool>()).prop_map(|(code, detail, at, bootable)| Failure {
        code,
        detail,
        at,
        bootable,
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    (
        prop::option::of(instant()),
        prop_oneof![Just(OnExpiry::Destroy), Just(OnExpiry::Suspend)],
        prop::option::of(duration()),
        prop::option::of(duration()),
        prop::option::of(instant()),
        any::<bool>(),
        prop::option::of(duration()),
        any::<bool>(),
    )
        .prop_map(
            |(
                expires_at,
                on_expiry,
                timeout,
                idle_timeout,
                hard_expires_at,
                auto_resume,
                resume_lease,
                suspend_memory,
            )| {
                Policy {
                    expires_at,
                    on_expiry,
                    timeout,
                    idle_timeout,
                    hard_expires_at,
                    auto_resume,
                    resume_lease,
                    suspend_memory,
                }
            },
        )
}

fn io() -> impl Strategy<Value = IoLimits> {
    let figure = || prop::option::of(any::<u64>());
    (figure(), figure(), figure(), figure()).prop_map(|(ops_per_sec, burst_ops, bandwidth_mbps, burst_mbps)| IoLimits {
        ops_per_sec,
        burst_ops,
        bandwidth_mbps,
        burst_mbps,
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let words = || prop::collection::vec(text(), 0..3);
    (words(), prop::option::of(words()), any::<(u32, bool)>()).prop_map(|(start, ready, (ready_seconds, warm))| Entry {
        start,
        ready,
        ready_seconds,
        warm,
    })
}

/// Any row, with ids of its own.
pub(crate) fn any_sandbox() -> impl Strategy<Value = Sandbox> {
    let what = (
        any::<i32>(),
        prop::sample::select(State::ALL.to_vec()),
        prop::option::of(transition()),
        prop::option::of(text()),
        (any::<u32>(), any::<u32>(), any::<u32>()),
        prop::collection::vec(text(), 6),
    );
    let carries = (
        labels(),
        prop::collection::vec(text(), 0..3),
        labels(),
        egress(),
        0..=i64::MAX.cast_unsigned(),
        prop::option::of(any::<bool>()),
        policy(),
        prop::option::of(text()),
        (any::<[u8; 32]>(), io(), prop::option::of(entry())),
    );
    let when = (
        instant(),
        instant(),
        prop::option::of(instant()),
        prop::option::of(instant()),
        prop::option::of(instant()),
        instant(),
        any::<bool>(),
        prop::option::of(failure()),
    );
    (what, carries, when).prop_map(|(what, carries, when)| {
        let (version, state, transition, size, (cpu, memory_mb, disk_mb), mut words) = what;
        let (env, env_keys, metadata, egress, runtime_generation, restored_memory, policy, checkpoint, rest) = carries;
        let (secret, io, entry) = rest;
        let (created_at, updated_at, started_at, suspended_at, destroyed_at, last_activity_at, forked, failure) = when;
        let mut word = || words.pop().expect("six of them");
        Sandbox {
            id: SandboxId::random(),
            version: version.into(),
            tenant: word(),
            state,
            transition,
            template: word(),
            template_id: TemplateId::random(),
            base: word(),
            size,
            cpu,
            memory_mb,
            disk_mb,
            user: word(),
            workdir: word(),
            env,
            env_keys,
            metadata,
            egress,
            io,
            entry,
            runtime: word(),
            accel: "tcg".into(),
            runtime_generation,
            restored_memory,
            policy,
            checkpoint,
            secret,
            created_at,
            updated_at,
            started_at,
            suspended_at,
            destroyed_at,
            last_activity_at,
            parent_id: forked.then(SandboxId::random),
            failure,
        }
    })
}

/// Any template, with an id of its own; its name holds the id, so that no two collide.
pub(crate) fn any_template() -> impl Strategy<Value = Template> {
    let status = prop::sample::select(vec![
        TemplateStatus::Pending,
        TemplateStatus::Building,
        TemplateStatus::Ready,
        TemplateStatus::Failed,
        TemplateStatus::Deleted,
    ]);
    let build_error = (text(), prop::option::of(any::<u32>()), text()).prop_map(|(step, line, detail)| BuildError {
        step,
        line,
        detail,
    });
    let debian = (text(), prop::collection::vec(text(), 0..3))
        .prop_map(|(suite, packages)| TemplateSource::Debian { suite, packages });
    let image = prop::option::of(text())
        .prop_map(|reference| TemplateSource::Image { reference, upload: Some(UploadId::random()) });
    let dockerfile = (text(), prop::option::of(text()), labels()).prop_map(|(dockerfile, target, build_args)| {
        TemplateSource::Dockerfile { upload: UploadId::random(), dockerfile, target, build_args }
    });
    let sandbox = any::<bool>().prop_map(|one| TemplateSource::Sandbox {
        sandbox_id: one.then(SandboxId::random),
        snapshot_id: (!one).then(SnapshotId::random),
    });
    let source = prop_oneof![debian, image, dockerfile, sandbox];
    let asked = (prop::option::of(text()), labels(), prop::option::of(prop::collection::vec(text(), 0..3))).prop_map(
        |(user, env, start)| Asked {
            user: user.clone(),
            env,
            start,
            ready_seconds: Some(5),
            runtime: user,
            ..Asked::default()
        },
    );
    let extras =
        (prop::collection::vec(text(), 0..3), asked, prop::option::of(any::<u32>()), io(), prop::option::of(entry()));
    (
        any::<i32>(),
        status,
        prop::option::of(build_error),
        source,
        (prop::collection::vec(text(), 6), extras),
        labels(),
        egress(),
        prop::option::of(text()),
        0..=i64::MAX.cast_unsigned(),
        instant(),
        prop::option::of(instant()),
    )
        .prop_map(
            |(version, status, build_error, source, more, env, egress, base, disk_bytes, created_at, built_at)| {
                let (mut words, (tags, asked, disk_mb, io, entry)) = more;
                let mut word = || words.pop().expect("six of them");
                let id = TemplateId::random();
                Template {
                    version: version.into(),
                    tenant: word(),
                    name: format!("{}{id}", word()),
                    id,
                    status,
                    build_error,
                    source,
                    tags,
                    description: word(),
                    asked,
                    user: word(),
                    workdir: word(),
                    env,
                    default_size: word(),
                    egress,
                    disk_mb,
                    io,
                    entry,
                    base,
                    disk_bytes,
                    created_at,
                    built_at,
                }
            },
        )
}
