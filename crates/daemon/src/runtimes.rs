//! The runtimes of this host: which there are, and which one new sandboxes get.
//!
//! ```text
//!   auto     QEMU where KVM is proven ─▶ else gVisor where a try has shown that it works ─▶ else QEMU, emulated
//!   a name   that one, or an error that says why not
//! ```
//!
//! Each is opened once, by whoever needs it first; one that cannot be opened is tried again by the next. Nobody looks at
//! gVisor where KVM is proven, or at KVM where gVisor was asked for by name.

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::OnceCell;
use wakeful_driver::{Driver, Error};
use wakeful_driver_gvisor::{Availability, Gvisor, GvisorConfig};
use wakeful_driver_qemu::{Qemu, QemuConfig};
use wakeful_lifecycle::{Runtime, RuntimeInfo};

use crate::config::{self, Config, RuntimeChoice};
use crate::paths::Paths;

/// The runtime of microVMs.
pub(crate) const QEMU: &str = "qemu";
/// The runtime of sandboxes with a kernel in user space.
pub(crate) const GVISOR: &str = wakeful_driver_gvisor::RUNTIME;

const KVM: &str = "kvm";
const TCG: &str = "tcg";
/// What helps where a runsc that is configured cannot be used.
pub(crate) const CORRECT_BINARY: &str = "correct gvisor.binary in the configuration";
/// What nobody has looked at is not known to work.
const UNTRIED: &str = "not tried yet: its first use tries it";

/// What works here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usable {
    /// QEMU, under a KVM that a guest ran under.
    pub(crate) kvm: bool,
    /// gVisor.
    pub(crate) gvisor: bool,
    /// QEMU, emulated.
    pub(crate) emulated: bool,
}

/// The runtime that new sandboxes get, if the choice can be met.
pub(crate) fn pick(choice: RuntimeChoice, usable: Usable) -> Option<&'static str> {
    let Usable { kvm, gvisor, emulated } = usable;
    match choice {
        RuntimeChoice::Auto if kvm => Some(QEMU),
        RuntimeChoice::Auto if gvisor => Some(GVISOR),
        RuntimeChoice::Auto | RuntimeChoice::Qemu => (kvm || emulated).then_some(QEMU),
        RuntimeChoice::Gvisor => gvisor.then_some(GVISOR),
        RuntimeChoice::Firecracker => None,
    }
}

/// How the QEMU driver is told where things are.
pub(crate) fn qemu_config(config: &Config, data: &Path, run: &Path) -> QemuConfig {
    QemuConfig {
        binary: config.qemu.binary.clone(),
        accel: match config.qemu.accel {
            config::Accel::Auto => wakeful_driver_qemu::Accel::Auto,
            config::Accel::Kvm => wakeful_driver_qemu::Accel::Kvm,
            config::Accel::Tcg => wakeful_driver_qemu::Accel::Tcg,
        },
        kernel: config.qemu.kernel.clone(),
        io_bytes_per_second: config.qemu.io_bytes_per_second,
        ..QemuConfig::new(data, run)
    }
}

/// The same for gVisor.
pub(crate) fn gvisor_config(config: &Config, data: &Path, run: &Path) -> GvisorConfig {
    GvisorConfig {
        binary: config.gvisor.binary.clone(),
        hardened: config.gvisor.hardened,
        ..GvisorConfig::new(data, run)
    }
}

/// All runtimes, opened when they are needed.
pub(crate) struct Runtimes {
    choice: RuntimeChoice,
    qemu_config: QemuConfig,
    gvisor_config: GvisorConfig,
    qemu: OnceCell<Arc<Qemu>>,
    gvisor: OnceCell<Arc<Gvisor>>,
    default: OnceCell<&'static str>,
    /// What was found, by runtime; a runtime that nobody looked at has nothing.
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    qemu: Vec<RuntimeInfo>,
    gvisor: Vec<RuntimeInfo>,
}

