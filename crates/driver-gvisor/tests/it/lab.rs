//! What the tests share: an engine and a template's directory, kept between runs; and for each test a host's network of its
//! own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rustix::fs::{FlockOperation, flock};
use wakeful_driver::{Card, Driver, Image, Inspector, Machine, Veth};
use wakeful_driver_contract::{Lab, RealLab, cache, run_dir};
use wakeful_driver_gvisor::{Gvisor, GvisorConfig, GvisorInspector, fetch};
use wakeful_driver_qemu::{QemuConfig, QemuInspector};
use wakeful_model::{EgressVerdict, Rules};
use wakeful_net::{Kind, Limits, Network, Options, Slot};

pub(crate) const MACHINE: Machine = Machine { cpu: 1, memory_mb: 256, disk_mb: 128 };
/// The network's names are in namespaces of the test's own: no two meet.
const TAG: &str = "7e571";

/// A driver, a base, and a network.
pub(crate) struct GvisorLab {
    pub(crate) gvisor: Arc<Gvisor>,
    pub(crate) config: GvisorConfig,
    base: PathBuf,
    network: Mutex<Option<Network>>,
    /// All that were taken; the last is that of the last launch.
    slots: Mutex<Vec<Slot>>,
    work: tempfile::TempDir,
}

pub(crate) async fn open() -> Arc<GvisorLab> {
    Arc::new(GvisorLab::new(false).await)
}

impl GvisorLab {
    /// Prepares what is missing; one process at a time does it, the others wait.
    pub(crate) async fn new(hardened: bool) -> Self {
        let data = cache("driver-gvisor");
        fs::create_dir_all(data.join("tmp")).expect("the cache can be made");
        let lock = File::create(data.join("lock")).expect("can be made");
        let lock = tokio::task::spawn_blocking(move || {
            flock(&lock, FlockOperation::LockExclusive).expect("can be locked");
            lock
        })
        .await
        .expect("the thread ends");
        let prepared = cache("data/gvisor/usr/bin/runsc");
        let binary = if prepared.exists() { prepared } else { fetch(&data).await.expect("runsc can be had") };
        let base = tokio::task::spawn_blocking(python).await.expect("the thread ends");
        let config = GvisorConfig { binary: Some(binary), hardened, ..GvisorConfig::new(&data, run_dir()) };
        let gvisor = Arc::new(Gvisor::open(config.clone()).await.expect("it works here"));
        drop(lock);
        let network = tokio::runtime::Handle::current();
        let options = Options {
            run_dir: config.run_dir.join("net"),
            tag: TAG.to_owned(),
            pool: None,
            allow_private: Vec::new(),
            ready: 0,
            kind: Kind::Veth,
            limits: Limits::default(),
        };
        let opening = std::thread::spawn(move || {
            wakeful_sys::net::leave_network().expect("tests run as root");
            network.block_on(Network::open(options))
        });
        let opened = tokio::task::spawn_blocking(|| opening.join()).await.expect("the thread ends");
        let network = opened.expect("no panic").expect("there is a network");
        let work = tempfile::tempdir_in(data.join("tmp")).expect("can be made");
        Self { gvisor, config, base, network: Mutex::new(Some(network)), slots: Mutex::default(), work }
    }

    /// The slot of the last launch.
    pub(crate) fn slot(&self) -> Slot {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).last().expect("something was launched").clone()
    }

    /// A new one.
    pub(crate) async fn take(&self) -> Slot {
        let network = self.network.lock().unwrap_or_else(PoisonError::into_inner).clone().expect("it is open");
        let rules = Rules { list: Vec::new(), otherwise: EgressVerdict::Allow };
        let slot = network.take("sandbox", Kind::Veth, &rules).await.expect("there are slots");
        slot.settled().await.expect("is put into force");
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot.clone());
        slot
    }
}

/// The directory of a template that has Python, as `make prepare` has built it.
fn python() -> PathBuf {
    let bases = cache("data/bases");
    let dirs = fs::read_dir(&bases).map(|entries| entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>());
    for dir in dirs.unwrap_or_default().into_iter().filter(|dir| dir.join("base.ext4").exists()) {
        let root = wakeful_images::ensure_tree(&dir).expect("can be made");
        if root.join("usr/bin/python3").exists() {
            return root;
        }
    }
    panic!("no template with python in {}: run `make prepare` first", bases.display());
}

#[async_trait]
impl Lab for GvisorLab {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.gvisor) as Arc<dyn Driver>
    }

    async fn reopened(&self) -> Arc<dyn Driver> {
        Arc::new(Gvisor::open(self.config.clone()).await.expect("all is prepared"))
    }

    fn machine(&self) -> Machine {
        MACHINE
    }

    fn base(&self) -> &Path {
        &self.base
    }

    fn golden(&self) -> Option<(&Path, &Image, [u8; 32])> {
        None
    }

    async fn card(&self) -> Card {
        let slot = self.take().await;
        Card::Veth(Veth { card: slot.card_namespace().expect("a veth has one"), gateway: slot.namespace_file() })
    }

    fn work(&self) -> &Path {
        self.work.path()
    }

    fn run(&self) -> &Path {
        &self.config.run_dir
    }
}

#[async_trait]
impl RealLab for GvisorLab {
    fn inspector(&self) -> Arc<dyn Inspector> {
        Arc::new(GvisorInspector::new(&self.config))
    }

    fn foreign(&self) -> Arc<dyn Inspector> {
        Arc::new(QemuInspector::new(&QemuConfig::new(&self.config.data_dir, &self.config.run_dir)))
    }

    fn grows_awake(&self) -> bool {
        let may = rustix::thread::capabilities(None).expect("can be asked").effective;
        may.contains(rustix::thread::CapabilitySet::SYS_RESOURCE)
    }

    fn processors(&self) -> u32 {
        MACHINE.cpu
    }
}

impl Drop for GvisorLab {
    fn drop(&mut self) {
        let slots = std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner));
        let network = self.network.lock().unwrap_or_else(PoisonError::into_inner).take();
        let run = self.config.run_dir.clone();
        let closed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("can be made");
            runtime.block_on(async {
                for slot in slots {
                    slot.release().await;
                }
                if let Some(network) = network {
                    network.close().await;
                }
            });
            fs::remove_dir_all(run)
        });
        let closed = closed.join();
        if !std::thread::panicking() {
            closed.expect("no panic").expect("nothing is left in it");
        }
    }
}
