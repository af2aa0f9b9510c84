//! What a start finds, and what it makes of it. The daemon is crash-only: this is the normal way up.
//!
//! | row | engine | becomes |
//! |---|---|---|
//! | `creating` | any | destroyed: nobody was told its id |
//! | `running` | alive | adopted; a suspend under way is abandoned, the stopped engine goes on |
//! | `running` | gone | persistent, or being suspended: `suspended`, memory spent; ephemeral: destroyed |
//! | `suspended`, memory kept or none | any | the engine is reaped; a wake under way had spent nothing |
//! | `suspended`, memory spent, waking | alive | the wake is finished, if its agent confirms; else reaped |
//! | `failed` | any | reaped |
//! | any, destroying | any | destroyed |
//! | any, being cut | any | as it was; the copy is whole and has a row, or goes |
//! | of a runtime that cannot be used | any | as it is, until the runtime is back; it can be destroyed |
//!
//! Then everything that no row names is removed: engines, run directories, sandbox directories, trash.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};
use wakeful_driver::{Driver, MemoryBase, Place};
use wakeful_model::{Cause, EventType, Fact, Memory, Mode, Op, Outcome, Sandbox, State};

use crate::disk::Follows;
use crate::entry::Began;
use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::{Inner, error_chain, own};
use crate::owner::{Held, Plan, Start};
use crate::{Error, disk, entry, files, golden, ops};

/// How long an adopted guest may take to answer.
const ADOPTED: Duration = Duration::from_secs(20);

pub(crate) async fn recover(inner: &Arc<Inner>) -> Result<(), Error> {
    let rows = inner.store.live_sandboxes().await?;
    let run_dirs = list(inner.layout.run().to_owned()).await?;
    let dirs = list(inner.layout.sandboxes()).await?;
    // A machine with no sandboxes and no leftovers need not wait for its engines.
    if !rows.is_empty() || run_dirs.iter().any(|name| is_place(name)) {
        let drivers = open_all(inner, &rows).await;
        // Whoever is open clears every place; without anybody all that is at rest can at least be looked at.
        if let Err(error) = inner.reaper(None).await {
            return if rows.iter().all(at_rest) { without_engines(inner, rows, &error).await } else { Err(error) };
        }
        sweep(inner, &rows, &run_dirs).await?;
        let mut recovering = tokio::task::JoinSet::new();
        for row in rows.clone() {
            let (inner, driver) = (Arc::clone(inner), drivers.get(&row.runtime).cloned());
            recovering.spawn(async move {
                let start = match one(&inner, driver.as_ref(), row.clone()).await {
                    Ok(start) => start,
                    // One that cannot be brought up spares the others: it can be looked at, and destroyed.
                    Err(error) => {
                        error!(sandbox_id = %row.id, error = error_chain(&error), "could not recover a sandbox");
                        Start { row, held: Held::default(), first: None }
                    }
                };
                own(&inner, start);
            });
        }
        while let Some(done) = recovering.join_next().await {
            done.map_err(|panic| Error::Internal(panic.to_string()))?;
        }
    }
    inner.uplinks.sweep().await;
    let known: HashSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let strays: Vec<_> = dirs
        .iter()
        .filter(|name| !known.contains(name.as_str()))
        .map(|name| inner.layout.sandboxes().join(name))
        .collect();
    let (trash, golden, layers) = (inner.layout.trash(), inner.layout.golden_root(), inner.layout.layers());
    files::blocking("remove what belongs to no sandbox", move || {
        // golden/<template>/<machine>/new-…: snapshots that were being made.
        let snapshots = children(golden).into_iter().flat_map(children).flat_map(children);
        // layers/new-…: a step's disk.
        let half_made = snapshots.chain(children(layers)).filter(|dir| dir.file_name().is_some_and(is_half_made));
        for stray in strays.into_iter().chain(half_made) {
            files::discard_dir(&stray, &trash)?;
        }
        files::empty(&trash)
    })
    .await?;
    if let Err(error) = inner.clear_trees().await {
        warn!(error = error_chain(&error), "could not remove half-made trees of bases, a later sweep does");
    }
    inner.recover_snapshots().await?;
    inner.resume_builds().await
}

