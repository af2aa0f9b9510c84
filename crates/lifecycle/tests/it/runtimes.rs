//! Two runtimes in one daemon: each sandbox stays with its own, and one that is gone is in nobody else's way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wakeful_driver_sim::{Obstacle, ObstacleKind};
use wakeful_lifecycle::{
    AwakeReason, Error, Fork, Lifecycle, NewSandbox, NewTemplate, PoolOptions, Repeats, SandboxView,
};
use wakeful_model::{Asked, Cause, Code, EventType, IoLimits, Memory, SandboxId, SnapshotId, State, TemplateSource};
use wakeful_store::Store as _;

use crate::coverage::Seen;
use crate::model::{IDLE, New};
use crate::world::{PATIENCE, TENANT, World, request};

const PERSISTENT: New = New { persistent: true, auto_resume: true, lease: 0, hard_ttl: None };

fn within<T>(world: &World, work: impl Future<Output = T>) -> T {
    let runtime = &world.daemon().runtime;
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await }).expect("in time")
}

/// One whose base is a directory already.
fn world() -> World {
    let world = World::new(&Arc::new(Seen::default()));
    std::fs::create_dir_all(world.base_dir().join("root")).expect("a directory");
    world
}

fn lifecycle(world: &World) -> &Lifecycle {
    &world.daemon().lifecycle
}

fn of(runtime: &str) -> NewSandbox {
    NewSandbox { runtime: Some(runtime.into()), ..request(PERSISTENT) }
}

fn create(world: &World, new: NewSandbox) -> Result<SandboxId, Error> {
    let id = SandboxId::random();
    within(world, lifecycle(world).create_as(id.clone(), new)).map(|_| id)
}

fn seen(world: &World, id: &SandboxId) -> SandboxView {
    within(world, lifecycle(world).sandbox(TENANT, id)).expect("it is there")
}

fn suspend(world: &World, id: &SandboxId, memory: bool) -> Result<SandboxView, Error> {
    within(world, lifecycle(world).suspend(TENANT, id, memory, true))
}

fn wake(world: &World, id: &SandboxId) -> Result<SandboxView, Error> {
    within(world, lifecycle(world).wake(TENANT, id, true))
}

/// Types and details of all that happened to it.
fn events(world: &World, id: &SandboxId) -> Vec<(EventType, Cause, Option<String>)> {
    let events = within(world, lifecycle(world).events(TENANT, id, 0, 1000)).expect("events");
    events.into_iter().map(|(_, event)| (event.kind, event.cause, event.detail)).collect()
}

fn held() -> Vec<Obstacle> {
    vec![Obstacle { pid: 12, process: "tail".into(), kind: ObstacleKind::File, path: "/var/log/a".into() }]
}

fn without(world: &World, runtime: &'static str) {
    world.gone.lock().expect("no panic while it is held").insert(runtime);
}

fn with_all(world: &World) {
    world.gone.lock().expect("no panic while it is held").clear();
}

#[test]
fn each_stays_with_its_own() {
    let mut world = world();
    let goldens = std::fs::read_dir(world.golden_dir()).map_or(0, Iterator::count);
    let usual = create(&world, request(PERSISTENT)).expect("created");
    let other = create(&world, of("plain")).expect("created");
    let shown = |world: &World, id| {
        let view = seen(world, id);
        let can = view.capabilities.expect("it is open");
        (view.row.runtime.clone(), can.golden, can.obstacles)
    };
    assert_eq!(shown(&world, &usual), ("sim".into(), true, false));
    assert_eq!(shown(&world, &other), ("plain".into(), false, true));
    // A first start is the usual way there; nothing is made for a next one.
    assert_eq!(events(&world, &other)[0], (EventType::Created, Cause::Api, None));
    assert_eq!(std::fs::read_dir(world.golden_dir()).map_or(0, Iterator::count), goldens);
    assert_eq!(world.host.base(other.as_str()), Some(world.base_dir().join("root")));
    assert_eq!(world.host.base(usual.as_str()), Some(world.base_dir().join("base.ext4")));
    for memory in [true, false] {
        for id in [&usual, &other] {
            assert!(world.host.tick(id.as_str()));
            suspend(&world, id, memory).expect("suspended");
            assert!(seen(&world, id).storage.disk_bytes > 0, "whatever its disk is called");
            world.crash();
            world.start();
            assert_eq!(wake(&world, id).expect("woken").row.restored_memory, Some(memory));
        }
    }
    // Both are found again.
    world.crash();
    world.start();
    for id in [&usual, &other] {
        assert_eq!(seen(&world, id).row.state, State::Running);
        within(&world, lifecycle(&world).destroy(TENANT, id, Cause::Api)).expect("destroyed");
    }
    assert_eq!(world.host.engines(), Vec::<String>::new());
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}

