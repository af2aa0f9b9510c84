//! Limits of a disk, and a disk that grows, by an engine that tells what it was told.

use std::sync::Arc;

use wakeful_driver_sim::{Disk, Fault, Point};
use wakeful_lifecycle::{Error, NewSandbox, Patch, SandboxView};
use wakeful_model::{Cause, Code, IoLimits, Memory, SandboxId, State};

use crate::coverage::Seen;
use crate::model::New;
use crate::world::{PATIENCE, TENANT, World, request};

const PERSISTENT: New = New { persistent: true, auto_resume: true, lease: 0, hard_ttl: None };
const LIMITS: IoLimits =
    IoLimits { ops_per_sec: Some(100), burst_ops: Some(200), bandwidth_mbps: Some(2), burst_mbps: None };

/// Runs a test's part of the daemon, but not for ever.
fn within<T>(world: &World, work: impl Future<Output = T>) -> T {
    let runtime = &world.daemon().runtime;
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await }).expect("in time")
}

fn world() -> World {
    World::new(&Arc::new(Seen::default()))
}

fn create(world: &World, new: NewSandbox) -> Result<SandboxId, Error> {
    let id = SandboxId::random();
    within(world, world.daemon().lifecycle.create_as(id.clone(), new)).map(|_| id)
}

fn suspend(world: &World, id: &SandboxId, memory: bool) {
    within(world, world.daemon().lifecycle.suspend(TENANT, id, memory, true)).expect("suspended");
}

fn wake(world: &World, id: &SandboxId) -> Result<SandboxView, Error> {
    within(world, world.daemon().lifecycle.wake(TENANT, id, true))
}

fn grow(world: &World, id: &SandboxId, disk_mb: u32) -> Result<SandboxView, Error> {
    let patch = Patch { disk_mb: Some(disk_mb), ..Patch::default() };
    within(world, world.daemon().lifecycle.patch(TENANT, id, patch, Cause::Api))
}

fn disk(world: &World, id: &SandboxId) -> Disk {
    world.host.disk(id.as_str()).expect("it has an engine")
}

#[test]
fn limits_hold_from_the_first_moment_and_after_every_start() {
    let mut world = world();
    let id = create(&world, NewSandbox { io: Some(LIMITS), ..request(PERSISTENT) }).expect("created");
    let free = create(&world, request(PERSISTENT)).expect("created");
    assert_eq!((disk(&world, &id).limits, disk(&world, &free).limits), (LIMITS, IoLimits::default()));
    for memory in [true, false] {
        suspend(&world, &id, memory);
        wake(&world, &id).expect("woken");
        assert_eq!(disk(&world, &id).limits, LIMITS, "memory: {memory}");
    }
    world.crash();
    world.start();
    assert_eq!(disk(&world, &id).limits, LIMITS, "adopted");
}

#[test]
fn without_its_limits_nothing_runs() {
    let world = world();
    world.host.fail(Point::Limit, Fault::Refused);
    let before = world.host.engines().len();
    create(&world, NewSandbox { io: Some(LIMITS), ..request(PERSISTENT) }).expect_err("not created");
    assert_eq!(world.host.engines().len(), before, "nothing is left");
    let id = create(&world, NewSandbox { io: Some(LIMITS), ..request(PERSISTENT) }).expect("created");
    suspend(&world, &id, true);
    world.host.fail(Point::Limit, Fault::Refused);
    wake(&world, &id).expect_err("not woken");
    let woken = wake(&world, &id).expect("woken").row;
    assert_eq!(woken.restored_memory, Some(true), "nothing was spent");
}

#[test]
fn a_disk_grows_at_the_next_start() {
    let mut world = world();
    let id = create(&world, request(PERSISTENT)).expect("created");
    let before = disk(&world, &id).told_mb;
    assert_eq!(grow(&world, &id, before + 1).expect_err("it runs").code(), Code::NotSuspended);
    suspend(&world, &id, true);
    assert_eq!(grow(&world, &id, before - 1).expect_err("smaller").code(), Code::InvalidSize);
    assert_eq!(grow(&world, &id, before + 100).expect("grown").row.disk_mb, before + 100);
    // What the row says is all there is until then, and it lasts.
    world.crash();
    world.start();
    wake(&world, &id).expect("woken");
    let grown = disk(&world, &id);
    assert_eq!((grown.told_mb, grown.grown_mb), (before + 100, before + 100));
    // Nobody is told twice, and a boot sees it by itself.
    suspend(&world, &id, true);
    world.host.fail(Point::Grow, Fault::Refused);
    wake(&world, &id).expect("woken");
    suspend(&world, &id, false);
    grow(&world, &id, before + 200).expect("grown");
    wake(&world, &id).expect("woken");
    assert_eq!(disk(&world, &id).told_mb, before + 200);
}

#[test]
fn a_disk_that_cannot_grow_spends_nothing() {
    let world = world();
    let id = create(&world, request(PERSISTENT)).expect("created");
    let before = disk(&world, &id).told_mb;
    suspend(&world, &id, true);
    grow(&world, &id, before + 100).expect("grown");
    world.host.fail(Point::Grow, Fault::DiskFull);
    wake(&world, &id).expect_err("not woken");
    let row = within(&world, world.daemon().lifecycle.sandbox(TENANT, &id)).expect("it is there").row;
    assert_eq!(row.state, State::Suspended(Memory::Kept));
    assert_eq!(wake(&world, &id).expect("woken").row.restored_memory, Some(true));
    assert_eq!(disk(&world, &id).grown_mb, before + 100);
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}
