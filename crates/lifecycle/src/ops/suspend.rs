//! Suspend is a transaction.
//!
//! intent → guest asked what no image could keep, where its engine has such limits → quiesce (guest syncs) → channel closed and seen closed → engine stopped → state and dirty pages into a new
//! directory, all synced → rename → **one database write commits** → engine killed.
//!
//! Before the commit the engine is alive and stopped: every failure, and every crash (`recover` adopts it), lets it run
//! on. So does an access, if nobody asked for the suspend. After the commit only the files are true, and a crash leaves an
//! engine that `recover` reaps.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};
use wakeful_driver::{Driver, Engine, Image};
use wakeful_model::{Cause, EventType, Fact, Failure, Memory, Outcome, Sandbox, State, machine::Bootable};

use super::{event, obstacles, swap};
use crate::crash::{Point, point, point_with};
use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::{Inner, error_chain};
use crate::owner::{Finished, Held};
use crate::{Error, files};

/// How long the guest may take to sync its disk; after that it is stopped all the same and the manifest says so.
const QUIESCE: Duration = Duration::from_secs(2);
/// How long processes may take to end when no memory is kept.
const POWEROFF: Duration = Duration::from_secs(15);
/// How long a guest that goes on may take to answer.
pub(super) const GOES_ON: Duration = Duration::from_secs(20);

/// How often, and how far apart, a database that failed in a commit is asked what it has written.
const COMMIT_READS: u32 = 30;
const COMMIT_PAUSE: Duration = Duration::from_secs(1);

/// What the row keeps of a checkpoint: all that a wake must know, and what the files must be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The generation that it ends; names its directory.
    pub(crate) generation: u64,
    /// Whether the guest had written its disk caches out.
    pub(crate) disk_synced: bool,
    /// The driver's account.
    pub(crate) image: Image,
}

impl Checkpoint {
    pub(crate) fn of(row: &Sandbox) -> Result<Option<Self>, Error> {
        let Some(text) = &row.checkpoint else { return Ok(None) };
        serde_json::from_str(text)
            .map(Some)
            .map_err(|error| Error::Internal(format!("checkpoint of {} cannot be read: {error}", row.id)))
    }

    pub(crate) fn to_row(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }
}

