//! Every situation that an owner can be in, and everything that can be asked or happen there.

use std::sync::Arc;

use wakeful_driver_sim::{Fault, Point};
use wakeful_model::{Bootable, Memory, Op, State, machine};

use crate::coverage::{ASKS, Seen, ask_is_impossible};
use crate::model::{Ask, New};
use crate::walk::{Life, Step, live};
use crate::world::World;

const LEASED: New = New { persistent: false, auto_resume: true, lease: 10_005, hard_ttl: None };
const PERSISTENT: New = New { persistent: true, auto_resume: true, lease: 0, hard_ttl: None };

fn ask(ask: Ask) -> Step {
    Step::Ask(vec![ask])
}

const SUSPEND: Ask = Ask::Suspend { memory: true };
const WAKE: Ask = Ask::Wake { join: false };

/// How one gets there: what is arranged before the create, and what happens after it.
fn way_to(at: State, under_way: Option<Op>) -> Option<(Vec<Step>, Vec<Step>)> {
    let fails = |point| Step::Fail(point, Fault::Refused);
    let (before, mut steps) = match (at, under_way) {
        (State::Creating, Some(Op::Create)) => (vec![Step::Hold(Point::Launch)], vec![]),
        (State::Creating, Some(Op::Destroy)) => {
            (vec![Step::Hold(Point::Launch)], vec![Step::Restart { kill: false, hold: true, down: 0 }])
        }
        // Undone, but not reaped.
        (State::Creating, None) => (vec![fails(Point::Launch), fails(Point::Reap)], vec![]),
        (State::Running, _) => (vec![], vec![]),
        (State::Suspended(Memory::Kept), _) => (vec![], vec![ask(SUSPEND)]),
        (State::Suspended(Memory::None), _) => (vec![], vec![ask(Ask::Suspend { memory: false })]),
        (State::Suspended(Memory::Spent), _) => (vec![], vec![ask(SUSPEND), fails(Point::Contact), ask(WAKE)]),
        (State::Failed(Bootable::Yes), _) => (vec![], vec![Step::Kill]),
        // Whoever waits for a create that fails meets what is left of it.
        (State::Destroyed, None) => (vec![Step::Hold(Point::Launch), fails(Point::Launch)], vec![]),
        _ => return None,
    };
    match (at, under_way) {
        (State::Creating | State::Destroyed, _) | (_, None) => {}
        (_, Some(Op::Suspend)) => steps.extend([Step::Hold(Point::Save), ask(SUSPEND)]),
        (_, Some(Op::Wake)) => steps.extend([Step::Hold(Point::Launch), ask(WAKE)]),
        (_, Some(Op::Destroy)) => {
            let stop = if at == State::Running { Point::Kill } else { Point::Reap };
            steps.extend([Step::Hold(stop), ask(Ask::Destroy)]);
        }
        (_, Some(Op::Create | Op::Snapshot | Op::Fork)) => return None,
    }
    Some((before, steps))
}

fn question(of: machine::Ask) -> Ask {
    match of {
        machine::Ask::Access { .. } => Ask::Access,
        machine::Ask::Suspend => SUSPEND,
        machine::Ask::Wake { join } => Ask::Wake { join },
        machine::Ask::Keepalive => Ask::Keepalive,
        machine::Ask::Change => Ask::Patch { auto_resume: None, hard_ttl: None },
        machine::Ask::Destroy => Ask::Destroy,
        machine::Ask::Cut { .. } => unreachable!("no life here is copied"),
    }
}

#[track_caller]
fn must_follow(world: &mut World, life: &Life) {
    if let Err(why) = live(world, life) {
        panic!("{why}\n{life:#?}");
    }
}

#[test]
fn everything_that_can_be_asked_or_happen_does() {
    let seen = Arc::new(Seen::default());
    let world = &mut World::new(&seen);
    for at in State::ALL {
        for under_way in [None, Some(Op::Create), Some(Op::Suspend), Some(Op::Wake), Some(Op::Destroy)] {
            if ask_is_impossible(at, under_way).is_some() {
                continue;
            }
            let (before, to) = way_to(at, under_way).expect("there is a way");
            for of in ASKS {
                let auto_resume = of != machine::Ask::Access { auto_resume: false };
                let mut steps = to.clone();
                steps.extend([ask(question(of)), Step::Release]);
                let new = New { auto_resume, ..LEASED };
                must_follow(world, &Life { new, before: before.clone(), steps });
                assert!(seen.has_seen(at, under_way, of), "{of:?} did not meet {at:?} in {under_way:?}");
            }
            // The lease ends here, or when what is under way has ended.
            let mut steps = to.clone();
            steps.extend([Step::Pass(20_000), Step::Release]);
            must_follow(world, &Life { new: LEASED, before, steps });
        }
    }
    for new in [LEASED, PERSISTENT] {
        let idle = vec![Step::Pass(110), ask(Ask::Access)];
        must_follow(world, &Life { new, before: vec![], steps: idle });
        let missing = vec![Step::Restart { kill: true, hold: false, down: 0 }, ask(WAKE)];
        must_follow(world, &Life { new, before: vec![], steps: missing });
    }
    seen.assert_complete();
}
