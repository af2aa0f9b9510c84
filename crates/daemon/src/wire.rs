//! Chooses implementations and introduces them to each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use wakeful_lifecycle::{Defaults, Layout, Lifecycle, Network, PoolOptions, Pressure, Registry, Runtime as _};
use wakeful_names::Upstream;
use wakeful_store::SqliteStore;

use crate::config::{self, Config, RuntimeChoice};
use crate::paths::{self, Lock, Paths};
use crate::runtimes::{GVISOR, Runtimes};

/// How long all configured resolvers together may take.
const DNS: Duration = Duration::from_secs(5);
/// How long a start waits to hear which runtime it will be. What was found before is there sooner; what has to be tried
/// first is not waited for.
const SOON: Duration = Duration::from_millis(500);
/// How long a try that is under way may take at the end.
const GRACE: Duration = Duration::from_secs(30);

/// Why the parts could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data directory cannot be had.
    #[error(transparent)]
    Paths(#[from] paths::Error),
    /// The database cannot be opened.
    #[error("could not open the database {path}")]
    Store {
        /// Its file.
        path: std::path::PathBuf,
        /// Why not.
        source: wakeful_store::Error,
    },
    /// What is committed could not be brought up again.
    #[error("could not recover")]
    Recover(#[from] wakeful_lifecycle::Error),
    /// A configuration that this version cannot do.
    #[error("{0}")]
    Unsupported(String),
}

/// A data directory, opened and brought up.
pub struct Wired {
    /// Everything that can be asked for.
    pub lifecycle: Lifecycle,
    /// Held for as long as the directory is ours.
    pub lock: Lock,
    store: Arc<SqliteStore>,
    tasks: TaskTracker,
}

impl Wired {
    /// Closes the store and gives the directory up. Drain first.
    pub async fn close(self) {
        self.tasks.close();
        if tokio::time::timeout(GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!("a runtime was still being tried");
        }
        self.store.close().await;
    }
}

/// A data directory that is ours, with its store open and nothing brought up yet.
pub struct Taken {
    /// Where it is.
    pub paths: Paths,
    lock: Lock,
    store: Arc<SqliteStore>,
}

/// Takes the data directory (`what` is told to whoever else wants it) and opens its store.
///
/// # Errors
/// If somebody else has the directory, or it cannot be read.
pub async fn take(config: &Config, what: &str) -> Result<Taken, Error> {
    if !config.database.is_empty() {
        return Err(Error::Unsupported(
            "database: only SQLite in the data directory is there yet; leave it empty".into(),
        ));
    }
    let paths = Paths::open(&config.data_dir)?;
    let lock = paths.lock(what)?;
    let file = paths.data.join("wakeful.db");
    let store = SqliteStore::open(&file).await.map_err(|source| Error::Store { path: file, source })?;
    Ok(Taken { paths, lock, store: Arc::new(store) })
}

impl Taken {
    /// Tenants and their keys, without anything that runs.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn registry(&self) -> Result<Arc<Registry>, Error> {
        Ok(Registry::open(Arc::clone(&self.store) as Arc<_>).await?)
    }

    /// What is committed, without anything that runs.
    pub(crate) fn store(&self) -> &Arc<SqliteStore> {
        &self.store
    }

    /// Finds running engines and finishes or undoes what was under way.
    ///
    /// # Errors
    /// If what is committed cannot be read.
    pub async fn bring_up(self, config: &Config) -> Result<Wired, Error> {
        if config.runtime == RuntimeChoice::Firecracker {
            return Err(Error::Unsupported("runtime firecracker: only qemu and gvisor are there yet".into()));
        }
        let (runtimes, tasks) = (Arc::new(Runtimes::new(config, &self.paths)), TaskTracker::new());
        let kind = card_kind(&runtimes, &tasks).await;
        let network = network(config, &self.paths, kind).await;
        let lifecycle = Lifecycle::start(wakeful_lifecycle::Config {
            layout: Layout::new(self.paths.data.clone(), self.paths.run.clone()),
            store: Arc::clone(&self.store) as Arc<_>,
            runtime: runtimes,
            defaults: defaults(config),
            network: network.clone(),
            builds: config::build_settings(&config.builds, &config.registries),
            clock: wakeful_lifecycle::Clock::default(),
            witness: None,
        })
        .await;
        let lifecycle = match lifecycle {
            Ok(lifecycle) => lifecycle,
            Err(error) => {
                // Slots that it has made ready meanwhile are nobody's.
                if let Some(network) = network {
                    network.slots.close().await;
                }
                return Err(error.into());
            }
        };
        Ok(Wired { lifecycle, lock: self.lock, store: self.store, tasks })
    }

    /// Closes the store and gives the directory up.
    pub async fn close(self) {
        self.store.close().await;
        // Nothing was brought up, so nothing of ours is in it; engines that outlived their daemon keep it.
        let _ = std::fs::remove_dir(&self.paths.run);
    }
}

