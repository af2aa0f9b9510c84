//! Who may reach the ports of a sandbox.

use wakeful_model::{Port, SandboxId};

use super::{Durable, SqliteStore, doing};
use crate::Error;

/// Only for a sandbox that is there, whatever is being forgotten at the same time.
const PUT: &str = "INSERT INTO ports (sandbox_id, port, public) SELECT id, $2, $3 FROM sandboxes WHERE id = $1 \
    ON CONFLICT (sandbox_id, port) DO UPDATE SET public = excluded.public";
const REMOVE: &str = "DELETE FROM ports WHERE sandbox_id = $1 AND port = $2";
const LIST: &str = "SELECT port, public FROM ports WHERE sandbox_id = $1 ORDER BY port";
const ONE: &str = "SELECT port, public FROM ports WHERE sandbox_id = $1 AND port = $2";

fn read(id: &SandboxId, (port, public): (i64, bool)) -> Result<Port, Error> {
    let port = u16::try_from(port).map_err(|_| Error::Unreadable { id: id.to_string(), column: "port" })?;
    Ok(Port { port, public })
}

pub(super) async fn put(store: &SqliteStore, id: &SandboxId, port: Port) -> Result<(), Error> {
    const DOING: &str = "change a port";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    sqlx::query(PUT)
        .bind(id.as_str())
        .bind(i64::from(port.port))
        .bind(port.public)
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))
}

pub(super) async fn remove(store: &SqliteStore, id: &SandboxId, port: u16) -> Result<(), Error> {
    const DOING: &str = "forget a port";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    sqlx::query(REMOVE)
        .bind(id.as_str())
        .bind(i64::from(port))
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))
}

pub(super) async fn list(store: &SqliteStore, id: &SandboxId) -> Result<Vec<Port>, Error> {
    let rows: Vec<(i64, bool)> =
        sqlx::query_as(LIST).bind(id.as_str()).fetch_all(&store.readers).await.map_err(doing("list ports"))?;
    rows.into_iter().map(|row| read(id, row)).collect()
}

pub(super) async fn get(store: &SqliteStore, id: &SandboxId, port: u16) -> Result<Option<Port>, Error> {
    let row: Option<(i64, bool)> = sqlx::query_as(ONE)
        .bind(id.as_str())
        .bind(i64::from(port))
        .fetch_optional(&store.readers)
        .await
        .map_err(doing("look at a port"))?;
    row.map(|row| read(id, row)).transpose()
}
