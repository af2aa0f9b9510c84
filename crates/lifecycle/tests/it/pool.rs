//! The pool: who gets a member, who gives it back, and what becomes of those that nobody wants.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use wakeful_driver_sim::Point;
use wakeful_lifecycle::{Lifecycle, LimitsChange, NewSandbox, PoolOptions, PoolView, Repeats, Use};
use wakeful_model::{Cause, Code, SandboxId, State, TemplateStatus};
use wakeful_store::Store as _;

use crate::coverage::Seen;
use crate::model::New;
use crate::world::{PATIENCE, TENANT, World, request};

const SIZE: &str = wakeful_model::SIZES[0].name;
const MEMORY_MB: u64 = wakeful_model::SIZES[0].memory_mb as u64;

fn world() -> World {
    World::new(&Arc::new(Seen::default()))
}

fn new() -> NewSandbox {
    request(New { persistent: true, auto_resume: true, lease: 0, hard_ttl: None })
}

fn within<T>(world: &World, work: impl Future<Output = T>) -> T {
    let runtime = &world.daemon().runtime;
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await }).expect("in time")
}

fn view(lifecycle: &Lifecycle) -> Option<PoolView> {
    lifecycle.pools(TENANT).into_iter().find(|pool| pool.template == "sim" && pool.size == SIZE)
}

async fn until(reached: impl Fn() -> bool) {
    while !reached() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn ready(lifecycle: &Lifecycle, count: u32) {
    until(|| view(lifecycle).is_some_and(|pool| pool.ready == count)).await;
}

/// Begins to keep a pool of the one template there is.
async fn keep(lifecycle: &Lifecycle, target: u32) {
    let (interval, targets) = (Duration::from_millis(20), BTreeMap::from([("sim".to_owned(), target)]));
    lifecycle.keep_pool(PoolOptions { enabled: true, interval, size: SIZE.into(), targets }).await;
}

fn pooled(target: u32) -> World {
    let world = world();
    within(&world, async {
        keep(&world.daemon().lifecycle, target).await;
        ready(&world.daemon().lifecycle, target).await;
    });
    world
}

/// The members, by the names of their engines.
fn members(world: &World) -> HashSet<String> {
    world.host.engines().into_iter().collect()
}

async fn is_usable(lifecycle: &Lifecycle, id: &SandboxId) {
    let access = lifecycle.access(TENANT, id, Use::Exec).await.expect("access");
    assert_eq!((access.row().state, access.row().runtime_generation), (State::Running, 1));
    access.health(PATIENCE).await.expect("the guest answers");
}

#[test]
fn as_many_hits_as_there_are_members() {
    let world = pooled(3);
    let (lifecycle, before) = (&world.daemon().lifecycle, members(&world));
    assert_eq!(before.len(), 3);
    within(&world, async {
        assert!(lifecycle.sandboxes(filter()).await.expect("a list").0.is_empty(), "members are no sandboxes");
        let asking = (0..8).map(|_| {
            let lifecycle = lifecycle.clone();
            world.daemon().runtime.spawn(async move { lifecycle.id_for(&new(), Repeats::Never).await })
        });
        let mut ids = Vec::new();
        for one in asking.collect::<Vec<_>>() {
            ids.push(one.await.expect("no panic"));
        }
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 8, "no id twice");
        assert_eq!(ids.iter().filter(|id| before.contains(id.as_str())).count(), 3);
        let making = ids.iter().cloned().map(|id| {
            let lifecycle = lifecycle.clone();
            world.daemon().runtime.spawn(async move { lifecycle.create_as(id, new()).await })
        });
        for one in making.collect::<Vec<_>>() {
            one.await.expect("no panic").expect("created");
        }
        for id in &ids {
            is_usable(lifecycle, id).await;
        }
        ready(lifecycle, 3).await;
    });
    let secrets: HashSet<_> =
        members(&world).iter().map(|name| world.host.memory(name).expect("it lives").secret).collect();
    assert_eq!(secrets.len(), 11, "all of them have secrets of their own");
    let pool = view(lifecycle).expect("a pool");
    assert_eq!((pool.claimed, pool.missed, pool.target, pool.memory_mb), (3, 5, 3, 3 * MEMORY_MB));
    assert!(members(&world).is_superset(&before), "a claim is the same engine");
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}