impl Runtimes {
    /// Nothing is opened yet.
    pub(crate) fn new(config: &Config, paths: &Paths) -> Self {
        Self {
            choice: config.runtime,
            qemu_config: qemu_config(config, &paths.data, &paths.run),
            gvisor_config: gvisor_config(config, &paths.data, &paths.run),
            qemu: OnceCell::new(),
            gvisor: OnceCell::new(),
            default: OnceCell::new(),
            found: Mutex::default(),
        }
    }

    async fn qemu(&self) -> Result<Arc<Qemu>, Error> {
        let open = || async {
            let opened = Qemu::open(self.qemu_config.clone()).await;
            let found = match &opened {
                Ok(qemu) => qemu.runtimes().to_vec(),
                Err(_) => Qemu::survey(&self.qemu_config).await,
            };
            self.found.lock().expect("no panic while it is held").qemu = of_qemu(found);
            opened.map(Arc::new)
        };
        self.qemu.get_or_try_init(open).await.cloned()
    }

    async fn gvisor(&self) -> Result<Arc<Gvisor>, Error> {
        let open = || async {
            let opened = Gvisor::open(self.gvisor_config.clone()).await;
            let found = match &opened {
                Ok(gvisor) => self::opened(gvisor),
                Err(error) => of_gvisor(unavailable(error)),
            };
            self.found.lock().expect("no panic while it is held").gvisor = vec![found];
            opened.map(Arc::new)
        };
        self.gvisor.get_or_try_init(open).await.cloned()
    }

    /// What `auto` comes to here.
    async fn automatic(&self) -> Result<&'static str, Error> {
        let qemu = self.qemu().await;
        let kvm = qemu.as_ref().is_ok_and(|qemu| qemu.capabilities().hardware_virtualization);
        let gvisor = if kvm { None } else { Some(self.gvisor().await) };
        let usable = Usable { kvm, gvisor: gvisor.as_ref().is_some_and(Result::is_ok), emulated: qemu.is_ok() };
        let Some(name) = pick(RuntimeChoice::Auto, usable) else {
            let why = [(QEMU, qemu.err()), (GVISOR, gvisor.and_then(Result::err))];
            let why: Vec<String> =
                why.iter().filter_map(|(name, error)| Some(format!("{name}: {}", chain(error.as_ref()?)))).collect();
            return Err(Error::Missing { what: format!("a runtime that can be used here ({})", why.join("; ")) });
        };
        if let Some(Err(error)) = gvisor {
            tracing::info!(runtime = name, reason = chain(&error), "gvisor cannot be used here");
        }
        Ok(name)
    }
}

#[async_trait]
impl Runtime for Runtimes {
    async fn open(&self, runtime: &str) -> Result<Arc<dyn Driver>, Error> {
        match runtime {
            QEMU => Ok(self.qemu().await?),
            GVISOR => Ok(self.gvisor().await?),
            _ => Err(Error::Missing { what: format!("a driver for {runtime} (there are {QEMU} and {GVISOR})") }),
        }
    }

    async fn default(&self) -> Result<String, Error> {
        let name = self.default.get_or_try_init(|| async {
            match self.choice {
                RuntimeChoice::Auto => self.automatic().await,
                RuntimeChoice::Qemu => Ok(QEMU),
                RuntimeChoice::Gvisor => Ok(GVISOR),
                RuntimeChoice::Firecracker => Err(Error::Missing { what: "a driver for firecracker".to_owned() }),
            }
        });
        name.await.map(|name| (*name).to_owned())
    }

    fn known(&self) -> Vec<RuntimeInfo> {
        let found = self.found.lock().expect("no panic while it is held");
        if found.qemu.is_empty() && found.gvisor.is_empty() {
            return Vec::new();
        }
        let or_untried = |found: &[RuntimeInfo], untried: &[(&str, &str)]| match found {
            [] => untried.iter().map(|(name, accel)| out_of_reach(name, accel, UNTRIED, None)).collect(),
            found => found.to_vec(),
        };
        let qemu = or_untried(&found.qemu, &[(QEMU, KVM), (QEMU, TCG)]);
        in_order(qemu, or_untried(&found.gvisor, &[(GVISOR, wakeful_driver_gvisor::ACCEL)]))
    }
}