#[test]
fn copies_stay_where_their_source_is() {
    let world = world();
    let id = create(&world, of("plain")).expect("created");
    let (lifecycle, snapshot) = (lifecycle(&world), SnapshotId::random());
    within(&world, lifecycle.take_snapshot(TENANT, &id, snapshot.clone(), None)).expect("taken");
    let fork = Fork { children: vec![SandboxId::random()], mode: None, timeout: None, idle_timeout: None };
    let forked = within(&world, lifecycle.fork(TENANT, &id, fork)).expect("forked");
    assert_eq!(forked.sandboxes[0].row.runtime, "plain");
    let from = |runtime: Option<&str>| NewSandbox {
        template: snapshot.to_string(),
        runtime: runtime.map(str::to_owned),
        ..request(PERSISTENT)
    };
    let refused = create(&world, from(Some("sim"))).expect_err("another runtime");
    assert_eq!((refused.code(), refused.field()), (Code::InvalidCombination, Some("runtime")));
    for runtime in [None, Some("auto"), Some("plain")] {
        let child = create(&world, from(runtime)).expect("created");
        assert_eq!(seen(&world, &child).row.runtime, "plain", "{runtime:?}");
    }
}

#[test]
fn a_template_chooses_and_a_request_has_the_last_word() {
    let world = world();
    let store = &world.daemon().store;
    within(&world, async {
        let mut template = lifecycle(&world).template(TENANT, "sim").await.expect("a template");
        template.asked = Asked { runtime: Some("plain".into()), ..Asked::default() };
        store.swap_template(&template).await.expect("swapped");
        lifecycle(&world).prepare_template(TENANT, "sim").await.expect("prepared");
    });
    for (asked, comes_to) in [(None, "plain"), (Some("auto"), "plain"), (Some("sim"), "sim")] {
        let new = NewSandbox { runtime: asked.map(str::to_owned), ..request(PERSISTENT) };
        let id = create(&world, new).expect("created");
        assert_eq!(seen(&world, &id).row.runtime, comes_to, "{asked:?}");
    }
    // One that is not there is refused before anything is built.
    let source = TemplateSource::Debian { suite: "stable".into(), packages: Vec::new() };
    let asked = Asked { runtime: Some("another".into()), ..Asked::default() };
    let default_size = Some(wakeful_model::SIZES[0].name.to_owned());
    let new = NewTemplate { asked, default_size, ..NewTemplate::new(TENANT, "next", source) };
    let refused = within(&world, lifecycle(&world).create_template(new)).expect_err("no such runtime");
    assert_eq!(refused.code(), Code::RuntimeUnavailable);
    assert!(refused.to_string().contains("another"), "{refused}");
}

#[test]
fn limits_that_nobody_would_keep_are_refused() {
    let world = world();
    let io = Some(IoLimits { ops_per_sec: Some(100), ..IoLimits::default() });
    let refused = create(&world, NewSandbox { io, ..of("plain") }).expect_err("no limits");
    assert_eq!((refused.code(), refused.field()), (Code::UnsupportedByRuntime, Some("io")));
    create(&world, NewSandbox { io, ..of("sim") }).expect("created");
    create(&world, NewSandbox { io: Some(IoLimits::default()), ..of("plain") }).expect("none are none");
}

