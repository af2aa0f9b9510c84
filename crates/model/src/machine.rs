//! The state machine: what a sandbox may become, in one table.
//!
//! Only committed states are states. What is under way is an operation beside them, and a client never has to handle
//! one: it waits. Two pure functions decide, and the owner of a sandbox does what they say:
//!
//! ```text
//!             ┌────────▶ destroyed ◀──────────┬───────────┐
//!             │              ▲                │           │
//!   creating ─┼─▶ running ───┤                │           │
//!             │    ▲   │     │                │           │
//!             │    │   └──▶ suspended(kept | none | spent)│
//!             │    └───────────┘              ▲           │
//!             └─▶ failed ◀── running          │           │
//!                   └──── boot from disk ──▶ running      │
//!                   └─────────────────────────────────────┘
//! ```
//!
//! [`decide`] answers an ask (somebody wants something), [`observe`] answers a fact (something has happened). Every pair
//! is spelled out, so that a new state or operation fails to compile exactly where someone must think.

use serde::{Deserialize, Serialize};

/// What is left of a suspended sandbox's memory.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::EnumString, strum::EnumIter,
)]
#[strum(serialize_all = "snake_case")]
pub enum Memory {
    /// A checkpoint that has never run since: the next wake loads it.
    Kept,
    /// None was asked for: the next wake boots.
    None,
    /// It ran on after it was saved, so the disk has moved on and loading it again would corrupt files: the next wake boots.
    Spent,
}

/// Whether a failed sandbox's disk can be booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::EnumIter)]
pub enum Bootable {
    /// A wake boots it.
    Yes,
    /// Only destroy is left.
    No,
}

/// A committed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The first engine is not up yet.
    Creating,
    /// An engine runs it.
    Running,
    /// No process, no RAM.
    Suspended(Memory),
    /// The engine is gone and nobody wanted that.
    Failed(Bootable),
    /// Gone; the row stays as a tombstone.
    Destroyed,
}

impl State {
    /// Its word in API, CLI, database and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Suspended(_) => "suspended",
            Self::Failed(_) => "failed",
            Self::Destroyed => "destroyed",
        }
    }

    /// The words, in the order of a life.
    pub const NAMES: [&'static str; 5] = ["creating", "running", "suspended", "failed", "destroyed"];

    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Creating,
        Self::Running,
        Self::Suspended(Memory::Kept),
        Self::Suspended(Memory::None),
        Self::Suspended(Memory::Spent),
        Self::Failed(Bootable::Yes),
        Self::Failed(Bootable::No),
        Self::Destroyed,
    ];

    /// Whether an engine process belongs to this state.
    #[must_use]
    pub const fn has_engine(self) -> bool {
        matches!(self, Self::Creating | Self::Running)
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum Op {
    /// First engine.
    Create,
    /// Running to suspended.
    Suspend,
    /// Suspended or failed to running.
    Wake,
    /// Anything to destroyed.
    Destroy,
    /// A copy of memory and disk is kept; it is afterwards what it was before.
    Snapshot,
    /// A copy of memory and disk is cut, for others to begin with; it is afterwards what it was before.
    Fork,
}

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Run a command, move a file: needs it running.
    Access {
        /// Whether that may wake it.
        auto_resume: bool,
    },
    /// Put it to sleep.
    Suspend,
    /// Wake it, in so many words.
    Wake {
        /// Wait for a wake that is under way, instead of a conflict.
        join: bool,
    },
    /// Give it a new lease.
    Keepalive,
    /// Change what its row says of it: labels, policy.
    Change,
    /// Cut a copy of it.
    Cut {
        /// For new sandboxes to begin with, rather than to keep.
        fork: bool,
    },
    /// End it.
    Destroy,
}

