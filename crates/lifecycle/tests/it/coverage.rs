//! What has been seen, and what there is to see.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use strum::IntoEnumIterator as _;
use wakeful_lifecycle::Witness;
use wakeful_model::{Ask, Bootable, Fact, Memory, Op, Outcome, SandboxId, State, Verdict};

/// Every decision that owners made before it.
#[derive(Default)]
pub(crate) struct Seen {
    asks: Mutex<HashSet<(State, Option<Op>, Ask)>>,
    facts: Mutex<HashSet<(State, Fact)>>,
    /// How often each sandbox's owner has decided about an ask.
    decided: Mutex<HashMap<SandboxId, usize>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Witness for Seen {
    fn asked(&self, id: &SandboxId, at: State, under_way: Option<Op>, ask: Ask, _verdict: Verdict) {
        locked(&self.asks).insert((at, under_way, ask));
        *locked(&self.decided).entry(id.clone()).or_default() += 1;
    }

    fn happened(&self, _id: &SandboxId, at: State, fact: Fact, _outcome: Outcome) {
        locked(&self.facts).insert((at, fact));
    }
}

impl Seen {
    pub(crate) fn decided(&self, id: &SandboxId) -> usize {
        locked(&self.decided).get(id).copied().unwrap_or(0)
    }

    pub(crate) fn forget(&self, id: &SandboxId) {
        locked(&self.decided).remove(id);
    }

    pub(crate) fn has_seen(&self, at: State, under_way: Option<Op>, ask: Ask) -> bool {
        locked(&self.asks).contains(&(at, under_way, ask))
    }

    /// Fails if something that can happen never did, or something that cannot did.
    pub(crate) fn assert_complete(&self) {
        let mut wrong = Vec::new();
        let asks = locked(&self.asks);
        for (at, under_way, ask) in all_asks() {
            match (asks.contains(&(at, under_way, ask)), ask_is_impossible(at, under_way)) {
                (false, None) => wrong.push(format!("never asked: {ask:?} of {at:?} in {under_way:?}")),
                (true, Some(why)) => wrong.push(format!("{ask:?} of {at:?} in {under_way:?}, although {why}")),
                (true, None) | (false, Some(_)) => {}
            }
        }
        let facts = locked(&self.facts);
        for (at, fact) in all_facts() {
            match (facts.contains(&(at, fact)), fact_is_impossible(at, fact)) {
                (false, None) => wrong.push(format!("never happened: {fact:?} to {at:?}")),
                (true, Some(why)) => wrong.push(format!("{fact:?} to {at:?}, although {why}")),
                (true, None) | (false, Some(_)) => {}
            }
        }
        assert!(wrong.is_empty(), "{} gaps:\n{}", wrong.len(), wrong.join("\n"));
    }
}

pub(crate) const ASKS: [Ask; 8] = [
    Ask::Access { auto_resume: true },
    Ask::Access { auto_resume: false },
    Ask::Suspend,
    Ask::Wake { join: true },
    Ask::Wake { join: false },
    Ask::Keepalive,
    Ask::Change,
    Ask::Destroy,
];

fn all_asks() -> impl Iterator<Item = (State, Option<Op>, Ask)> {
    let under_way = || std::iter::once(None).chain(Op::iter().map(Some));
    State::ALL.into_iter().flat_map(move |at| under_way().flat_map(move |op| ASKS.map(|ask| (at, op, ask))))
}

fn all_facts() -> impl Iterator<Item = (State, Fact)> {
    let facts: Vec<Fact> = Memory::iter()
        .map(Fact::CheckpointMade)
        .chain([
            Fact::Created,
            Fact::CreateUndone,
            Fact::SuspendAbandoned,
            Fact::CheckpointSpent,
            Fact::Woken,
            Fact::WakeAbandoned,
            Fact::EngineEnded,
            Fact::EngineMissing { persistent: true },
            Fact::EngineMissing { persistent: false },
            Fact::Gone,
            Fact::LeaseEnded,
            Fact::IdleElapsed,
        ])
        .collect();
    State::ALL.into_iter().flat_map(move |at| facts.clone().into_iter().map(move |fact| (at, fact)))
}

/// Why an owner is never asked anything in this situation.
pub(crate) fn ask_is_impossible(at: State, under_way: Option<Op>) -> Option<&'static str> {
    match (at, under_way) {
        (State::Failed(Bootable::No), _) => Some("nothing fails in a way that its disk could not be booted"),
        (State::Destroyed, Some(_)) => Some("nothing is under way after the end"),
        (_, Some(Op::Snapshot | Op::Fork)) => Some("no life here is copied: that is tested on real engines"),
        (State::Destroyed, None)
        | (State::Creating, None | Some(Op::Create | Op::Destroy))
        | (State::Running, None | Some(Op::Suspend | Op::Destroy))
        | (State::Suspended(_) | State::Failed(Bootable::Yes), None | Some(Op::Wake | Op::Destroy)) => None,
        (State::Creating, Some(Op::Suspend | Op::Wake)) => Some("what is not there yet neither sleeps nor wakes"),
        (State::Running | State::Suspended(_) | State::Failed(_), Some(Op::Create)) => Some("it has been created"),
        (State::Running, Some(Op::Wake)) => Some("it is awake"),
        (State::Suspended(_) | State::Failed(_), Some(Op::Suspend)) => Some("it does not run"),
    }
}

/// Why nobody tells the table of this fact in this state.
fn fact_is_impossible(at: State, fact: Fact) -> Option<&'static str> {
    match (fact, at) {
        (_, State::Failed(Bootable::No)) => Some("nothing fails in a way that its disk could not be booted"),
        (_, State::Destroyed) => Some("its owner has ended"),
        (Fact::CreateUndone | Fact::SuspendAbandoned | Fact::WakeAbandoned, _) => {
            Some("an operation that is given up writes what it found, or destroys; nobody asks the table")
        }
        (Fact::CheckpointMade(Memory::Spent), _) => Some("no suspend makes memory that is spent"),
        (Fact::Created, State::Creating) => None,
        (Fact::Created, _) => Some("only what is being created is"),
        (Fact::CheckpointMade(_), State::Running) => None,
        (Fact::CheckpointMade(_), _) => Some("a suspend begins while it runs, and nobody else changes the row"),
        (Fact::CheckpointSpent, State::Suspended(Memory::Kept)) => None,
        (Fact::CheckpointSpent, _) => Some("only kept memory is loaded"),
        (Fact::Woken, State::Suspended(Memory::None | Memory::Spent) | State::Failed(Bootable::Yes)) => None,
        (Fact::Woken, State::Suspended(Memory::Kept)) => Some("it is spent before it runs"),
        (Fact::Woken, State::Creating | State::Running) => Some("a wake begins while it sleeps or has failed"),
        (Fact::EngineEnded, State::Running) => None,
        (Fact::EngineEnded, _) => Some("the owner has no engine to watch"),
        (Fact::EngineMissing { .. }, State::Running) => None,
        (Fact::EngineMissing { .. }, State::Creating) => Some("it is destroyed with or without an engine"),
        (Fact::EngineMissing { .. }, _) => Some("it needs none"),
        (Fact::Gone, _) | (Fact::LeaseEnded, _) => None,
        (Fact::IdleElapsed, State::Running) => None,
        (Fact::IdleElapsed, _) => Some("only what runs has such a deadline"),
    }
}
