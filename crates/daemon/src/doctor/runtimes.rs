//! The runtimes of this machine, as their drivers find them.

use wakeful_api_types::{Instant, RuntimeInfo};
use wakeful_driver_qemu::Qemu;

use crate::config::Config;
use crate::paths::Paths;
use crate::wire;

/// All runtimes that this version has a driver for, the best first. Probes KVM if that was not done since the last boot.
pub async fn runtimes(config: &Config, paths: &Paths) -> Vec<RuntimeInfo> {
    if !paths.data.is_dir() {
        // a driver would make directories to look into; whoever only looks makes none
        let unprepared = |accel: &str| RuntimeInfo {
            name: "qemu".into(),
            accel: accel.into(),
            available: false,
            reason: Some(format!("{} is not there yet", paths.data.display())),
            fix: Some("wakeful setup".into()),
            version: None,
            probed_at: None,
        };
        return vec![unprepared("kvm"), unprepared("tcg")];
    }
    let config = wire::qemu_config(config, &paths.data, &paths.run);
    let found = match Qemu::open(config.clone()).await {
        Ok(qemu) => qemu.runtimes().to_vec(),
        Err(_) => Qemu::survey(&config).await,
    };
    found
        .into_iter()
        .map(wire::in_our_words)
        .map(|runtime| RuntimeInfo {
            name: runtime.name,
            accel: runtime.accel,
            available: runtime.available,
            reason: runtime.reason,
            fix: runtime.fix,
            version: runtime.version,
            probed_at: runtime.probed_at.map(Instant),
        })
        .collect()
}
