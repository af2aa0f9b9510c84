//! Size presets.

use serde::Serialize;

/// A preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Its name.
    pub name: &'static str,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mb: u32,
}

/// All presets, smallest first.
pub const SIZES: [Size; 7] = [
    Size { name: "shared-cpu-1x", cpu: 1, memory_mb: 256 },
    Size { name: "shared-cpu-2x", cpu: 1, memory_mb: 512 },
    Size { name: "shared-cpu-4x", cpu: 2, memory_mb: 1024 },
    Size { name: "performance-1x", cpu: 1, memory_mb: 2048 },
    Size { name: "performance-2x", cpu: 2, memory_mb: 4096 },
    Size { name: "performance-4x", cpu: 4, memory_mb: 8192 },
    Size { name: "performance-8x", cpu: 8, memory_mb: 16384 },
];

/// A size that does not exist or cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSize {
    /// No preset of this name.
    #[error("there is no size {0:?}")]
    Unknown(String),
    /// Outside what a machine can have.
    #[error("{field} must be between {low} and {high}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Smallest value.
        low: u32,
        /// Largest value.
        high: u32,
    },
}

impl InvalidSize {
    /// The request field that is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "size",
            Self::OutOfRange { field, .. } => field,
        }
    }
}

/// The preset of this name.
///
/// # Errors
/// If there is none.
pub fn preset(name: &str) -> Result<Size, InvalidSize> {
    SIZES
        .into_iter()
        .find(|size| size.name == name)
        .ok_or_else(|| InvalidSize::Unknown(name.chars().take(80).collect()))
}

impl Size {
    /// Checks an explicit `cpu`, `memory_mb`, `disk_mb`.
    ///
    /// # Errors
    /// If one is outside what an engine takes.
    pub fn check(cpu: u32, memory_mb: u32, disk_mb: u32) -> Result<(), InvalidSize> {
        for (field, value, low, high) in
            [("cpu", cpu, 1, 16), ("memory_mb", memory_mb, 128, 65536), ("disk_mb", disk_mb, 64, 1_048_576)]
        {
            if value < low || value > high {
                return Err(InvalidSize::OutOfRange { field, low, high });
            }
        }
        Ok(())
    }
}
