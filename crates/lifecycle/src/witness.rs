//! Who looks on while owners decide: a test that compares them with a model of its own and counts what it has seen.

use wakeful_model::{Fact, Op, Outcome, SandboxId, State, Verdict, decide, machine, observe};

use crate::lifecycle::Inner;

/// Sees every decision. Nothing depends on it, and no daemon has one.
pub trait Witness: Send + Sync {
    /// Somebody wanted something.
    fn asked(&self, id: &SandboxId, at: State, under_way: Option<Op>, ask: machine::Ask, verdict: Verdict);

    /// Something happened.
    fn happened(&self, id: &SandboxId, at: State, fact: Fact, outcome: Outcome);
}

impl Inner {
    /// [`decide`], before a witness.
    pub(crate) fn decide(&self, id: &SandboxId, at: State, under_way: Option<Op>, ask: machine::Ask) -> Verdict {
        let verdict = decide(at, under_way, ask);
        if let Some(witness) = &self.witness {
            witness.asked(id, at, under_way, ask, verdict);
        }
        verdict
    }

    /// [`observe`], before a witness.
    pub(crate) fn observe(&self, id: &SandboxId, at: State, under_way: Option<Op>, fact: Fact) -> Outcome {
        let outcome = observe(at, under_way, fact);
        if let Some(witness) = &self.witness {
            witness.happened(id, at, fact, outcome);
        }
        outcome
    }
}