/// Looks at all of them, whichever is configured. Probes and tries what was not since the last boot.
pub(crate) async fn survey(config: &Config, paths: &Paths) -> Vec<RuntimeInfo> {
    let qemu = survey_qemu(config, paths).await;
    in_order(qemu, vec![survey_gvisor(config, paths).await])
}

/// QEMU's two ways, KVM first.
pub(crate) async fn survey_qemu(config: &Config, paths: &Paths) -> Vec<RuntimeInfo> {
    let config = qemu_config(config, &paths.data, &paths.run);
    of_qemu(match Qemu::open(config.clone()).await {
        Ok(qemu) => qemu.runtimes().to_vec(),
        Err(_) => Qemu::survey(&config).await,
    })
}

/// gVisor, by trying it.
pub(crate) async fn survey_gvisor(config: &Config, paths: &Paths) -> RuntimeInfo {
    let found = of_gvisor(Gvisor::survey(&gvisor_config(config, &paths.data, &paths.run)).await);
    match &config.gvisor.binary {
        // Setup fetches nothing then, so it would not help.
        Some(_) if !found.available => RuntimeInfo { fix: Some(CORRECT_BINARY.to_owned()), ..found },
        _ => found,
    }
}

/// All of them for a host on which there is nothing to look at.
pub(crate) fn unprepared(reason: &str) -> Vec<RuntimeInfo> {
    vec![
        out_of_reach(QEMU, KVM, reason, Some("wakeful setup")),
        out_of_reach(GVISOR, wakeful_driver_gvisor::ACCEL, reason, Some("wakeful setup --runtime gvisor")),
        out_of_reach(QEMU, TCG, reason, Some("wakeful setup")),
    ]
}

/// What works of these.
pub(crate) fn usable(runtimes: &[RuntimeInfo]) -> Usable {
    let works = |name: &str, accel: Option<&str>| {
        let ours = |found: &&RuntimeInfo| found.name == name && accel.is_none_or(|accel| found.accel == accel);
        runtimes.iter().filter(ours).any(|found| found.available)
    };
    Usable { kvm: works(QEMU, Some(KVM)), gvisor: works(GVISOR, None), emulated: works(QEMU, Some(TCG)) }
}

/// The best first.
fn in_order(qemu: Vec<RuntimeInfo>, gvisor: Vec<RuntimeInfo>) -> Vec<RuntimeInfo> {
    let (mut all, emulated): (Vec<_>, Vec<_>) = qemu.into_iter().partition(|found| found.accel == KVM);
    all.extend(gvisor);
    all.extend(emulated);
    all
}

fn out_of_reach(name: &str, accel: &str, reason: &str, fix: Option<&str>) -> RuntimeInfo {
    RuntimeInfo {
        name: name.to_owned(),
        accel: accel.to_owned(),
        available: false,
        reason: Some(reason.to_owned()),
        fix: fix.map(str::to_owned),
        version: None,
        probed_at: None,
    }
}

/// What the drivers know of this host, in the words of the API.
fn of_qemu(found: Vec<wakeful_driver_qemu::Runtime>) -> Vec<RuntimeInfo> {
    let told = |found: wakeful_driver_qemu::Runtime| RuntimeInfo {
        name: found.name,
        accel: found.accel,
        available: found.available,
        reason: found.reason,
        fix: found.fix,
        version: found.version,
        probed_at: found.probed_at.and_then(|at| at.parse().ok()),
    };
    let mut all: Vec<RuntimeInfo> = found.into_iter().map(told).collect();
    if all.iter().all(|found| found.accel != KVM) {
        all.insert(0, out_of_reach(QEMU, KVM, "not tried: [qemu] accel is \"tcg\"", None));
    }
    all
}

fn of_gvisor(found: Availability) -> RuntimeInfo {
    RuntimeInfo {
        name: GVISOR.to_owned(),
        accel: wakeful_driver_gvisor::ACCEL.to_owned(),
        available: found.available,
        reason: found.reason,
        fix: found.fix,
        version: found.version,
        probed_at: None,
    }
}

/// What is to be said of a gVisor that works.
pub(crate) fn opened(gvisor: &Gvisor) -> RuntimeInfo {
    let version = Some(gvisor.engine().version.clone());
    of_gvisor(Availability { available: true, reason: None, fix: None, version })
}

