//! The operations: each a list of steps that a crash can interrupt between any two, with what `recover` makes of it.

pub(crate) mod create;
mod cut;
mod destroy;
mod lay;
pub(crate) mod obstacles;
mod suspend;
mod wake;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use wakeful_driver::{Image, Machine};
use wakeful_model::{Cause, Event, EventType, Sandbox};
use wakeful_store::Swap;

use crate::lifecycle::Inner;
use crate::owner::{Finished, Held, Plan};
use crate::{Error, files};

pub(crate) use cut::Cut;
pub(crate) use suspend::Checkpoint;
pub(crate) use wake::remove_stale_images;

/// Runs an operation to its end, whatever its caller does.
///
/// `off` calls it off where it has not been asked for and is not committed yet; it ends with [`Error::CalledOff`] then.
pub(crate) async fn run(inner: Arc<Inner>, row: Sandbox, held: Held, plan: Plan, off: CancellationToken) -> Finished {
    let (op, began) = (plan.op(), Instant::now());
    let finished = match plan {
        Plan::Create { from } => create::run(&inner, row, from).await,
        Plan::Suspend { memory, cause } => suspend::run(&inner, row, held, memory, cause, &off).await,
        Plan::Wake { cause } => wake::run(&inner, row, cause).await,
        Plan::Cut(cut) => cut::run(&inner, row, held, &cut, Cause::Api).await,
        Plan::Destroy { cause } => destroy::run(&inner, row, held, cause).await,
    };
    if !matches!(finished.result, Err(Error::CalledOff)) {
        inner.metrics.operation(op, began.elapsed(), finished.result.as_ref().err().map(Error::code));
    }
    finished
}

/// One durable write: compares the version, writes the row and its event.
pub(crate) async fn swap(inner: &Inner, row: Sandbox, event: Option<&Event>) -> Result<Sandbox, Error> {
    let began = Instant::now();
    let swap = inner.store.swap_sandbox(&row, event).await?;
    written(inner, row, event, swap, began)
}

/// What a write made of the row; whoever counts writes or follows the events hears of it.
pub(crate) fn written(
    inner: &Inner,
    mut row: Sandbox,
    event: Option<&Event>,
    swap: Swap<Sandbox>,
    began: Instant,
) -> Result<Sandbox, Error> {
    match swap {
        Swap::Swapped(version) => {
            inner.metrics.write(began.elapsed());
            if event.is_some() {
                inner.news.tell(&row.id);
            }
            row.version = version;
            Ok(row)
        }
        Swap::Stale(other) => {
            Err(Error::Internal(format!("{} was written by somebody else: version {}", other.id, other.version)))
        }
        Swap::NotFound => Err(Error::SandboxNotFound(row.id.to_string())),
    }
}

/// Gives the files of an image a name in another directory: they are never written again.
async fn link(image: &Image, from: &Path, to: &Path) -> Result<(), Error> {
    let (from, to) = (from.to_owned(), to.to_owned());
    let names: Vec<_> = image.files.iter().map(|file| file.name.clone()).collect();
    files::blocking("link a checkpoint", move || {
        names.iter().try_for_each(|name| std::fs::hard_link(from.join(name), to.join(name)))
    })
    .await
}

/// An event in the words of the row.
pub(crate) fn event(
    row: &Sandbox,
    kind: EventType,
    cause: Cause,
    took: Option<Duration>,
    detail: Option<String>,
) -> Event {
    Event {
        at: row.updated_at,
        kind,
        cause,
        duration_ms: took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        runtime_generation: row.runtime_generation,
        detail,
    }
}

pub(crate) fn machine_of(row: &Sandbox) -> Machine {
    Machine { cpu: row.cpu, memory_mb: row.memory_mb, disk_mb: row.disk_mb }
}