/// What to do about an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Begin this operation; the ask is answered when it is done.
    Start(Op),
    /// The same operation is under way: its end is the answer.
    Join(Op),
    /// Another operation is under way: wait for it, then decide again.
    After(Op),
    /// Nothing to do.
    Already,
    /// No.
    Refuse(Refusal),
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It was destroyed, or is being destroyed.
    #[error("it is destroyed")]
    Destroyed,
    /// It failed; a wake boots it, if anything does.
    #[error("it has failed")]
    Failed,
    /// It sleeps and may not be woken by access.
    #[error("it is suspended and auto_resume is off")]
    Suspended,
    /// It has not been created yet and nobody is at it.
    #[error("it is not running yet")]
    NotYetRunning,
    /// Only a running one has a lease to extend.
    #[error("it is not running")]
    NotRunning,
    /// There is nothing to wake.
    #[error("it cannot be woken")]
    NotWakeable,
    /// Somebody else is waking it.
    #[error("it is being woken already")]
    WakeInProgress,
}

/// Whether an ask calls off an operation that nobody asked for, instead of waiting for what it leads to. Not for one that
/// somebody did ask for, and not for one that is committed.
#[must_use]
pub const fn calls_off(ask: Ask, under_way: Op) -> bool {
    match (ask, under_way) {
        (Ask::Access { .. } | Ask::Wake { .. } | Ask::Keepalive, Op::Suspend) => true,
        (
            Ask::Access { .. } | Ask::Wake { .. } | Ask::Keepalive,
            Op::Create | Op::Wake | Op::Destroy | Op::Snapshot | Op::Fork,
        )
        | (Ask::Suspend | Ask::Change | Ask::Cut { .. } | Ask::Destroy, _) => false,
    }
}

/// Decides what an ask means now.
#[must_use]
pub const fn decide(at: State, under_way: Option<Op>, ask: Ask) -> Verdict {
    match ask {
        Ask::Access { auto_resume } => decide_access(at, under_way, auto_resume),
        Ask::Suspend => decide_suspend(at, under_way),
        Ask::Wake { join } => decide_wake(at, under_way, join),
        Ask::Keepalive => decide_keepalive(at, under_way),
        Ask::Change => decide_change(at, under_way),
        Ask::Cut { fork } => decide_cut(at, under_way, fork),
        Ask::Destroy => decide_destroy(at, under_way),
    }
}

const fn decide_access(at: State, under_way: Option<Op>, auto_resume: bool) -> Verdict {
    use State::{Creating, Destroyed, Failed, Running, Suspended};
    match (at, under_way) {
        (Running, None) => Verdict::Already,
        (Suspended(_), None) if auto_resume => Verdict::Start(Op::Wake),
        (Suspended(_), None) => Verdict::Refuse(Refusal::Suspended),
        (Creating, None) => Verdict::Refuse(Refusal::NotYetRunning),
        (Failed(_), None) => Verdict::Refuse(Refusal::Failed),
        (Destroyed, None | Some(Op::Create | Op::Suspend | Op::Wake | Op::Destroy | Op::Snapshot | Op::Fork)) => {
            Verdict::Refuse(Refusal::Destroyed)
        }
        (Creating | Running | Suspended(_) | Failed(_), Some(Op::Destroy)) => Verdict::Refuse(Refusal::Destroyed),
        (
            Creating | Running | Suspended(_) | Failed(_),
            Some(op @ (Op::Create | Op::Suspend | Op::Wake | Op::Snapshot | Op::Fork)),
        ) => Verdict::After(op),
    }
}

