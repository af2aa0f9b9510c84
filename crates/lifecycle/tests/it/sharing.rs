//! Many callers of one sandbox, said in so many words: what must hold whatever a model says.

use std::sync::Arc;

use wakeful_driver_sim::Point;
use wakeful_lifecycle::{Access, Error, Lifecycle, SandboxView, Use};
use wakeful_model::{Code, Memory, SandboxId, State};

use crate::coverage::Seen;
use crate::model::{IDLE, New};
use crate::world::{PATIENCE, TENANT, World};

const PERSISTENT: New = New { persistent: true, auto_resume: true, lease: 0, hard_ttl: None };

fn world() -> (World, SandboxId) {
    let world = World::new(&Arc::new(Seen::default()));
    let id = world.create(PERSISTENT);
    (world, id)
}

/// Runs a test's part of the daemon, but not for ever.
fn within<T>(world: &World, work: impl Future<Output = T>) -> T {
    let runtime = &world.daemon().runtime;
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await }).expect("in time")
}

fn asleep(world: &World, id: &SandboxId) {
    let view = within(world, world.daemon().lifecycle.suspend(TENANT, id, true, true)).expect("suspended");
    assert_eq!(view.row.state, State::Suspended(Memory::Kept));
}

async fn accessed(lifecycle: Lifecycle, id: SandboxId) -> Result<Access, Error> {
    lifecycle.access(TENANT, &id, Use::Exec).await
}

async fn woken(lifecycle: Lifecycle, id: SandboxId, join: bool) -> Result<SandboxView, Error> {
    lifecycle.wake(TENANT, &id, join).await
}

fn seen(world: &World, id: &SandboxId) -> SandboxView {
    within(world, world.daemon().lifecycle.sandbox(TENANT, id)).expect("it is there")
}

#[test]
fn two_hundred_at_once_are_one_wake() {
    let (world, id) = world();
    asleep(&world, &id);
    let lifecycle = &world.daemon().lifecycle;
    within(&world, async {
        let callers: Vec<_> =
            (0..200).map(|_| world.daemon().runtime.spawn(accessed(lifecycle.clone(), id.clone()))).collect();
        for caller in callers {
            let access = caller.await.expect("no panic").expect("access");
            assert_eq!(access.row().runtime_generation, 2);
            access.health(PATIENCE).await.expect("the guest answers");
        }
    });
    let row = seen(&world, &id).row;
    assert_eq!((row.state, row.runtime_generation, row.restored_memory), (State::Running, 2, Some(true)));
}

#[test]
fn who_hangs_up_changes_nothing() {
    let (world, id) = world();
    asleep(&world, &id);
    let lifecycle = &world.daemon().lifecycle;
    world.host.hold(Point::Launch);
    within(&world, async {
        let caller = world.daemon().runtime.spawn(woken(lifecycle.clone(), id.clone(), false));
        world.host.somebody_at(Point::Launch).await;
        caller.abort();
        assert!(caller.await.is_err_and(|ended| ended.is_cancelled()));
        world.host.release(Point::Launch);
        // Waits for what goes on without its caller.
        woken(lifecycle.clone(), id.clone(), true).await.expect("woken");
    });
    assert_eq!(seen(&world, &id).row.runtime_generation, 2);
}

#[test]
fn an_explicit_wake_has_one_winner_and_those_who_join() {
    let (world, id) = world();
    asleep(&world, &id);
    let lifecycle = &world.daemon().lifecycle;
    world.host.hold(Point::Launch);
    within(&world, async {
        let winner = world.daemon().runtime.spawn(woken(lifecycle.clone(), id.clone(), false));
        world.host.somebody_at(Point::Launch).await;
        let loser = woken(lifecycle.clone(), id.clone(), false).await;
        assert_eq!(loser.expect_err("a conflict").code(), Code::WakeInProgress);
        let joining = world.daemon().runtime.spawn(woken(lifecycle.clone(), id.clone(), true));
        world.host.release(Point::Launch);
        for caller in [winner, joining] {
            let view = caller.await.expect("no panic").expect("woken");
            assert_eq!((view.row.state, view.row.runtime_generation), (State::Running, 2));
        }
    });
}

#[test]
fn access_calls_off_a_sleep_of_idleness() {
    let (mut world, id) = world();
    assert!(world.host.tick(id.as_str()));
    world.host.hold(Point::Save);
    world.advance(IDLE);
    let lifecycle = &world.daemon().lifecycle;
    within(&world, async {
        world.host.somebody_at(Point::Save).await;
        let caller = world.daemon().runtime.spawn(accessed(lifecycle.clone(), id.clone()));
        while world.seen.decided(&id) == 0 {
            tokio::task::yield_now().await;
        }
        world.host.release(Point::Save);
        let access = caller.await.expect("no panic").expect("access");
        access.health(PATIENCE).await.expect("the guest answers");
    });
    let row = seen(&world, &id).row;
    assert_eq!((row.state, row.runtime_generation, row.restored_memory), (State::Running, 1, None));
    assert_eq!(world.host.memory(id.as_str()).map(|memory| memory.ticks), Some(1));
}

#[test]
fn access_waits_for_a_sleep_that_was_asked_for() {
    let (world, id) = world();
    assert!(world.host.tick(id.as_str()));
    world.host.hold(Point::Save);
    let lifecycle = &world.daemon().lifecycle;
    within(&world, async {
        let (asking, its_id) = (lifecycle.clone(), id.clone());
        let sleeper = world.daemon().runtime.spawn(async move { asking.suspend(TENANT, &its_id, true, true).await });
        world.host.somebody_at(Point::Save).await;
        let caller = world.daemon().runtime.spawn(accessed(lifecycle.clone(), id.clone()));
        while world.seen.decided(&id) < 2 {
            tokio::task::yield_now().await;
        }
        world.host.release(Point::Save);
        sleeper.await.expect("no panic").expect("suspended");
        assert_eq!(caller.await.expect("no panic").expect("access").row().runtime_generation, 2);
    });
    let row = seen(&world, &id).row;
    assert_eq!((row.state, row.restored_memory), (State::Running, Some(true)));
    assert_eq!(world.host.memory(id.as_str()).map(|memory| memory.ticks), Some(1));
}

#[test]
fn fifty_sleeps_lose_nothing() {
    let (world, id) = world();
    for slept in 1..=50 {
        assert!(world.host.tick(id.as_str()));
        asleep(&world, &id);
        assert_eq!(world.host.memory(id.as_str()), None, "no engine while it sleeps");
        within(&world, woken(world.daemon().lifecycle.clone(), id.clone(), false)).expect("woken");
        assert_eq!(world.host.memory(id.as_str()).map(|memory| memory.ticks), Some(slept));
    }
    assert_eq!(seen(&world, &id).row.runtime_generation, 51);
    assert_eq!(world.host.wrongs(), Vec::<String>::new());
}
