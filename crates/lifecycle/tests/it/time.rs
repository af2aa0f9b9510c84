//! Deadlines, by a clock that is moved by hand: not a second early, and not one late.

use std::sync::Arc;

use wakeful_driver_sim::{Fault, Point};

use crate::coverage::Seen;
use crate::model::{Ask, IDLE, MOST_AWAKE, New};
use crate::walk::{Life, Step, live};
use crate::world::World;

const LEASED: New = New { persistent: false, auto_resume: true, lease: 305, hard_ttl: None };
const PERSISTENT: New = New { persistent: true, auto_resume: true, lease: 0, hard_ttl: None };

fn ask(ask: Ask) -> Step {
    Step::Ask(vec![ask])
}

fn away(down: u64) -> Step {
    Step::Restart { kill: false, hold: false, down }
}

/// Each life is compared with the model after every step, which says to the second what is due.
fn must_follow<const N: usize>(lives: [(New, Vec<Step>); N]) {
    let mut world = World::new(&Arc::new(Seen::default()));
    for (new, steps) in lives {
        let life = Life { new, before: vec![], steps };
        if let Err(why) = live(&mut world, &life) {
            panic!("{why}\n{life:#?}");
        }
    }
}

#[test]
fn deadlines_come_in_their_second() {
    let almost = |seconds: u64| [Step::Pass(seconds - 1), Step::Pass(1)];
    let suspend = ask(Ask::Suspend { memory: true });
    let tired = New { lease: 80_000, ..LEASED };
    must_follow([
        (PERSISTENT, almost(IDLE).to_vec()),
        (PERSISTENT, [vec![Step::Pass(100), ask(Ask::Access)], almost(IDLE).to_vec()].concat()),
        (PERSISTENT, [vec![Step::Use, Step::Pass(300), Step::LetGo], almost(IDLE).to_vec()].concat()),
        (LEASED, almost(LEASED.lease).to_vec()),
        (LEASED, [vec![Step::Pass(300), ask(Ask::Keepalive)], almost(LEASED.lease).to_vec()].concat()),
        (LEASED, [vec![suspend.clone()], almost(LEASED.lease).to_vec()].concat()),
        (LEASED, [vec![Step::Kill], almost(LEASED.lease).to_vec()].concat()),
        (New { hard_ttl: Some(95), ..PERSISTENT }, almost(95).to_vec()),
        (New { hard_ttl: Some(305), ..PERSISTENT }, [vec![suspend], almost(305).to_vec()].concat()),
        // A wake begins the time on end anew.
        (tired, [almost(MOST_AWAKE).to_vec(), vec![ask(Ask::Access)], almost(MOST_AWAKE).to_vec()].concat()),
    ]);
}

#[test]
fn deadlines_that_pass_while_the_daemon_is_away_come_when_it_is_back() {
    must_follow([
        (PERSISTENT, vec![away(IDLE)]),
        (PERSISTENT, vec![away(IDLE - 1), Step::Pass(1)]),
        (LEASED, vec![away(LEASED.lease)]),
        (LEASED, vec![away(LEASED.lease - 1), Step::Pass(1)]),
        (LEASED, vec![ask(Ask::Suspend { memory: true }), away(1000)]),
        (New { hard_ttl: Some(305), ..PERSISTENT }, vec![away(IDLE), away(200)]),
        (New { lease: 80_000, ..LEASED }, vec![away(MOST_AWAKE)]),
    ]);
}

#[test]
fn one_that_failed_is_left_alone_for_a_moment() {
    let full = Step::Fail(Point::Save, Fault::DiskFull);
    must_follow([(
        PERSISTENT,
        vec![full.clone(), Step::Pass(IDLE), Step::Pass(9), full, Step::Pass(1), Step::Pass(10)],
    )]);
}

#[test]
fn a_wake_that_a_crash_interrupted_begins_the_idle_time_anew() {
    let asleep = vec![ask(Ask::Suspend { memory: true }), Step::Pass(1000), Step::Hold(Point::Resume)];
    let woken = vec![ask(Ask::Wake { join: true }), away(0), Step::Pass(IDLE - 1), Step::Pass(1)];
    must_follow([(PERSISTENT, [asleep, woken].concat())]);
}

#[test]
fn a_sleep_without_memory_that_a_crash_interrupted_is_finished() {
    let suspend = || vec![Step::Hold(Point::Kill), ask(Ask::Suspend { memory: false }), away(0)];
    must_follow([(LEASED, suspend()), (PERSISTENT, suspend())]);
}
