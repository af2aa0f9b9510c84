//! A cut: a copy of memory and disk as they are at one instant, in a directory of its own.
//!
//! ```text
//!   running    channel closed → engine stopped → state and pages saved, disk copied → engine goes on → the rest is copied
//!   suspended  the checkpoint's files are linked, disk and own memory base copied
//!   either     a disk that takes long to copy, where its driver can: it becomes a layer of both (`lay.rs`)
//!   then       all of it synced → renamed into place → **the snapshot's row is written**
//! ```
//!
//! Whatever becomes of the copy, the source is afterwards what it was: before the row is written a crash leaves a directory
//! that no row names, and a stopped engine that `recover` lets run on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tracing::{error, info};
use wakeful_driver::{Engine, Image, MemoryBase, Part};
use wakeful_model::{Cause, Content, EventType, Memory, Sandbox, Snapshot, SnapshotId, State};

use super::lay::{self, Laid};
use super::suspend::{self, Checkpoint, GOES_ON};
use super::{event, link, obstacles, swap, wake};
use crate::crash::{Point, point, point_with};
use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::{Inner, error_chain};
use crate::owner::{Finished, Held};
use crate::{Error, files};

/// What is to be made.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// Its id.
    pub(crate) id: SnapshotId,
    /// What it is called; none for a fork's.
    pub(crate) name: Option<String>,
}

pub(super) async fn run(inner: &Arc<Inner>, row: Sandbox, mut held: Held, cut: &Cut, cause: Cause) -> Finished {
    let began = Instant::now();
    if let Err(error) = allowed(inner, &row, &mut held).await {
        return end(inner, row, held, cut, cause, began, Err(error)).await;
    }
    let half = half_made(&inner.layout.snapshot(&cut.id));
    let dir = half.clone();
    let ready = files::blocking("make the snapshot's directory", move || {
        files::remove_dir(&dir)?;
        files::make_private_dir(&dir)
    });
    if let Err(error) = ready.await {
        return end(inner, row, held, cut, cause, began, Err(error)).await;
    }
    match (row.state, held.engine.clone()) {
        (State::Running, None) => suspend::gone(inner, row, "there is no engine").await,
        (State::Running, Some(engine)) => {
            let taken = of_running(inner, &row, &held, &engine, &half).await;
            drop(held);
            let taken = match taken {
                Ok((image, Disk::Copied)) => Ok(image),
                Ok((image, Disk::ToBeLaid)) => match lay::asleep(inner, &row, &engine, &half, &image).await {
                    Laid::Asleep(asleep) => return laid(inner, row, *asleep, cut, half, image, cause, began).await,
                    Laid::NotBegun(error) => Err(error),
                    Laid::Stuck(asleep, error) => {
                        return end(inner, *asleep, Held::default(), cut, cause, began, Err(error)).await;
                    }
                    Laid::Unknown(finished) => return *finished,
                },
                Err(error) => Err(error),
            };
            let who = Identity::of(&row, row.runtime_generation);
            let guest = match guest::revive(&engine, &row.secret, Vcpus::Stopped, GOES_ON, &who).await {
                Ok(guest) => guest,
                Err(error) => {
                    discard(inner, cut).await;
                    return suspend::gone(inner, row, &format!("after a cut: {}", error_chain(&error))).await;
                }
            };
            point_with(Point::SnapshotGoesOn, &*engine);
            let held = Held { engine: Some(engine), guest: Some(guest) };
            let made = match taken {
                Ok(image) => keep(inner, &row, cut, half, Some(image)).await,
                Err(error) => Err(error),
            };
            end(inner, row, held, cut, cause, began, made).await
        }
        (_, _) => {
            let made = match of_sleeper(inner, &row, &half).await {
                Ok(image) => keep(inner, &row, cut, half, image).await,
                Err(error) => Err(error),
            };
            end(inner, row, held, cut, cause, began, made).await
        }
    }
}

/// Whether its runtime is there, and what runs can be cut: found out before anything is touched.
async fn allowed(inner: &Inner, row: &Sandbox, held: &mut Held) -> Result<(), Error> {
    let driver = inner.driver_of(row).await?;
    match (row.state, held.engine.clone()) {
        (State::Running, Some(engine)) => obstacles::look(&*driver, row, held, &engine).await,
        _ => Ok(()),
    }
}

/// Begins the name of a directory that is not complete.
fn half_made(dir: &Path) -> PathBuf {
    dir.with_extension("new")
}

/// What became of the disk in the time that its engine stands still.
enum Disk {
    Copied,
    /// Copying it would take too long.
    ToBeLaid,
}

/// Stops the engine and copies what moves on with it. It is for the caller to let it go on.
async fn of_running(
    inner: &Inner,
    row: &Sandbox,
    held: &Held,
    engine: &Arc<dyn Engine>,
    half: &Path,
) -> Result<(Image, Disk), Error> {
    suspend::quiesce(row, held, engine).await?;
    engine.pause().await?;
    let stopped = Instant::now();
    point_with(Point::SnapshotStopped, &**engine);
    let image = engine.save(half).await.map_err(|error| full(row, error))?;
    point_with(Point::SnapshotSaved, &**engine);
    let data = inner.layout.sandbox(&row.id);
    if inner.driver_of(row).await?.worth_laying(&data, row.disk_mb).await? {
        return Ok((image, Disk::ToBeLaid));
    }
    copy(inner, row, Part::Disk, half).await?;
    point(Point::SnapshotCopied);
    info!(sandbox_id = %row.id, stopped = ?stopped.elapsed(), "cut");
    Ok((image, Disk::Copied))
}

