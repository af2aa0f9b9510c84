//! Wake is a transaction too.
//!
//! intent → engine loaded, vCPUs stopped, limits and a larger disk told → **one durable write marks the checkpoint spent** → `cont` → hello, restore →
//! `running`, generation + 1.
//!
//! Before "spent" a wake can be repeated freely. After it only the disk is true: loading that memory a second time over a
//! disk that has moved on would corrupt files. So a checkpoint that is spent, damaged or made by an engine that is no
//! longer here is never loaded: the sandbox boots from its disk and says so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{error, warn};
use wakeful_driver::{Card, Driver, Engine, MemoryBase, Source};
use wakeful_model::{Cause, EventType, Fact, Memory, Outcome, Sandbox, State};

use super::{Checkpoint, event, machine_of, swap};
use crate::crash::{Point, point, point_with};
use crate::entry::Began;
use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::{Inner, error_chain};
use crate::owner::{Finished, Held};
use crate::{Error, disk, entry, files};

/// How long a restored guest may take to answer.
const RESTORED: Duration = Duration::from_secs(20);
/// How long a boot may take.
const BOOTED: Duration = Duration::from_secs(90);

pub(super) async fn run(inner: &Arc<Inner>, mut row: Sandbox, cause: Cause) -> Finished {
    let began = Instant::now();
    point(Point::WakeIntended);
    let generation = row.runtime_generation + 1;
    let (held, restored) = match attempt(inner, &mut row, generation).await {
        Ok(awake) => awake,
        Err(error) => return abandon(inner, row, cause, error).await,
    };
    let committed = commit(inner, row.clone(), restored, cause, began).await;
    if committed.is_ok() {
        point(Point::WakeCommitted);
    }
    finish(inner, row, held, committed, cause).await
}

/// After its engine was ended in the middle of an operation, which goes on: the same generation goes on as well, and the row
/// says what it said `before`. If its memory cannot be loaded it is a wake like any other, and says so.
pub(super) async fn go_on(inner: &Arc<Inner>, mut row: Sandbox, before: &Sandbox, cause: Cause) -> Finished {
    let began = Instant::now();
    let (held, restored) = match attempt(inner, &mut row, before.runtime_generation).await {
        Ok(awake) => awake,
        Err(error) => return abandon(inner, row, cause, error).await,
    };
    let committed = if restored {
        let same = Sandbox { version: row.version, updated_at: inner.now(), ..before.clone() };
        swap(inner, same, None).await
    } else {
        commit(inner, row.clone(), restored, cause, began).await
    };
    finish(inner, row, held, committed, cause).await
}

/// It runs if that was written; else it is asleep as it was.
async fn finish(
    inner: &Arc<Inner>,
    row: Sandbox,
    held: Held,
    committed: Result<Sandbox, Error>,
    cause: Cause,
) -> Finished {
    match committed {
        Ok(row) => {
            if let Err(error) = remove_stale_images(inner, &row).await {
                warn!(sandbox_id = %row.id, error = error_chain(&error), "could not remove a used checkpoint");
            }
            Finished { row, held, result: Ok(()) }
        }
        Err(error) => {
            drop(held);
            abandon(inner, row, cause, error).await
        }
    }
}

