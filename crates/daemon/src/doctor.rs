//! What works on this machine and what does not, with the one command that would help.
//!
//! Every finding is data: `wakeful doctor` prints it, `--json` gives it to programs. Looking changes nothing, save that
//! KVM and runsc are tried if that was not done since the last boot, and the results kept.

mod checks;
mod runtimes;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use wakeful_api_types::RuntimeInfo;

use crate::config::{Accel, Config};
use crate::paths::Paths;
use crate::runtimes::{GVISOR, QEMU, Usable, pick};

pub use runtimes::runtimes;

pub(crate) use runtimes::in_words;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It works, but worse than it could.
    Warn,
    /// It does not work.
    Fail,
}

impl Status {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub status: Status,
    /// What was found.
    pub detail: String,
    /// What would help.
    pub fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, detail: detail.into(), fix: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>) -> Self {
        Self { status: Status::Warn, ..Self::ok(name, detail) }
    }

    fn fail(name: &'static str, detail: impl Into<String>) -> Self {
        Self { status: Status::Fail, ..Self::ok(name, detail) }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// All findings.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// This program's version.
    pub version: &'static str,
    /// The data directory.
    pub data_dir: String,
    /// The runtime that new sandboxes would get; `null` if none is usable.
    pub selected_runtime: Option<String>,
    /// All runtimes.
    pub runtimes: Vec<RuntimeInfo>,
    /// All checks.
    pub checks: Vec<Check>,
}

/// Looks at everything.
pub async fn examine(config: &Config) -> Report {
    let paths = Paths::of(&config.data_dir);
    let runtimes = runtimes(config, &paths).await;
    let selected_runtime = select(config, &runtimes);
    let settings = config.clone();
    let known = runtimes.clone();
    let qemu = checks::find_qemu(config, &paths);
    let of_qemu = runtimes.iter().filter(|runtime| runtime.name == QEMU);
    let version = match (&qemu, of_qemu.filter_map(|runtime| runtime.version.clone()).next()) {
        (_, Some(version)) => Some(version),
        // the driver could not open for another reason, which must not hide this
        (Some(path), None) => ask_version(path).await,
        (None, None) => None,
    };
    let data_dir = paths.data.display().to_string();
    // files and programs of this host: it may take a moment on a sick disk
    let looking = tokio::task::spawn_blocking(move || {
        checks::all(&settings, &paths, &known, qemu.as_deref().zip(version.as_deref()))
    });
    let checks = looking.await.unwrap_or_else(|error| vec![Check::fail("doctor", format!("a check failed: {error}"))]);
    Report { version: env!("CARGO_PKG_VERSION"), data_dir, selected_runtime, runtimes, checks }
}

/// Whether the QEMU that would be used maps golden memory read-only.
pub(crate) async fn maps_read_only(config: &Config, paths: &Paths) -> bool {
    let Some(qemu) = checks::find_qemu(config, paths) else { return false };
    ask_version(&qemu).await.is_some_and(|version| checks::is_hardened(&version))
}

/// What `qemu --version` says: "QEMU emulator version 7.2.18 (Debian …)".
async fn ask_version(qemu: &Path) -> Option<String> {
    let program = wakeful_debian::Program::new(qemu.to_str()?).arg("--version").deadline(Duration::from_secs(10));
    let text = program.text().await.ok()?;
    Some(text.split_once("version ")?.1.split_whitespace().next()?.to_owned())
}

/// The runtime that the configuration would take, if it is usable.
fn select(config: &Config, found: &[RuntimeInfo]) -> Option<String> {
    let works = |name: &str, accel: &str| {
        found.iter().any(|runtime| runtime.name == name && runtime.accel == accel && runtime.available)
    };
    let allowed = |accel: Accel| matches!(config.qemu.accel, Accel::Auto) || config.qemu.accel == accel;
    let usable = Usable {
        kvm: works(QEMU, "kvm") && allowed(Accel::Kvm),
        gvisor: works(GVISOR, wakeful_driver_gvisor::ACCEL),
        emulated: works(QEMU, "tcg") && allowed(Accel::Tcg),
    };
    pick(config.runtime, usable).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RuntimeChoice;

    fn runtime(name: &str, accel: &str, available: bool) -> RuntimeInfo {
        RuntimeInfo {
            name: name.into(),
            accel: accel.into(),
            available,
            reason: None,
            fix: None,
            version: None,
            probed_at: None,
        }
    }

    #[test]
    fn the_first_usable_runtime_is_selected() {
        let list = [runtime("qemu", "kvm", false), runtime("gvisor", "systrap", true), runtime("qemu", "tcg", true)];
        let select = |runtime, accel, list: &[RuntimeInfo]| {
            let mut config = Config { runtime, ..Config::default() };
            config.qemu.accel = accel;
            super::select(&config, list)
        };
        assert_eq!(select(RuntimeChoice::Auto, Accel::Auto, &list).as_deref(), Some("gvisor"));
        assert_eq!(select(RuntimeChoice::Qemu, Accel::Auto, &list).as_deref(), Some("qemu"));
        assert_eq!(select(RuntimeChoice::Qemu, Accel::Kvm, &list), None, "emulation was not asked for");
        assert_eq!(select(RuntimeChoice::Firecracker, Accel::Auto, &list), None);
        assert_eq!(select(RuntimeChoice::Auto, Accel::Auto, &list[..1]), None);
        assert_eq!(select(RuntimeChoice::Gvisor, Accel::Kvm, &list).as_deref(), Some("gvisor"));
        let list = [runtime("qemu", "kvm", true), runtime("gvisor", "systrap", true), runtime("qemu", "tcg", true)];
        assert_eq!(select(RuntimeChoice::Auto, Accel::Auto, &list).as_deref(), Some("qemu"));
        assert_eq!(select(RuntimeChoice::Auto, Accel::Tcg, &list).as_deref(), Some("gvisor"), "kvm was ruled out");
    }

    #[test]
    fn the_report_has_the_contract_s_shape() {
        let report = Report {
            version: "0.1.0",
            data_dir: "/var/lib/wakeful".into(),
            selected_runtime: None,
            runtimes: vec![runtime("qemu", "kvm", false)],
            checks: vec![Check::warn("cgroups", "version 1").fix("boot with version 2")],
        };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"version":"0.1.0","data_dir":"/var/lib/wakeful","selected_runtime":null,"runtimes":[{"name":"qemu","accel":"kvm","available":false,"reason":null,"fix":null,"version":null,"probed_at":null}],"checks":[{"name":"cgroups","status":"warn","detail":"version 1","fix":"boot with version 2"}]}"#
        );
    }
}