const fn decide_suspend(at: State, under_way: Option<Op>) -> Verdict {
    use State::{Creating, Destroyed, Failed, Running, Suspended};
    match (at, under_way) {
        (Running, None) => Verdict::Start(Op::Suspend),
        (Running, Some(Op::Suspend)) => Verdict::Join(Op::Suspend),
        (Suspended(_), None) => Verdict::Already,
        (Creating, None) => Verdict::Refuse(Refusal::NotYetRunning),
        (Failed(_), None) => Verdict::Refuse(Refusal::Failed),
        (Destroyed, None | Some(Op::Create | Op::Suspend | Op::Wake | Op::Destroy | Op::Snapshot | Op::Fork)) => {
            Verdict::Refuse(Refusal::Destroyed)
        }
        (Creating | Running | Suspended(_) | Failed(_), Some(Op::Destroy)) => Verdict::Refuse(Refusal::Destroyed),
        (Running, Some(op @ (Op::Create | Op::Wake | Op::Snapshot | Op::Fork))) => Verdict::After(op),
        (
            Creating | Suspended(_) | Failed(_),
            Some(op @ (Op::Create | Op::Suspend | Op::Wake | Op::Snapshot | Op::Fork)),
        ) => Verdict::After(op),
    }
}

const fn decide_wake(at: State, under_way: Option<Op>, join: bool) -> Verdict {
    use State::{Creating, Destroyed, Failed, Running, Suspended};
    match (at, under_way) {
        (Running, None) => Verdict::Already,
        (Suspended(_) | Failed(Bootable::Yes), None) => Verdict::Start(Op::Wake),
        (Suspended(_) | Failed(_), Some(Op::Wake)) if join => Verdict::Join(Op::Wake),
        (Suspended(_) | Failed(_), Some(Op::Wake)) => Verdict::Refuse(Refusal::WakeInProgress),
        (Creating, None) => Verdict::Refuse(Refusal::NotYetRunning),
        (Failed(Bootable::No), None) => Verdict::Refuse(Refusal::NotWakeable),
        (Destroyed, None | Some(Op::Create | Op::Suspend | Op::Wake | Op::Destroy | Op::Snapshot | Op::Fork)) => {
            Verdict::Refuse(Refusal::NotWakeable)
        }
        (Creating | Running | Suspended(_) | Failed(_), Some(Op::Destroy)) => Verdict::Refuse(Refusal::NotWakeable),
        (Creating | Running, Some(op @ (Op::Create | Op::Suspend | Op::Wake | Op::Snapshot | Op::Fork))) => {
            Verdict::After(op)
        }
        (Suspended(_) | Failed(_), Some(op @ (Op::Create | Op::Suspend | Op::Snapshot | Op::Fork))) => {
            Verdict::After(op)
        }
    }
}

const fn decide_keepalive(at: State, under_way: Option<Op>) -> Verdict {
    use State::{Creating, Destroyed, Failed, Running, Suspended};
    match (at, under_way) {
        (Running, None) => Verdict::Already,
        (Creating | Suspended(_) | Failed(_), None) => Verdict::Refuse(Refusal::NotRunning),
        (Destroyed, None | Some(Op::Create | Op::Suspend | Op::Wake | Op::Destroy | Op::Snapshot | Op::Fork)) => {
            Verdict::Refuse(Refusal::NotRunning)
        }
        (Creating | Running | Suspended(_) | Failed(_), Some(Op::Destroy)) => Verdict::Refuse(Refusal::NotRunning),
        (
            Creating | Running | Suspended(_) | Failed(_),
            Some(op @ (Op::Create | Op::Suspend | Op::Wake | Op::Snapshot | Op::Fork)),
        ) => Verdict::After(op),
    }
}

/// Needs no engine, only that nobody else is writing the row.
const fn decide_change(at: State, under_way: Option<Op>) -> Verdict {
    use State::{Creating, Destroyed, Failed, Running, Suspended};
    match (at, under_way) {
        (Creating | Running | Suspended(_) | Failed(_), None) => Verdict::Already,
        (Destroyed, None | Some(Op::Create | Op::Suspend | Op::Wake | Op::Destroy | Op::Snapshot | Op::Fork)) => {
            Verdict::Refuse(Refusal::Destroyed)
        }
        (Creating | Running | Suspended(_) | Failed(_), Some(Op::Destroy)) => Verdict::Refuse(Refusal::Destroyed),
        (
            Creating | Running | Suspended(_) | Failed(_),
            Some(op @ (Op::Create | Op::Suspend | Op::Wake | Op::Snapshot | Op::Fork)),
        ) => Verdict::After(op),
    }
}

