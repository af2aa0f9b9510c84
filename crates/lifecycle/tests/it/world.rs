//! A machine with simulated engines, a data directory, a clock that stands still, and daemons that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use wakeful_driver::Driver;
use wakeful_driver_sim::{Host, SimDriver};
use wakeful_lifecycle::{Clock, Config, Defaults, Layout, Lifecycle, NewSandbox, RuntimeInfo};
use wakeful_model::{Egress, Mode, SandboxId, Template, TemplateId, TemplateSource, TemplateStatus};
use wakeful_store::{SqliteStore, Store};

use crate::coverage::Seen;
use crate::model::{IDLE, MOST_AWAKE, New};

pub(crate) const TENANT: &str = "default";
/// When every world begins.
const BEGINNING: u64 = 1_000_000;
/// Longer than anything here takes, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runtimes `sim`, which new sandboxes get, and `plain`; save those that are gone.
struct SimRuntimes {
    host: Arc<Host>,
    gone: Gone,
}

pub(crate) type Gone = Arc<Mutex<BTreeSet<&'static str>>>;

#[async_trait::async_trait]
impl wakeful_lifecycle::Runtime for SimRuntimes {
    async fn open(&self, runtime: &str) -> Result<Arc<dyn Driver>, wakeful_driver::Error> {
        let host = Arc::clone(&self.host);
        let gone = self.gone.lock().expect("no panic while it is held").contains(runtime);
        match runtime {
            "sim" if !gone => Ok(Arc::new(SimDriver::new(host))),
            "plain" if !gone => Ok(Arc::new(SimDriver::plain(host, runtime))),
            _ => Err(wakeful_driver::Error::Missing { what: "its engine".into() }),
        }
    }

    async fn default(&self) -> Result<String, wakeful_driver::Error> {
        Ok("sim".into())
    }

    fn known(&self) -> Vec<RuntimeInfo> {
        Vec::new()
    }
}

/// One life of the daemon. Its tasks run only while somebody waits in `runtime`, and end with it wherever they are.
pub(crate) struct Daemon {
    pub(crate) runtime: Runtime,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) store: Arc<SqliteStore>,
}

pub(crate) struct World {
    dir: TempDir,
    /// Engines and agents run here, whatever becomes of daemons.
    outside: Runtime,
    pub(crate) host: Arc<Host>,
    /// Runtimes that cannot be opened.
    pub(crate) gone: Gone,
    pub(crate) clock: Clock,
    pub(crate) now: u64,
    pub(crate) seen: Arc<Seen>,
    memory_mb: Option<u64>,
    daemon: Option<Daemon>,
}

pub(crate) fn at(second: u64) -> Timestamp {
    Timestamp::from_second(i64::try_from(second).expect("a small number")).expect("a small number")
}

impl World {
    pub(crate) fn new(seen: &Arc<Seen>) -> Self {
        Self::limited(seen, None)
    }

    /// One whose sandboxes may have only so much memory.
    pub(crate) fn limited(seen: &Arc<Seen>, memory_mb: Option<u64>) -> Self {
        // In memory where there is such a place: a sync that costs nothing lets thousands of lives pass in a minute.
        let shared_memory = std::path::Path::new("/dev/shm");
        let dir = if shared_memory.is_dir() { TempDir::new_in(shared_memory) } else { TempDir::new() };
        let dir = dir.expect("a temporary directory");
        let outside = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let outside = outside.expect("a runtime");
        let host = Host::new(outside.handle().clone());
        let clock = Clock::by_hand(at(BEGINNING));
        let (gone, seen) = (Gone::default(), Arc::clone(seen));
        let mut world = Self { dir, outside, host, gone, clock, now: BEGINNING, seen, memory_mb, daemon: None };
        world.start();
        let daemon = world.daemon();
        daemon.runtime.block_on(async {
            assert!(daemon.store.insert_template(&template()).await.expect("a template"));
            // The golden snapshot is there before the first create, so that none passes its points.
            daemon.lifecycle.prepare_template(TENANT, "sim").await.expect("prepared");
        });
        world
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("one runs between two crashes")
    }

