//! Folding a large checkpoint into a memory base of the sandbox's own, while it sleeps.
//!
//! A wake must write every page of a diff into the new engine, about a millisecond per MiB; a base is mapped and costs
//! nothing. So a checkpoint with a large diff gets a new base in the background. Rules: only while suspended, nothing maps
//! the file that is written, and a wake or destroy cancels it. The old base with the old diff stays valid until the row
//! names the new one, and the old diff over the new base gives the same memory, so every crash in between is harmless.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use wakeful_model::Sandbox;

use crate::Error;
use crate::crash::{Point, point};
use crate::lifecycle::{Inner, error_chain};
use crate::ops::{self, Checkpoint};

/// Below this a wake hardly notices the diff.
const WORTH_IT: u64 = 32 << 20;
/// One that is woken again at once gains nothing, and the copy would run beside its wake.
const SETTLED: Duration = Duration::from_secs(1);

/// A compaction under way.
pub(crate) struct Compaction {
    cancelled: CancellationToken,
    task: JoinHandle<Option<Sandbox>>,
}

impl Compaction {
    /// Begins one if the checkpoint is large enough.
    pub(crate) fn begin(inner: &Arc<Inner>, row: &Sandbox) -> Option<Self> {
        let checkpoint = Checkpoint::of(row).ok().flatten()?;
        if checkpoint.image.bytes() < WORTH_IT {
            return None;
        }
        let cancelled = inner.draining.child_token();
        let (inner, row, token) = (Arc::clone(inner), row.clone(), cancelled.clone());
        let tasks = inner.tasks.clone();
        let task = tasks.spawn(async move {
            let folded = tokio::select! {
                biased;
                () = token.cancelled() => return None,
                folded = async {
                    tokio::time::sleep(SETTLED).await;
                    fold(&inner, &row, &checkpoint).await
                } => folded,
            };
            // Not cancelled any more: the write below either happens or does not, and the owner waits for the answer.
            let committed = match folded {
                Ok(checkpoint) => commit(&inner, &row, &checkpoint).await,
                Err(error) => Err(error),
            };
            match committed {
                Ok(row) => {
                    info!(sandbox_id = %row.id, "checkpoint compacted");
                    Some(row)
                }
                Err(error) => {
                    warn!(sandbox_id = %row.id, error = error_chain(&error), "could not compact a checkpoint, it stays as it is");
                    None
                }
            }
        });
        Some(Self { cancelled, task })
    }

    /// The row, if it was changed.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn finished(&mut self) -> Option<Sandbox> {
        (&mut self.task).await.ok().flatten()
    }

    /// Stops it, or waits for the write that it has begun. The row, if it was changed.
    pub(crate) async fn cancel(mut self) -> Option<Sandbox> {
        self.cancelled.cancel();
        self.finished().await
    }
}

async fn fold(inner: &Inner, row: &Sandbox, checkpoint: &Checkpoint) -> Result<Checkpoint, Error> {
    let driver = inner.driver_of(row).await?;
    let dir = inner.layout.checkpoint(&row.id, checkpoint.generation);
    let image = driver.compact(&inner.layout.place(&row.id), &dir, &checkpoint.image).await?;
    point(Point::CompactFolded);
    Ok(Checkpoint { image, ..checkpoint.clone() })
}

async fn commit(inner: &Inner, row: &Sandbox, checkpoint: &Checkpoint) -> Result<Sandbox, Error> {
    let old = Checkpoint::of(row)?;
    let mut after = row.clone();
    after.checkpoint = Some(checkpoint.to_row());
    after.updated_at = inner.now();
    let after = ops::swap(inner, after, None).await?;
    point(Point::CompactCommitted);
    // Only now: the row no longer names them.
    let dir = inner.layout.checkpoint(&row.id, checkpoint.generation);
    let kept: Vec<_> = checkpoint.image.files.iter().map(|file| file.name.clone()).collect();
    let dropped =
        old.map(|old| old.image.files).unwrap_or_default().into_iter().filter(|file| !kept.contains(&file.name));
    let paths: Vec<_> = dropped.map(|file| dir.join(file.name)).collect();
    crate::files::blocking("remove compacted pages", move || paths.iter().try_for_each(std::fs::remove_file)).await?;
    Ok(after)
}