/// Two cuts are two copies: nobody joins another's.
const fn decide_cut(at: State, under_way: Option<Op>, fork: bool) -> Verdict {
    use State::{Creating, Destroyed, Failed, Running, Suspended};
    match (at, under_way) {
        (Running | Suspended(_), None) => Verdict::Start(if fork { Op::Fork } else { Op::Snapshot }),
        (Creating, None) => Verdict::Refuse(Refusal::NotYetRunning),
        (Failed(_), None) => Verdict::Refuse(Refusal::Failed),
        (Destroyed, _) | (Creating | Running | Suspended(_) | Failed(_), Some(Op::Destroy)) => {
            Verdict::Refuse(Refusal::Destroyed)
        }
        (
            Creating | Running | Suspended(_) | Failed(_),
            Some(op @ (Op::Create | Op::Suspend | Op::Wake | Op::Snapshot | Op::Fork)),
        ) => Verdict::After(op),
    }
}

const fn decide_destroy(at: State, under_way: Option<Op>) -> Verdict {
    use State::{Creating, Destroyed, Failed, Running, Suspended};
    match (at, under_way) {
        (Destroyed, None) => Verdict::Already,
        (Creating | Running | Suspended(_) | Failed(_), None) => Verdict::Start(Op::Destroy),
        (Creating | Running | Suspended(_) | Failed(_) | Destroyed, Some(Op::Destroy)) => Verdict::Join(Op::Destroy),
        // Every operation has an end of its own, so destroy waits for it rather than pulling files from under it.
        (
            Creating | Running | Suspended(_) | Failed(_) | Destroyed,
            Some(op @ (Op::Create | Op::Suspend | Op::Wake | Op::Snapshot | Op::Fork)),
        ) => Verdict::After(op),
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// Create: the agent has confirmed.
    Created,
    /// Create failed and was undone.
    CreateUndone,
    /// Suspend: the image is durable (or none was asked for).
    CheckpointMade(Memory),
    /// Suspend failed or was cancelled; the engine runs on.
    SuspendAbandoned,
    /// Wake: the vCPUs are about to run, so the checkpoint is worth nothing from here on.
    CheckpointSpent,
    /// Wake: the agent has confirmed.
    Woken,
    /// Wake failed; the engine is gone again.
    WakeAbandoned,
    /// The engine's process ended.
    EngineEnded,
    /// After a restart of the host: there is no engine.
    EngineMissing {
        /// It sleeps rather than ends when nobody uses it.
        persistent: bool,
    },
    /// Destroy: nothing is left.
    Gone,
    /// The lease is over and it is to end.
    LeaseEnded,
    /// Nobody used it for long enough, or its lease is over and it is to sleep.
    IdleElapsed,
}

/// What a fact means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Commit this state.
    Move(State),
    /// Begin this operation by ourselves.
    Begin(Op),
    /// Look again when the operation under way has ended.
    Later,
    /// It changes nothing.
    Ignore,
}

