//! The journal of what was made on the host.

use jiff::Timestamp;
use wakeful_model::SandboxId;

use super::{Durable, SqliteStore, doing};
use crate::Error;

const NOTE: &str = "INSERT INTO resources (sandbox_id, kind, name, made_at) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (sandbox_id, kind, name) DO NOTHING";
const FORGET: &str = "DELETE FROM resources WHERE sandbox_id = $1";
const LIST: &str = "SELECT kind, name FROM resources WHERE sandbox_id = $1 ORDER BY made_at, kind, name";

pub(super) async fn note(store: &SqliteStore, id: &SandboxId, kind: &str, name: &str) -> Result<(), Error> {
    const DOING: &str = "note a resource";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    sqlx::query(NOTE)
        .bind(id.as_str())
        .bind(kind)
        .bind(name)
        .bind(Timestamp::now().as_microsecond())
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))
}

/// They are gone already: should this be lost, the next one finds nothing to remove, and says so again.
pub(super) async fn forget(store: &SqliteStore, id: &SandboxId) -> Result<(), Error> {
    const DOING: &str = "forget resources";
    let mut transaction = store.begin(Durable::Later).await?;
    sqlx::query(FORGET).bind(id.as_str()).execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))
}

pub(super) async fn list(store: &SqliteStore, id: &SandboxId) -> Result<Vec<(String, String)>, Error> {
    sqlx::query_as(LIST).bind(id.as_str()).fetch_all(&store.readers).await.map_err(doing("list resources"))
}
