//! Tenants: whose a sandbox, a template or a key is, and how much each may have.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Something that a tenant may have only so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum Limit {
    /// Sandboxes that are not destroyed.
    Sandboxes,
    /// Memory of those that run, in MiB.
    MemoryMb,
    /// Disk of all that are not destroyed, in MiB.
    DiskMb,
}

/// How much a tenant may have; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Sandboxes that are not destroyed.
    pub sandboxes: Option<u64>,
    /// Memory of those that run, in MiB.
    pub memory_mb: Option<u64>,
    /// Disk of all that are not destroyed, in MiB.
    pub disk_mb: Option<u64>,
}

/// How much a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Sandboxes that are not destroyed.
    pub sandboxes: u64,
    /// Memory of those that run, or are about to, in MiB.
    pub memory_mb: u64,
    /// Disk of all that are not destroyed, in MiB.
    pub disk_mb: u64,
}

impl Limits {
    /// The first limit that `more` on top of `used` would break: which, how much is used of it, how much there may be.
    #[must_use]
    pub fn broken_by(&self, used: Usage, more: Usage) -> Option<(Limit, u64, u64)> {
        let rows = [
            (Limit::Sandboxes, self.sandboxes, used.sandboxes, more.sandboxes),
            (Limit::MemoryMb, self.memory_mb, used.memory_mb, more.memory_mb),
            (Limit::DiskMb, self.disk_mb, used.disk_mb, more.disk_mb),
        ];
        rows.into_iter().find_map(|(limit, most, used, more)| {
            let most = most?;
            // What asks for nothing of it is not stopped by it, also where a limit was lowered below what is used.
            (more > 0 && used.saturating_add(more) > most).then_some((limit, used, most))
        })
    }
}

/// A tenant's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name, which is its id.
    pub name: String,
    /// How much it may have.
    pub limits: Limits,
    /// Since when it exists.
    pub created_at: Timestamp,
}

/// A string that is no name of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a name: 1 to 63 of a-z 0-9 - _, the first a letter or digit")]
pub struct InvalidTenant(String);

/// Checks a tenant's name.
///
/// # Errors
/// If it is none.
pub fn check_tenant(name: &str) -> Result<(), InvalidTenant> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if first && name.len() <= 63 && name.bytes().all(good) {
        Ok(())
    } else {
        Err(InvalidTenant(name.chars().take(80).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_reached_and_not_passed() {
        let limits = Limits { sandboxes: Some(2), memory_mb: Some(512), disk_mb: None };
        let one = Usage { sandboxes: 1, memory_mb: 256, disk_mb: 1 << 40 };
        let two = Usage { sandboxes: 2, memory_mb: 512, disk_mb: 0 };
        assert_eq!(limits.broken_by(Usage::default(), one), None);
        assert_eq!(limits.broken_by(one, one), None, "as much as there may be");
        assert_eq!(limits.broken_by(two, one), Some((Limit::Sandboxes, 2, 2)));
        assert_eq!(limits.broken_by(one, Usage { memory_mb: 257, ..one }), Some((Limit::MemoryMb, 256, 512)));
        let over = Usage { sandboxes: 9, ..Usage::default() };
        assert_eq!(
            limits.broken_by(over, Usage { memory_mb: 1, ..Usage::default() }),
            None,
            "a wake is no new sandbox"
        );
        assert_eq!(Limits::default().broken_by(two, one), None);
        let most = Usage { sandboxes: u64::MAX, ..Usage::default() };
        assert_eq!(limits.broken_by(most, one), Some((Limit::Sandboxes, u64::MAX, 2)));
    }

    #[test]
    fn names() {
        for good in ["default", "a", "0", "a-b_c9", &"x".repeat(63)] {
            assert_eq!(check_tenant(good), Ok(()), "{good}");
        }
        for bad in ["", "-a", "_a", "A", "a b", "a/b", "é", "a\0", "..", &"x".repeat(64)] {
            assert!(check_tenant(bad).is_err(), "{bad}");
        }
    }
}
