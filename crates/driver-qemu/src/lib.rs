//! QEMU microvms: a [`Driver`] that never boots and always clones.
//!
//! A template is booted once; every sandbox is then a copy-on-write clone of that golden snapshot, mapped privately from
//! its memory file, and a suspend writes only the pages in which the clone differs. Engines are unprivileged processes
//! without a path, which outlive the daemon and are found again through their run directory.
//!
//! ```text
//!   lib        the driver                  place      run directory: lock, pid, account; adopt and reap
//!   launch     source -> engine            process    one process by descriptor
//!   boot       command line                engine     the trait's Engine
//!   jail       walls, ids, file rights     control    QMP
//!   filter     system calls
//!   engines    kept copies of QEMU         snapshot   images: save, check, compact
//!   kernel     Debian's kernel, unpacked   diff       the pages' file
//!   initramfs  agent, modules, secret      probe      does KVM work?
//!   inspector  what is written and left, without an engine
//! ```
//!
//! It fails with [`Error`]: `Damaged` and `Unfit` mean that an image cannot be loaded and that nothing was spent by
//! trying; everything else is about this host.

mod boot;
mod control;
mod diff;
mod engine;
mod engines;
mod filter;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod host;
mod initramfs;
mod inspector;
mod jail;
mod kernel;
mod launch;
mod place;
mod probe;
mod snapshot;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use wakeful_confine::{blocking, cgroup, files};
use wakeful_driver::{
    Cancel, Capabilities, Card, CardKind, DiskKind, Driver, Engine, EngineInfo, Error, Image, Isolation, Machine,
    OutsideTcp, Part, Place, Repairs, Source,
};

use crate::boot::Accelerator;
use crate::control::Qmp;
use crate::engine::QemuEngine;
use crate::engines::Pinned;
use crate::host::Host;
use crate::jail::Jail;
use crate::snapshot::{CancelOnDrop, Cancelled, Detail};

pub use crate::inspector::QemuInspector;
pub use crate::jail::Confinement;
pub use crate::kernel::{Kernel, prepare_kernel};
pub use crate::probe::Runtime;

/// How guest code is to be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accel {
    /// By the processor if a probe shows that this works, else emulated.
    #[default]
    Auto,
    /// By the processor or not at all.
    Kvm,
    /// Emulated; KVM is not even probed.
    Tcg,
}

/// Where the driver keeps things, and what it uses.
#[derive(Clone, Debug)]
pub struct QemuConfig {
    /// Kept engines and kernels, under `engines` and `kernels`.
    pub data_dir: PathBuf,
    /// Measurements that hold until the host reboots; sockets of engines are below it as well, by the caller's choice of
    /// [`Place`]. The KVM probe's answer is kept in its parent.
    pub run_dir: PathBuf,
    /// The QEMU to use; looked for if absent.
    pub binary: Option<PathBuf>,
    /// How guest code is run.
    pub accel: Accel,
    /// A directory with a prepared kernel (`vmlinux`, `modules`, `version`) instead of the one in `data_dir`.
    pub kernel: Option<PathBuf>,
    /// Below the uids that engines get (16 million of them); 0 lets them run as we do, without capabilities.
    pub engine_uid: u32,
    /// The most that one engine may read and write each, on the disk that the data directory is on.
    pub io_bytes_per_second: Option<u64>,
}

impl QemuConfig {
    /// The defaults, for these directories.
    pub fn new(data_dir: impl Into<PathBuf>, run_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            run_dir: run_dir.into(),
            binary: None,
            accel: Accel::Auto,
            kernel: None,
            engine_uid: 1_900_000_000,
            io_bytes_per_second: None,
        }
    }
}

/// The QEMU that engines are copied from: the configured one, else the one that [`fetch_hardened`] got, else the
/// installed one.
///
/// # Errors
/// `Missing` if there is none.
pub fn find_qemu(data_dir: &Path, binary: Option<&Path>) -> Result<PathBuf, Error> {
    engines::find(data_dir, binary)
}

/// The packages that a QEMU for us consists of; `qboot.rom` comes with the last.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "qemu-system-common", "qemu-system-data"];