/// Loads the memory if there is any worth loading, to go on as this generation; else boots, as the next. `row` follows every
/// write that was made on the way.
async fn attempt(inner: &Arc<Inner>, row: &mut Sandbox, generation: u64) -> Result<(Held, bool), Error> {
    let driver = inner.driver_of(row).await?;
    let base = inner.base_for(&*driver, &row.base).await?;
    if let State::Suspended(Memory::Kept) = row.state
        && let Some(checkpoint) = Checkpoint::of(row)?
    {
        let card = inner.uplinks.plug(row, &*driver).await?;
        match load(inner, &*driver, row, &base, card, &checkpoint).await {
            Ok(engine) => {
                point_with(Point::WakeLoaded, &*engine);
                // While it can still be tried again.
                let follows = disk::prepare(&*driver, &engine, row).await?;
                point_with(Point::WakeSized, &*engine);
                inner.uplinks.settled(&row.id).await?;
                spend(inner, row).await?;
                point_with(Point::WakeSpent, &*engine);
                let who = Identity::of(row, generation);
                let guest = guest::revive(&engine, &row.secret, Vcpus::Stopped, RESTORED, &who).await?;
                disk::follow(&guest, row, follows).await;
                point_with(Point::WakeRestored, &*engine);
                return Ok((Held { engine: Some(engine), guest: Some(guest) }, true));
            }
            Err(rejected @ (wakeful_driver::Error::Unfit { .. } | wakeful_driver::Error::Damaged { .. })) => {
                reject(inner, row, &rejected).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let place = inner.layout.place(&row.id);
    let source = Source::Boot { secret: row.secret };
    let card = inner.uplinks.plug(row, &*driver).await?;
    let engine = driver.launch(&place, machine_of(row), &base, card, source).await?;
    inner.uplinks.settled(&row.id).await?;
    let who = Identity::of(row, row.runtime_generation + 1);
    let guest = guest::revive(&engine, &row.secret, Vcpus::Running, BOOTED, &who).await?;
    disk::prepare(&*driver, &engine, row).await?;
    entry::begin(row, &guest, Began::Wake).await?;
    Ok((Held { engine: Some(engine), guest: Some(guest) }, false))
}

async fn load(
    inner: &Inner,
    driver: &dyn Driver,
    row: &Sandbox,
    base: &Path,
    card: Card,
    checkpoint: &Checkpoint,
) -> Result<Arc<dyn Engine>, wakeful_driver::Error> {
    let dir = inner.layout.checkpoint(&row.id, checkpoint.generation);
    let source = Source::Wake { checkpoint: &dir, image: &checkpoint.image };
    driver.launch(&inner.layout.place(&row.id), machine_of(row), base, card, source).await
}

/// From here on this memory must never be loaded again.
async fn spend(inner: &Inner, row: &mut Sandbox) -> Result<(), Error> {
    let Outcome::Move(state) = inner.observe(&row.id, row.state, None, Fact::CheckpointSpent) else {
        return Err(Error::Internal(format!("a {} sandbox has no checkpoint to spend", row.state.name())));
    };
    let mut spent = row.clone();
    spent.state = state;
    spent.updated_at = inner.now();
    *row = swap(inner, spent, None).await?;
    Ok(())
}

/// A checkpoint that cannot be loaded is worth nothing; the disk still is.
async fn reject(inner: &Inner, row: &mut Sandbox, why: &wakeful_driver::Error) -> Result<(), Error> {
    warn!(sandbox_id = %row.id, error = error_chain(why), "checkpoint rejected, booting from disk");
    let mut spent = row.clone();
    spent.state = State::Suspended(Memory::Spent);
    spent.checkpoint = None;
    spent.updated_at = inner.now();
    let event = event(&spent, EventType::CheckpointRejected, Cause::Recovery, None, Some(error_chain(why)));
    *row = swap(inner, spent, Some(&event)).await?;
    Ok(())
}

async fn commit(
    inner: &Inner,
    mut row: Sandbox,
    restored: bool,
    cause: Cause,
    began: Instant,
) -> Result<Sandbox, Error> {
    let Outcome::Move(state) = inner.observe(&row.id, row.state, None, Fact::Woken) else {
        return Err(Error::Internal(format!("a {} sandbox cannot have been woken", row.state.name())));
    };
    row.state = state;
    row.transition = None;
    row.runtime_generation += 1;
    row.restored_memory = Some(restored);
    row.failure = None;
    row.checkpoint = None;
    row.updated_at = inner.now();
    row.started_at = Some(row.updated_at);
    row.suspended_at = None;
    row.last_activity_at = row.updated_at;
    let event = event(&row, EventType::Woken, cause, Some(began.elapsed()), None);
    swap(inner, row, Some(&event)).await
}

/// The engine goes; what the row says by now (kept or spent) is what the next wake finds.
async fn abandon(inner: &Arc<Inner>, row: Sandbox, cause: Cause, problem: Error) -> Finished {
    if let Err(error) = inner.reap_row(&row).await {
        error!(sandbox_id = %row.id, error = error_chain(&error), "could not end the engine of a failed wake");
    }
    let detail = error_chain(&problem);
    let mut after = row.clone();
    after.transition = None;
    after.updated_at = inner.now();
    if after.state == State::Suspended(Memory::Spent) {
        after.checkpoint = None;
    }
    let event = event(&after, EventType::Failed, cause, None, Some(format!("wake failed: {detail}")));
    let id = row.id.clone();
    let row = match swap(inner, after, Some(&event)).await {
        Ok(row) => {
            if let Err(error) = remove_stale_images(inner, &row).await {
                warn!(sandbox_id = %row.id, error = error_chain(&error), "could not remove a spent checkpoint");
            }
            row
        }
        Err(error) => {
            error!(sandbox_id = %row.id, error = error_chain(&error), "could not clear the intent of a failed wake");
            row
        }
    };
    let problem = match problem {
        passing @ (Error::RuntimeUnavailable(_) | Error::Store(_) | Error::Internal(_) | Error::Io { .. }) => passing,
        _ => Error::WakeFailed { id, detail },
    };
    Finished { row, held: Held::default(), result: Err(problem) }
}

/// Removes checkpoints that the row does not name, and the own memory base once nothing refers to it any more: neither a
/// checkpoint nor a running engine's mapping. They are out of the way when this returns; giving their blocks back, which
/// takes a file system some milliseconds per hundred MiB, goes on beside whoever waits for the wake.
pub(crate) async fn remove_stale_images(inner: &Inner, row: &Sandbox) -> Result<(), Error> {
    let keep = Checkpoint::of(row)?;
    let dir = inner.layout.sandbox(&row.id);
    let keep_dir: Option<PathBuf> = keep.as_ref().map(|c| inner.layout.checkpoint(&row.id, c.generation));
    let keep_base = match (&keep, row.state) {
        (Some(checkpoint), _) => checkpoint.image.base == Some(MemoryBase::Own),
        (None, State::Running) => true,
        (None, _) => false,
    };
    let trash = inner.layout.trash();
    let discarded = files::blocking("remove checkpoints that are no longer needed", move || {
        let mut discarded = Vec::new();
        let entries = match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(discarded),
            other => other?,
        };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let stale = name.starts_with("checkpoint-") && keep_dir.as_ref() != Some(&path)
                || name.starts_with("mem.base") && (!keep_base || name != "mem.base");
            if stale {
                discarded.extend(files::to_trash(&path, &trash)?);
            }
        }
        Ok(discarded)
    })
    .await?;
    if !discarded.is_empty() {
        inner.tasks.spawn_blocking(move || {
            for path in discarded {
                let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
                if let Err(error) = removed {
                    warn!(path = %path.display(), %error, "could not empty the trash, the next start will");
                }
            }
        });
    }
    Ok(())
}
