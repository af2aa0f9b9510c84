//! The door: everything that a surface can ask for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use wakeful_model::{Cause, Sandbox, SandboxId, State};
use wakeful_store::{Filter, Store};

use crate::access::{Access, Use};
use crate::clock::Clock;
use crate::creates::Creates;
use crate::events::News;
use crate::golden::Goldens;
use crate::goldsmith::Goldsmith;
use crate::idempotency::{self, Turns};
use crate::metrics::Metrics;
use crate::network::{Network, Uplinks};
use crate::owner::{self, Ask, Handle, Reply};
use crate::pool::{Pool, Repeats};
use crate::registry::Registry;
use crate::runtimes::{Drivers, Runtime};
use crate::snapshots::Holds;
use crate::templates::{BuildSettings, Builds};
use crate::trees::Trees;
use crate::view::{Live, SandboxView};
use crate::witness::Witness;
use crate::{Error, Layout, NewSandbox, busy, files, ops, recover};

/// How long a caller waits for a sandbox in transition.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often tombstones are looked through.
const TOMBSTONE_SWEEP: Duration = Duration::from_secs(600);

/// How often it is written down which keys were used.
const KEY_USES: Duration = Duration::from_secs(60);

/// What a request that names nothing gets.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Size of templates that name none.
    pub template_size: String,
    /// Lease.
    pub timeout: Duration,
    /// Longest lease.
    pub max_timeout: Duration,
    /// Idleness before sleep.
    pub idle_timeout: Duration,
    /// Of a command.
    pub exec_timeout: Duration,
    /// Longest of a command.
    pub max_exec_timeout: Duration,
    /// Disk in MiB.
    pub disk_mb: u32,
    /// How long a destroyed sandbox can still be asked about.
    pub tombstone: Duration,
    /// Largest upload.
    pub upload_bytes: u64,
    /// How long a sandbox may run on end before it is suspended.
    pub limit_awake: Option<Duration>,
    /// Most sandboxes on this host.
    pub limit_sandboxes: Option<u64>,
    /// Most guest memory of running sandboxes on this host, in MiB.
    pub limit_memory_mb: Option<u64>,
    /// Most disk of all sandboxes on this host, in MiB.
    pub limit_disk_mb: Option<u64>,
}

/// What a [`Lifecycle`] is made of.
pub struct Config {
    /// Where files are.
    pub layout: Layout,
    /// The committed truth.
    pub store: Arc<dyn Store>,
    /// The engines.
    pub runtime: Arc<dyn Runtime>,
    /// What requests that name nothing get.
    pub defaults: Defaults,
    /// What gives guests a network; without it their cards end nowhere.
    pub network: Option<Network>,
    /// How templates are built.
    pub builds: BuildSettings,
    /// What time it is.
    pub clock: Clock,
    /// Who looks on; a test.
    pub witness: Option<Arc<dyn Witness>>,
}

pub(crate) struct Inner {
    pub(crate) layout: Layout,
    pub(crate) store: Arc<dyn Store>,
    registry: Arc<Registry>,
    pub(crate) defaults: Defaults,
    pub(crate) drivers: Drivers,
    pub(crate) trees: Trees,
    pub(crate) owners: Mutex<HashMap<SandboxId, Handle>>,
    pub(crate) goldens: Goldens,
    pub(crate) goldsmith: Goldsmith,
    pub(crate) creates: Creates,
    pub(crate) pool: Pool,
    pub(crate) holds: Holds,
    pub(crate) builds: Builds,
    pub(crate) turns: Turns,
    pub(crate) news: News,
    pub(crate) metrics: Metrics,
    pub(crate) uplinks: Uplinks,
    pub(crate) clock: Clock,
    /// Whoever adds to what this host has given away does so alone.
    pub(crate) admissions: tokio::sync::Mutex<()>,
    pub(crate) witness: Option<Arc<dyn Witness>>,
    /// Everything that outlives the call that began it.
    pub(crate) tasks: TaskTracker,
    /// Set when the daemon is about to end.
    pub(crate) draining: CancellationToken,
}

impl Inner {
    /// What time it is, to the microsecond as it is stored.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Ends whatever runs for a sandbox and gives back what it had on the host, save its files. Fine twice.
    pub(crate) async fn reap(&self, id: &SandboxId, runtime: Option<&str>) -> Result<(), Error> {
        self.reaper(runtime).await?.reap(&self.layout.place(id)).await?;
        // After the engine, whose card it is.
        self.uplinks.unplug(id).await;
        Ok(())
    }

