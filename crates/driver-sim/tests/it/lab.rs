//! A simulated host for each test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use wakeful_driver::{Card, Driver, Image, Machine, Place, Source};
use wakeful_driver_contract::{Count, Lab, Sandbox};
use wakeful_driver_sim::{Host, SimDriver};
use wakeful_guest_client::Guest;

const MACHINE: Machine = Machine { cpu: 1, memory_mb: 128, disk_mb: 64 };
const SECRET: [u8; 32] = [7; 32];
const SOON: Duration = Duration::from_secs(10);

type Open = fn(Arc<Host>) -> SimDriver;

pub(crate) struct SimLab {
    host: Arc<Host>,
    open: Open,
    driver: Arc<SimDriver>,
    golden: Option<(PathBuf, Image)>,
    base: PathBuf,
    work: tempfile::TempDir,
    run: tempfile::TempDir,
}

/// As microVMs are.
pub(crate) async fn open() -> Arc<SimLab> {
    Arc::new(SimLab::new(SimDriver::new).await)
}

/// Without golden snapshots, and whatever else can differ.
pub(crate) async fn open_plain() -> Arc<SimLab> {
    Arc::new(SimLab::new(|host| SimDriver::plain(host, "plain")).await)
}

impl SimLab {
    async fn new(open: Open) -> Self {
        let host = Host::new(Handle::current());
        let driver = Arc::new(open(Arc::clone(&host)));
        let [work, run] = [(); 2].map(|()| tempfile::tempdir().expect("can be made"));
        let base = work.path().join("base");
        let golden = if driver.capabilities().golden {
            let dir = work.path().join("golden-snapshot");
            fs::create_dir(&dir).expect("can be made");
            let place = Place { name: "golden".into(), run: run.path().join("golden-snapshot"), data: dir.clone() };
            let source = Source::Golden { secret: SECRET };
            let engine = driver.launch(&place, MACHINE, &base, Card::Unplugged, source).await.expect("it boots");
            let stream = engine.connect().await.expect("it listens");
            Guest::connect(stream, &SECRET, SOON).await.expect("it answers").close().await;
            engine.disconnected().await.expect("it sees that");
            engine.pause().await.expect("it stops");
            let image = engine.save(&dir).await.expect("can be saved");
            engine.kill().await.expect("can be killed");
            driver.reap(&place).await.expect("can be reaped");
            Some((dir, image))
        } else {
            None
        };
        Self { host, open, driver, golden, base, work, run }
    }
}

#[async_trait]
impl Lab for SimLab {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.driver) as Arc<dyn Driver>
    }

    async fn reopened(&self) -> Arc<dyn Driver> {
        Arc::new((self.open)(Arc::clone(&self.host)))
    }

    fn machine(&self) -> Machine {
        MACHINE
    }

    fn base(&self) -> &Path {
        &self.base
    }

    fn golden(&self) -> Option<(&Path, &Image, [u8; 32])> {
        self.golden.as_ref().map(|(dir, image)| (dir.as_path(), image, SECRET))
    }

    async fn card(&self) -> Card {
        Card::Unplugged
    }

    fn work(&self) -> &Path {
        self.work.path()
    }

    fn run(&self) -> &Path {
        self.run.path()
    }

    async fn begin_count(&self, sandbox: &Sandbox, _guest: &Guest) {
        assert!(self.host.tick(&sandbox.place.name), "it runs");
    }

    async fn count(&self, sandbox: &Sandbox, _guest: &Guest) -> Count {
        assert!(self.host.tick(&sandbox.place.name), "it runs");
        let memory = self.host.memory(&sandbox.place.name).expect("it lives");
        Count { token: memory.born.to_string(), number: memory.ticks }
    }
}

impl Drop for SimLab {
    fn drop(&mut self) {
        let mut wrongs = self.host.wrongs();
        // What a promise does on purpose.
        wrongs.retain(|wrong| !wrong.ends_with("was saved while it ran"));
        if !std::thread::panicking() {
            assert!(wrongs.is_empty(), "{wrongs:?}");
        }
    }
}
