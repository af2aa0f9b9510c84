//! A machine that a build works on: booted from a disk, used, and gone.
//!
//! It is no sandbox: no row names it, so that whatever a crash leaves of it (engine, directory, network slot) is removed at
//! the next start, and the build begins again from the last step that it kept. Dropping it ends it, however the build ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::error;
use wakeful_driver::{Driver, Engine, Machine, Part, Source};
use wakeful_guest_client::Guest;
use wakeful_model::{Egress, SandboxId};

use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::{Inner, error_chain};
use crate::{Error, files};

/// A boot under emulation on a busy host.
const BOOT: Duration = Duration::from_secs(120);
/// A step may have written a lot.
const QUIESCE: Duration = Duration::from_secs(120);
const GOES_ON: Duration = Duration::from_secs(60);

/// What a machine boots from: a base, and what was written over it.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// Whose it is: it fits no other runtime.
    pub(super) runtime: String,
    /// Digest of the base.
    pub(super) base: String,
    /// The directory of what was written; nothing yet, if none.
    pub(super) layer: Option<PathBuf>,
    /// Its size.
    pub(super) disk_mb: u32,
}

/// The machine.
pub(super) struct Workbench {
    driver: Arc<dyn Driver>,
    engine: Arc<dyn Engine>,
    guest: Option<Guest>,
    secret: [u8; 32],
    stay: Stay,
}

/// What it has of the host, given back when this is dropped.
struct Stay {
    inner: Arc<Inner>,
    id: SandboxId,
    ended: bool,
}

impl Stay {
    async fn end(mut self) {
        self.ended = true;
        clear(&self.inner, &self.id).await;
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        if !self.ended {
            let (inner, id) = (Arc::clone(&self.inner), self.id.clone());
            self.inner.tasks.spawn(async move { clear(&inner, &id).await });
        }
    }
}

async fn clear(inner: &Inner, id: &SandboxId) {
    if let Err(error) = inner.clear_place(id, None).await {
        error!(
            machine = id.bare(),
            error = error_chain(&error),
            "could not end a build's machine, the next start will"
        );
    }
}

impl Workbench {
    /// Boots one.
    pub(super) async fn boot(inner: &Arc<Inner>, disk: &Disk) -> Result<Self, Error> {
        let driver = inner.drivers.named(&disk.runtime).await?;
        let settings = &inner.builds.settings;
        inner.check_memory(u64::from(settings.memory_mb))?;
        let machine = Machine { cpu: settings.cpu, memory_mb: settings.memory_mb, disk_mb: disk.disk_mb };
        let id = SandboxId::random();
        let place = inner.layout.place(&id);
        let stay = Stay { inner: Arc::clone(inner), id, ended: false };
        let id = &stay.id;
        let made = place.data.clone();
        files::blocking("make a build's directory", move || files::make_private_dir(&made)).await?;
        let mut secret = [0u8; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::Internal(format!("no random bytes: {error}")))?;
        let source = match &disk.layer {
            Some(layer) => {
                driver.copy(Part::Disk, layer, &place.data).await?;
                Source::Boot { secret }
            }
            None => Source::First { secret },
        };
        let card = inner.uplinks.plug_as(id, &Egress::default(), &*driver).await?;
        let base = inner.base_for(&*driver, &disk.base).await?;
        let engine = driver.launch(&place, machine, &base, card, source).await?;
        inner.uplinks.settled(id).await?;
        let guest = guest::revive(&engine, &secret, Vcpus::Running, BOOT, &identity(id, &secret)).await?;
        Ok(Self { driver, engine, guest: Some(guest), secret, stay })
    }

    /// Its agent.
    pub(super) fn guest(&self) -> Result<&Guest, Error> {
        self.guest.as_ref().ok_or_else(|| Error::Internal("a build's machine has no channel".into()))
    }

    /// Copies its disk as it is now into a directory; not synced.
    pub(super) async fn cut(&mut self, into: &Path) -> Result<(), Error> {
        let id = &self.stay.id;
        let unresponsive = |detail: String| Error::Unresponsive { id: id.clone(), detail };
        let guest = self.guest.take().ok_or_else(|| Error::Internal("a build's machine has no channel".into()))?;
        let synced = guest.quiesce(QUIESCE).await;
        guest.close().await;
        match synced {
            Ok(true) => {}
            Ok(false) => return Err(unresponsive("it did not write its disk in time".into())),
            Err(error) => return Err(unresponsive(error_chain(&error))),
        }
        self.engine.disconnected().await?;
        self.engine.pause().await?;
        let from = self.stay.inner.layout.sandbox(id);
        self.driver.copy(Part::Disk, &from, into).await?;
        let who = identity(id, &self.secret);
        self.guest = Some(guest::revive(&self.engine, &self.secret, Vcpus::Stopped, GOES_ON, &who).await?);
        Ok(())
    }

    /// Ends it, and waits for that.
    pub(super) async fn end(self) {
        drop(self.guest);
        self.stay.end().await;
    }
}

fn identity<'a>(id: &'a SandboxId, secret: &'a [u8; 32]) -> Identity<'a> {
    static NOTHING: BTreeMap<String, String> = BTreeMap::new();
    Identity { id, hostname: id.bare(), env: &NOTHING, user: "root", workdir: "/", generation: 1, secret }
}
