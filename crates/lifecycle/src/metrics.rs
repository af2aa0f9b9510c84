//! What is counted here: operations, changes of state, writes. Never labelled by an id: a label's values are few.

use std::collections::HashMap;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use wakeful_model::{Code, Op, State};

use crate::network::Traffic;
use crate::{Lifecycle, PoolView};

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    template: String,
    size: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDirection {
    direction: &'static str,
}

/// What is counted.
pub(crate) struct Metrics {
    operations: Family<OfOp, Counter>,
    durations: Family<OfOp, Histogram>,
    failures: Family<OfFailure, Counter>,
    changes: Family<OfChange, Counter>,
    sandboxes: Family<OfState, Gauge>,
    writes: Histogram,
    network: Family<OfDirection, Counter>,
    blocked: Counter,
    pool_ready: Family<OfPool, Gauge>,
    pool_claimed: Family<OfPool, Counter>,
    pool_missed: Family<OfPool, Counter>,
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
            network: Family::default(),
            blocked: Counter::default(),
            pool_ready: Family::default(),
            pool_claimed: Family::default(),
            pool_missed: Family::default(),
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

    /// So much is known to have gone through all networks by now. Counters only grow, also when a slot could not be read.
    fn network(&self, traffic: &Traffic) {
        for (direction, bytes) in [("out", traffic.bytes_out), ("in", traffic.bytes_in)] {
            let counter = self.network.get_or_create(&OfDirection { direction });
            counter.inc_by(bytes.saturating_sub(counter.get()));
        }
        let blocked: u64 = traffic.blocked.values().sum();
        self.blocked.inc_by(blocked.saturating_sub(self.blocked.get()));
    }

    /// What is known of all pools by now; those of several tenants' templates of one name are added up.
    fn pools(&self, views: &[PoolView]) {
        let mut sums: HashMap<OfPool, (i64, u64, u64)> = HashMap::new();
        for view in views {
            let (ready, claimed, missed) =
                sums.entry(OfPool { template: view.template.clone(), size: view.size.clone() }).or_default();
            *ready += i64::from(view.ready);
            *claimed += view.claimed;
            *missed += view.missed;
        }
        for (of, (ready, claimed, missed)) in sums {
            self.pool_ready.get_or_create(&of).set(ready);
            for (family, count) in [(&self.pool_claimed, claimed), (&self.pool_missed, missed)] {
                let counter = family.get_or_create(&of);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
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
        registry.register("network_bytes", "Bytes of guests that left and came back", metrics.network.clone());
        registry.register(
            "network_blocked",
            "Packets and questions of guests that were refused",
            metrics.blocked.clone(),
        );
        registry.register("pool_ready", "Members of the pool that can be claimed", metrics.pool_ready.clone());
        registry.register("pool_claimed", "Creates that the pool answered", metrics.pool_claimed.clone());
        registry.register(
            "pool_misses",
            "Creates that the pool would have answered, had it had a member",
            metrics.pool_missed.clone(),
        );
        registry.register("store_write_seconds", "How long a durable write of a row took", metrics.writes.clone());
    }

    /// Brings those up to date that are looked at, not counted.
    pub async fn refresh_metrics(&self) {
        self.inner.metrics.network(&self.inner.uplinks.all_traffic().await);
        self.inner.metrics.pools(&self.inner.pool.figures());
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
    fn bytes_only_grow() {
        let metrics = Metrics::default();
        let out = || metrics.network.get_or_create(&OfDirection { direction: "out" }).get();
        metrics.network(&Traffic { bytes_out: 50, ..Traffic::default() });
        metrics.network(&Traffic { bytes_out: 20, ..Traffic::default() });
        assert_eq!(out(), 50);
        metrics.network(&Traffic { bytes_out: 70, ..Traffic::default() });
        assert_eq!(out(), 70);
    }

    #[test]
    fn only_another_state_is_a_change() {
        let metrics = Metrics::default();
        metrics.state_change(State::Suspended(Memory::Kept), State::Suspended(Memory::Spent));
        assert!(metrics.changes.get(&OfChange { from: "suspended", to: "suspended" }).is_none());
        metrics.state_change(State::Running, State::Destroyed);
        assert_eq!(metrics.changes.get_or_create(&OfChange { from: "running", to: "destroyed" }).get(), 1);
    }
}
