//! What is counted here: operations, changes of state, writes. Never labelled by an id: a label's values are few.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use wakeful_model::{Code, Op, State};

use crate::Lifecycle;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOp {
    op: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFailure {
    op: String,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfChange {
    from: &'static str,
    to: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

/// What is counted.
pub(crate) struct Metrics {
    operations: Family<OfOp, Counter>,
    durations: Family<OfOp, Histogram>,
    failures: Family<OfFailure, Counter>,
    changes: Family<OfChange, Counter>,
    sandboxes: Family<OfState, Gauge>,
    writes: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            operations: Family::default(),
            // 4 ms to two minutes: a claim of a pool to a cold boot under emulation.
            durations: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.004, 2.0, 16))),
            failures: Family::default(),
            changes: Family::default(),
            sandboxes: Family::default(),
            writes: Histogram::new(exponential_buckets(0.000_25, 2.0, 14)),
        }
    }
}

impl Metrics {
    /// An operation has ended.
    pub(crate) fn operation(&self, op: Op, took: Duration, failed: Option<Code>) {
        let of = OfOp { op: op.to_string() };
        self.operations.get_or_create(&of).inc();
        self.durations.get_or_create(&of).observe(took.as_secs_f64());
        if let Some(code) = failed {
            self.failures.get_or_create(&OfFailure { op: of.op, code: code.as_str() }).inc();
        }
    }

    /// A sandbox is in another state than before.
    pub(crate) fn state_change(&self, from: State, to: State) {
        if from.name() != to.name() {
            self.changes.get_or_create(&OfChange { from: from.name(), to: to.name() }).inc();
        }
    }

    /// A row was written.
    pub(crate) fn write(&self, took: Duration) {
        self.writes.observe(took.as_secs_f64());
    }
}

impl Lifecycle {
    /// Adds what is counted here to a registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let metrics = &self.inner.metrics;
        registry.register("operations", "Operations that have ended", metrics.operations.clone());
        registry.register("operation_seconds", "How long operations took", metrics.durations.clone());
        registry.register(
            "operation_failures",
            "Operations that failed, by the problem's code",
            metrics.failures.clone(),
        );
        registry.register("state_changes", "Sandboxes that went from one state to another", metrics.changes.clone());
        registry.register("sandboxes", "Sandboxes by state", metrics.sandboxes.clone());
        registry.register("store_write_seconds", "How long a durable write of a row took", metrics.writes.clone());
    }

    /// Brings those up to date that are looked at, not counted.
    pub fn refresh_metrics(&self) {
        let mut counts = [0_i64; State::NAMES.len()];
        for handle in self.inner.owners.lock().expect("no panic while it is held").values() {
            let name = handle.live.borrow().row.state.name();
            if let Some(at) = State::NAMES.iter().position(|other| *other == name) {
                counts[at] += 1;
            }
        }
        // Tombstones are not counted: they are no sandboxes any more.
        for (state, count) in State::NAMES.into_iter().zip(counts).filter(|(state, _)| *state != "destroyed") {
            self.inner.metrics.sandboxes.get_or_create(&OfState { state }).set(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wakeful_model::Memory;

    #[test]
    fn only_another_state_is_a_change() {
        let metrics = Metrics::default();
        metrics.state_change(State::Suspended(Memory::Kept), State::Suspended(Memory::Spent));
        assert!(metrics.changes.get(&OfChange { from: "suspended", to: "suspended" }).is_none());
        metrics.state_change(State::Running, State::Destroyed);
        assert_eq!(metrics.changes.get_or_create(&OfChange { from: "running", to: "destroyed" }).get(), 1);
    }
}