fn unavailable(error: &Error) -> Availability {
    // An engine that was tried and does not work is not got by getting it again.
    let fix = matches!(error, Error::Missing { what } if what.contains("wakeful setup"));
    Availability {
        available: false,
        reason: Some(chain(error)),
        fix: fix.then(|| "wakeful setup --runtime gvisor".to_owned()),
        version: None,
    }
}

/// An error with its reasons.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_proven_hardware_then_gvisor_then_emulation() {
        use RuntimeChoice::{Auto, Firecracker, Gvisor as ByGvisor, Qemu as ByQemu};
        let picked = |choice, (kvm, gvisor, emulated)| pick(choice, Usable { kvm, gvisor, emulated });
        for (usable, auto, qemu, gvisor) in [
            ((true, true, true), Some(QEMU), Some(QEMU), Some(GVISOR)),
            ((true, false, true), Some(QEMU), Some(QEMU), None),
            // [qemu] accel = "kvm": emulation is not allowed.
            ((true, true, false), Some(QEMU), Some(QEMU), Some(GVISOR)),
            ((true, false, false), Some(QEMU), Some(QEMU), None),
            ((false, true, true), Some(GVISOR), Some(QEMU), Some(GVISOR)),
            ((false, true, false), Some(GVISOR), None, Some(GVISOR)),
            ((false, false, true), Some(QEMU), Some(QEMU), None),
            ((false, false, false), None, None, None),
        ] {
            assert_eq!(picked(Auto, usable), auto, "auto of {usable:?}");
            assert_eq!(picked(ByQemu, usable), qemu, "qemu of {usable:?}");
            assert_eq!(picked(ByGvisor, usable), gvisor, "gvisor of {usable:?}");
            assert_eq!(picked(Firecracker, usable), None);
        }
    }

    fn nowhere() -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { data: dir.path().join("data"), run: dir.path().join("wakeful/run") };
        (dir, paths)
    }

    #[tokio::test]
    async fn a_named_one_is_taken_without_a_look_at_any() {
        let (_dir, paths) = nowhere();
        for (choice, name) in [(RuntimeChoice::Qemu, QEMU), (RuntimeChoice::Gvisor, GVISOR)] {
            let runtimes = Runtimes::new(&Config { runtime: choice, ..Config::default() }, &paths);
            assert_eq!(runtimes.default().await.unwrap(), name);
            assert!(runtimes.known().is_empty() && !paths.data.exists(), "something was opened");
        }
    }

    #[tokio::test]
    async fn where_nothing_is_prepared_it_says_what_is_missing() {
        let (_dir, paths) = nowhere();
        let mut config = Config::default();
        config.qemu.binary = Some("/nowhere/qemu".into());
        config.gvisor.binary = Some("/nowhere/runsc".into());
        let runtimes = Runtimes::new(&config, &paths);
        let error = runtimes.default().await.unwrap_err().to_string();
        assert!(error.contains("/nowhere/qemu") && error.contains("/nowhere/runsc"), "{error}");
        let error = runtimes.open(GVISOR).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("/nowhere/runsc"), "{error}");
        let known = runtimes.known();
        let ways: Vec<String> = known.iter().map(|found| format!("{}/{}", found.name, found.accel)).collect();
        assert_eq!(ways, ["qemu/kvm", "gvisor/systrap", "qemu/tcg"]);
        assert!(known.iter().all(|found| !found.available && found.reason.is_some()), "{known:?}");
        let other = runtimes.open("docker").await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(other.contains("docker") && other.contains("qemu and gvisor"), "{other}");
    }

    #[test]
    fn what_works_is_read_from_the_list() {
        let mut list = unprepared("nothing is there");
        assert_eq!(usable(&list), Usable { kvm: false, gvisor: false, emulated: false });
        list[1].available = true;
        list[2].available = true;
        assert_eq!(usable(&list), Usable { kvm: false, gvisor: true, emulated: true });
        assert!(list.iter().all(|found| found.fix.as_deref().is_some_and(|fix| fix.starts_with("wakeful setup"))));
    }
}
