//! Tenants, and the transactions that keep them within their limits.
//!
//! What a tenant uses is counted where it is about to be added to, under the one write lock: two that come at once are
//! counted one after the other, and the second sees the first.

use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use wakeful_model::{Event, Limits, Sandbox, SandboxId, Tenant, Usage};

use super::row::{Reader, Writer};
use super::{Durable, SqliteStore, doing, sandboxes};
use crate::{Admission, Error, Removal, Swap};

const INSERT: &str = "INSERT INTO tenants (name, limit_sandboxes, limit_memory_mb, limit_disk_mb, created_at) \
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING";
const LIMIT: &str = "UPDATE tenants SET limit_sandboxes = $2, limit_memory_mb = $3, limit_disk_mb = $4 WHERE name = $1";
const GET: &str = "SELECT * FROM tenants WHERE name = $1";
const LIST: &str = "SELECT * FROM tenants ORDER BY name";
const REMOVE: &str = "DELETE FROM tenants WHERE name = $1";

/// A wake under way counts as running: its memory is promised. `$2` is left out of the count.
const USAGE: &str = "SELECT COUNT(*) AS sandboxes, \
    COALESCE(SUM(CASE WHEN state IN ('creating', 'running') OR op = 'wake' THEN memory_mb ELSE 0 END), 0) AS memory_mb, \
    COALESCE(SUM(disk_mb), 0) AS disk_mb \
    FROM sandboxes WHERE tenant = $1 AND state <> 'destroyed' AND id <> $2";

const HOLDINGS: &str = "SELECT \
    (SELECT COUNT(*) FROM sandboxes WHERE tenant = $1 AND state <> 'destroyed') AS sandboxes, \
    (SELECT COUNT(*) FROM templates WHERE tenant = $1 AND status <> 'deleted') AS templates, \
    (SELECT COUNT(*) FROM snapshots WHERE tenant = $1 AND name IS NOT NULL) AS snapshots, \
    (SELECT COUNT(*) FROM keys WHERE tenant = $1) AS keys";

/// Whoever gets the name next must not meet what the last one left; as with old tombstones, what the journal still names
/// stays.
const TOMBSTONES: &str = "DELETE FROM sandboxes WHERE tenant = $1 AND state = 'destroyed' \
    AND NOT EXISTS (SELECT 1 FROM resources WHERE resources.sandbox_id = sandboxes.id)";

fn read(row: &SqliteRow) -> Result<Tenant, Error> {
    let read = Reader::new(row, "name")?;
    Ok(Tenant {
        name: read.get("name")?,
        limits: Limits {
            sandboxes: read.optional_number("limit_sandboxes")?,
            memory_mb: read.optional_number("limit_memory_mb")?,
            disk_mb: read.optional_number("limit_disk_mb")?,
        },
        created_at: read.instant("created_at")?,
    })
}

fn columns(name: &str, limits: &Limits) -> Result<[Option<i64>; 3], Error> {
    let write = Writer { id: name };
    Ok([
        write.optional_number("limit_sandboxes", limits.sandboxes)?,
        write.optional_number("limit_memory_mb", limits.memory_mb)?,
        write.optional_number("limit_disk_mb", limits.disk_mb)?,
    ])
}

