//! gVisor sandboxes: a [`Driver`] for hosts without KVM, at nearly the speed of the host.
//!
//! An engine is a sentry (the guest's kernel, an unprivileged program) with a gofer that opens files for it, in a user
//! namespace with ids of its own. Its root is the template's directory under an overlay whose changes lie on a disk in a
//! file. A start is as fast as a clone would be, so golden snapshots are for what takes long to get ready inside.
//!
//! ```text
//!   lib        the driver                  engine     the trait's Engine
//!   launch     source -> engine            control    the sentry's ear: control socket, or command line
//!   boot       bundle and command line     channel    the byte stream to the agent
//!   world      the engine's own mounts     snapshot   images: account, check
//!   disk       a file system in a file     place      run directory: what was done to it
//!   layers     what a disk stands on       probe      does it work here?
//!   engines    kept copies of runsc        inspector  what is written and left, without an engine
//! ```
//!
//! It fails with [`Error`]: `Damaged` and `Unfit` mean that an image cannot be loaded and that nothing was spent by
//! trying; everything else is about this host.

pub mod boot;
mod channel;
pub mod control;
pub mod disk;
mod engine;
mod engines;
mod inspector;
mod launch;
pub mod layers;
mod place;
mod probe;
mod snapshot;
pub mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use wakeful_confine::cgroup::{Cgroups, Limits};
use wakeful_confine::{blocking, files, place as places};
use wakeful_driver::{
    Cancel, Capabilities, Card, CardKind, DiskKind, Driver, Engine, EngineInfo, Error, Image, Isolation, Machine,
    OutsideTcp, Part, Place, Repairs, Source,
};

use crate::engines::Pinned;

pub use crate::inspector::GvisorInspector;
pub use crate::probe::Availability;

/// The name of the runtime.
pub const RUNTIME: &str = "gvisor";
/// How guest code is run.
pub const ACCEL: &str = "systrap";

/// Where the driver keeps things, and what it uses.
#[derive(Clone, Debug)]
pub struct GvisorConfig {
    /// Kept engines and empty disks, under `engines` and `disks`.
    pub data_dir: PathBuf,
    /// Engines' run directories are below it; what a try has shown is kept in its parent.
    pub run_dir: PathBuf,
    /// The runsc to use; looked for if absent.
    pub binary: Option<PathBuf>,
    /// A sentry without any capability, which opens no file itself.
    pub hardened: bool,
}

impl GvisorConfig {
    /// The defaults, for these directories.
    pub fn new(data_dir: impl Into<PathBuf>, run_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: data_dir.into(), run_dir: run_dir.into(), binary: None, hardened: false }
    }
}

/// What all engines of one driver share.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) data_dir: PathBuf,
    /// What new engines are.
    pub(crate) engine: Pinned,
    pub(crate) hardened: bool,
    /// See [`world::World::cover`].
    pub(crate) cover: bool,
    pub(crate) cgroups: Arc<Cgroups>,
    /// What the processor can do, on which images depend.
    processor: String,
}

impl Host {
    /// What the images of this kept engine fit, as it would be run here and now.
    pub(crate) fn key(&self, engine: &Pinned) -> String {
        let mut hasher = blake3::Hasher::new();
        for part in [engine.digest.as_str(), ACCEL, &self.processor] {
            hasher.update(part.as_bytes()).update(&[0]);
        }
        hasher.update(&[u8::from(self.hardened)]);
        hasher.finalize().to_hex()[..16].to_owned()
    }
}

/// The processor's name and abilities, as the kernel tells them.
fn processor() -> std::io::Result<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo")?;
    let first = text.split("\n\n").next().unwrap_or_default();
    let lines = first.lines().filter(|line| line.starts_with("vendor_id") || line.starts_with("flags"));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// The runsc that engines are copied from: the configured one, else the one that [`fetch`] got, else an installed one.
///
/// # Errors
/// `Missing` if there is none, or none that is new enough.
pub fn find_runsc(data_dir: &Path, binary: Option<&Path>) -> Result<PathBuf, Error> {
    engines::find(data_dir, binary).map(|(path, _)| path)
}