#[test]
fn a_race_gives_nobody_the_same() {
    let world = pooled(4);
    let lifecycle = &world.daemon().lifecycle;
    within(&world, async {
        let making = (0..20).map(|_| {
            let lifecycle = lifecycle.clone();
            world.daemon().runtime.spawn(async move { lifecycle.create(new()).await })
        });
        let mut ids = HashSet::new();
        for one in making.collect::<Vec<_>>() {
            assert!(ids.insert(one.await.expect("no panic").expect("created").row.id));
        }
        for id in &ids {
            is_usable(lifecycle, id).await;
        }
        ready(lifecycle, 4).await;
    });
    let pool = view(lifecycle).expect("a pool");
    assert!(pool.claimed >= 4 && pool.claimed + pool.missed == 20, "{pool:?}");
    assert_eq!(members(&world).len(), 24);
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}

#[test]
fn what_is_not_used_goes_back() {
    let world = pooled(1);
    let (lifecycle, before) = (&world.daemon().lifecycle, members(&world));
    let refused = new();
    within(&world, async {
        let none = LimitsChange { sandboxes: Some(Some(0)), ..LimitsChange::default() };
        lifecycle.registry().limit_tenant(TENANT, none).await.expect("limited");
        let id = lifecycle.id_for(&refused, Repeats::Never).await;
        assert!(before.contains(id.as_str()));
        assert_eq!(view(lifecycle).expect("a pool").ready, 0);
        let other = lifecycle.id_for(&new(), Repeats::Never).await;
        assert!(!before.contains(other.as_str()), "one member, one id");
        let error = lifecycle.create_as(id, refused.clone()).await.expect_err("refused");
        assert_eq!(error.code(), Code::QuotaExceeded);
        assert_eq!(view(lifecycle).expect("a pool").ready, 1);
        // A repeat that was answered at once.
        let id = lifecycle.id_for(&new(), Repeats::ByKey).await;
        assert!(before.contains(id.as_str()));
        lifecycle.unused_id(&id);
        assert_eq!(view(lifecycle).expect("a pool").ready, 1);
        // An id that stands beside a key is nobody else's any more.
        let id = lifecycle.id_for(&refused, Repeats::ByKey).await;
        assert!(before.contains(id.as_str()));
        lifecycle.create_as(id.clone(), refused).await.expect_err("refused");
        until(|| !members(&world).contains(id.as_str())).await;
        ready(lifecycle, 1).await;
        assert_ne!(members(&world), before);
        // And what does not fit gets none.
        for other in [
            NewSandbox { disk_mb: Some(4096), ..new() },
            NewSandbox { size: Some("performance-1x".into()), ..new() },
            NewSandbox { runtime: Some("plain".into()), ..new() },
            NewSandbox { runtime: Some("another".into()), ..new() },
        ] {
            let id = lifecycle.id_for(&other, Repeats::Never).await;
            assert!(!members(&world).contains(id.as_str()), "{other:?}");
        }
    });
}

#[test]
fn stale_members_go() {
    let world = pooled(2);
    let (lifecycle, store, before) = (&world.daemon().lifecycle, &world.daemon().store, members(&world));
    within(&world, async {
        // Built again.
        let mut template = lifecycle.template(TENANT, "sim").await.expect("a template");
        template.base = Some("1".repeat(64));
        store.swap_template(&template).await.expect("swapped");
        until(|| members(&world).is_disjoint(&before)).await;
        ready(lifecycle, 2).await;
        // Dead.
        let dead = members(&world).into_iter().next().expect("a member");
        assert!(world.host.kill(&dead));
        until(|| !members(&world).contains(&dead) && members(&world).len() == 2).await;
        ready(lifecycle, 2).await;
        // Not wanted.
        let pool = lifecycle.set_pool(TENANT, "sim", SIZE, 1).await.expect("set");
        assert_eq!(pool.target, 1);
        until(|| members(&world).len() == 1).await;
        let too_many = lifecycle.set_pool(TENANT, "sim", SIZE, 1001).await.expect_err("refused");
        assert_eq!(too_many.code(), Code::InvalidField);
        assert_eq!(lifecycle.set_pool(TENANT, "sim", "huge", 1).await.expect_err("refused").code(), Code::InvalidSize);
        assert_eq!(
            lifecycle.set_pool(TENANT, "none", SIZE, 1).await.expect_err("refused").code(),
            Code::TemplateNotFound
        );
        // Of a template that is gone.
        let mut template = lifecycle.template(TENANT, "sim").await.expect("a template");
        template.status = TemplateStatus::Deleted;
        store.swap_template(&template).await.expect("swapped");
        until(|| members(&world).is_empty()).await;
        // Its files go after its engine.
        until(|| std::fs::read_dir(world.sandboxes_dir()).expect("a directory").count() == 0).await;
    });
}

