//! Copies of sandboxes.

use jiff::Timestamp;
use wakeful_model::{Snapshot, SnapshotId};

use super::{Durable, SqliteStore, doing};
use crate::Error;

const INSERT: &str = "INSERT INTO snapshots (id, tenant, name, sandbox_id, template_id, base, content, created_at) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
const REMOVE: &str = "DELETE FROM snapshots WHERE id = $1";
const ONE: &str = "SELECT id, tenant, name, sandbox_id, content, created_at FROM snapshots WHERE id = $1";
const ALL: &str = "SELECT id, tenant, name, sandbox_id, content, created_at FROM snapshots \
    WHERE $1 IS NULL OR (tenant = $1 AND name IS NOT NULL) ORDER BY created_at DESC, id DESC";

type Row = (String, String, Option<String>, String, String, i64);

fn read((id, tenant, name, sandbox_id, content, created_at): Row) -> Result<Snapshot, Error> {
    let unreadable = |column| Error::Unreadable { id: id.clone(), column };
    Ok(Snapshot {
        tenant,
        name,
        sandbox_id: sandbox_id.parse().map_err(|_| unreadable("sandbox_id"))?,
        created_at: Timestamp::from_microsecond(created_at).map_err(|_| unreadable("created_at"))?,
        content: serde_json::from_str(&content).map_err(|_| unreadable("content"))?,
        id: id.parse().map_err(|_| unreadable("id"))?,
    })
}

pub(super) async fn insert(store: &SqliteStore, row: &Snapshot) -> Result<bool, Error> {
    const DOING: &str = "add a snapshot";
    let unwritable = |_| Error::Unwritable { id: row.id.to_string(), column: "content" };
    let content = serde_json::to_string(&row.content).map_err(unwritable)?;
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let done = sqlx::query(INSERT)
        .bind(row.id.as_str())
        .bind(&row.tenant)
        .bind(&row.name)
        .bind(row.sandbox_id.as_str())
        .bind(row.content.template_id.as_str())
        .bind(&row.content.base)
        .bind(content)
        .bind(row.created_at.as_microsecond())
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn remove(store: &SqliteStore, id: &SnapshotId) -> Result<bool, Error> {
    const DOING: &str = "remove a snapshot";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let done = sqlx::query(REMOVE).bind(id.as_str()).execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn get(store: &SqliteStore, id: &SnapshotId) -> Result<Option<Snapshot>, Error> {
    let row: Option<Row> = sqlx::query_as(ONE)
        .bind(id.as_str())
        .fetch_optional(&store.readers)
        .await
        .map_err(doing("look at a snapshot"))?;
    row.map(read).transpose()
}

pub(super) async fn list(store: &SqliteStore, tenant: Option<&str>) -> Result<Vec<Snapshot>, Error> {
    let rows: Vec<Row> =
        sqlx::query_as(ALL).bind(tenant).fetch_all(&store.readers).await.map_err(doing("list snapshots"))?;
    rows.into_iter().map(read).collect()
}