/// The drivers of all sandboxes, as far as they can be opened. Those of the others sleep on until theirs is back.
async fn open_all(inner: &Inner, rows: &[Sandbox]) -> HashMap<String, Arc<dyn Driver>> {
    let names: BTreeSet<&str> = rows.iter().map(|row| row.runtime.as_str()).collect();
    let mut drivers = HashMap::new();
    for name in names {
        match inner.drivers.named(name).await {
            Ok(driver) => drop(drivers.insert(name.to_owned(), driver)),
            Err(error) => {
                warn!(
                    runtime = name,
                    error = error_chain(&error),
                    "its sandboxes stay as they are until it can be used"
                );
            }
        }
    }
    drivers
}

/// Engines and golden snapshots of earlier versions, once no checkpoint stands on them. What a running engine maps is not
/// in its row, so nothing is forgotten while one runs; and nothing that a sleeper stands on, so that one may wake meanwhile.
pub(crate) async fn forget_unused(inner: &Inner) -> Result<(), Error> {
    let rows = inner.store.live_sandboxes().await?;
    if !rows.iter().all(at_rest) {
        return Ok(());
    }
    let checkpoints: Vec<_> = rows.iter().map(ops::Checkpoint::of).collect::<Result<_, _>>()?;
    let kept = inner.snapshot_images().await?;
    let images = || checkpoints.iter().flatten().map(|checkpoint| &checkpoint.image).chain(&kept);
    let engines: Vec<String> = images().map(|image| image.engine.clone()).collect();
    // What belongs to a runtime that is not open stays: nobody knows what it needs.
    let mut keys = HashMap::new();
    for driver in inner.drivers.all_opened() {
        driver.forget_engines(&engines).await?;
        keys.insert(driver.engine().runtime.clone(), driver.engine().golden_key.clone());
    }
    if keys.is_empty() {
        return Ok(());
    }
    let mapped: HashSet<PathBuf> = images()
        .filter_map(|image| match &image.base {
            Some(MemoryBase::Golden(dir)) => Some(dir.clone()),
            Some(MemoryBase::Own) | None => None,
        })
        .collect();
    let (root, trash) = (inner.layout.golden_root(), inner.layout.trash());
    files::blocking("forget golden snapshots of earlier engines", move || {
        // golden/<template>/<machine>/<key>
        for dir in children(root).into_iter().flat_map(children).flat_map(children) {
            if is_outdated(&dir, &keys) && !mapped.contains(&dir) {
                files::discard_dir(&dir, &trash)?;
            }
        }
        Ok(())
    })
    .await
}

/// Whether a golden snapshot is of none of these engines (runtimes and their keys), but of an earlier one of theirs. Blocks.
fn is_outdated(dir: &Path, keys: &HashMap<String, String>) -> bool {
    let Some(name) = dir.file_name().filter(|name| !is_half_made(name)) else { return false };
    let of = |key: &String| name.to_string_lossy().starts_with(&format!("{key}-"));
    if keys.values().any(of) {
        return false;
    }
    // One that does not say is of the time when there was one runtime.
    golden::runtime_of(dir).is_none_or(|runtime| keys.contains_key(&runtime))
}

pub(crate) fn at_rest(row: &Sandbox) -> bool {
    !row.state.has_engine() && row.transition.is_none()
}

/// Sleepers can be listed and asked about although nothing here can wake them.
async fn without_engines(inner: &Arc<Inner>, rows: Vec<Sandbox>, why: &Error) -> Result<(), Error> {
    warn!(error = error_chain(why), "no runtime is usable: sandboxes sleep on until one is");
    inner.uplinks.sweep().await;
    for row in rows {
        own(inner, Start { row, held: Held::default(), first: None });
    }
    inner.recover_snapshots().await?;
    inner.resume_builds().await
}