/// Installs QEMU, unless there is one. Where that would take other packages away (tools of another version that exclude
/// it) its files are unpacked for the whole host instead, and only the libraries that it needs are installed.
///
/// # Errors
/// If it cannot be had.
pub async fn ensure_qemu(
    progress: &(dyn Fn(wakeful_debian::Progress<'_>) + Send + Sync),
) -> Result<(), wakeful_debian::Error> {
    if engines::unpacked().is_file() {
        return Ok(());
    }
    match wakeful_debian::ensure_installed(&[PACKAGES[0], PACKAGES[2]], progress).await {
        Err(wakeful_debian::Error::Excluded { .. }) => {}
        other => return other,
    }
    let needed = wakeful_debian::dependencies(PACKAGES[0]).await?;
    let libraries: Vec<&str> = needed.iter().map(String::as_str).filter(|name| name.starts_with("lib")).collect();
    wakeful_debian::ensure_installed(&libraries, progress).await?;
    wakeful_debian::fetch_unpacked(&PACKAGES, Path::new(engines::UNPACKED)).await
}

/// Gets a QEMU that maps golden memory read-only from the backports of this host's release, into the data directory and
/// without installing it. Quick if it is there.
///
/// # Errors
/// If it cannot be had.
pub async fn fetch_hardened(data_dir: &Path) -> Result<PathBuf, Error> {
    wakeful_debian::fetch_backports(&PACKAGES, &data_dir.join("qemu")).await.map_err(|error| Error::Io {
        doing: "fetch QEMU from the release's backports".to_owned(),
        source: std::io::Error::other(error),
    })?;
    Ok(engines::fetched(data_dir))
}

/// The driver.
#[derive(Debug)]
pub struct Qemu {
    host: Arc<Host>,
    info: EngineInfo,
    capabilities: Capabilities,
    runtimes: Vec<Runtime>,
}

impl Qemu {
    /// Finds or copies the engine, the kernel and the clock rate; probes KVM if that is wanted and its answer is not known.
    /// Quick when all is prepared.
    ///
    /// # Errors
    /// `Missing` if QEMU, its firmware or the kernel is not here, or KVM is demanded and does not work.
    pub async fn open(config: QemuConfig) -> Result<Self, Error> {
        let host = prepare(&config).await?;
        let (accelerator, runtimes) = choose(&host, &config).await?;
        let host = Arc::new(Host { accelerator, ..host });
        let info = host.info();
        let capabilities = Capabilities {
            isolation: Isolation::Microvm,
            memory_checkpoint: true,
            cancel: Cancel::Always,
            dirty_pages: true,
            disk: DiskKind::Block,
            outside_tcp: OutsideTcp::Reset,
            clock: Repairs::Agent,
            entropy: Repairs::Agent,
            fork: true,
            network: true,
            card: CardKind::Tap,
            golden: true,
            obstacles: false,
            io_limits: true,
            hardware_virtualization: accelerator == Accelerator::Kvm,
        };
        tracing::info!(engine = host.engine.name, accel = info.accel, key = info.key, "driver opened");
        Ok(Self { host, info, capabilities, runtimes })
    }

    /// What `doctor` shows: each way to run guests, and why not.
    #[must_use]
    pub fn runtimes(&self) -> &[Runtime] {
        &self.runtimes
    }

    /// The same for a host on which the driver may not open at all; probes KVM if need be.
    pub async fn survey(config: &QemuConfig) -> Vec<Runtime> {
        let surveyed = async {
            let host = prepare(config).await?;
            let kvm = probe::kvm(&host, &config.run_dir).await?;
            Ok::<_, Error>(vec![kvm.runtime(&host.engine.version), emulated(&host.engine.version)])
        };
        match surveyed.await {
            Ok(runtimes) => runtimes,
            Err(error) => {
                let fix = match &error {
                    Error::Missing { .. } => Some("wakeful setup".to_owned()),
                    _ => None,
                };
                let unusable = |accel: Accelerator| Runtime {
                    name: "qemu".to_owned(),
                    accel: accel.name().to_owned(),
                    available: false,
                    reason: Some(error.to_string()),
                    fix: fix.clone(),
                    version: None,
                    probed_at: None,
                };
                vec![unusable(Accelerator::Kvm), unusable(Accelerator::Tcg)]
            }
        }
    }

    /// Boots a guest the way KVM is probed, with the accelerator in use; the reason why that did not work.
    ///
    /// # Errors
    /// If the attempt could not be made.
    pub async fn probe(&self, run_dir: &Path, deadline: Duration) -> Result<Option<String>, Error> {
        probe::attempt(&self.host, run_dir, deadline).await
    }
}

/// All but the choice of the accelerator.
async fn prepare(config: &QemuConfig) -> Result<Host, Error> {
    let failed = |source| Error::io("open the driver", source);
    files::make_dir(&config.data_dir.join("engines"), 0o700).map_err(failed)?;
    files::make_dir(&config.run_dir, 0o700).map_err(failed)?;
    let owned = config.clone();
    let prepared = blocking(move || {
        files::sweep(&owned.data_dir.join("engines"));
        files::sweep(&owned.data_dir.join("kernels"));
        let engine = engines::pin(&owned.data_dir, owned.binary.as_deref())?;
        let kernel = match &owned.kernel {
            Some(path) => kernel::Kernel::open(path)
                .ok_or_else(|| Error::Missing { what: format!("a prepared guest kernel in {}", path.display()) })?,
            None => kernel::Kernel::current(&owned.data_dir)
                .ok_or_else(|| Error::Missing { what: "the guest kernel (wakeful setup)".to_owned() })?,
        };
        let initramfs = initramfs::common(&kernel, wakeful_agent_bin::AGENT).map_err(failed)?;
        let disk = match owned.io_bytes_per_second {
            Some(_) => cgroup::disk_of(&owned.data_dir).map_err(failed)?,
            None => None,
        };
        let io = disk.zip(owned.io_bytes_per_second);
        let io = io.map(|(device, bytes_per_second)| cgroup::Io { device, bytes_per_second });
        let jail = Jail::open(owned.engine_uid, io).map_err(failed)?;
        Ok((engine, kernel, initramfs, jail))
    });
    let (prepared, tsc_khz) = tokio::join!(prepared, host::tsc_khz(&config.data_dir, &config.run_dir));
    let (engine, kernel, initramfs, jail) = prepared?;
    Ok(Host {
        data_dir: config.data_dir.clone(),
        engine,
        accelerator: Accelerator::Tcg,
        tsc_khz: tsc_khz?,
        kernel,
        initramfs,
        jail,
    })
}

async fn choose(host: &Host, config: &QemuConfig) -> Result<(Accelerator, Vec<Runtime>), Error> {
    let version = &host.engine.version;
    if config.accel == Accel::Tcg {
        return Ok((Accelerator::Tcg, vec![emulated(version)]));
    }
    let kvm = probe::kvm(host, &config.run_dir).await?;
    let runtimes = vec![kvm.runtime(version), emulated(version)];
    match (kvm.reason, config.accel) {
        (None, _) => Ok((Accelerator::Kvm, runtimes)),
        (Some(reason), Accel::Kvm) => {
            Err(Error::Missing { what: format!("usable kvm, which is configured ({reason})") })
        }
        (Some(_), _) => Ok((Accelerator::Tcg, runtimes)),
    }
}

fn emulated(version: &str) -> Runtime {
    Runtime {
        name: "qemu".to_owned(),
        accel: Accelerator::Tcg.name().to_owned(),
        available: true,
        reason: None,
        fix: None,
        version: Some(version.to_owned()),
        probed_at: None,
    }
}

#[async_trait]
impl Driver for Qemu {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn engine(&self) -> &EngineInfo {
        &self.info
    }

    fn disk_file(&self) -> &'static str {
        snapshot::OVERLAY
    }

    async fn launch(
        &self,
        place: &Place,
        machine: Machine,
        base: &Path,
        card: Card,
        source: Source<'_>,
    ) -> Result<Arc<dyn Engine>, Error> {
        Ok(launch::launch(&self.host, place, machine, base, card, source).await?)
    }

    async fn adopt(&self, place: &Place) -> Result<Option<Arc<dyn Engine>>, Error> {
        let Some(process) = place::find(&place.run).await? else { return Ok(None) };
        let record = match place::record(&place.run) {
            Some(record) if place::is_recorded(&process, &record) => record,
            // Its launch was never completed, so nobody relies on it.
            _ => {
                place::clear(&place.run, &self.host.jail).await?;
                return Ok(None);
            }
        };
        let console = place.data.join("console.log");
        match Qmp::connect(&place.run.join("qmp"), control::ANSWER).await {
            Ok(qmp) => {
                let engine = QemuEngine::new(self.host.clone(), place.clone(), Arc::new(process), qmp, record);
                Ok(Some(Arc::new(engine)))
            }
            Err(_) if process.has_ended() => Ok(None),
            Err(failure) => {
                Err(engine::explain(failure, "be adopted", &process, (&console, record.console_from)).await)
            }
        }
    }

    async fn reap(&self, place: &Place) -> Result<(), Error> {
        place::clear(&place.run, &self.host.jail).await
    }

    async fn compact(&self, place: &Place, checkpoint: &Path, image: &Image) -> Result<Image, Error> {
        let detail = Detail::of(image)?;
        if Pinned::open(&self.host.data_dir, &detail.engine).is_none() {
            return Err(Error::Unfit { reason: format!("the engine {} is not kept here", detail.engine) });
        }
        let cancelled = Cancelled::default();
        let _cancel = CancelOnDrop(cancelled.clone());
        let (data, checkpoint, image) = (place.data.clone(), checkpoint.to_owned(), image.clone());
        blocking(move || snapshot::compact(&data, &checkpoint, &image, &cancelled)).await
    }

    async fn copy(&self, part: Part, from: &Path, to: &Path) -> Result<(), Error> {
        let name = match part {
            Part::Disk => snapshot::OVERLAY,
            Part::Memory => place::OWN_BASE,
        };
        let (from, to) = (from.join(name), to.join(name));
        blocking(move || {
            let failed = |source| Error::io("copy a sandbox", source);
            let source = files::open_regular(&from, false).map_err(failed)?;
            let mut made = snapshot::Made::default();
            let copy = made.create(to).map_err(failed)?;
            wakeful_sys::copy::sparse_copy(&source, &copy).map_err(failed)?;
            made.keep();
            Ok(())
        })
        .await
    }

    async fn forget_engines(&self, needed: &[String]) -> Result<(), Error> {
        let (host, needed) = (self.host.clone(), needed.to_vec());
        blocking(move || {
            for engine in Pinned::all(&host.data_dir) {
                // Also what was made with the other accelerator: it may be back tomorrow.
                let keys = [Accelerator::Kvm, Accelerator::Tcg].map(|accel| host::key(&engine, accel, host.tsc_khz));
                if engine != host.engine && !keys.iter().any(|key| needed.contains(key)) {
                    let gone = engine.remove()?;
                    tracing::info!(engine = engine.name, gone, "engine not needed any more");
                }
            }
            Ok(())
        })
        .await
    }
}