#[test]
fn a_member_that_does_not_answer_is_a_clone_instead() {
    let world = pooled(2);
    let (lifecycle, before) = (&world.daemon().lifecycle, members(&world));
    within(&world, async {
        let id = lifecycle.id_for(&new(), Repeats::Never).await;
        assert!(before.contains(id.as_str()) && world.host.kill(id.as_str()));
        lifecycle.create_as(id.clone(), new()).await.expect("created all the same");
        is_usable(lifecycle, &id).await;

        let id = lifecycle.id_for(&new(), Repeats::Never).await;
        assert!(before.contains(id.as_str()));
        world.host.fail(Point::Contact, wakeful_driver_sim::Fault::Refused);
        lifecycle.create_as(id.clone(), new()).await.expect("created all the same");
        is_usable(lifecycle, &id).await;
        assert_eq!(view(lifecycle).expect("a pool").claimed, 0);
    });
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}

#[test]
fn memory_is_for_sandboxes_first() {
    let world = World::limited(&Arc::new(Seen::default()), Some(MEMORY_MB * 3));
    let lifecycle = &world.daemon().lifecycle;
    let mut sandboxes = Vec::new();
    within(&world, async {
        keep(lifecycle, 5).await;
        ready(lifecycle, 3).await;
        // One that no member fits takes the memory of two.
        let large = NewSandbox { memory_mb: Some(u32::try_from(MEMORY_MB).expect("small") * 2), ..new() };
        let large = lifecycle.create(large).await.expect("created").row.id;
        assert_eq!(members(&world).len(), 2, "{:?}", members(&world));
        lifecycle.suspend(TENANT, &large, true, true).await.expect("asleep");
        ready(lifecycle, 3).await;
        // So does one that wakes.
        lifecycle.wake(TENANT, &large, false).await.expect("woken");
        assert_eq!(members(&world).len(), 2);
        lifecycle.destroy(TENANT, &large, Cause::Api).await.expect("destroyed");
        ready(lifecycle, 3).await;
        // A claim needs no more than it has, and when all is taken there is no room.
        for _ in 0..3 {
            let made = lifecycle.create(new()).await.expect("created").row.id;
            sandboxes.push(made);
        }
        assert_eq!(view(lifecycle).expect("a pool").claimed, 3);
        let error = lifecycle.create(new()).await.expect_err("no room");
        assert_eq!(error.code(), Code::InsufficientCapacity);
    });
    let left: HashSet<String> = sandboxes.iter().map(ToString::to_string).collect();
    assert_eq!(members(&world), left);
}

