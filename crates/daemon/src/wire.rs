//! Chooses implementations and introduces them to each other.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use wakeful_driver::Driver;
use wakeful_driver_qemu::{Qemu, QemuConfig};
use wakeful_lifecycle::{Defaults, Layout, Lifecycle, Network, PoolOptions, Pressure, Registry, Runtime, RuntimeInfo};
use wakeful_names::Upstream;
use wakeful_store::SqliteStore;

use crate::config::{self, Config};
use crate::paths::{self, Lock, Paths};

/// How long all configured resolvers together may take.
const DNS: Duration = Duration::from_secs(5);

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
}

impl Wired {
    /// Closes the store and gives the directory up. Drain first.
    pub async fn close(self) {
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
        let network = network(config, &self.paths).await;
        let lifecycle = Lifecycle::start(wakeful_lifecycle::Config {
            layout: Layout::new(self.paths.data.clone(), self.paths.run.clone()),
            store: Arc::clone(&self.store) as Arc<_>,
            runtime: Arc::new(Runtimes::new(config, &self.paths)?),
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
        Ok(Wired { lifecycle, lock: self.lock, store: self.store })
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

/// The guests' network. A host that cannot have one runs sandboxes without.
async fn network(config: &Config, paths: &Paths) -> Option<Network> {
    let given = &config.network;
    let ranges = given.allow_private.iter().filter_map(|text| text.parse().ok());
    let options = wakeful_net::Options {
        run_dir: paths.run.join("net"),
        tag: network_tag(paths),
        pool: given.pool.parse().ok(),
        allow_private: ranges.collect(),
        ready: given.ready,
        kind: wakeful_net::Kind::Tap,
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

/// The runtimes of this host; QEMU is the one that there is.
struct Runtimes {
    qemu: QemuConfig,
    known: Mutex<Vec<RuntimeInfo>>,
}

impl Runtimes {
    fn new(config: &Config, paths: &Paths) -> Result<Self, Error> {
        match config.runtime {
            config::RuntimeChoice::Auto | config::RuntimeChoice::Qemu => {}
            other => return Err(Error::Unsupported(format!("runtime {}: only qemu is there yet", other.as_str()))),
        }
        Ok(Self { qemu: qemu_config(config, &paths.data, &paths.run), known: Mutex::default() })
    }
}

#[async_trait]
impl Runtime for Runtimes {
    async fn open(&self) -> Result<Arc<dyn Driver>, wakeful_driver::Error> {
        let opened = Qemu::open(self.qemu.clone()).await;
        let found = match &opened {
            Ok(qemu) => qemu.runtimes().to_vec(),
            Err(_) => Qemu::survey(&self.qemu).await,
        };
        *self.known.lock().expect("no panic while it is held") = found.into_iter().map(in_our_words).collect();
        Ok(Arc::new(opened?))
    }

    fn known(&self) -> Vec<RuntimeInfo> {
        self.known.lock().expect("no panic while it is held").clone()
    }
}

/// What the driver knows of this host, in the words of the API.
pub(crate) fn in_our_words(found: wakeful_driver_qemu::Runtime) -> RuntimeInfo {
    RuntimeInfo {
        name: found.name,
        accel: found.accel,
        available: found.available,
        reason: found.reason,
        fix: found.fix,
        version: found.version,
        probed_at: found.probed_at.and_then(|at| at.parse().ok()),
    }
}