/// [`take`] and [`Taken::bring_up`] in one.
///
/// # Errors
/// If somebody else has the directory, or it cannot be read.
pub async fn open(config: &Config, what: &str) -> Result<Wired, Error> {
    take(config, what).await?.bring_up(config).await
}

/// What tells this daemon's links and tables from another's.
pub(crate) fn network_tag(paths: &Paths) -> String {
    paths.run.file_name().map(|name| name.to_string_lossy().chars().take(5).collect()).unwrap_or_default()
}

/// The kind of slots that will be asked for first: that of the default runtime. A guess costs two idle slots.
async fn card_kind(runtimes: &Arc<Runtimes>, tasks: &TaskTracker) -> wakeful_net::Kind {
    let finding = Arc::clone(runtimes);
    let finding = tasks.spawn(async move { finding.default().await });
    match tokio::time::timeout(SOON, finding).await {
        Ok(Ok(Ok(name))) if name == GVISOR => wakeful_net::Kind::Veth,
        // It goes on, and whoever needs a runtime first waits for it and is told what was wrong.
        _ => wakeful_net::Kind::Tap,
    }
}

/// The guests' network. A host that cannot have one runs sandboxes without.
async fn network(config: &Config, paths: &Paths, kind: wakeful_net::Kind) -> Option<Network> {
    let given = &config.network;
    let ranges = given.allow_private.iter().filter_map(|text| text.parse().ok());
    let options = wakeful_net::Options {
        run_dir: paths.run.join("net"),
        tag: network_tag(paths),
        pool: given.pool.parse().ok(),
        allow_private: ranges.collect(),
        ready: given.ready,
        kind,
        limits: wakeful_net::Limits {
            bytes_per_second_up: given.up_bytes_per_second,
            bytes_per_second_down: given.down_bytes_per_second,
            connections: Some(given.connections),
        },
    };
    let servers: Vec<SocketAddr> =
        given.dns.iter().filter_map(|text| Some(SocketAddr::new(text.parse().ok()?, 53))).collect();
    let upstream = if servers.is_empty() { Upstream::system() } else { Upstream::new(servers, DNS) };
    match wakeful_net::Network::open(options).await {
        Ok(slots) => Some(Network { slots, upstream: Arc::new(upstream) }),
        Err(error) => {
            tracing::warn!(%error, "guests have no network");
            None
        }
    }
}

fn defaults(config: &Config) -> Defaults {
    let given = &config.defaults;
    Defaults {
        template_size: given.template_size.clone(),
        timeout: given.timeout.0,
        max_timeout: given.max_timeout.0,
        idle_timeout: given.idle_timeout.0,
        exec_timeout: given.exec_timeout.0,
        max_exec_timeout: given.max_exec_timeout.0,
        disk_mb: given.disk_mb,
        tombstone: given.tombstone.0,
        upload_bytes: config.limits.upload_bytes,
        limit_awake: config.limits.awake.map(|span| span.0),
        limit_sandboxes: config.limits.sandboxes.map(u64::from),
        limit_memory_mb: config.limits.memory_mb.or_else(|| host_memory_mb().map(|mb| mb * OVERCOMMIT)),
        limit_disk_mb: config.limits.disk_mb,
    }
}

/// What is made before it is asked for.
pub(crate) fn pool(config: &Config) -> PoolOptions {
    let given = &config.pool;
    PoolOptions {
        enabled: given.enabled,
        interval: given.replenish_interval.0,
        size: given.default_size.clone(),
        targets: given.sizes.clone(),
    }
}

/// When the host counts as short of memory.
pub(crate) fn pressure(config: &Config) -> Pressure {
    let given = &config.pressure;
    let some = |percent: u32| (percent > 0).then_some(percent);
    Pressure {
        available_percent: some(given.available_percent),
        stall_percent: some(given.stall_percent),
        idle: given.idle.0,
        interval: given.interval.0,
        meminfo: given.meminfo.clone(),
        stalls: given.stalls.clone(),
    }
}

/// Without a configured limit, guests together may be promised so many times what the host has: clones share their golden
/// memory, and most never touch most of theirs.
const OVERCOMMIT: u64 = 4;

fn host_memory_mb() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}
