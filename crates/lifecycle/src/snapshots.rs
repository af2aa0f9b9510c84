//! Snapshots: kept copies of sandboxes, and the copies that forks begin with.
//!
//! A snapshot's directory has all that is its own; base and golden memory belong to its template, which stays as long as a
//! snapshot names it. A row is written when its files are whole and removed before they go, so every directory without a
//! row is a leftover. Whoever begins with a snapshot holds it, and a delete waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tracing::{info, warn};
use wakeful_driver::{Image, MemoryBase};
use wakeful_model::{Code, Mode, SandboxId, Snapshot, SnapshotId};

use crate::crash::{Point, point};
use crate::lifecycle::{Inner, error_chain};
use crate::ops::Cut;
use crate::owner::Ask;
use crate::templates::check_name;
use crate::{Error, Lifecycle, NewSandbox, SandboxView, files};

/// Children of one fork that are made at the same time.
const AT_ONCE: usize = 4;

/// A snapshot, and what it takes on disk.
#[derive(Clone, Debug)]
pub struct SnapshotView {
    /// The record.
    pub snapshot: Snapshot,
    /// Blocks of its own files.
    pub own_bytes: u64,
    /// Blocks that it shares: base and golden memory of its template, and what others of the same source stand on.
    pub shared_bytes: u64,
}

/// How a sandbox is forked. What is not given is as the source has it.
#[derive(Clone, Debug)]
pub struct Fork {
    /// The ids that its children get, all of them new.
    pub children: Vec<SandboxId>,
    /// How they end.
    pub mode: Option<Mode>,
    /// Their lease (ephemeral).
    pub timeout: Option<Duration>,
    /// Their idleness before sleep (persistent).
    pub idle_timeout: Option<Duration>,
}

impl Fork {
    /// Most children of one.
    pub const MOST: usize = 100;
}

/// What came of a fork.
#[derive(Debug)]
pub struct Forked {
    /// The children.
    pub sandboxes: Vec<SandboxView>,
    /// Why the others did not come to be.
    pub errors: Vec<Error>,
}

/// A snapshot that somebody begins with.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) snapshot: Snapshot,
    _hold: OwnedRwLockReadGuard<()>,
}

impl Origin {
    /// The driver's account of its memory, if it has any.
    pub(crate) fn image(&self) -> Result<Option<Image>, Error> {
        image_of(&self.snapshot)
    }
}

/// The driver's account of a snapshot's memory, if it has any.
pub(crate) fn image_of(snapshot: &Snapshot) -> Result<Option<Image>, Error> {
    let read = |text: &String| {
        serde_json::from_str(text)
            .map_err(|error| Error::Internal(format!("memory of {} cannot be read: {error}", snapshot.id)))
    };
    snapshot.content.image.as_ref().map(read).transpose()
}

/// Who holds which snapshot.
#[derive(Default)]
pub(crate) struct Holds(Mutex<HashMap<SnapshotId, Arc<RwLock<()>>>>);

impl Holds {
    fn of(&self, id: &SnapshotId) -> Arc<RwLock<()>> {
        let mut holds = self.0.lock().expect("no panic while it is held");
        Arc::clone(holds.entry(id.clone()).or_default())
    }

    fn forget(&self, id: &SnapshotId) {
        self.0.lock().expect("no panic while it is held").remove(id);
    }
}

impl Inner {
    async fn find_snapshot(&self, tenant: &str, id: &SnapshotId) -> Result<Snapshot, Error> {
        let found = self.store.snapshot(id).await?;
        found.filter(|found| found.tenant == tenant).ok_or_else(|| Error::SnapshotNotFound(id.to_string()))
    }

    /// The snapshot that a create names instead of a template, held; none if it names a template.
    pub(crate) async fn origin(&self, tenant: &str, template: &str) -> Result<Option<Arc<Origin>>, Error> {
        if !template.starts_with(SnapshotId::PREFIX) {
            return Ok(None);
        }
        let not_found = |_| Error::SnapshotNotFound(template.chars().take(100).collect());
        let id: SnapshotId = template.parse().map_err(not_found)?;
        let hold = self.holds.of(&id).read_owned().await;
        let snapshot = self.find_snapshot(tenant, &id).await?;
        Ok(Some(Arc::new(Origin { snapshot, _hold: hold })))
    }

