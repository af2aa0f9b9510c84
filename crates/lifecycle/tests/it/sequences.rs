//! Random lives against the model, made smaller when one fails.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use wakeful_driver_sim::{Fault, Point};

use crate::coverage::Seen;
use crate::model::{Ask, New};
use crate::walk::{Life, Step, live};
use crate::world::World;

/// In each of the tests below; more with `WAKEFUL_MODEL_LIVES`.
const LIVES: u32 = 1500;
/// For how long, in milliseconds, one that failed is made smaller: each try may wait for what does not come.
const SMALLER: u32 = 120_000;
/// A world of its own for so many, so that its database stays small.
const IN_ONE_WORLD: usize = 250;

fn new() -> impl Strategy<Value = New> {
    // Time passes in tens of seconds and deadlines end in five, so that no two ever meet.
    let lease = prop_oneof![Just(55), Just(305), Just(2005)];
    let hard_ttl = prop::option::weighted(0.3, prop_oneof![Just(205), Just(1005)]);
    (any::<bool>(), prop::bool::weighted(0.7), lease, hard_ttl)
        .prop_map(|(persistent, auto_resume, lease, hard_ttl)| New { persistent, auto_resume, lease, hard_ttl })
}

fn ask() -> impl Strategy<Value = Ask> {
    let hard_ttl = prop::option::weighted(0.4, prop::option::of(prop_oneof![Just(105), Just(505)]));
    let patch = (prop::option::of(any::<bool>()), hard_ttl)
        .prop_map(|(auto_resume, hard_ttl)| Ask::Patch { auto_resume, hard_ttl });
    prop_oneof![
        6 => Just(Ask::Access),
        5 => prop::bool::weighted(0.8).prop_map(|memory| Ask::Suspend { memory }),
        4 => any::<bool>().prop_map(|join| Ask::Wake { join }),
        2 => Just(Ask::Keepalive),
        2 => patch,
        1 => Just(Ask::Destroy),
    ]
}

fn held() -> impl Strategy<Value = Step> {
    let points = [
        Point::Launch,
        Point::Launched,
        Point::Connect,
        Point::Resume,
        Point::Save,
        Point::Save,
        Point::Kill,
        Point::Reap,
    ];
    prop::sample::select(points.to_vec()).prop_map(Step::Hold)
}

fn fault() -> impl Strategy<Value = Step> {
    let points = [Point::Launch, Point::Connect, Point::Resume, Point::Contact, Point::Save];
    let fault = prop_oneof![Just(Fault::Refused), Just(Fault::DiskFull)];
    (prop::sample::select(points.to_vec()), fault).prop_map(|(point, fault)| Step::Fail(point, fault))
}

fn restart() -> impl Strategy<Value = Step> {
    let down = prop_oneof![4 => Just(0), 1 => Just(50), 1 => Just(400)];
    (prop::bool::weighted(0.25), any::<bool>(), down).prop_map(|(kill, hold, down)| Step::Restart { kill, hold, down })
}

/// `trouble`: how often something is held, fails or dies, against two dozen of everything else.
fn step(trouble: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => ask().prop_map(|ask| Step::Ask(vec![ask])),
        3 => prop::collection::vec(ask(), 2..6).prop_map(Step::Ask),
        1 => Just(Step::Use),
        1 => Just(Step::LetGo),
        4 => prop_oneof![Just(10), Just(50), Just(110), Just(110), Just(300), Just(700)].prop_map(Step::Pass),
        trouble => held(),
        trouble => Just(Step::Release),
        trouble => fault(),
        trouble.div_ceil(2) => Just(Step::Kill),
        trouble.div_ceil(3) => Just(Step::Damage),
        trouble.div_ceil(3) => Just(Step::HangUp),
        trouble.div_ceil(2) => restart(),
    ]
}

/// An operation is held somewhere, and then something comes between: the rarest meetings are the dearest.
fn interrupted() -> impl Strategy<Value = Vec<Step>> {
    let between = prop_oneof![3 => restart(), 1 => Just(Step::Kill), 1 => ask().prop_map(|ask| Step::Ask(vec![ask]))];
    (held(), ask(), between).prop_map(|(hold, ask, between)| vec![hold, Step::Ask(vec![ask]), between, Step::Release])
}

fn life(trouble: u32) -> impl Strategy<Value = Life> {
    let part = prop_oneof![12 => step(trouble).prop_map(|step| vec![step]), trouble.div_ceil(2) => interrupted()];
    let before = prop::collection::vec(prop_oneof![held(), fault()], 0..2);
    let before = prop_oneof![3 => Just(Vec::new()), 1 => before];
    (new(), before, prop::collection::vec(part, 1..12)).prop_map(|(new, before, parts)| Life {
        new,
        before,
        steps: parts.concat(),
    })
}

fn lives_follow_the_model(trouble: u32) {
    let cases = std::env::var("WAKEFUL_MODEL_LIVES").ok().and_then(|n| n.parse().ok()).unwrap_or(LIVES);
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, max_shrink_time: SMALLER, ..Config::default() });
    let seen = Arc::new(Seen::default());
    let world: RefCell<Option<(World, usize)>> = RefCell::new(None);
    let lived = runner.run(&life(trouble), |life| {
        let mut world = world.borrow_mut();
        // One in which a life went wrong is not lived in again.
        let (mut here, lives) = world.take().unwrap_or_else(|| (World::new(&seen), 0));
        live(&mut here, &life).map_err(TestCaseError::fail)?;
        if lives < IN_ONE_WORLD {
            *world = Some((here, lives + 1));
        }
        Ok(())
    });
    match lived {
        Ok(()) => {}
        Err(TestError::Fail(why, life)) => panic!("{why}\n{life:#?}"),
        Err(TestError::Abort(why)) => panic!("given up: {why}"),
    }
}

#[test]
fn quiet_lives_follow_the_model() {
    lives_follow_the_model(2);
}

#[test]
fn troubled_lives_follow_the_model() {
    lives_follow_the_model(8);
}