/// The source sleeps for a moment: its disk becomes a layer, the cut gets its share, and it goes on as it was `before`.
#[expect(clippy::too_many_arguments, reason = "each is one fact of the cut, used once")]
async fn laid(
    inner: &Arc<Inner>,
    before: Sandbox,
    asleep: Sandbox,
    cut: &Cut,
    half: PathBuf,
    image: Image,
    cause: Cause,
    began: Instant,
) -> Finished {
    let shared = async {
        lay::lay(inner, &asleep).await?;
        copy(inner, &asleep, Part::Disk, &half).await?;
        point(Point::SnapshotCopied);
        keep(inner, &before, cut, half, Some(image)).await
    };
    let made = shared.await;
    let woken = wake::go_on(inner, asleep, &before, cause).await;
    info!(sandbox_id = %before.id, stopped = ?began.elapsed(), "cut, its disk is a layer");
    match woken.result {
        Ok(()) => end(inner, woken.row, woken.held, cut, cause, began, made).await,
        // The cut is whole, or not; its source wakes with its next use, or says why not.
        Err(error) => {
            error!(sandbox_id = %before.id, error = error_chain(&error), "did not go on after a cut");
            end(inner, woken.row, woken.held, cut, cause, began, made.and(Err(error))).await
        }
    }
}

/// Nothing moves: what is never written is linked.
async fn of_sleeper(inner: &Inner, row: &Sandbox, half: &Path) -> Result<Option<Image>, Error> {
    let checkpoint = match row.state {
        State::Suspended(Memory::Kept) => Checkpoint::of(row)?,
        _ => None,
    };
    if let Some(checkpoint) = &checkpoint {
        link(&checkpoint.image, &inner.layout.checkpoint(&row.id, checkpoint.generation), half).await?;
    }
    let data = inner.layout.sandbox(&row.id);
    if inner.driver_of(row).await?.worth_laying(&data, row.disk_mb).await? {
        lay::lay(inner, row).await?;
    }
    copy(inner, row, Part::Disk, half).await?;
    point(Point::SnapshotCopied);
    Ok(checkpoint.map(|checkpoint| checkpoint.image))
}

async fn copy(inner: &Inner, row: &Sandbox, part: Part, half: &Path) -> Result<(), Error> {
    let from = inner.layout.sandbox(&row.id);
    inner.driver_of(row).await?.copy(part, &from, half).await.map_err(|error| full(row, error))
}

fn full(row: &Sandbox, error: wakeful_driver::Error) -> Error {
    match error {
        wakeful_driver::Error::DiskFull { .. } => Error::DiskFull { id: row.id.clone() },
        other => other.into(),
    }
}

/// Copies what does not move, makes all of it durable, and writes the row that makes it a snapshot.
async fn keep(inner: &Inner, row: &Sandbox, cut: &Cut, half: PathBuf, image: Option<Image>) -> Result<(), Error> {
    if image.as_ref().is_some_and(|image| image.base == Some(MemoryBase::Own)) {
        copy(inner, row, Part::Memory, &half).await?;
    }
    let image = image.map(|image| serde_json::to_string(&image).expect("plain data"));
    let target = inner.layout.snapshot(&cut.id);
    files::blocking("publish the snapshot", move || {
        files::sync_files(&half)?;
        files::publish_dir(&half, &target)
    })
    .await?;
    point(Point::SnapshotPublished);
    let snapshot = Snapshot {
        id: cut.id.clone(),
        tenant: row.tenant.clone(),
        name: cut.name.clone(),
        sandbox_id: row.id.clone(),
        created_at: inner.now(),
        content: Content::of(row, image),
    };
    match inner.store.insert_snapshot(&snapshot).await {
        Ok(true) => {}
        Ok(false) => return Err(Error::SnapshotNameTaken(cut.name.clone().unwrap_or_default())),
        // It may have been written all the same.
        Err(error) => match inner.store.snapshot(&cut.id).await {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return Err(error.into()),
        },
    }
    point(Point::SnapshotRecorded);
    Ok(())
}

/// The source is what it was; what was not kept goes.
async fn end(
    inner: &Inner,
    row: Sandbox,
    held: Held,
    cut: &Cut,
    cause: Cause,
    began: Instant,
    made: Result<(), Error>,
) -> Finished {
    if made.is_err() {
        discard(inner, cut).await;
    }
    let mut after = row.clone();
    after.transition = None;
    after.updated_at = inner.now();
    let kind = if cut.name.is_some() { EventType::Snapshot } else { EventType::Forked };
    let event = made.is_ok().then(|| event(&after, kind, cause, Some(began.elapsed()), cut.name.clone()));
    match swap(inner, after, event.as_ref()).await {
        Ok(row) => Finished { row, held, result: made },
        // The journal entry stays; the owner's next write or the next start clears it.
        Err(error) => {
            error!(sandbox_id = %row.id, error = error_chain(&error), "could not clear the intent of a cut");
            Finished { row, held, result: made }
        }
    }
}

/// Removes what no row names. What cannot be removed now is at the next start.
async fn discard(inner: &Inner, cut: &Cut) {
    if !matches!(inner.store.snapshot(&cut.id).await, Ok(None)) {
        return;
    }
    let (dir, trash) = (inner.layout.snapshot(&cut.id), inner.layout.trash());
    let removed = files::blocking("remove a partial snapshot", move || {
        files::discard_dir(&half_made(&dir), &trash)?;
        files::discard_dir(&dir, &trash)
    });
    if let Err(error) = removed.await {
        error!(snapshot_id = %cut.id, error = error_chain(&error), "could not remove a partial snapshot");
    }
}
