//! The runtimes of this machine, as their drivers find them.

use wakeful_api_types::{Instant, RuntimeInfo};

use crate::config::Config;
use crate::paths::Paths;
use crate::runtimes;

/// All runtimes that this version has a driver for, the best first. Probes KVM and tries runsc if that was not done since
/// the last boot.
pub async fn runtimes(config: &Config, paths: &Paths) -> Vec<RuntimeInfo> {
    let found = if paths.data.is_dir() {
        runtimes::survey(config, paths).await
    } else {
        // a driver would make directories to look into; whoever only looks makes none
        runtimes::unprepared(&format!("{} is not there yet", paths.data.display()))
    };
    found.into_iter().map(in_words).collect()
}

/// As the API has it.
pub(crate) fn in_words(found: wakeful_lifecycle::RuntimeInfo) -> RuntimeInfo {
    RuntimeInfo {
        name: found.name,
        accel: found.accel,
        available: found.available,
        reason: found.reason,
        fix: found.fix,
        version: found.version,
        probed_at: found.probed_at.map(Instant),
    }
}
