//! How templates are built, and what they may cost.

use std::time::Duration;

/// What a build gets.
#[derive(Clone, Debug)]
pub struct BuildSettings {
    /// Where images come from.
    pub registries: wakeful_oci::Settings,
    /// Most bytes of a root file system.
    pub image_bytes: u64,
    /// Most files of a root file system.
    pub image_files: u64,
    /// Most bytes of an upload.
    pub upload_bytes: u64,
    /// Longest time of a build.
    pub timeout: Duration,
    /// How many are under way at once: they are bound by the disk and the processor.
    pub at_once: usize,
    /// Processors of a machine that steps run on.
    pub cpu: u32,
    /// Its memory.
    pub memory_mb: u32,
    /// Its disk.
    pub disk_mb: u32,
    /// How long what a build leaves for the next is kept without being used.
    pub keep_cache: Duration,
    /// How long a golden snapshot of a size that is not its template's own is kept without being used.
    pub keep_golden: Duration,
}

impl Default for BuildSettings {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self {
            registries: wakeful_oci::Settings::default(),
            image_bytes: 32 << 30,
            image_files: 2_000_000,
            upload_bytes: 16 << 30,
            timeout: Duration::from_secs(3600),
            at_once: 1,
            cpu: 2,
            memory_mb: 1024,
            disk_mb: 16 << 10,
            keep_cache: 14 * DAY,
            keep_golden: 7 * DAY,
        }
    }
}