/// Gets a runsc that is new enough into the data directory, without installing it: from the backports of this host's
/// release, else from the release itself. Quick if it is there.
///
/// # Errors
/// If it cannot be had.
pub async fn fetch(data_dir: &Path) -> Result<PathBuf, Error> {
    let (into, package) = (data_dir.join("gvisor"), ["runsc"]);
    if engines::fetched(data_dir).is_file() {
        return Ok(engines::fetched(data_dir));
    }
    let backports = match wakeful_debian::fetch_backports(&package, &into).await {
        Ok(()) if engines::fetched(data_dir).is_file() => return Ok(engines::fetched(data_dir)),
        Ok(()) => "the package has no runsc".to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::info!(reason = backports, "no runsc in backports, taking the release's own");
    wakeful_debian::fetch_unpacked(&package, &into).await.map_err(|error| Error::Io {
        doing: format!("fetch runsc, after backports had none ({backports})"),
        source: std::io::Error::other(error),
    })?;
    Ok(engines::fetched(data_dir))
}

/// What one engine may use.
#[must_use]
pub fn limits(machine: Machine) -> Limits {
    launch::limits(machine)
}

/// The driver.
#[derive(Debug)]
pub struct Gvisor {
    host: Arc<Host>,
    info: EngineInfo,
    capabilities: Capabilities,
}

impl Gvisor {
    /// Finds or copies the engine, and tries it if it is not known whether it works here. Quick when all is prepared.
    ///
    /// # Errors
    /// `Missing` if there is no runsc that is new enough, or it does not work on this host.
    pub async fn open(config: GvisorConfig) -> Result<Self, Error> {
        let mut host = prepare(&config).await?;
        let outcome = probe::outcome(&host, &config.run_dir).await?;
        if let Some(reason) = outcome.reason {
            return Err(Error::Missing { what: format!("a runsc that works on this host ({reason})") });
        }
        host.cover = outcome.cover;
        let host = Arc::new(host);
        let key = host.key(&host.engine);
        let info = EngineInfo {
            runtime: RUNTIME.to_owned(),
            accel: ACCEL.to_owned(),
            version: host.engine.version.clone(),
            golden_key: key.clone(),
            key,
        };
        let capabilities = Capabilities {
            isolation: Isolation::UserKernel,
            memory_checkpoint: true,
            cancel: Cancel::ResetsConnections,
            dirty_pages: false,
            disk: DiskKind::Directory,
            outside_tcp: OutsideTcp::Dropped,
            clock: Repairs::Host,
            entropy: Repairs::Host,
            fork: true,
            network: true,
            card: CardKind::Veth,
            golden: false,
            obstacles: true,
            io_limits: false,
            hardware_virtualization: false,
        };
        tracing::info!(engine = host.engine.name, key = info.key, "driver opened");
        Ok(Self { host, info, capabilities })
    }

    /// Whether it can be used here, and why not; tries it if need be.
    pub async fn survey(config: &GvisorConfig) -> Availability {
        let surveyed = async {
            let host = prepare(config).await?;
            Ok::<_, Error>((probe::outcome(&host, &config.run_dir).await?, host.engine.version))
        };
        match surveyed.await {
            Ok((outcome, version)) => outcome.availability(version),
            Err(error) => Availability {
                available: false,
                fix: matches!(error, Error::Missing { .. }).then(|| "wakeful setup --runtime gvisor".to_owned()),
                reason: Some(error.to_string()),
                version: None,
            },
        }
    }
}

/// All but the try.
async fn prepare(config: &GvisorConfig) -> Result<Host, Error> {
    let config = config.clone();
    blocking(move || {
        let failed = |source| Error::io("open the driver", source);
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Missing { what: "root, which mounts and user namespaces need".to_owned() });
        }
        files::make_dir(&config.run_dir, 0o700).map_err(failed)?;
        files::sweep(&config.data_dir.join("disks"));
        let engine = engines::pin(&config.data_dir, config.binary.as_deref())?;
        Ok(Host {
            data_dir: config.data_dir,
            engine,
            hardened: config.hardened,
            cover: false,
            cgroups: Arc::new(Cgroups::open()),
            processor: processor().map_err(failed)?,
        })
    })
    .await
}

#[async_trait]
impl Driver for Gvisor {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn engine(&self) -> &EngineInfo {
        &self.info
    }

    fn disk_file(&self) -> &'static str {
        disk::DISK
    }

    async fn launch(
        &self,
        place: &Place,
        machine: Machine,
        base: &Path,
        card: Card,
        source: Source<'_>,
    ) -> Result<Arc<dyn Engine>, Error> {
        Ok(Arc::new(launch::launch(&self.host, place, machine, base, card, source).await?))
    }

    async fn adopt(&self, place: &Place) -> Result<Option<Arc<dyn Engine>>, Error> {
        Ok(engine::adopt(&self.host, place).await?.map(|engine| Arc::new(engine) as Arc<dyn Engine>))
    }

    async fn reap(&self, place: &Place) -> Result<(), Error> {
        places::clear(&place.run, &self.host.cgroups, None).await
    }

    async fn compact(&self, _place: &Place, _checkpoint: &Path, image: &Image) -> Result<Image, Error> {
        // An image is whole: there is nothing that it is a difference to.
        Ok(image.clone())
    }

    async fn copy(&self, part: Part, from: &Path, to: &Path) -> Result<(), Error> {
        match part {
            Part::Disk => {
                let (from, to) = (from.to_owned(), to.to_owned());
                blocking(move || copy_disk(&from, &to)).await
            }
            Part::Memory => {
                Err(Error::Refused { doing: "copy a memory base", answer: "its images have none".to_owned() })
            }
        }
    }

    async fn worth_laying(&self, data: &Path, disk_mb: u32) -> Result<bool, Error> {
        let data = data.to_owned();
        let failed = |source| Error::io("look at a disk", source);
        blocking(move || layers::worthwhile(&data, disk_mb).map_err(failed)).await
    }

    async fn lay(&self, data: &Path, disk_mb: u32) -> Result<(), Error> {
        let (host, data) = (Arc::clone(&self.host), data.to_owned());
        blocking(move || layers::lay(&host.data_dir, &data, disk_mb)).await
    }

    async fn forget_engines(&self, needed: &[String]) -> Result<(), Error> {
        let (host, needed) = (Arc::clone(&self.host), needed.to_vec());
        blocking(move || {
            let kept = |engine: &Pinned| engine.name == host.engine.name || needed.contains(&host.key(engine));
            for engine in Pinned::all(&host.data_dir).into_iter().filter(|engine| !kept(engine)) {
                engine.remove().map_err(|source| Error::io("remove an engine that no image needs", source))?;
                tracing::info!(engine = engine.name, "engine forgotten");
            }
            Ok(())
        })
        .await
    }
}

/// A disk, and the layers that it stands on. Blocks.
pub(crate) fn copy_disk(from: &Path, to: &Path) -> Result<(), Error> {
    layers::link(from, to)
        .and_then(|()| disk::copy(&from.join(disk::DISK), &to.join(disk::DISK)))
        .map_err(|source| Error::io("copy a sandbox", source))
}

#[expect(
    clippy::disallowed_methods,
    reason = "on a thread that may block, where the kernel offers nothing to wait for"
)]
pub(crate) fn nap(time: Duration) {
    std::thread::sleep(time);
}
