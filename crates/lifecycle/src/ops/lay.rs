//! A cut of a sandbox whose disk would take long to copy: the disk becomes a layer that source and copy stand on.
//!
//! ```text
//!   engine stopped and saved (`cut.rs`) → the image is linked as the source's own checkpoint
//!     → **one database write: it sleeps** → engine ended → disk laid, shared → the snapshot's row
//!     → **spent** → the same memory over the layer → **it runs**, in the same generation
//! ```
//!
//! Before the first write every failure and crash lets the stopped engine run on, as in any cut. After it the source is a
//! sleeper, whole at every step: whatever goes wrong then, its next use wakes it. Whoever waits for a command inside finds it
//! again afterwards, as after any cut.

use std::sync::Arc;

use tracing::{error, warn};
use wakeful_driver::{Engine, Image};
use wakeful_model::{Memory, Sandbox};

use super::suspend::{self, Checkpoint, Uncommitted};
use super::{link, remove_stale_images};
use crate::Error;
use crate::crash::{Point, point, point_with};
use crate::lifecycle::{Inner, error_chain};
use crate::owner::{Finished, Held};

/// What became of a source that was to sleep for a moment.
pub(super) enum Laid {
    /// It does; what was under way still is.
    Asleep(Box<Sandbox>),
    /// Nothing was written: its engine is there and stopped.
    NotBegun(Error),
    /// It does, but its engine cannot be ended.
    Stuck(Box<Sandbox>, Error),
    /// Nobody knows what was written.
    Unknown(Box<Finished>),
}

/// Commits what the cut in `half` has saved as the source's checkpoint too, and ends its engine.
pub(super) async fn asleep(
    inner: &Inner,
    row: &Sandbox,
    engine: &Arc<dyn Engine>,
    half: &std::path::Path,
    image: &Image,
) -> Laid {
    let checkpoint = Checkpoint { generation: row.runtime_generation, disk_synced: true, image: image.clone() };
    let linked = async {
        let (temporary, target) = suspend::new_directory(inner, row).await?;
        link(&checkpoint.image, half, &temporary).await?;
        suspend::publish(&checkpoint, temporary, target).await
    };
    if let Err(error) = linked.await {
        return not_begun(inner, row, error).await;
    }
    point_with(Point::LayLinked, &**engine);
    match suspend::commit(inner, row, Memory::Kept, Some(&checkpoint), None).await {
        Ok(asleep) => {
            point(Point::LayAsleep);
            match suspend::clear_up(inner, &asleep, engine).await {
                Ok(()) => Laid::Asleep(Box::new(asleep)),
                Err(error) => Laid::Stuck(Box::new(asleep), error),
            }
        }
        Err(Uncommitted::Surely(error)) => not_begun(inner, row, error).await,
        // As in a suspend: the engine stays stopped until a start can read the row.
        Err(Uncommitted::Perhaps(error)) => {
            error!(sandbox_id = %row.id, error = error_chain(&error), "nobody knows whether it sleeps");
            let held = Held { engine: Some(Arc::clone(engine)), guest: None };
            Laid::Unknown(Box::new(Finished { row: row.clone(), held, result: Err(error) }))
        }
    }
}

/// What was linked for it is named by no row, and would hold its blocks until the next sleep.
async fn not_begun(inner: &Inner, row: &Sandbox, why: Error) -> Laid {
    if let Err(error) = remove_stale_images(inner, row).await {
        warn!(sandbox_id = %row.id, error = error_chain(&error), "could not remove it; the next suspend will");
    }
    Laid::NotBegun(why)
}

/// Turns the disk of a sleeper into a layer. Where that cannot be done it stays as it is, and is copied.
pub(super) async fn lay(inner: &Inner, row: &Sandbox) -> Result<(), Error> {
    let data = inner.layout.sandbox(&row.id);
    if let Err(error) = inner.driver_of(row).await?.lay(&data, row.disk_mb).await {
        warn!(sandbox_id = %row.id, error = error_chain(&error), "its disk is copied, since it could not be laid");
    }
    point(Point::LayLaid);
    Ok(())
}
