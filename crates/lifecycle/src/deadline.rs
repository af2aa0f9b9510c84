//! What is due next: leases, the last hour, idleness. Pure, so that no test has to wait for a deadline.

use std::time::Duration;

use jiff::Timestamp;
use wakeful_model::{Cause, Fact, OnExpiry, Sandbox, State};

/// Something that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// When.
    pub(crate) at: Timestamp,
    /// What is then the case.
    pub(crate) fact: Fact,
    /// Why.
    pub(crate) cause: Cause,
}

/// The earliest deadline of a sandbox that nobody uses (`unused`) or somebody does, where one may run for `most` on end, and
/// this one cannot sleep before `awake_until`.
pub(crate) fn next(row: &Sandbox, unused: bool, most: Option<Duration>, awake_until: Timestamp) -> Option<Deadline> {
    let policy = &row.policy;
    let running = row.state == State::Running;
    let lease = policy.expires_at.and_then(|at| match policy.on_expiry {
        OnExpiry::Destroy => Some(Deadline { at, fact: Fact::LeaseEnded, cause: Cause::Timeout }),
        OnExpiry::Suspend if running => Some(Deadline { at, fact: Fact::IdleElapsed, cause: Cause::Timeout }),
        OnExpiry::Suspend => None,
    });
    let hard = policy.hard_expires_at.map(|at| Deadline { at, fact: Fact::LeaseEnded, cause: Cause::HardTtl });
    let idle = policy.sleeps_at(row.last_activity_at).filter(|_| running && unused).map(|at| Deadline {
        at,
        fact: Fact::IdleElapsed,
        cause: Cause::Idle,
    });
    let awake_since = row.started_at.filter(|_| running);
    let tired = awake_since.zip(most).and_then(|(since, most)| since.checked_add(most).ok()).map(|at| Deadline {
        at,
        fact: Fact::IdleElapsed,
        cause: Cause::Timeout,
    });
    let later = |due: Deadline| match due.fact {
        Fact::IdleElapsed => Deadline { at: due.at.max(awake_until), ..due },
        _ => due,
    };
    let due = [lease, hard, idle, tired].into_iter().flatten().map(later).min_by_key(|deadline| deadline.at);
    due.filter(|_| row.state != State::Destroyed)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use jiff::SignedDuration;
    use wakeful_model::{Memory, Policy, SandboxId, TemplateId};

    pub(crate) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a small number")
    }

    pub(crate) fn row(state: State, change: impl FnOnce(&mut Policy)) -> Sandbox {
        let mut policy = Policy {
            expires_at: None,
            on_expiry: OnExpiry::Destroy,
            timeout: None,
            idle_timeout: None,
            hard_expires_at: None,
            auto_resume: true,
            resume_lease: None,
            suspend_memory: true,
        };
        change(&mut policy);
        Sandbox {
            id: SandboxId::random(),
            version: 1,
            tenant: "default".into(),
            state,
            transition: None,
            template: "base".into(),
            template_id: TemplateId::random(),
            base: String::new(),
            size: None,
            cpu: 1,
            memory_mb: 256,
            disk_mb: 2048,
            user: "user".into(),
            workdir: "/".into(),
            env: Default::default(),
            env_keys: Vec::new(),
            metadata: Default::default(),
            egress: Default::default(),
            io: wakeful_model::IoLimits::default(),
            entry: None,
            runtime: "sim".into(),
            accel: "none".into(),
            runtime_generation: 1,
            restored_memory: None,
            policy,
            checkpoint: None,
            secret: [0; 32],
            created_at: at(0),
            updated_at: at(0),
            started_at: None,
            suspended_at: None,
            destroyed_at: None,
            last_activity_at: at(100),
            parent_id: None,
            failure: None,
        }
    }

    #[test]
    fn a_lease_counts_in_every_state_but_the_last() {
        for state in State::ALL {
            let found = next(&row(state, |policy| policy.expires_at = Some(at(7))), true, None, Timestamp::MIN);
            let lease = Deadline { at: at(7), fact: Fact::LeaseEnded, cause: Cause::Timeout };
            assert_eq!(found, (state != State::Destroyed).then_some(lease), "{state:?}");
        }
    }

    #[test]
    fn idleness_counts_only_while_it_runs_and_nobody_uses_it() {
        let idle = |policy: &mut Policy| policy.idle_timeout = Some(SignedDuration::from_secs(10));
        let due = Deadline { at: at(110), fact: Fact::IdleElapsed, cause: Cause::Idle };
        assert_eq!(next(&row(State::Running, idle), true, None, Timestamp::MIN), Some(due));
        assert_eq!(next(&row(State::Running, idle), false, None, Timestamp::MIN), None);
        assert_eq!(next(&row(State::Suspended(Memory::Kept), idle), true, None, Timestamp::MIN), None);
    }

    #[test]
    fn running_on_end_has_an_end_that_a_wake_puts_off() {
        let most = Some(Duration::from_secs(50));
        let mut running = row(State::Running, |_| ());
        running.started_at = Some(at(200));
        let tired = Deadline { at: at(250), fact: Fact::IdleElapsed, cause: Cause::Timeout };
        assert_eq!(next(&running, false, most, Timestamp::MIN), Some(tired), "also while it is used");
        assert_eq!(next(&running, false, None, Timestamp::MIN), None);
        running.started_at = Some(at(240));
        assert_eq!(next(&running, true, most, Timestamp::MIN).map(|due| due.at), Some(at(290)));
        running.state = State::Suspended(Memory::Kept);
        assert_eq!(next(&running, true, most, Timestamp::MIN), None);
    }

    #[test]
    fn the_earliest_comes_first() {
        let all = |policy: &mut Policy| {
            policy.idle_timeout = Some(SignedDuration::from_secs(10));
            policy.expires_at = Some(at(105));
            policy.on_expiry = OnExpiry::Suspend;
            policy.hard_expires_at = Some(at(300));
        };
        let lease = Deadline { at: at(105), fact: Fact::IdleElapsed, cause: Cause::Timeout };
        assert_eq!(next(&row(State::Running, all), true, None, Timestamp::MIN), Some(lease));
        let hard = Deadline { at: at(300), fact: Fact::LeaseEnded, cause: Cause::HardTtl };
        assert_eq!(next(&row(State::Suspended(Memory::Spent), all), true, None, Timestamp::MIN), Some(hard));
    }

    #[test]
    fn one_that_cannot_sleep_still_ends_in_time() {
        let both = |policy: &mut Policy| {
            policy.idle_timeout = Some(SignedDuration::from_secs(10));
            policy.hard_expires_at = Some(at(300));
        };
        let due = |awake_until| next(&row(State::Running, both), true, None, at(awake_until));
        assert_eq!(due(200), Some(Deadline { at: at(200), fact: Fact::IdleElapsed, cause: Cause::Idle }));
        assert_eq!(due(900), Some(Deadline { at: at(300), fact: Fact::LeaseEnded, cause: Cause::HardTtl }));
    }
}