/// Run directories are named by bare ids; beside them lie caches of ours.
pub(crate) fn is_place(name: &str) -> bool {
    name.parse::<wakeful_model::SandboxId>().is_ok()
}

/// A golden snapshot that is being made, or was when the daemon ended.
pub(crate) fn is_half_made(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with(golden::HALF_MADE)
}

pub(crate) fn children(dir: PathBuf) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

async fn list(dir: PathBuf) -> Result<Vec<String>, Error> {
    files::blocking(format!("read {}", dir.display()), move || {
        files::make_private_dir(&dir)?;
        std::fs::read_dir(&dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    })
    .await
}

/// Ends engines that no row names: golden snapshots that were being made, creates whose row never came to be.
async fn sweep(inner: &Inner, rows: &[Sandbox], run_dirs: &[String]) -> Result<(), Error> {
    let driver = inner.reaper(None).await?;
    let known: HashSet<&str> = rows.iter().map(|row| row.id.bare()).collect();
    for name in run_dirs.iter().filter(|name| is_place(name) && !known.contains(name.as_str())) {
        let run = inner.layout.run().join(name);
        warn!(place = name, "removing what no sandbox names");
        driver.reap(&Place { name: name.clone(), run, data: inner.layout.sandboxes().join(name) }).await?;
    }
    Ok(())
}

async fn one(inner: &Arc<Inner>, driver: Option<&Arc<dyn Driver>>, row: Sandbox) -> Result<Start, Error> {
    let place = inner.layout.place(&row.id);
    let under_way = row.transition.as_ref().map(|transition| transition.op);
    let destroy =
        |row| Start { row, held: Held::default(), first: Some((Plan::Destroy { cause: Cause::Recovery }, None)) };
    Ok(match (row.state, under_way) {
        (State::Destroyed | State::Creating, _) | (_, Some(Op::Destroy)) => destroy(row),
        // Its engine may run on: only its own driver can find it.
        (State::Running, _) | (State::Suspended(Memory::Spent), Some(Op::Wake | Op::Snapshot | Op::Fork))
            if driver.is_none() =>
        {
            warn!(sandbox_id = %row.id, runtime = row.runtime, "left as it is, since its runtime cannot be used");
            Start { row, held: Held::default(), first: None }
        }
        (State::Running, _) => match adopt(driver, &place, &row).await {
            Ok(held) => {
                info!(sandbox_id = %row.id, "engine adopted");
                inner.uplinks.adopt(&row).await;
                Start { row: settle(inner, row, EventType::Adopted).await?, held, first: None }
            }
            Err(reason) => {
                warn!(sandbox_id = %row.id, reason, "engine is gone");
                inner.reap_row(&row).await?;
                // Whoever was about to sleep is not ended: it is to be kept, and we may have switched it off ourselves.
                let persistent = row.policy.mode() == Mode::Persistent || under_way == Some(Op::Suspend);
                match inner.observe(&row.id, row.state, None, Fact::EngineMissing { persistent }) {
                    Outcome::Move(state) => {
                        Start { row: lost(inner, row, state).await?, held: Held::default(), first: None }
                    }
                    Outcome::Begin(_) | Outcome::Later | Outcome::Ignore => destroy(row),
                }
            }
        },
        // Of a cut that has ended its source's engine and was about to go on with another (`ops/lay.rs`).
        (State::Suspended(Memory::Spent), Some(Op::Wake | Op::Snapshot | Op::Fork)) => {
            match adopt(driver, &place, &row).await {
                Ok(held) => {
                    info!(sandbox_id = %row.id, "finishing the wake that a crash interrupted");
                    inner.uplinks.adopt(&row).await;
                    Start { row: woken(inner, row).await?, held, first: None }
                }
                Err(reason) => {
                    warn!(sandbox_id = %row.id, reason, "the wake under way is lost, the next one boots");
                    inner.reap_row(&row).await?;
                    let row = settle(inner, Sandbox { checkpoint: None, ..row }, EventType::Adopted).await?;
                    ops::remove_stale_images(inner, &row).await?;
                    Start { row, held: Held::default(), first: None }
                }
            }
        }
        (State::Suspended(_) | State::Failed(_), _) => {
            inner.reap_row(&row).await?;
            let row = if row.transition.is_some() { settle(inner, row, EventType::Adopted).await? } else { row };
            ops::remove_stale_images(inner, &row).await?;
            Start { row, held: Held::default(), first: None }
        }
    })
}

/// Finds the engine, lets it run, and has its agent confirm. Why not, if not.
///
/// An agent that does not answer costs a running sandbox nothing: its engine is there, and the next access tries again.
/// A wake under way must be confirmed.
async fn adopt(driver: Option<&Arc<dyn Driver>>, place: &Place, row: &Sandbox) -> Result<Held, String> {
    let Some(driver) = driver else { return Err("its runtime cannot be used".into()) };
    let engine = match driver.adopt(place).await {
        Ok(Some(engine)) => engine,
        Ok(None) => return Err("no engine was found".into()),
        Err(error) => return Err(error_chain(&error)),
    };
    let waking = row.state != State::Running;
    // They are the engine's, and should be as they were.
    let follows = match disk::prepare(&**driver, &engine, row).await {
        Ok(follows) => follows,
        Err(error) if waking => return Err(error_chain(&error)),
        Err(error) => {
            warn!(sandbox_id = %row.id, error = error_chain(&error), "adopted, but its disk could not be set up again");
            Follows::No
        }
    };
    let confirmed = async {
        let who = Identity::of(row, row.runtime_generation + u64::from(waking));
        let guest = guest::revive(&engine, &row.secret, Vcpus::Stopped, ADOPTED, &who).await?;
        disk::follow(&guest, row, follows).await;
        if waking && row.checkpoint.is_none() {
            entry::begin(row, &guest, Began::Recovery).await?;
        }
        Ok(guest)
    };
    match confirmed.await {
        Ok(guest) => Ok(Held { engine: Some(engine), guest: Some(guest) }),
        Err(Error::Unresponsive { detail, .. }) if !waking => {
            warn!(sandbox_id = %row.id, detail, "adopted, but its agent does not answer");
            Ok(Held { engine: Some(engine), guest: None })
        }
        Err(error) => Err(error_chain(&error)),
    }
}

/// Clears the journal entry; the state stays.
async fn settle(inner: &Inner, mut row: Sandbox, kind: EventType) -> Result<Sandbox, Error> {
    row.transition = None;
    row.updated_at = inner.now();
    let event = ops::event(&row, kind, Cause::Recovery, None, None);
    ops::swap(inner, row, Some(&event)).await
}

async fn lost(inner: &Inner, mut row: Sandbox, state: State) -> Result<Sandbox, Error> {
    row.state = state;
    row.suspended_at = Some(inner.now());
    row.started_at = None;
    row.checkpoint = None;
    settle(inner, row, EventType::Suspended).await
}

async fn woken(inner: &Inner, mut row: Sandbox) -> Result<Sandbox, Error> {
    if let Outcome::Move(state) = inner.observe(&row.id, row.state, None, Fact::Woken) {
        row.state = state;
    }
    // Whether that engine was loaded or booted: a checkpoint that the row still names says loaded.
    row.restored_memory = Some(row.checkpoint.is_some());
    row.runtime_generation += 1;
    row.checkpoint = None;
    row.suspended_at = None;
    row.started_at = Some(inner.now());
    // As every wake does: or one that had slept for long would be put to sleep again at once.
    row.last_activity_at = inner.now();
    settle(inner, row, EventType::Woken).await
}