    /// The same for one that has a row.
    pub(crate) async fn reap_row(&self, row: &Sandbox) -> Result<(), Error> {
        self.reap(&row.id, Some(&row.runtime)).await
    }

    pub(crate) fn owner(&self, id: &SandboxId) -> Option<Handle> {
        self.owners.lock().expect("no panic while it is held").get(id).cloned()
    }

    /// Whose sandbox it is, if it has an owner.
    pub(crate) fn live_tenant(&self, id: &SandboxId) -> Option<String> {
        self.owner(id).map(|handle| handle.live.borrow().row.tenant.clone())
    }

    /// What becomes of a sandbox that has an owner.
    pub(crate) fn watch(&self, id: &SandboxId) -> Option<watch::Receiver<Live>> {
        self.owner(id).map(|handle| handle.live)
    }

    /// The owner of a sandbox that is not destroyed, or its tombstone.
    pub(crate) async fn find(&self, tenant: &str, id: &SandboxId) -> Result<Result<Handle, Sandbox>, Error> {
        for _ in 0..100 {
            let found = match self.owner(id) {
                Some(handle) => Ok(handle),
                None => Err(self.store.sandbox(id).await?.ok_or_else(|| Error::SandboxNotFound(id.to_string()))?),
            };
            let (owned_by, state) = match &found {
                Ok(handle) => {
                    let live = handle.live.borrow();
                    (live.row.tenant.clone(), None)
                }
                Err(row) => (row.tenant.clone(), Some(row.state)),
            };
            if owned_by != tenant {
                return Err(Error::WrongTenant(id.clone()));
            }
            if state.is_none_or(|state| state == State::Destroyed) {
                return Ok(found);
            }
            // Its row has just been written and its owner is about to be.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(Error::Busy(id.clone()))
    }
}

/// The whole chain of an error, for a log line or a caller that may see it.
pub(crate) fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// Everything that a surface can ask for. Cheap to clone.
#[derive(Clone)]
pub struct Lifecycle {
    pub(crate) inner: Arc<Inner>,
}

impl Lifecycle {
    /// Reads what is committed, finds the engines that still run, finishes or undoes what was under way, and removes what
    /// belongs to nobody.
    ///
    /// # Errors
    /// If the store or the data directory cannot be read.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let registry = Registry::open(Arc::clone(&config.store)).await?;
        let inner = Arc::new(Inner {
            layout: config.layout,
            store: config.store,
            registry,
            defaults: config.defaults,
            drivers: Drivers::new(config.runtime),
            trees: Trees::default(),
            owners: Mutex::default(),
            goldens: Goldens::default(),
            goldsmith: Goldsmith::default(),
            creates: Creates::default(),
            pool: Pool::default(),
            holds: Holds::default(),
            builds: Builds::new(config.builds),
            turns: Turns::default(),
            news: News::default(),
            metrics: Metrics::default(),
            uplinks: Uplinks::new(config.network),
            clock: config.clock,
            admissions: tokio::sync::Mutex::default(),
            witness: config.witness,
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
        });
        recover::recover(&inner).await?;
        let sweeper = Arc::clone(&inner);
        inner.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = sweeper.draining.cancelled() => return,
                    () = tokio::time::sleep(TOMBSTONE_SWEEP) => {}
                }
                idempotency::sweep(&sweeper).await;
                if let Err(error) = sweeper.tidy().await {
                    warn!(error = error_chain(&error), "could not remove what builds and templates left");
                }
                let Ok(before) = sweeper.now().checked_sub(sweeper.defaults.tombstone) else { continue };
                if let Err(error) = sweeper.store.forget_destroyed(before).await {
                    warn!(error = error_chain(&error), "could not forget old tombstones");
                }
            }
        });
        let noting = Arc::clone(&inner);
        inner.tasks.spawn(async move {
            let mut ending = false;
            while !ending {
                tokio::select! {
                    () = noting.draining.cancelled() => ending = true,
                    () = tokio::time::sleep(KEY_USES) => {}
                }
                if let Err(error) = noting.registry.note_uses().await {
                    warn!(error = error_chain(&error), "could not note which keys were used");
                }
            }
            noting.registry.settle().await;
        });
        Ok(Self { inner })
    }

    /// Tenants and their keys.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.inner.registry
    }

    /// Opens the default runtime in the background, so that the first create need not wait for it, and then removes engines
    /// and golden snapshots that no sandbox needs any more.
    pub fn warm_up(&self) {
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.spawn(async move {
            match inner.driver().await {
                Ok(driver) => {
                    let engine = driver.engine();
                    info!(runtime = engine.runtime, accel = engine.accel, version = engine.version, "runtime is ready");
                    if let Err(error) = recover::forget_unused(&inner).await {
                        warn!(
                            error = error_chain(&error),
                            "could not forget engines and snapshots of earlier versions"
                        );
                    }
                }
                Err(error) => warn!(error = error_chain(&error), "no runtime is usable"),
            }
        });
    }

    /// Makes a sandbox; it is running and usable when this returns.
    ///
    /// # Errors
    /// See [`Error::code`].
    pub async fn create(&self, new: NewSandbox) -> Result<SandboxView, Error> {
        let id = self.id_for(&new, Repeats::Never).await;
        self.create_as(id, new).await
    }

    /// Makes a sandbox with this id, which must be a new one, or one of [`id_for`](Self::id_for).
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_as(&self, id: SandboxId, new: NewSandbox) -> Result<SandboxView, Error> {
        let admitted = async {
            self.refuse_if_draining()?;
            ops::create::admit(&self.inner, id.clone(), new).await
        };
        let (id, answer) = admitted.await.inspect_err(|error| {
            // A write that nobody can vouch for may have been made: the id is not to be another's then.
            if !matches!(error, Error::Store(_)) {
                self.inner.pool.refused(&id);
            }
        })?;
        answer.await.unwrap_or(Err(Error::ShuttingDown))?;
        self.view_of(&id).await
    }

    /// A sandbox as it is now. No activity.
    ///
    /// # Errors
    /// If there is none, or it is another tenant's.
    pub async fn sandbox(&self, tenant: &str, id: &SandboxId) -> Result<SandboxView, Error> {
        if let Ok(handle) = self.inner.find(tenant, id).await? {
            busy::look(&handle).await;
        }
        self.view_of(id).await
    }

    /// A page of sandboxes, newest first.
    ///
    /// # Errors
    /// If the cursor is not one of ours.
    pub async fn sandboxes(&self, filter: Filter) -> Result<(Vec<SandboxView>, Option<String>), Error> {
        let page = self.inner.store.sandboxes(&filter).await?;
        let lives: Vec<Live> = page
            .sandboxes
            .into_iter()
            .map(|row| match self.inner.owner(&row.id) {
                Some(handle) => handle.live.borrow().clone(),
                None => Live::at_rest(row),
            })
            .collect();
        let inner = Arc::clone(&self.inner);
        let views = files::blocking("look at files", move || {
            Ok(lives.into_iter().map(|live| live.into_view(&inner)).collect())
        })
        .await?;
        Ok((views, page.next_cursor))
    }

    /// Ends a sandbox; nothing is left of it when this returns. From every state, and twice.
    ///
    /// # Errors
    /// If there never was one of this id.
    pub async fn destroy(&self, tenant: &str, id: &SandboxId, cause: Cause) -> Result<(), Error> {
        match self.inner.find(tenant, id).await? {
            Err(_tombstone) => Ok(()),
            Ok(_) => self.ask(id, Ask::Destroy { cause }).await.map(drop),
        }
    }

    /// Gives an ephemeral sandbox a new lease, counted from now.
    ///
    /// # Errors
    /// If it has no lease, or is not running.
    pub async fn keepalive(
        &self,
        tenant: &str,
        id: &SandboxId,
        timeout: Option<Duration>,
    ) -> Result<SandboxView, Error> {
        if let Err(row) = self.inner.find(tenant, id).await? {
            return Err(Error::Refused { id: row.id, refusal: wakeful_model::Refusal::NotRunning });
        }
        self.ask(id, Ask::Keepalive { timeout }).await?;
        self.view_of(id).await
    }

    /// Puts a sandbox to sleep. With `wait` it sleeps when this returns, else the suspend has begun.
    ///
    /// # Errors
    /// `DiskFull` if its image does not fit: it runs on.
    pub async fn suspend(&self, tenant: &str, id: &SandboxId, memory: bool, wait: bool) -> Result<SandboxView, Error> {
        self.refuse_if_draining()?;
        self.find_live(tenant, id).await?;
        let asking = self.ask(id, Ask::Suspend { memory });
        if wait {
            asking.await?;
        } else {
            // Refusals come at once; only the work itself is not waited for.
            tokio::select! {
                result = asking => drop(result?),
                () = self.begun(id) => {}
            }
        }
        self.view_of(id).await
    }

    /// Wakes a sandbox in so many words.
    ///
    /// # Errors
    /// Without `join`, a conflict if somebody else is waking it.
    pub async fn wake(&self, tenant: &str, id: &SandboxId, join: bool) -> Result<SandboxView, Error> {
        self.refuse_if_draining()?;
        match self.inner.find(tenant, id).await? {
            Err(row) => {
                return Err(Error::Refused { id: row.id, refusal: wakeful_model::Refusal::NotWakeable });
            }
            Ok(_) => self.ask(id, Ask::Wake { join }).await?,
        };
        self.view_of(id).await
    }

    /// Access to a running guest; wakes it and waits for what is under way. Hold it for as long as the guest is used.
    ///
    /// # Errors
    /// If it cannot be had: destroyed, failed, asleep with `auto_resume` off, or busy for too long.
    pub async fn access(&self, tenant: &str, id: &SandboxId, why: Use) -> Result<Access, Error> {
        self.refuse_if_draining()?;
        self.find_live(tenant, id).await?;
        match tokio::time::timeout(PATIENCE, self.ask(id, Ask::Access { why })).await {
            Err(_) => Err(Error::Busy(id.clone())),
            Ok(Ok(Reply::Access(access))) => Ok(*access),
            Ok(Ok(Reply::Done)) => Err(Error::Internal("access was answered without a guest".into())),
            Ok(Err(error)) => Err(error),
        }
    }

    /// What requests that name nothing get.
    #[must_use]
    pub fn defaults(&self) -> &Defaults {
        &self.inner.defaults
    }

    /// Whether the daemon is about to end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.inner.draining.is_cancelled()
    }

    /// Refuses new work, lets operations reach their end, and leaves running sandboxes running. Returns `false` if some
    /// were still at it after `grace`.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.inner.draining.cancel();
        self.inner.tasks.close();
        let in_time = tokio::time::timeout(grace, self.inner.tasks.wait()).await.is_ok();
        self.inner.uplinks.close().await;
        in_time
    }

    pub(crate) fn refuse_if_draining(&self) -> Result<(), Error> {
        if self.is_draining() { Err(Error::ShuttingDown) } else { Ok(()) }
    }

    pub(crate) async fn find_live(&self, tenant: &str, id: &SandboxId) -> Result<(), Error> {
        match self.inner.find(tenant, id).await? {
            Ok(_) => Ok(()),
            Err(row) => Err(Error::Refused { id: row.id, refusal: wakeful_model::Refusal::Destroyed }),
        }
    }

    /// Puts an ask before the owner and waits for its answer. The work goes on if the caller hangs up.
    pub(crate) async fn ask(&self, id: &SandboxId, ask: Ask) -> Result<Reply, Error> {
        // An owner ends when its sandbox is destroyed, also with asks before it; to some that is the answer they want.
        let gone = if matches!(ask, Ask::Destroy { .. }) {
            Ok(Reply::Done)
        } else {
            Err(Error::Refused { id: id.clone(), refusal: wakeful_model::Refusal::Destroyed })
        };
        let Some(handle) = self.inner.owner(id) else { return gone };
        let (reply, answer) = oneshot::channel();
        if handle.asks.send((ask, reply)).await.is_err() {
            return if self.is_draining() { Err(Error::ShuttingDown) } else { gone };
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) if self.is_draining() => Err(Error::ShuttingDown),
            Err(_) => gone,
        }
    }

    /// Resolves when the sandbox is in transition or no longer running.
    async fn begun(&self, id: &SandboxId) {
        if let Some(mut handle) = self.inner.owner(id) {
            let _ =
                handle.live.wait_for(|live| live.row.transition.is_some() || live.row.state != State::Running).await;
        }
    }

    async fn view_of(&self, id: &SandboxId) -> Result<SandboxView, Error> {
        let live = match self.inner.owner(id) {
            Some(handle) => handle.live.borrow().clone(),
            None => Live::at_rest(
                self.inner.store.sandbox(id).await?.ok_or_else(|| Error::SandboxNotFound(id.to_string()))?,
            ),
        };
        let inner = Arc::clone(&self.inner);
        files::blocking("look at files", move || Ok(live.into_view(&inner))).await
    }
}

/// Starts the owner of a row.
pub(crate) fn own(inner: &Arc<Inner>, start: owner::Start) {
    let id = start.row.id.clone();
    // Held over the spawn: an owner that ends at once must find itself here, to take itself out again.
    let mut owners = inner.owners.lock().expect("no panic while it is held");
    let handle = owner::spawn(inner, start);
    owners.insert(id, handle);
}