#[test]
fn one_that_is_gone_strands_nobody_else() {
    let mut world = world();
    let usual = create(&world, of("sim")).expect("created");
    let [asleep, awake, doomed] = [(); 3].map(|()| create(&world, of("plain")).expect("created"));
    suspend(&world, &asleep, true).expect("suspended");
    suspend(&world, &doomed, true).expect("suspended");
    world.crash();
    without(&world, "plain");
    world.start();

    // The others do all that they did.
    suspend(&world, &usual, true).expect("suspended");
    wake(&world, &usual).expect("woken");
    create(&world, request(PERSISTENT)).expect("created");
    // Its own are seen, and say why they cannot be used.
    let rows = [&asleep, &awake].map(|id| (seen(&world, id).row.state, seen(&world, id).capabilities.is_none()));
    assert_eq!(rows, [(State::Suspended(Memory::Kept), true), (State::Running, true)]);
    let access = async |id| match lifecycle(&world).access(TENANT, id, wakeful_lifecycle::Use::Exec).await {
        Ok(_) => panic!("nobody could have reached it"),
        Err(error) => error,
    };
    for refused in [
        wake(&world, &asleep).expect_err("gone"),
        create(&world, of("plain")).expect_err("gone"),
        suspend(&world, &awake, true).expect_err("gone"),
        within(&world, access(&asleep)),
        within(&world, access(&awake)),
    ] {
        assert_eq!(refused.code(), Code::RuntimeUnavailable, "{refused}");
        assert!(refused.to_string().contains("plain"), "{refused}");
    }
    assert!(world.host.memory(awake.as_str()).is_some(), "its engine runs on");
    assert_eq!(seen(&world, &asleep).row.state, State::Suspended(Memory::Kept), "nothing was spent");
    within(&world, lifecycle(&world).destroy(TENANT, &doomed, Cause::Api)).expect("destroyed");
    assert_eq!(seen(&world, &doomed).row.state, State::Destroyed);

    // When it is back, a sleeper wakes at once, and whoever ran is found at the next start.
    with_all(&world);
    assert_eq!(wake(&world, &asleep).expect("woken").row.restored_memory, Some(true));
    world.crash();
    world.start();
    let found = within(&world, lifecycle(&world).access(TENANT, &awake, wakeful_lifecycle::Use::Exec));
    assert_eq!(found.map(|access| access.row().runtime_generation).expect("reached"), 1);
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}

#[test]
fn one_that_ran_can_be_destroyed_without_its_runtime() {
    let mut world = world();
    let usual = create(&world, of("sim")).expect("created");
    let id = create(&world, of("plain")).expect("created");
    world.crash();
    without(&world, "plain");
    world.start();
    within(&world, lifecycle(&world).destroy(TENANT, &id, Cause::Api)).expect("destroyed");
    assert_eq!(world.host.engines(), vec![usual.to_string()]);
}

#[test]
fn a_pool_does_without_golden_snapshots() {
    let world = world();
    let (lifecycle, store) = (lifecycle(&world), &world.daemon().store);
    let size = wakeful_model::SIZES[0].name;
    within(&world, async {
        let mut template = lifecycle.template(TENANT, "sim").await.expect("a template");
        template.asked = Asked { runtime: Some("plain".into()), ..Asked::default() };
        store.swap_template(&template).await.expect("swapped");
        let (interval, targets) = (Duration::from_millis(20), BTreeMap::from([("sim".to_owned(), 2)]));
        lifecycle.keep_pool(PoolOptions { enabled: true, interval, size: size.into(), targets }).await;
        while lifecycle.pools(TENANT).iter().all(|pool| pool.ready < 2) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let members = world.host.engines();
        let id = lifecycle.id_for(&request(PERSISTENT), Repeats::Never).await;
        assert!(members.contains(&id.to_string()));
        let made = lifecycle.create_as(id.clone(), request(PERSISTENT)).await.expect("created");
        assert_eq!((made.row.runtime.as_str(), made.row.state), ("plain", State::Running));
        let other = lifecycle.id_for(&of("sim"), Repeats::Never).await;
        assert!(!members.contains(&other.to_string()), "of another runtime");
        assert_eq!(lifecycle.pools(TENANT)[0].claimed, 1);
    });
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}

