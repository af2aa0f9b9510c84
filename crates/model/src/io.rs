//! How much a sandbox may ask of its disk.

use serde::{Deserialize, Serialize};

/// Limits on reading and writing together; what is not said is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoLimits {
    /// Operations a second, kept up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops_per_sec: Option<u64>,
    /// Operations a second, in a burst of a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ops: Option<u64>,
    /// Megabytes (of 1,000,000 bytes) a second, kept up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_mbps: Option<u64>,
    /// Megabytes a second, in a burst of a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_mbps: Option<u64>,
}

/// Limits that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIo {
    /// Nothing could ever be read, or more than any disk does.
    #[error("{field} must be between 1 and {high}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Largest value.
        high: u64,
    },
    /// A burst without what it bursts.
    #[error("{field} needs {of}, and must not be below it")]
    Burst {
        /// The field.
        field: &'static str,
        /// What it belongs to.
        of: &'static str,
    },
}

impl InvalidIo {
    /// The field that is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::OutOfRange { field, .. } | Self::Burst { field, .. } => field,
        }
    }
}

impl IoLimits {
    /// Most operations a second that can be said.
    pub const MOST_OPS: u64 = 10_000_000;
    /// Most megabytes a second that can be said.
    pub const MOST_MBPS: u64 = 1_000_000;

    /// Whether anything is limited.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Checks what a caller gave.
    ///
    /// # Errors
    /// If a figure is out of range, or a burst has nothing to burst.
    pub fn check(&self) -> Result<(), InvalidIo> {
        let pairs = [
            (("ops_per_sec", self.ops_per_sec), ("burst_ops", self.burst_ops), Self::MOST_OPS),
            (("bandwidth_mbps", self.bandwidth_mbps), ("burst_mbps", self.burst_mbps), Self::MOST_MBPS),
        ];
        for ((of, steady), (field, burst), high) in pairs {
            for (field, value) in [(of, steady), (field, burst)] {
                if value.is_some_and(|value| value == 0 || value > high) {
                    return Err(InvalidIo::OutOfRange { field, high });
                }
            }
            if burst.is_some_and(|burst| steady.is_none_or(|steady| burst < steady)) {
                return Err(InvalidIo::Burst { field, of });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_limited() {
        let none = IoLimits::default();
        assert!(!none.any() && none.check().is_ok());
        let both = IoLimits { ops_per_sec: Some(100), burst_ops: Some(200), ..none };
        assert!(both.any() && both.check().is_ok());
        for (bad, field) in [
            (IoLimits { ops_per_sec: Some(0), ..none }, "ops_per_sec"),
            (IoLimits { burst_ops: Some(5), ..none }, "burst_ops"),
            (IoLimits { bandwidth_mbps: Some(10), burst_mbps: Some(9), ..none }, "burst_mbps"),
            (IoLimits { bandwidth_mbps: Some(IoLimits::MOST_MBPS + 1), ..none }, "bandwidth_mbps"),
        ] {
            assert_eq!(bad.check().unwrap_err().field(), field);
        }
    }
}
