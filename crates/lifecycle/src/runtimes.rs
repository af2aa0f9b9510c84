//! The runtimes of this host. Each is opened at its first use and stays open; one that cannot be opened is tried again by
//! whoever needs it next, and is in nobody else's way.
//!
//! ```text
//!   a new sandbox     what it asks for ─▶ else its template's ─▶ else the default
//!   everything else   the runtime in the row of the sandbox or snapshot: a disk or image fits no other
//!   a place           any driver can clear any place: of those that are open, whichever
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::OnceCell;
use wakeful_driver::{Capabilities, Driver};
use wakeful_model::{Sandbox, Template};

use crate::lifecycle::{Inner, error_chain};
use crate::{Error, Lifecycle};

/// What a request says that leaves the choice to the daemon.
pub(crate) const AUTO: &str = "auto";

/// What is known of a runtime on this host.
#[derive(Clone, Debug, Serialize)]
pub struct RuntimeInfo {
    /// Its name.
    pub name: String,
    /// How it runs guest code.
    pub accel: String,
    /// Whether it can be used.
    pub available: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The one command that would change that.
    pub fix: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// When that was found out.
    pub probed_at: Option<Timestamp>,
}

/// The engines of this host. Opening can take a while (a first probe), so it is not done before someone needs it.
#[async_trait::async_trait]
pub trait Runtime: Send + Sync {
    /// The driver of the runtime of this name ("qemu", "gvisor").
    async fn open(&self, runtime: &str) -> Result<Arc<dyn Driver>, wakeful_driver::Error>;

    /// The runtime of new sandboxes that name none: what `auto` comes to here.
    async fn default(&self) -> Result<String, wakeful_driver::Error>;

    /// What is known of all runtimes, without finding out more.
    fn known(&self) -> Vec<RuntimeInfo>;
}

/// Opened once; whoever comes meanwhile waits.
type Cell = Arc<OnceCell<Arc<dyn Driver>>>;

/// Those that have been opened since the start.
pub(crate) struct Drivers {
    runtime: Arc<dyn Runtime>,
    default: OnceCell<String>,
    open: Mutex<HashMap<String, Cell>>,
}

impl Drivers {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, default: OnceCell::new(), open: Mutex::default() }
    }

    fn cell(&self, name: &str) -> Cell {
        let mut open = self.open.lock().expect("no panic while it is held");
        Arc::clone(open.entry(name.to_owned()).or_default())
    }

    /// The driver of a runtime, opened at its first use.
    pub(crate) async fn named(&self, name: &str) -> Result<Arc<dyn Driver>, Error> {
        let cell = self.cell(name);
        let opened = cell.get_or_try_init(|| self.runtime.open(name)).await;
        let driver = opened.map_err(|error| {
            Error::RuntimeUnavailable(format!("{name} cannot be used here: {}", error_chain(&error)))
        })?;
        Ok(Arc::clone(driver))
    }

    /// The name of the runtime that those get who name none.
    pub(crate) async fn default(&self) -> Result<&str, Error> {
        let default = self.default.get_or_try_init(|| self.runtime.default()).await;
        default.map(String::as_str).map_err(|error| Error::RuntimeUnavailable(error_chain(&error)))
    }

    /// One that is open already.
    pub(crate) fn opened(&self, name: &str) -> Option<Arc<dyn Driver>> {
        let open = self.open.lock().expect("no panic while it is held");
        open.get(name).and_then(|cell| cell.get().cloned())
    }

    /// All that are open.
    pub(crate) fn all_opened(&self) -> Vec<Arc<dyn Driver>> {
        let open = self.open.lock().expect("no panic while it is held");
        open.values().filter_map(|cell| cell.get().cloned()).collect()
    }
}

impl Inner {
    /// The driver of new sandboxes that name none.
    pub(crate) async fn driver(&self) -> Result<Arc<dyn Driver>, Error> {
        self.drivers.named(self.drivers.default().await?).await
    }

    /// The driver of the sandbox's own runtime.
    pub(crate) async fn driver_of(&self, row: &Sandbox) -> Result<Arc<dyn Driver>, Error> {
        self.drivers.named(&row.runtime).await
    }

    /// The driver of what is wanted in so many words, else of what a template says, else the default.
    pub(crate) async fn driver_for(&self, wanted: Option<&str>, template: &Template) -> Result<Arc<dyn Driver>, Error> {
        let said = |name: &&str| *name != AUTO;
        match wanted.filter(said).or_else(|| template.asked.runtime.as_deref().filter(said)) {
            Some(name) => self.drivers.named(name).await,
            None => self.driver().await,
        }
    }

    /// Whoever can clear the place of a sandbox of this runtime. Nobody waits for one that is not open if another is.
    pub(crate) async fn reaper(&self, runtime: Option<&str>) -> Result<Arc<dyn Driver>, Error> {
        let at_hand = runtime.and_then(|name| self.drivers.opened(name));
        if let Some(driver) = at_hand.or_else(|| self.drivers.all_opened().pop()) {
            return Ok(driver);
        }
        if let Some(name) = runtime
            && let Ok(driver) = self.drivers.named(name).await
        {
            return Ok(driver);
        }
        self.driver().await
    }

    /// What the engines of a runtime can do here, if it has been opened.
    pub(crate) fn capabilities(&self, runtime: &str) -> Option<Capabilities> {
        let can = self.drivers.opened(runtime)?.capabilities().clone();
        Some(Capabilities { network: can.network && self.uplinks.any(), ..can })
    }
}

impl Lifecycle {
    /// What is known of all runtimes.
    #[must_use]
    pub fn runtimes(&self) -> Vec<RuntimeInfo> {
        self.inner.drivers.runtime.known()
    }

    /// What the runtimes can do that are open, by name.
    #[must_use]
    pub fn capabilities(&self) -> BTreeMap<String, Capabilities> {
        let open = self.inner.drivers.all_opened();
        let names = open.into_iter().map(|driver| driver.engine().runtime.clone());
        names.filter_map(|name| Some((name.clone(), self.inner.capabilities(&name)?))).collect()
    }

    /// The runtime that new sandboxes get, once it is open.
    #[must_use]
    pub fn selected_runtime(&self) -> Option<String> {
        let name = self.inner.drivers.default.get()?;
        self.inner.drivers.opened(name).map(|driver| driver.engine().runtime.clone())
    }
}