#[test]
fn a_host_that_is_short_of_memory_has_no_members() {
    let world = pooled(2);
    let (lifecycle, dir) = (&world.daemon().lifecycle, tempfile::tempdir().expect("a directory"));
    let meminfo = dir.path().join("meminfo");
    let tell = |available: u32| {
        let new = dir.path().join("new");
        std::fs::write(&new, format!("MemTotal: 1000 kB\nMemAvailable: {available} kB\n")).expect("written");
        std::fs::rename(new, &meminfo).expect("renamed");
    };
    tell(900);
    within(&world, async {
        let id = lifecycle.create(new()).await.expect("created").row.id;
        ready(lifecycle, 2).await;
        lifecycle.watch_pressure(wakeful_lifecycle::Pressure {
            available_percent: Some(10),
            stall_percent: None,
            idle: Duration::from_secs(3600),
            interval: Duration::from_millis(10),
            meminfo: meminfo.clone(),
            stalls: dir.path().join("none"),
        });
        tell(50);
        until(|| members(&world) == HashSet::from([id.to_string()])).await;
        // Neither the clock nor a wish brings them back before there is memory.
        lifecycle.set_pool(TENANT, "sim", SIZE, 3).await.expect("set");
        let looks = tokio::time::sleep(Duration::from_millis(300));
        tokio::select! {
            () = looks => {}
            () = ready(lifecycle, 1) => panic!("one was made"),
        }
        is_usable(lifecycle, &id).await;
        tell(900);
        ready(lifecycle, 3).await;
    });
}

#[test]
fn a_killed_daemon_leaves_nothing_and_the_next_begins_again() {
    let mut world = pooled(1);
    within(&world, async {
        world.daemon().lifecycle.set_pool(TENANT, "sim", SIZE, 3).await.expect("set");
        ready(&world.daemon().lifecycle, 3).await;
    });
    let before = members(&world);
    world.crash();
    assert_eq!(members(&world), before, "engines outlive it");
    world.start();
    assert!(members(&world).is_empty());
    assert_eq!(std::fs::read_dir(world.sandboxes_dir()).expect("a directory").count(), 0);
    let lifecycle = &world.daemon().lifecycle;
    within(&world, async {
        keep(lifecycle, 1).await;
        ready(lifecycle, 3).await;
        // One that ends in peace takes them with it.
        assert!(lifecycle.drain(PATIENCE).await);
    });
    assert!(members(&world).is_empty());
}

#[test]
fn the_first_of_a_size_boots_and_the_next_are_clones() {
    let world = world();
    let lifecycle = &world.daemon().lifecycle;
    let size = || NewSandbox { size: Some("shared-cpu-2x".into()), ..new() };
    let golden = |mb: u32| {
        let templates = std::fs::read_dir(world.golden_dir()).expect("a directory").flatten();
        let machines = templates.map(|template| template.path().join(format!("c1-m{mb}-d2048")));
        let goldens = machines.flat_map(|machine| std::fs::read_dir(machine).into_iter().flatten().flatten());
        let dirs = goldens.map(|golden| golden.path());
        let dirs = dirs.filter(|dir| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sim-1")));
        dirs.filter(|dir| dir.join("manifest.json").exists()).count()
    };
    within(&world, async {
        // The snapshot cannot be finished before it is let go.
        world.host.hold(Point::Save);
        let first = lifecycle.create(size()).await.expect("created").row;
        assert_eq!((first.state, first.restored_memory, golden(512)), (State::Running, None, 0));
        world.host.somebody_at(Point::Save).await;
        let second = lifecycle.create(size()).await.expect("created").row;
        assert_eq!(golden(512), 0, "one that finds it being made boots too");
        world.host.release(Point::Save);
        until(|| golden(512) == 1).await;
        let third = lifecycle.create(size()).await.expect("created").row;
        for (row, how) in [(&first, Some("booted")), (&second, Some("booted")), (&third, None)] {
            let events = lifecycle.events(TENANT, &row.id, 0, 10).await.expect("events");
            let detail = events[0].1.detail.as_deref();
            assert_eq!(detail.map(|text| text.starts_with(how.unwrap_or("?"))), how.map(|_| true), "{detail:?}");
        }
        // Those that booted sleep and wake like others.
        lifecycle.suspend(TENANT, &first.id, true, true).await.expect("asleep");
        let woken = lifecycle.wake(TENANT, &first.id, false).await.expect("woken").row;
        assert_eq!(woken.restored_memory, Some(true));
    });
    assert_eq!(golden(256), 1, "that of the default size was there before");
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}

fn filter() -> wakeful_lifecycle::Filter {
    wakeful_lifecycle::Filter {
        tenant: TENANT.into(),
        status: None,
        mode: None,
        template: None,
        metadata: Vec::new(),
        limit: 10,
        cursor: None,
    }
}