pub(super) async fn run(
    inner: &Arc<Inner>,
    row: Sandbox,
    mut held: Held,
    memory: bool,
    cause: Cause,
    off: &CancellationToken,
) -> Finished {
    let began = Instant::now();
    point(Point::SuspendIntended);
    let driver = match inner.driver_of(&row).await {
        Ok(driver) => driver,
        // Its engine may run on without us; nobody can tell before the runtime is back.
        Err(error) => return untouched(inner, row, held, cause, error).await,
    };
    let Some(engine) = held.engine.clone() else {
        return gone(inner, row, "there is no engine").await;
    };
    if off.is_cancelled() {
        return untouched(inner, row, held, cause, Error::CalledOff).await;
    }
    if !memory {
        return without_memory(inner, &*driver, row, held, engine, cause, began).await;
    }
    if let Err(error) = obstacles::look(&*driver, &row, &mut held, &engine).await {
        return untouched(inner, row, held, cause, error).await;
    }
    let prepared = prepare(inner, &row, &held, &engine, off).await.map_err(|error| match error {
        Error::Io { source, .. } if is_full(&source) => Error::DiskFull { id: row.id.clone() },
        Error::Driver(wakeful_driver::Error::DiskFull { .. }) => Error::DiskFull { id: row.id.clone() },
        other => other,
    });
    drop(held);
    let result = match prepared {
        Ok(checkpoint) => commit(inner, &row, Memory::Kept, Some(&checkpoint), Some((cause, began))).await,
        Err(error) => Err(Uncommitted::Surely(error)),
    };
    match result {
        Ok(row) => {
            point(Point::SuspendCommitted);
            let result = clear_up(inner, &row, &engine).await;
            point(Point::SuspendCleared);
            Finished { row, held: Held::default(), result }
        }
        Err(Uncommitted::Surely(error)) => {
            // Of one that was called off, or failed in its commit.
            let dir = inner.layout.checkpoint(&row.id, row.runtime_generation);
            let removed =
                files::blocking("remove a checkpoint that is not wanted", move || files::remove_dir(&dir)).await;
            if let Err(error) = removed {
                warn!(sandbox_id = %row.id, error = error_chain(&error), "could not remove it; the next suspend will");
            }
            go_on(inner, row, engine, cause, error).await
        }
        // If the row names the checkpoint, a guest that goes on would spoil it; if it does not, the engine is the sandbox. So
        // it stays as it is, stopped, until a start can read the row and knows which of the two is true.
        Err(Uncommitted::Perhaps(error)) => {
            error!(sandbox_id = %row.id, error = error_chain(&error), "nobody knows whether the suspend was committed");
            Finished { row, held: Held { engine: Some(engine), guest: None }, result: Err(error) }
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// A commit that was not answered by success.
pub(super) enum Uncommitted {
    /// The row does not name the checkpoint.
    Surely(Error),
    /// The database could not say.
    Perhaps(Error),
}

/// Nothing has been done yet: it runs as it did.
async fn untouched(inner: &Inner, row: Sandbox, held: Held, cause: Cause, why: Error) -> Finished {
    Finished { row: clear_intent(inner, row, cause, &why).await, held, result: Err(why) }
}

/// The guest syncs its disk, if it does in time, and its channel is closed and seen closed. Whether it has synced.
pub(super) async fn quiesce(row: &Sandbox, held: &Held, engine: &Arc<dyn Engine>) -> Result<bool, Error> {
    let synced = match &held.guest {
        Some(guest) => {
            let synced = guest.quiesce(QUIESCE).await.unwrap_or_else(|error| {
                warn!(sandbox_id = %row.id, %error, "the guest did not sync before it was stopped");
                false
            });
            guest.clone().close().await;
            synced
        }
        None => false,
    };
    engine.disconnected().await?;
    Ok(synced)
}

async fn prepare(
    inner: &Inner,
    row: &Sandbox,
    held: &Held,
    engine: &Arc<dyn Engine>,
    off: &CancellationToken,
) -> Result<Checkpoint, Error> {
    // Every step is looked at, save the writing of pages, which cannot be left halfway.
    let wanted = || if off.is_cancelled() { Err(Error::CalledOff) } else { Ok(()) };
    let disk_synced = quiesce(row, held, engine).await?;
    point_with(Point::SuspendQuiesced, &**engine);
    wanted()?;
    engine.pause().await?;
    point_with(Point::SuspendStopped, &**engine);
    wanted()?;

    let (temporary, target) = new_directory(inner, row).await?;
    let saved = engine.save(&temporary).await;
    let image = match saved {
        Ok(image) => image,
        Err(error) => {
            let partial = temporary.clone();
            files::blocking("remove a partial checkpoint", move || files::remove_dir(&partial)).await?;
            return Err(error.into());
        }
    };
    point_with(Point::SuspendSaved, &**engine);
    if let Err(error) = wanted() {
        files::blocking("remove a checkpoint that is not wanted", move || files::remove_dir(&temporary)).await?;
        return Err(error);
    }
    let checkpoint = Checkpoint { generation: row.runtime_generation, disk_synced, image };
    publish(&checkpoint, temporary, target).await?;
    point_with(Point::SuspendRenamed, &**engine);
    wanted()?;
    Ok(checkpoint)
}

/// An empty directory for a checkpoint's files, and where it goes when they are whole. What an abandoned or interrupted
/// suspend has left there goes: the row does not name it.
pub(super) async fn new_directory(inner: &Inner, row: &Sandbox) -> Result<(PathBuf, PathBuf), Error> {
    let target = inner.layout.checkpoint(&row.id, row.runtime_generation);
    let temporary = target.with_extension("new");
    let (fresh, old) = (temporary.clone(), target.clone());
    files::blocking("make the checkpoint's directory", move || {
        files::remove_dir(&fresh)?;
        files::remove_dir(&old)?;
        files::make_private_dir(&fresh)
    })
    .await?;
    Ok((temporary, target))
}

/// Its files are whole: they go where they belong, with a copy of the account for people and for repair; what counts is in
/// the row.
pub(super) async fn publish(checkpoint: &Checkpoint, temporary: PathBuf, target: PathBuf) -> Result<(), Error> {
    let manifest = checkpoint.to_row();
    let partial = temporary.clone();
    let published = files::blocking("publish the checkpoint", move || {
        files::write_new(&temporary.join("manifest.json"), manifest.as_bytes())?;
        files::publish_dir(&temporary, &target)
    });
    if let Err(error) = published.await {
        files::blocking("remove a partial checkpoint", move || files::remove_dir(&partial)).await?;
        return Err(error);
    }
    Ok(())
}

/// The one write that counts. If the database fails in it, the row is read until it tells whether it was written. Told by
/// what, and since when, it ends what was under way; else it is a step of that.
pub(super) async fn commit(
    inner: &Inner,
    before: &Sandbox,
    memory: Memory,
    checkpoint: Option<&Checkpoint>,
    ends: Option<(Cause, Instant)>,
) -> Result<Sandbox, Uncommitted> {
    let Outcome::Move(state) = inner.observe(&before.id, before.state, None, Fact::CheckpointMade(memory)) else {
        let wrong = format!("a {} sandbox cannot be suspended", before.state.name());
        return Err(Uncommitted::Surely(Error::Internal(wrong)));
    };
    let mut row = before.clone();
    row.state = state;
    row.updated_at = inner.now();
    row.suspended_at = Some(row.updated_at);
    row.started_at = None;
    row.checkpoint = checkpoint.map(Checkpoint::to_row);
    let event = ends.map(|(cause, began)| {
        row.transition = None;
        event(&row, EventType::Suspended, cause, Some(began.elapsed()), None)
    });
    let error = match swap(inner, row, event.as_ref()).await {
        Ok(row) => return Ok(row),
        Err(error) => error,
    };
    for _ in 0..COMMIT_READS {
        match inner.store.sandbox(&before.id).await {
            Ok(Some(row)) if row.state == state && row.version > before.version => return Ok(row),
            Ok(_) => return Err(Uncommitted::Surely(error)),
            Err(_) => tokio::time::sleep(COMMIT_PAUSE).await,
        }
    }
    Err(Uncommitted::Perhaps(error))
}

/// After the commit: no process, no RAM, and only the files that the row names.
pub(super) async fn clear_up(inner: &Inner, row: &Sandbox, engine: &Arc<dyn Engine>) -> Result<(), Error> {
    engine.kill().await?;
    inner.reap_row(row).await?;
    super::remove_stale_images(inner, row).await
}

/// Not committed: the stopped engine continues, in the same generation. Its clock stood still, so it is put right.
async fn go_on(inner: &Arc<Inner>, row: Sandbox, engine: Arc<dyn Engine>, cause: Cause, problem: Error) -> Finished {
    let resumed = async {
        let who = Identity::of(&row, row.runtime_generation);
        guest::revive(&engine, &row.secret, Vcpus::Stopped, GOES_ON, &who).await
    };
    match resumed.await {
        Ok(guest) => {
            let held = Held { engine: Some(engine), guest: Some(guest) };
            Finished { row: clear_intent(inner, row, cause, &problem).await, held, result: Err(problem) }
        }
        Err(error) => {
            error!(sandbox_id = %row.id, error = error_chain(&error), "could not go on after an abandoned suspend");
            gone(inner, row, &format!("{}; then {}", error_chain(&problem), error_chain(&error))).await
        }
    }
}

/// It is not under way any more. If that cannot be written the journal entry stays; the owner's next write or the next
/// start clears it.
async fn clear_intent(inner: &Inner, row: Sandbox, cause: Cause, problem: &Error) -> Sandbox {
    let mut after = row.clone();
    after.transition = None;
    after.updated_at = inner.now();
    let mut why = error_chain(problem);
    if cause != Cause::Api && obstacles::puts_off(problem) {
        why.push_str("; it runs on, and is tried again later");
    }
    let event = event(&after, EventType::SuspendCancelled, cause, None, Some(why));
    match swap(inner, after, Some(&event)).await {
        Ok(row) => row,
        Err(error) => {
            error!(sandbox_id = %row.id, error = error_chain(&error), "could not clear the intent of an abandoned suspend");
            row
        }
    }
}

/// The engine is lost and nothing was committed: what is left is the disk.
pub(super) async fn gone(inner: &Arc<Inner>, before: Sandbox, detail: &str) -> Finished {
    if let Err(error) = inner.reap_row(&before).await {
        error!(sandbox_id = %before.id, error = error_chain(&error), "could not end a lost engine");
    }
    let mut row = before.clone();
    row.transition = None;
    row.updated_at = inner.now();
    row.state = State::Failed(Bootable::Yes);
    row.checkpoint = None;
    row.failure =
        Some(Failure { code: "engine_lost".into(), detail: detail.to_owned(), at: row.updated_at, bootable: true });
    let event = event(&row, EventType::Failed, Cause::EngineDied, None, Some(detail.to_owned()));
    let result = Err(Error::Failed { id: row.id.clone(), detail: detail.to_owned() });
    match swap(inner, row, Some(&event)).await {
        Ok(row) => Finished { row, held: Held::default(), result },
        Err(error) => {
            error!(sandbox_id = %before.id, error = error_chain(&error), "could not commit a failure");
            Finished { row: before, held: Held::default(), result }
        }
    }
}

/// Processes end in order, the disk is kept, the next wake boots it.
async fn without_memory(
    inner: &Arc<Inner>,
    driver: &dyn Driver,
    row: Sandbox,
    held: Held,
    engine: Arc<dyn Engine>,
    cause: Cause,
    began: Instant,
) -> Finished {
    if let Some(guest) = &held.guest {
        if let Err(error) = guest.poweroff().await {
            warn!(sandbox_id = %row.id, %error, "the guest did not take the poweroff");
        }
        if tokio::time::timeout(POWEROFF, engine.exited()).await.is_err() {
            warn!(sandbox_id = %row.id, "the guest did not power off in time");
        }
    }
    drop(held);
    let disk = inner.layout.sandbox(&row.id).join(driver.disk_file());
    let ended = async {
        engine.kill().await?;
        files::blocking("sync the disk", move || std::fs::File::open(disk)?.sync_all()).await
    };
    let ended = ended.await;
    point(Point::PoweroffEnded);
    let result = match ended {
        Ok(()) => commit(inner, &row, Memory::None, None, Some((cause, began))).await,
        Err(error) => Err(Uncommitted::Surely(error)),
    };
    match result {
        Ok(row) => {
            let result = clear_up(inner, &row, &engine).await;
            Finished { row, held: Held::default(), result }
        }
        // There is no memory to spoil: whatever the row says, the disk is what is left.
        Err(Uncommitted::Surely(error) | Uncommitted::Perhaps(error)) => gone(inner, row, &error_chain(&error)).await,
    }
}