#[test]
fn what_holds_something_is_not_touched() {
    let world = world();
    let id = create(&world, of("plain")).expect("created");
    let before = world.host.memory(id.as_str()).expect("it runs");
    world.host.obstruct(id.as_str(), held());
    let fork = || Fork { children: vec![SandboxId::random()], mode: None, timeout: None, idle_timeout: None };
    for refused in [
        suspend(&world, &id, true).map(drop).expect_err("held"),
        within(&world, lifecycle(&world).take_snapshot(TENANT, &id, SnapshotId::random(), None))
            .map(drop)
            .expect_err("held"),
        within(&world, lifecycle(&world).fork(TENANT, &id, fork())).map(drop).expect_err("held"),
    ] {
        assert_eq!(refused.code(), Code::NotSuspendable);
        let text = refused.to_string();
        assert!(["tail", "pid 12", "/var/log/a"].iter().all(|word| text.contains(word)), "{text}");
        assert!(refused.hint().is_some_and(|hint| hint.contains("memory: false")));
        let row = seen(&world, &id).row;
        assert_eq!((row.state, row.transition), (State::Running, None));
    }
    let cancelled = events(&world, &id).into_iter().filter(|(kind, ..)| *kind == EventType::SuspendCancelled);
    let details: Vec<_> = cancelled.map(|(_, _, detail)| detail.expect("a reason")).collect();
    assert!(details.len() == 1 && details[0].contains("/var/log/a"), "{details:?}");
    assert_eq!(world.host.memory(id.as_str()), Some(before), "same memory, same secret: it was not even stopped");
    // Without its memory nothing is in the way, and once it is let go, neither.
    suspend(&world, &id, false).expect("suspended");
    wake(&world, &id).expect("woken");
    world.host.obstruct(id.as_str(), Vec::new());
    suspend(&world, &id, true).expect("suspended");
    assert_eq!(wake(&world, &id).expect("woken").row.restored_memory, Some(true));
}

#[test]
fn one_that_cannot_sleep_is_asked_less_and_less() {
    let mut world = world();
    let id = create(&world, of("plain")).expect("created");
    world.host.obstruct(id.as_str(), held());
    let settle = |world: &World| {
        within(world, async {
            // Whatever is due has begun and ended by then.
            for _ in 0..200 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    };
    let mut looks = Vec::new();
    world.advance(IDLE);
    settle(&world);
    for _ in 0..40 {
        looks.push(world.host.looks());
        world.advance(10);
        settle(&world);
    }
    // At 0, 30, 90, 210 seconds and so on; MOST_AWAKE comes between and does not make it ask more often.
    assert_eq!(looks[0], 1, "{looks:?}");
    assert_eq!((looks[2], looks[3], looks[8], looks[9]), (1, 2, 2, 3), "{looks:?}");
    assert_eq!((looks[20], looks[21], looks[39]), (3, 4, 4), "{looks:?}");
    let view = seen(&world, &id);
    let why = view.awake_because.iter().find(|why| why.reason == AwakeReason::NotSuspendable).expect("it is told");
    assert!(why.detail.as_deref().is_some_and(|detail| detail.contains("/var/log/a")), "{why:?}");
    assert_eq!((view.row.state, view.sleeps_at), (State::Running, None));
    let told = events(&world, &id).into_iter().filter_map(|(kind, cause, detail)| {
        (kind == EventType::SuspendCancelled && cause == Cause::Idle).then_some(detail?)
    });
    assert!(told.clone().count() >= 4 && told.clone().all(|detail| detail.contains("tried again")));
    // Let go, it sleeps at its next turn; and after that nothing is remembered.
    world.host.obstruct(id.as_str(), Vec::new());
    world.advance(600);
    within(&world, async {
        while lifecycle(&world).sandbox(TENANT, &id).await.expect("it is there").row.state == State::Running {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    wake(&world, &id).expect("woken");
    assert!(seen(&world, &id).awake_because.iter().all(|why| why.reason == AwakeReason::RecentActivity));
}

#[test]
fn a_last_hour_comes_although_it_cannot_sleep() {
    let mut world = world();
    let hard = New { hard_ttl: Some(IDLE + 40), ..PERSISTENT };
    let id = create(&world, NewSandbox { runtime: Some("plain".into()), ..request(hard) }).expect("created");
    world.host.obstruct(id.as_str(), held());
    for seconds in [IDLE, 30, 10] {
        world.advance(seconds);
        within(&world, async { tokio::time::sleep(Duration::from_millis(200)).await });
    }
    within(&world, async {
        while lifecycle(&world).sandbox(TENANT, &id).await.expect("it is there").row.state != State::Destroyed {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}
