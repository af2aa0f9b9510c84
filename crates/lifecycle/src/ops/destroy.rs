//! Destroy always works: from every state, twice, and with half the files missing.
//!
//! intent → engine killed → files to the trash and removed → commit. A crash anywhere leaves the intent, and `recover`
//! does it again from the beginning; each step finds what the last try left.

use std::sync::Arc;

use tracing::error;
use wakeful_model::{Cause, EventType, Fact, Outcome, Sandbox};

use super::{event, swap};
use crate::crash::{Point, point};
use crate::lifecycle::{Inner, error_chain};
use crate::owner::{Finished, Held};
use crate::{Error, files};

pub(super) async fn run(inner: &Arc<Inner>, row: Sandbox, held: Held, cause: Cause) -> Finished {
    point(Point::DestroyIntended);
    match gone(inner, row.clone(), held, cause).await {
        Ok(row) => {
            point(Point::DestroyCommitted);
            if let Err(error) = inner.collect_after(&row.template_id, &row.base).await {
                error!(template_id = %row.template_id, error = error_chain(&error), "could not remove a deleted template's files");
            }
            Finished { row, held: Held::default(), result: Ok(()) }
        }
        Err(error) => Finished { row, held: Held::default(), result: Err(error) },
    }
}

async fn gone(inner: &Arc<Inner>, mut row: Sandbox, held: Held, cause: Cause) -> Result<Sandbox, Error> {
    if let Some(engine) = &held.engine {
        engine.kill().await?;
    }
    drop(held);
    let place = inner.layout.place(&row.id);
    // Without a usable runtime there can be no engine of ours either, unless its run directory says so.
    match inner.reaper(Some(&row.runtime)).await {
        Ok(_) => inner.reap_row(&row).await?,
        Err(error) if place.run.exists() => return Err(error),
        Err(_) => {}
    }
    inner.uplinks.forget(&row.id);
    point(Point::DestroyReaped);
    let (dir, trash) = (place.data, inner.layout.trash());
    files::blocking("remove the sandbox's files", move || files::discard_dir(&dir, &trash)).await?;
    point(Point::DestroyRemoved);
    if let Outcome::Move(state) = inner.observe(&row.id, row.state, None, Fact::Gone) {
        row.state = state;
    }
    row.transition = None;
    row.updated_at = inner.now();
    row.destroyed_at = Some(row.updated_at);
    row.suspended_at = None;
    row.checkpoint = None;
    // A tombstone tells what was, and keeps no secrets.
    row.env.clear();
    row.secret = [0; 32];
    let event =
        event(&row, EventType::Destroyed, cause, None, row.failure.as_ref().map(|failure| failure.detail.clone()));
    swap(inner, row, Some(&event)).await
}
