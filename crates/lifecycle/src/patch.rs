//! What can be changed about a sandbox while it lives, awake or asleep. It is no use of it, and wakes nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use wakeful_model::{Cause, Code, Egress, Mode, Sandbox, SandboxId};

use crate::owner::Ask;
use crate::{Error, Lifecycle, SandboxView, disk};

/// How long a caller waits for what is under way.
const PATIENCE: Duration = Duration::from_secs(60);
/// No sandbox needs longer, and calendars and columns hold it.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Changes. What is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// All labels.
    pub metadata: Option<BTreeMap<String, String>>,
    /// The whole egress policy.
    pub egress: Option<Egress>,
    /// Idleness before it sleeps; persistent ones only.
    pub idle_timeout: Option<Duration>,
    /// Destroyed this long after now; `Some(None)`: never, by itself.
    pub hard_ttl: Option<Option<Duration>>,
    /// Access wakes it.
    pub auto_resume: Option<bool>,
    /// A larger disk from its next start on, in MiB; sleepers only.
    pub disk_mb: Option<u32>,
}

impl Patch {
    /// The row with the changes; as it is, if they change nothing.
    pub(crate) fn apply(self, row: &Sandbox, now: Timestamp) -> Result<Sandbox, Error> {
        let mut after = row.clone();
        if let Some(idle) = self.idle_timeout {
            if row.policy.mode() == Mode::Ephemeral {
                let detail = "idle_timeout has no meaning in mode ephemeral";
                return Err(Error::invalid(Code::InvalidCombination, "idle_timeout", detail));
            }
            after.policy.idle_timeout = Some(bounded(idle));
        }
        if let Some(ttl) = self.hard_ttl {
            after.policy.hard_expires_at = ttl.and_then(|ttl| now.checked_add(bounded(ttl)).ok());
        }
        if let Some(disk_mb) = self.disk_mb {
            disk::check(row, disk_mb)?;
            after.disk_mb = disk_mb;
        }
        after.policy.auto_resume = self.auto_resume.unwrap_or(row.policy.auto_resume);
        after.metadata = self.metadata.unwrap_or(after.metadata);
        after.egress = self.egress.unwrap_or(after.egress);
        if after != *row {
            after.updated_at = now;
        }
        Ok(after)
    }
}

/// A duration that the database and the calendar hold: what is longer than a century is a century.
pub(crate) fn bounded(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration.min(LONGEST)).unwrap_or(SignedDuration::MAX)
}

impl Lifecycle {
    /// Changes a sandbox; waits for what is under way.
    ///
    /// # Errors
    /// If it is destroyed, or a change has no meaning for it.
    pub async fn patch(&self, tenant: &str, id: &SandboxId, patch: Patch, cause: Cause) -> Result<SandboxView, Error> {
        self.find_live(tenant, id).await?;
        match tokio::time::timeout(PATIENCE, self.ask(id, Ask::Patch { patch: Box::new(patch), cause })).await {
            Err(_) => Err(Error::Busy(id.clone())),
            Ok(answer) => {
                answer?;
                self.sandbox(tenant, id).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::tests::{at, row};
    use wakeful_model::{Memory, State};

    #[test]
    fn only_what_is_named_changes() {
        let before = row(State::Running, |policy| policy.idle_timeout = Some(SignedDuration::from_secs(5)));
        assert_eq!(Patch::default().apply(&before, at(9)).unwrap(), before, "nothing is nothing, also its date");
        let same = Patch { auto_resume: Some(true), metadata: Some(BTreeMap::new()), ..Patch::default() };
        assert_eq!(same.apply(&before, at(9)).unwrap(), before);
        let after = Patch { auto_resume: Some(false), ..Patch::default() }.apply(&before, at(9)).unwrap();
        assert_eq!((after.policy.auto_resume, after.updated_at), (false, at(9)));
        assert_eq!(after.policy.idle_timeout, before.policy.idle_timeout);
        let after = Patch { idle_timeout: Some(Duration::MAX), ..Patch::default() }.apply(&before, at(9)).unwrap();
        assert_eq!(after.policy.idle_timeout, Some(bounded(LONGEST)));
    }

    #[test]
    fn a_ttl_counts_from_now_and_can_go() {
        let before = row(State::Running, |policy| policy.hard_expires_at = Some(at(50)));
        let with = |ttl| Patch { hard_ttl: Some(ttl), ..Patch::default() }.apply(&before, at(9)).unwrap();
        assert_eq!(with(Some(Duration::from_secs(3))).policy.hard_expires_at, Some(at(12)));
        assert_eq!(with(None).policy.hard_expires_at, None);
        assert!(with(Some(Duration::MAX)).policy.hard_expires_at.is_some(), "forever is not never");
    }

    #[test]
    fn only_a_sleepers_disk_grows_and_none_shrinks() {
        let before = row(State::Suspended(Memory::Kept), |_| ());
        let to = |row: &Sandbox, disk_mb| Patch { disk_mb: Some(disk_mb), ..Patch::default() }.apply(row, at(9));
        assert_eq!(to(&before, before.disk_mb + 1).unwrap().disk_mb, before.disk_mb + 1);
        assert_eq!(to(&before, before.disk_mb).unwrap(), before);
        for wrong in [before.disk_mb - 1, 0, u32::MAX] {
            let refused = to(&before, wrong).unwrap_err();
            assert_eq!((refused.code(), refused.field()), (Code::InvalidSize, Some("disk_mb")));
        }
        let running = Sandbox { state: State::Running, ..before };
        assert_eq!(to(&running, running.disk_mb + 1).unwrap_err().code(), Code::NotSuspended);
        assert_eq!(to(&running, running.disk_mb).unwrap(), running, "nothing is to be done");
    }

    #[test]
    fn a_lease_is_no_idleness() {
        let leased = row(State::Running, |policy| policy.expires_at = Some(at(50)));
        let refused = Patch { idle_timeout: Some(Duration::from_secs(1)), ..Patch::default() }.apply(&leased, at(9));
        assert_eq!(refused.unwrap_err().code(), Code::InvalidCombination);
    }
}