    /// Removes a snapshot's row, then its files; a template that only waited for it goes too.
    pub(crate) async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<(), Error> {
        let _nobody = self.holds.of(&snapshot.id).write_owned().await;
        self.store.remove_snapshot(&snapshot.id).await?;
        point(Point::SnapshotRemoved);
        let (dir, trash) = (self.layout.snapshot(&snapshot.id), self.layout.trash());
        files::blocking("remove a snapshot's files", move || files::discard_dir(&dir, &trash)).await?;
        self.holds.forget(&snapshot.id);
        self.collect_after(&snapshot.content.template_id, &snapshot.content.base).await
    }

    /// After a crash: forks that were under way have no use for their copies any more, and what no row names goes.
    pub(crate) async fn recover_snapshots(&self) -> Result<(), Error> {
        let mut known = Vec::new();
        for snapshot in self.store.snapshots(None).await? {
            if snapshot.name.is_some() {
                known.push(snapshot.id.to_string());
            } else {
                self.remove_snapshot(&snapshot).await?;
            }
        }
        let (root, trash) = (self.layout.snapshots(), self.layout.trash());
        files::blocking("remove what belongs to no snapshot", move || {
            files::make_private_dir(&root)?;
            for entry in std::fs::read_dir(&root)? {
                let path = entry?.path();
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                if !known.contains(&name) {
                    files::discard_dir(&path, &trash)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Memory that snapshots stand on.
    pub(crate) async fn snapshot_images(&self) -> Result<Vec<Image>, Error> {
        let images = self.store.snapshots(None).await?;
        images.iter().filter_map(|snapshot| image_of(snapshot).transpose()).collect()
    }

    async fn view_snapshot(&self, snapshot: Snapshot) -> Result<SnapshotView, Error> {
        let dir = self.layout.snapshot(&snapshot.id);
        let image = image_of(&snapshot)?;
        let mut shared = vec![self.layout.base(&snapshot.content.base)];
        if let Some(Image { base: Some(MemoryBase::Golden(golden)), .. }) = &image {
            shared.push(golden.join("mem"));
        }
        // Its memory is its own, also while a source that sleeps has the same files.
        let memory: Vec<_> = image.into_iter().flat_map(|image| image.files).map(|file| file.name).collect();
        let (own_bytes, shared_bytes) = files::blocking("look at files", move || {
            let (_, layers) = files::own_and_shared(&dir, |name| !memory.iter().any(|file| file == name));
            let shared: u64 = shared.iter().map(|file| files::blocks(file)).sum();
            Ok((files::blocks(&dir).saturating_sub(layers), layers + shared))
        })
        .await?;
        Ok(SnapshotView { snapshot, own_bytes, shared_bytes })
    }
}

impl Lifecycle {
    /// Keeps a copy of a sandbox, running or asleep, under a name; without one, under its id.
    ///
    /// # Errors
    /// If the name is taken or no name, or the sandbox is neither running nor asleep.
    pub async fn take_snapshot(
        &self,
        tenant: &str,
        id: &SandboxId,
        snapshot: SnapshotId,
        name: Option<String>,
    ) -> Result<SnapshotView, Error> {
        self.refuse_if_draining()?;
        let name = name.unwrap_or_else(|| snapshot.to_string());
        check_name(&name)?;
        self.find_live(tenant, id).await?;
        // Found out before anything stops; two at once are told apart by the store.
        if self.inner.store.snapshots(Some(tenant)).await?.iter().any(|other| other.name.as_deref() == Some(&name)) {
            return Err(Error::SnapshotNameTaken(name));
        }
        self.ask(id, Ask::Cut(Cut { id: snapshot.clone(), name: Some(name) })).await?;
        self.snapshot(tenant, &snapshot).await
    }

    /// One snapshot.
    ///
    /// # Errors
    /// If the tenant has none of that id.
    pub async fn snapshot(&self, tenant: &str, id: &SnapshotId) -> Result<SnapshotView, Error> {
        let snapshot = self.inner.find_snapshot(tenant, id).await?;
        self.inner.view_snapshot(snapshot).await
    }

    /// All of a tenant, the newest first.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn snapshots(&self, tenant: &str) -> Result<Vec<SnapshotView>, Error> {
        let mut views = Vec::new();
        for snapshot in self.inner.store.snapshots(Some(tenant)).await? {
            views.push(self.inner.view_snapshot(snapshot).await?);
        }
        Ok(views)
    }

    /// Deletes a snapshot, once nobody is beginning with it. Sandboxes that have begun with it are not concerned.
    ///
    /// # Errors
    /// If the tenant has none of that id.
    pub async fn delete_snapshot(&self, tenant: &str, id: &SnapshotId) -> Result<(), Error> {
        let snapshot = self.inner.find_snapshot(tenant, id).await?;
        self.inner.remove_snapshot(&snapshot).await?;
        info!(snapshot_id = %id, "snapshot deleted");
        Ok(())
    }

    /// Makes children of a sandbox, running or asleep: each goes on from the same instant, as somebody else. It goes on
    /// when its caller does not.
    ///
    /// # Errors
    /// If no child came to be: why the first did not.
    pub async fn fork(&self, tenant: &str, id: &SandboxId, fork: Fork) -> Result<Forked, Error> {
        self.refuse_if_draining()?;
        if !(1..=Fork::MOST).contains(&fork.children.len()) {
            return Err(Error::invalid(Code::InvalidField, "count", format!("must be 1 to {}", Fork::MOST)));
        }
        self.find_live(tenant, id).await?;
        let source = self.sandbox(tenant, id).await?.row;
        let mode = fork.mode.unwrap_or(source.policy.mode());
        let (timeout, idle_timeout) = (fork.timeout, fork.idle_timeout);
        if (mode == Mode::Persistent && timeout.is_some()) || (mode == Mode::Ephemeral && idle_timeout.is_some()) {
            let field = if timeout.is_some() { "timeout" } else { "idle_timeout" };
            return Err(Error::invalid(Code::InvalidCombination, field, format!("is not for a {mode} sandbox")));
        }
        // Before anything stops: what cannot fit is not begun.
        self.inner.check_capacity(u64::from(source.memory_mb), u64::from(source.disk_mb))?;
        let given = |span: Option<jiff::SignedDuration>| span.and_then(|span| Duration::try_from(span).ok());
        let cut = Cut { id: SnapshotId::random(), name: None };
        let child = NewSandbox {
            tenant: tenant.to_owned(),
            template: cut.id.to_string(),
            mode,
            timeout: timeout.or(given(source.policy.timeout)).filter(|_| mode == Mode::Ephemeral),
            idle_timeout: idle_timeout.or(given(source.policy.idle_timeout)).filter(|_| mode == Mode::Persistent),
            hard_ttl: None,
            size: None,
            cpu: None,
            memory_mb: None,
            disk_mb: None,
            env: std::collections::BTreeMap::new(),
            metadata: source.metadata.clone(),
            egress: None,
            io: None,
            auto_resume: source.policy.auto_resume,
            runtime: None,
        };
        let (this, id) = (self.clone(), id.clone());
        let forking = self.inner.tasks.spawn(async move { this.make_children(&id, cut, child, fork.children).await });
        forking.await.map_err(|panic| Error::Internal(format!("fork panicked: {panic}")))?
    }

    async fn make_children(
        &self,
        id: &SandboxId,
        cut: Cut,
        child: NewSandbox,
        children: Vec<SandboxId>,
    ) -> Result<Forked, Error> {
        self.ask(id, Ask::Cut(cut.clone())).await?;
        let made = futures_util::stream::iter(children).map(|id| self.create_as(id, child.clone()));
        let made: Vec<_> = made.buffered(AT_ONCE).collect().await;
        let copy = self.inner.store.snapshot(&cut.id).await;
        let removed = match copy {
            Ok(Some(copy)) => self.inner.remove_snapshot(&copy).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = removed {
            warn!(snapshot_id = %cut.id, error = error_chain(&error), "could not remove a fork's copy, the next start will");
        }
        let mut forked = Forked { sandboxes: Vec::new(), errors: Vec::new() };
        for one in made {
            match one {
                Ok(sandbox) => forked.sandboxes.push(sandbox),
                Err(error) => forked.errors.push(error),
            }
        }
        if forked.sandboxes.is_empty() && !forked.errors.is_empty() {
            return Err(forked.errors.swap_remove(0));
        }
        Ok(forked)
    }
}