pub(super) async fn insert(store: &SqliteStore, row: &Tenant) -> Result<bool, Error> {
    const DOING: &str = "add a tenant";
    let [sandboxes, memory_mb, disk_mb] = columns(&row.name, &row.limits)?;
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let done = sqlx::query(INSERT)
        .bind(&row.name)
        .bind(sandboxes)
        .bind(memory_mb)
        .bind(disk_mb)
        .bind(row.created_at.as_microsecond())
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn limit(store: &SqliteStore, name: &str, limits: &Limits) -> Result<bool, Error> {
    const DOING: &str = "change a tenant's limits";
    let [sandboxes, memory_mb, disk_mb] = columns(name, limits)?;
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let done = sqlx::query(LIMIT)
        .bind(name)
        .bind(sandboxes)
        .bind(memory_mb)
        .bind(disk_mb)
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn get(store: &SqliteStore, name: &str) -> Result<Option<Tenant>, Error> {
    let row = sqlx::query(GET).bind(name).fetch_optional(&store.readers).await.map_err(doing("read a tenant"))?;
    row.as_ref().map(read).transpose()
}

pub(super) async fn list(store: &SqliteStore) -> Result<Vec<Tenant>, Error> {
    let rows = sqlx::query(LIST).fetch_all(&store.readers).await.map_err(doing("list tenants"))?;
    rows.iter().map(read).collect()
}

fn read_usage(row: &SqliteRow) -> Result<Usage, Error> {
    let number = |column: &'static str| {
        let value: i64 = row.try_get(column).map_err(doing("count what a tenant uses"))?;
        Ok::<_, Error>(value.unsigned_abs())
    };
    Ok(Usage { sandboxes: number("sandboxes")?, memory_mb: number("memory_mb")?, disk_mb: number("disk_mb")? })
}

pub(super) async fn usage(store: &SqliteStore, name: &str) -> Result<Usage, Error> {
    let row = sqlx::query(USAGE)
        .bind(name)
        .bind("")
        .fetch_one(&store.readers)
        .await
        .map_err(doing("count what a tenant uses"))?;
    read_usage(&row)
}

pub(super) async fn remove(store: &SqliteStore, name: &str) -> Result<Removal, Error> {
    const DOING: &str = "remove a tenant";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let held = sqlx::query(HOLDINGS).bind(name).fetch_one(&mut *transaction).await.map_err(doing(DOING))?;
    let number = |column: &'static str| held.try_get::<i64, _>(column).map(i64::unsigned_abs).map_err(doing(DOING));
    let (sandboxes, templates) = (number("sandboxes")?, number("templates")?);
    let (snapshots, keys) = (number("snapshots")?, number("keys")?);
    if sandboxes + templates + snapshots + keys > 0 {
        return Ok(Removal::InUse { sandboxes, templates, snapshots, keys });
    }
    let done = sqlx::query(REMOVE).bind(name).execute(&mut *transaction).await.map_err(doing(DOING))?;
    if done.rows_affected() == 0 {
        return Ok(Removal::NotFound);
    }
    sqlx::query(TOMBSTONES).bind(name).execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(Removal::Removed)
}

/// Whether a tenant may have `more`, beside what it has without `id`. The write lock is held.
async fn refused<T>(
    connection: &mut SqliteConnection,
    tenant: &str,
    id: &SandboxId,
    more: Usage,
) -> Result<Option<Admission<T>>, Error> {
    const DOING: &str = "count what a tenant uses";
    let found = sqlx::query(GET).bind(tenant).fetch_optional(&mut *connection).await.map_err(doing(DOING))?;
    let Some(found) = found else { return Ok(Some(Admission::NoTenant)) };
    let limits = read(&found)?.limits;
    // Most have none, and need no counting.
    if limits == Limits::default() {
        return Ok(None);
    }
    let used =
        sqlx::query(USAGE).bind(tenant).bind(id.as_str()).fetch_one(&mut *connection).await.map_err(doing(DOING))?;
    let broken = limits.broken_by(read_usage(&used)?, more);
    Ok(broken.map(|(limit, used, most)| Admission::Over { limit, used, most }))
}

pub(super) async fn admit_sandbox(
    store: &SqliteStore,
    row: &Sandbox,
    event: Option<&Event>,
) -> Result<Admission<()>, Error> {
    let mut transaction = store.begin(sandboxes::durable(row)).await?;
    let more = Usage { sandboxes: 1, memory_mb: row.memory_mb.into(), disk_mb: row.disk_mb.into() };
    if let Some(refused) = refused(&mut transaction, &row.tenant, &row.id, more).await? {
        return Ok(refused);
    }
    sandboxes::insert_in(&mut transaction, row, event).await?;
    transaction.commit().await.map_err(doing("add a sandbox"))?;
    Ok(Admission::Admitted(()))
}

pub(super) async fn admit_wake(
    store: &SqliteStore,
    row: &Sandbox,
    event: Option<&Event>,
) -> Result<Admission<Swap<Sandbox>>, Error> {
    admit_swap(store, row, event, Usage { memory_mb: row.memory_mb.into(), ..Usage::default() }).await
}

pub(super) async fn admit_growth(
    store: &SqliteStore,
    row: &Sandbox,
    event: Option<&Event>,
) -> Result<Admission<Swap<Sandbox>>, Error> {
    admit_swap(store, row, event, Usage { disk_mb: row.disk_mb.into(), ..Usage::default() }).await
}

/// Writes the row if its tenant may have `more`, which counts beside all its others.
async fn admit_swap(
    store: &SqliteStore,
    row: &Sandbox,
    event: Option<&Event>,
    more: Usage,
) -> Result<Admission<Swap<Sandbox>>, Error> {
    let mut transaction = store.begin(sandboxes::durable(row)).await?;
    if let Some(refused) = refused(&mut transaction, &row.tenant, &row.id, more).await? {
        return Ok(refused);
    }
    let swap = sandboxes::swap_in(&mut transaction, row, event).await?;
    transaction.commit().await.map_err(doing("swap a sandbox"))?;
    Ok(Admission::Admitted(swap))
}