    pub(crate) fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (lifecycle, store) = runtime.block_on(async {
            let store = Arc::new(SqliteStore::open(&self.dir.path().join("wakeful.db")).await.expect("a database"));
            // A write: what the last daemon had given to the database is done or undone once this is.
            store.touch_sandbox(&SandboxId::random(), at(0)).await.expect("touched");
            let config = Config {
                layout: Layout::new(self.dir.path().join("data"), self.run_dir()),
                store: Arc::clone(&store) as Arc<_>,
                runtime: Arc::new(SimRuntimes { host: Arc::clone(&self.host), gone: Arc::clone(&self.gone) }),
                defaults: Defaults { limit_memory_mb: self.memory_mb, ..defaults() },
                network: None,
                builds: wakeful_lifecycle::BuildSettings::default(),
                clock: self.clock.clone(),
                witness: Some(Arc::clone(&self.seen) as Arc<_>),
            };
            (Lifecycle::start(config).await.expect("started"), store)
        });
        self.daemon = Some(Daemon { runtime, lifecycle, store });
    }

    /// As by a power cut: whatever the daemon is at, it does not go on.
    pub(crate) fn crash(&mut self) {
        let Some(Daemon { runtime, lifecycle, store }) = self.daemon.take() else { return };
        let _outside = self.outside.enter();
        drop(runtime);
        drop(lifecycle);
        drop(store);
    }

    /// Makes a sandbox for a test that does without the model.
    pub(crate) fn create(&self, new: New) -> SandboxId {
        let (daemon, id) = (self.daemon(), SandboxId::random());
        let made = daemon.runtime.block_on(daemon.lifecycle.create_as(id.clone(), request(new)));
        made.expect("created");
        id
    }

    pub(crate) fn advance(&mut self, seconds: u64) {
        self.now += seconds;
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Where the template's base would lie.
    pub(crate) fn base_dir(&self) -> PathBuf {
        self.dir.path().join("data").join("bases").join("0".repeat(64))
    }

    pub(crate) fn golden_dir(&self) -> PathBuf {
        self.dir.path().join("data").join("golden")
    }

    pub(crate) fn sandboxes_dir(&self) -> PathBuf {
        self.dir.path().join("data").join("sandboxes")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.crash();
    }
}

pub(crate) fn request(new: New) -> NewSandbox {
    NewSandbox {
        tenant: TENANT.into(),
        template: "sim".into(),
        mode: if new.persistent { Mode::Persistent } else { Mode::Ephemeral },
        timeout: (!new.persistent).then(|| Duration::from_secs(new.lease)),
        idle_timeout: new.persistent.then(|| Duration::from_secs(IDLE)),
        hard_ttl: new.hard_ttl.map(Duration::from_secs),
        size: None,
        cpu: None,
        memory_mb: None,
        disk_mb: None,
        env: BTreeMap::new(),
        metadata: BTreeMap::new(),
        egress: None,
        io: None,
        auto_resume: new.auto_resume,
        runtime: None,
    }
}

fn defaults() -> Defaults {
    Defaults {
        template_size: "xs".into(),
        timeout: Duration::from_secs(300),
        max_timeout: Duration::from_secs(86_400),
        idle_timeout: Duration::from_secs(IDLE),
        exec_timeout: Duration::from_secs(30),
        max_exec_timeout: Duration::from_secs(60),
        disk_mb: 2048,
        tombstone: Duration::from_secs(86_400),
        upload_bytes: 1 << 20,
        limit_awake: Some(Duration::from_secs(MOST_AWAKE)),
        limit_sandboxes: None,
        limit_memory_mb: None,
        limit_disk_mb: None,
    }
}

fn template() -> Template {
    Template {
        id: TemplateId::random(),
        version: 1,
        tenant: TENANT.into(),
        name: "sim".into(),
        status: TemplateStatus::Ready,
        build_error: None,
        source: TemplateSource::Debian { suite: "stable".into(), packages: Vec::new() },
        tags: Vec::new(),
        description: String::new(),
        asked: wakeful_model::Asked::default(),
        user: "user".into(),
        workdir: "/".into(),
        env: BTreeMap::new(),
        default_size: wakeful_model::SIZES[0].name.into(),
        egress: Egress::default(),
        disk_mb: None,
        io: wakeful_model::IoLimits::default(),
        entry: None,
        base: Some("0".repeat(64)),
        disk_bytes: 0,
        created_at: at(BEGINNING),
        built_at: None,
    }
}
