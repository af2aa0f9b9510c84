//! Launching, finding and removing engines.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use wakeful_driver::{
    Cancel, Capabilities, Card, CardKind, DiskKind, Driver, Engine, EngineInfo, Error, Exit, Image, Isolation, Machine,
    MemoryBase, OutsideTcp, Part, Place, Repairs, Source,
};

use crate::engine::SimEngine;
use crate::host::{Host, Point};
use crate::process::{Life, Memory, Process};
use crate::snapshot;

/// A daemon's way to the engines of a [`Host`].
pub struct SimDriver {
    host: Arc<Host>,
    capabilities: Capabilities,
    info: EngineInfo,
    disk: &'static str,
}

impl SimDriver {
    /// A new one, as every start of a daemon has: runtime `sim`.
    #[must_use]
    pub fn new(host: Arc<Host>) -> Self {
        let capabilities = Capabilities {
            isolation: Isolation::Microvm,
            memory_checkpoint: true,
            cancel: Cancel::Always,
            dirty_pages: true,
            disk: DiskKind::Block,
            outside_tcp: OutsideTcp::Reset,
            clock: Repairs::Agent,
            entropy: Repairs::Agent,
            fork: false,
            network: false,
            card: CardKind::Tap,
            golden: true,
            obstacles: false,
            io_limits: true,
            hardware_virtualization: false,
        };
        let info = EngineInfo {
            runtime: "sim".into(),
            accel: "none".into(),
            version: "1".into(),
            key: "sim-1".into(),
            golden_key: "sim-1".into(),
        };
        Self { host, capabilities, info, disk: "overlay.ext4" }
    }

    /// Another runtime on the same host, which differs in all that a lifecycle asks about: no golden snapshots, directories
    /// instead of images, no limits of disks, and guests that can hold what no image keeps.
    #[must_use]
    pub fn plain(host: Arc<Host>, name: &str) -> Self {
        let usual = Self::new(host);
        let capabilities = Capabilities {
            isolation: Isolation::UserKernel,
            cancel: Cancel::ResetsConnections,
            dirty_pages: false,
            disk: DiskKind::Directory,
            outside_tcp: OutsideTcp::Dropped,
            card: CardKind::Veth,
            golden: false,
            obstacles: true,
            io_limits: false,
            ..usual.capabilities
        };
        let key = format!("{name}-1");
        let info = EngineInfo { runtime: name.to_owned(), key: key.clone(), golden_key: key, ..usual.info };
        Self { capabilities, info, disk: "disk.ext4", ..usual }
    }

    fn engine_of(&self, process: Arc<Process>) -> Arc<dyn Engine> {
        Arc::new(SimEngine { host: Arc::clone(&self.host), process, key: self.info.key.clone() })
    }

    fn prepare(&self, place: &Place, machine: Machine, source: &Source<'_>) -> Result<Process, Error> {
        let fresh = |secret| Memory { born: self.host.number(), ticks: 0, secret };
        let mut disk_mb = machine.disk_mb;
        let (base, memory, life, loaded) = match source {
            Source::Golden { secret } | Source::First { secret } => {
                make_disk(&place.data.join(self.disk))?;
                (None, fresh(*secret), Life::Running, None)
            }
            Source::Boot { secret } => {
                find_disk(&place.data.join(self.disk))?;
                (None, fresh(*secret), Life::Running, None)
            }
            Source::Clone { golden, image } => {
                let saved = snapshot::read(golden, &place.data, &self.info.key, image)?;
                make_disk(&place.data.join(self.disk))?;
                (Some(MemoryBase::Golden(golden.to_path_buf())), fresh(saved.memory.secret), Life::Stopped, None)
            }
            Source::Wake { checkpoint, image } => {
                let saved = snapshot::read(checkpoint, &place.data, &self.info.key, image)?;
                find_disk(&place.data.join(self.disk))?;
                if self.host.is_spoiled(saved.number) {
                    self.host.wrong(format!("{} was loaded from memory that has run on", place.name));
                }
                disk_mb = saved.disk_mb;
                (image.base.clone(), saved.memory, Life::Stopped, Some(saved.number))
            }
        };
        Ok(Process::new(&self.host, place.name.clone(), base, memory, life, loaded, disk_mb))
    }
}

fn make_disk(disk: &Path) -> Result<(), Error> {
    std::fs::write(disk, "disk").map_err(|source| Error::io("make a disk", source))
}

fn find_disk(disk: &Path) -> Result<(), Error> {
    std::fs::metadata(disk).map(drop).map_err(|source| Error::io("find the disk", source))
}

fn killed() -> Exit {
    Exit { status: Some("signal: 9".into()), output: String::new(), out_of_memory: false }
}

fn remove_run(run: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(run) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove a run directory", error)),
        _ => Ok(()),
    }
}

#[async_trait]
impl Driver for SimDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn engine(&self) -> &EngineInfo {
        &self.info
    }

    fn disk_file(&self) -> &'static str {
        self.disk
    }

    async fn launch(
        &self,
        place: &Place,
        machine: Machine,
        base: &Path,
        _card: Card,
        source: Source<'_>,
    ) -> Result<Arc<dyn Engine>, Error> {
        let doing = "launch";
        self.host.pass(Point::Launch, doing).await?;
        if matches!(source, Source::Golden { .. } | Source::Clone { .. }) && !self.capabilities.golden {
            self.host.wrong(format!("{} was to be a golden snapshot, or one's clone", place.name));
        }
        self.host.note_base(&place.name, base);
        let process = Arc::new(self.prepare(place, machine, &source)?);
        std::fs::create_dir_all(&place.run).map_err(|source| Error::io("make a run directory", source))?;
        self.host.add(&place.run, Arc::clone(&process));
        let told = tokio::select! {
            biased;
            exit = process.ended() => Err(Error::Ended { doing, output: exit.output }),
            passed = self.host.pass(Point::Launched, doing) => passed,
        };
        if let Err(error) = told {
            process.end(killed());
            self.host.remove(&place.run);
            remove_run(&place.run)?;
            return Err(error);
        }
        Ok(self.engine_of(process))
    }

    async fn adopt(&self, place: &Place) -> Result<Option<Arc<dyn Engine>>, Error> {
        let found = self.host.at(&place.run).filter(|process| process.exit().is_none());
        Ok(found.map(|process| self.engine_of(process)))
    }

    async fn reap(&self, place: &Place) -> Result<(), Error> {
        self.host.pass(Point::Reap, "reap").await?;
        if let Some(process) = self.host.remove(&place.run) {
            process.end(killed());
        }
        remove_run(&place.run)
    }

    async fn compact(&self, place: &Place, checkpoint: &Path, image: &Image) -> Result<Image, Error> {
        snapshot::compact(checkpoint, &place.data, image)
    }

    async fn copy(&self, part: Part, from: &Path, to: &Path) -> Result<(), Error> {
        let name = match part {
            Part::Disk => self.disk,
            Part::Memory => snapshot::BASE,
        };
        std::fs::copy(from.join(name), to.join(name)).map(drop).map_err(|source| Error::io("copy", source))
    }

    async fn forget_engines(&self, _needed: &[String]) -> Result<(), Error> {
        Ok(())
    }
}
