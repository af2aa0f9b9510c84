//! API keys.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use wakeful_model::{Digest, Key, KeyId};

use super::row::{Reader, Writer, microseconds};
use super::{Durable, SqliteStore, doing};
use crate::Error;

/// Only for a tenant that is there, whatever is being deleted at the same time.
const INSERT: &str = "INSERT INTO keys (id, name, tenant, scopes, digest, created_at, last_used_at) \
    SELECT $1, $2, name, $4, $5, $6, $7 FROM tenants WHERE name = $3";
const LIST: &str = "SELECT * FROM keys ORDER BY created_at, id";
const REMOVE: &str = "DELETE FROM keys WHERE id = $1";
const USED: &str = "UPDATE keys SET last_used_at = $2 WHERE id = $1 AND COALESCE(last_used_at, $2 - 1) < $2";

fn read(row: &SqliteRow) -> Result<Key, Error> {
    let read = Reader::new(row, "id")?;
    Ok(Key {
        id: read.word("id")?,
        name: read.get("name")?,
        tenant: read.get("tenant")?,
        scopes: read.json("scopes")?,
        digest: Digest(read.get::<&[u8]>("digest")?.try_into().map_err(|_| read.unreadable("digest"))?),
        created_at: read.instant("created_at")?,
        last_used_at: read.optional_instant("last_used_at")?,
    })
}

pub(super) async fn insert(store: &SqliteStore, row: &Key) -> Result<bool, Error> {
    const DOING: &str = "add a key";
    let scopes = Writer { id: row.id.as_str() }.json("scopes", &row.scopes)?;
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let done = sqlx::query(INSERT)
        .bind(row.id.as_str())
        .bind(&row.name)
        .bind(&row.tenant)
        .bind(scopes)
        .bind(&row.digest.0[..])
        .bind(row.created_at.as_microsecond())
        .bind(microseconds(row.last_used_at))
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn list(store: &SqliteStore) -> Result<Vec<Key>, Error> {
    let rows = sqlx::query(LIST).fetch_all(&store.readers).await.map_err(doing("list keys"))?;
    rows.iter().map(read).collect()
}

pub(super) async fn remove(store: &SqliteStore, id: &KeyId) -> Result<bool, Error> {
    const DOING: &str = "remove a key";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let done = sqlx::query(REMOVE).bind(id.as_str()).execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn used(store: &SqliteStore, uses: &[(KeyId, Timestamp)]) -> Result<(), Error> {
    const DOING: &str = "note the use of keys";
    if uses.is_empty() {
        return Ok(());
    }
    let mut transaction = store.begin(Durable::Later).await?;
    for (id, at) in uses {
        sqlx::query(USED)
            .bind(id.as_str())
            .bind(at.as_microsecond())
            .execute(&mut *transaction)
            .await
            .map_err(doing(DOING))?;
    }
    transaction.commit().await.map_err(doing(DOING))
}
