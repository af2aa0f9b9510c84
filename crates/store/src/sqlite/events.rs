//! Events: written by whoever commits a state, in its transaction.

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use wakeful_model::{Event, SandboxId};

use super::row::{Reader, Writer};
use super::{SqliteStore, doing};
use crate::Error;

/// The number is taken under the write lock, so there are no gaps and no doubles.
const INSERT: &str = "INSERT INTO events \
    (sandbox_id, seq, at, type, cause, duration_ms, runtime_generation, detail) \
    SELECT $1, COALESCE(MAX(seq), 0) + 1, $2, $3, $4, $5, $6, $7 FROM events WHERE sandbox_id = $1";

const LIST: &str = "SELECT sandbox_id, seq, at, type, cause, duration_ms, runtime_generation, detail FROM events \
    WHERE sandbox_id = $1 AND seq > $2 ORDER BY seq LIMIT $3";

pub(super) async fn insert(connection: &mut SqliteConnection, id: &SandboxId, event: &Event) -> Result<(), Error> {
    let write = Writer { id: id.as_str() };
    sqlx::query(INSERT)
        .bind(id.as_str())
        .bind(event.at.as_microsecond())
        .bind(event.kind.to_string())
        .bind(event.cause.to_string())
        .bind(write.optional_number("duration_ms", event.duration_ms)?)
        .bind(write.number("runtime_generation", event.runtime_generation)?)
        .bind(event.detail.as_deref())
        .execute(connection)
        .await
        .map_err(doing("add an event"))?;
    Ok(())
}

pub(super) async fn list(
    store: &SqliteStore,
    id: &SandboxId,
    after: u64,
    limit: u32,
) -> Result<Vec<(u64, Event)>, Error> {
    let rows = sqlx::query(LIST)
        .bind(id.as_str())
        // No sequence number is above the largest that the column holds.
        .bind(i64::try_from(after).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(&store.readers)
        .await
        .map_err(doing("list events"))?;
    rows.iter().map(read).collect()
}

fn read(row: &SqliteRow) -> Result<(u64, Event), Error> {
    let read = Reader::new(row, "sandbox_id")?;
    let event = Event {
        at: read.instant("at")?,
        kind: read.word("type")?,
        cause: read.word("cause")?,
        duration_ms: read.optional_number("duration_ms")?,
        runtime_generation: read.number("runtime_generation")?,
        detail: read.get("detail")?,
    };
    Ok((read.number("seq")?, event))
}