/// Decides what a fact means now.
#[must_use]
pub const fn observe(at: State, under_way: Option<Op>, fact: Fact) -> Outcome {
    use State::{Creating, Destroyed, Failed, Running, Suspended};
    match (fact, at) {
        (Fact::Gone, Creating | Running | Suspended(_) | Failed(_)) => Outcome::Move(Destroyed),
        (
            Fact::Created
            | Fact::CreateUndone
            | Fact::CheckpointMade(_)
            | Fact::SuspendAbandoned
            | Fact::CheckpointSpent
            | Fact::Woken
            | Fact::WakeAbandoned
            | Fact::EngineEnded
            | Fact::EngineMissing { .. }
            | Fact::Gone
            | Fact::LeaseEnded
            | Fact::IdleElapsed,
            Destroyed,
        ) => Outcome::Ignore,

        (Fact::Created, Creating) => Outcome::Move(Running),
        (Fact::Created, Running | Suspended(_) | Failed(_)) => Outcome::Ignore,
        (Fact::CreateUndone, Creating) => Outcome::Move(Destroyed),
        (Fact::CreateUndone, Running | Suspended(_) | Failed(_)) => Outcome::Ignore,

        (Fact::CheckpointMade(memory), Running) => Outcome::Move(Suspended(memory)),
        (Fact::CheckpointMade(_), Creating | Suspended(_) | Failed(_)) => Outcome::Ignore,
        (Fact::SuspendAbandoned, Creating | Running | Suspended(_) | Failed(_)) => Outcome::Move(at),

        (Fact::CheckpointSpent, Suspended(_)) => Outcome::Move(Suspended(Memory::Spent)),
        (Fact::CheckpointSpent, Creating | Running | Failed(_)) => Outcome::Ignore,
        (Fact::Woken, Suspended(_) | Failed(_)) => Outcome::Move(Running),
        (Fact::Woken, Creating | Running) => Outcome::Ignore,
        (Fact::WakeAbandoned, Creating | Running | Suspended(_) | Failed(_)) => Outcome::Move(at),

        // An operation under way notices the death of its engine itself, and ends with a fact of its own.
        (Fact::EngineEnded, Running) => match under_way {
            None => Outcome::Move(Failed(Bootable::Yes)),
            Some(Op::Create | Op::Suspend | Op::Wake | Op::Destroy | Op::Snapshot | Op::Fork) => Outcome::Later,
        },
        (Fact::EngineEnded, Creating | Suspended(_) | Failed(_)) => Outcome::Ignore,

        (Fact::EngineMissing { persistent: true }, Running) => Outcome::Move(Suspended(Memory::Spent)),
        (Fact::EngineMissing { persistent: false }, Running) => Outcome::Begin(Op::Destroy),
        (Fact::EngineMissing { .. }, Creating) => Outcome::Begin(Op::Destroy),
        (Fact::EngineMissing { .. }, Suspended(_) | Failed(_)) => Outcome::Ignore,

        (Fact::LeaseEnded, Creating | Running | Suspended(_) | Failed(_)) => match under_way {
            None => Outcome::Begin(Op::Destroy),
            Some(Op::Destroy) => Outcome::Ignore,
            Some(Op::Create | Op::Suspend | Op::Wake | Op::Snapshot | Op::Fork) => Outcome::Later,
        },
        (Fact::IdleElapsed, Running) => match under_way {
            None => Outcome::Begin(Op::Suspend),
            Some(Op::Suspend | Op::Destroy) => Outcome::Ignore,
            Some(Op::Create | Op::Wake | Op::Snapshot | Op::Fork) => Outcome::Later,
        },
        (Fact::IdleElapsed, Creating | Suspended(_) | Failed(_)) => Outcome::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strum::IntoEnumIterator;

    fn asks() -> Vec<Ask> {
        vec![
            Ask::Access { auto_resume: true },
            Ask::Access { auto_resume: false },
            Ask::Suspend,
            Ask::Wake { join: true },
            Ask::Wake { join: false },
            Ask::Cut { fork: true },
            Ask::Cut { fork: false },
            Ask::Keepalive,
            Ask::Change,
            Ask::Destroy,
        ]
    }

    fn facts() -> Vec<Fact> {
        let mut all: Vec<Fact> = Memory::iter().map(Fact::CheckpointMade).collect();
        all.extend([
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
        ]);
        all
    }

    fn state() -> impl Strategy<Value = State> {
        prop::sample::select(State::ALL.to_vec())
    }

    fn op() -> impl Strategy<Value = Option<Op>> {
        prop::option::of(prop::sample::select(Op::iter().collect::<Vec<_>>()))
    }

    /// What the operation's success would be.
    fn success(op: Op) -> Fact {
        match op {
            Op::Create => Fact::Created,
            Op::Suspend => Fact::CheckpointMade(Memory::Kept),
            Op::Wake => Fact::Woken,
            Op::Destroy => Fact::Gone,
            // It is what it was.
            Op::Snapshot | Op::Fork => Fact::SuspendAbandoned,
        }
    }

    fn moved(at: State, fact: Fact) -> State {
        match observe(at, None, fact) {
            Outcome::Move(to) => to,
            Outcome::Begin(_) | Outcome::Later | Outcome::Ignore => at,
        }
    }

    proptest! {
        #[test]
        fn destroyed_is_the_end(under_way in op(), fact in prop::sample::select(facts()), ask in prop::sample::select(asks())) {
            prop_assert_eq!(observe(State::Destroyed, under_way, fact), Outcome::Ignore);
            prop_assert!(!matches!(decide(State::Destroyed, under_way, ask), Verdict::Start(_)));
        }

        #[test]
        fn nothing_starts_beside_an_operation(at in state(), under_way in op(), ask in prop::sample::select(asks()), fact in prop::sample::select(facts())) {
            if let Some(op) = under_way {
                match decide(at, under_way, ask) {
                    Verdict::Start(_) => prop_assert!(false, "{ask:?} started beside {op:?}"),
                    Verdict::Join(other) | Verdict::After(other) => prop_assert_eq!(op, other),
                    Verdict::Already | Verdict::Refuse(_) => {}
                }
                if !matches!(fact, Fact::EngineMissing { .. }) {
                    prop_assert!(!matches!(observe(at, under_way, fact), Outcome::Begin(_)));
                }
            }
        }

        #[test]
        fn asking_twice_is_no_error(at in state(), ask in prop::sample::select(asks())) {
            if let Verdict::Start(op) = decide(at, None, ask) {
                let again = decide(at, Some(op), ask);
                let refused_on_purpose = matches!((ask, again), (Ask::Wake { join: false }, Verdict::Refuse(Refusal::WakeInProgress)));
                prop_assert!(refused_on_purpose || matches!(again, Verdict::Join(_) | Verdict::After(_)), "{again:?}");
                let after = moved(at, success(op));
                let done = matches!(decide(after, None, ask), Verdict::Already);
                prop_assert!(done || (matches!(ask, Ask::Cut { .. }) && after == at), "{after:?}");
            }
        }

        #[test]
        fn spent_memory_never_comes_back(facts in prop::collection::vec(prop::sample::select(facts()), 0..40)) {
            // Only a new checkpoint, taken from a running engine, makes memory loadable again.
            let mut at = State::Suspended(Memory::Spent);
            for fact in facts {
                let next = moved(at, fact);
                if next == State::Suspended(Memory::Kept) && at != next {
                    prop_assert_eq!(at, State::Running);
                    prop_assert_eq!(fact, Fact::CheckpointMade(Memory::Kept));
                }
                at = next;
            }
        }

        #[test]
        fn every_walk_can_be_ended(facts in prop::collection::vec(prop::sample::select(facts()), 0..20)) {
            let at = facts.into_iter().fold(State::Creating, moved);
            let verdict = decide(at, None, Ask::Destroy);
            prop_assert!(matches!(verdict, Verdict::Start(Op::Destroy) | Verdict::Already));
            prop_assert_eq!(moved(at, Fact::Gone), State::Destroyed);
        }
    }

    #[test]
    fn a_dead_engine_fails_only_who_was_running() {
        assert_eq!(observe(State::Running, None, Fact::EngineEnded), Outcome::Move(State::Failed(Bootable::Yes)));
        assert_eq!(observe(State::Running, Some(Op::Suspend), Fact::EngineEnded), Outcome::Later);
        assert_eq!(observe(State::Suspended(Memory::Kept), None, Fact::EngineEnded), Outcome::Ignore);
    }

    #[test]
    fn names_cover_all_states() {
        for state in State::ALL {
            assert!(State::NAMES.contains(&state.name()));
        }
    }
}
