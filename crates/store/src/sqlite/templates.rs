//! Templates.

use sqlx::Row;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteRow};
use wakeful_model::{Template, TemplateId};

use super::row::{Reader, Writer, microseconds};
use super::{Durable, SqliteStore, doing};
use crate::{Error, Swap};

const INSERT: &str = r#"INSERT INTO templates
    (id, version, tenant, name, status, build_error, source, "user", workdir, env, default_size, egress, base,
     disk_bytes, created_at, built_at, tags, description, asked, disk_mb, io, entry)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
    ON CONFLICT (tenant, name) WHERE status <> 'deleted' DO NOTHING"#;

const SWAP: &str = r#"UPDATE templates SET
    version = version + 1, tenant = $3, name = $4, status = $5, build_error = $6, source = $7, "user" = $8,
    workdir = $9, env = $10, default_size = $11, egress = $12, base = $13, disk_bytes = $14, created_at = $15,
    built_at = $16, tags = $17, description = $18, asked = $19, disk_mb = $20, io = $21, entry = $22
    WHERE id = $1 AND version = $2 RETURNING version"#;

const GET: &str = "SELECT * FROM templates WHERE id = $1";
const BY_NAME: &str = "SELECT * FROM templates WHERE tenant = $1 AND name = $2 AND status <> 'deleted'";
const LIST: &str = "SELECT * FROM templates WHERE tenant = $1 AND status <> 'deleted' ORDER BY name";
const LIST_ALL: &str = "SELECT * FROM templates ORDER BY tenant, name, created_at, id";
const REMOVE: &str = "DELETE FROM templates WHERE id = $1";
const USERS: &str = "SELECT (SELECT COUNT(*) FROM sandboxes WHERE template_id = $1 AND state <> 'destroyed') \
    + (SELECT COUNT(*) FROM snapshots WHERE template_id = $1)";
const BASES: &str = "SELECT DISTINCT template_id, base FROM sandboxes WHERE state <> 'destroyed' \
    UNION SELECT template_id, base FROM snapshots";

type Statement = Query<'static, Sqlite, SqliteArguments>;

/// `$1` to `$22`, the same in [`INSERT`] and [`SWAP`].
fn bind(statement: Statement, row: &Template) -> Result<Statement, Error> {
    let write = Writer { id: row.id.as_str() };
    Ok(statement
        .bind(row.id.as_str())
        .bind(row.version)
        .bind(&row.tenant)
        .bind(&row.name)
        .bind(row.status.to_string())
        .bind(write.optional_json("build_error", row.build_error.as_ref())?)
        .bind(write.json("source", &row.source)?)
        .bind(&row.user)
        .bind(&row.workdir)
        .bind(write.json("env", &row.env)?)
        .bind(&row.default_size)
        .bind(write.json("egress", &row.egress)?)
        .bind(row.base.as_deref())
        .bind(write.number("disk_bytes", row.disk_bytes)?)
        .bind(row.created_at.as_microsecond())
        .bind(microseconds(row.built_at))
        .bind(write.json("tags", &row.tags)?)
        .bind(&row.description)
        .bind(write.json("asked", &row.asked)?)
        .bind(row.disk_mb.map(i64::from))
        .bind(write.json("io", &row.io)?)
        .bind(write.optional_json("entry", row.entry.as_ref())?))
}

fn read(row: &SqliteRow) -> Result<Template, Error> {
    let read = Reader::new(row, "id")?;
    Ok(Template {
        id: read.word("id")?,
        version: read.get("version")?,
        tenant: read.get("tenant")?,
        name: read.get("name")?,
        status: read.word("status")?,
        build_error: read.optional_json("build_error")?,
        source: read.json("source")?,
        user: read.get("user")?,
        workdir: read.get("workdir")?,
        env: read.json("env")?,
        default_size: read.get("default_size")?,
        egress: read.json("egress")?,
        base: read.get("base")?,
        disk_bytes: read.number("disk_bytes")?,
        created_at: read.instant("created_at")?,
        built_at: read.optional_instant("built_at")?,
        tags: read.json("tags")?,
        description: read.get("description")?,
        asked: read.json("asked")?,
        disk_mb: read.optional_number("disk_mb")?,
        io: read.json("io")?,
        entry: read.optional_json("entry")?,
    })
}

pub(super) async fn insert(store: &SqliteStore, row: &Template) -> Result<bool, Error> {
    const DOING: &str = "add a template";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let done = bind(sqlx::query(INSERT), row)?.execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn swap(store: &SqliteStore, row: &Template) -> Result<Swap<Template>, Error> {
    const DOING: &str = "swap a template";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    let swapped = bind(sqlx::query(SWAP), row)?.fetch_optional(&mut *transaction).await.map_err(doing(DOING))?;
    if let Some(swapped) = swapped {
        let version = swapped.try_get("version").map_err(doing(DOING))?;
        transaction.commit().await.map_err(doing(DOING))?;
        return Ok(Swap::Swapped(version));
    }
    let there = sqlx::query(GET).bind(row.id.as_str()).fetch_optional(&mut *transaction).await.map_err(doing(DOING))?;
    match there {
        Some(there) => Ok(Swap::Stale(Box::new(read(&there)?))),
        None => Ok(Swap::NotFound),
    }
}

pub(super) async fn get(store: &SqliteStore, id: &TemplateId) -> Result<Option<Template>, Error> {
    let row =
        sqlx::query(GET).bind(id.as_str()).fetch_optional(&store.readers).await.map_err(doing("read a template"))?;
    row.as_ref().map(read).transpose()
}

pub(super) async fn by_name(store: &SqliteStore, tenant: &str, name: &str) -> Result<Option<Template>, Error> {
    let row = sqlx::query(BY_NAME)
        .bind(tenant)
        .bind(name)
        .fetch_optional(&store.readers)
        .await
        .map_err(doing("read a template by name"))?;
    row.as_ref().map(read).transpose()
}

pub(super) async fn list(store: &SqliteStore, tenant: Option<&str>) -> Result<Vec<Template>, Error> {
    let statement = match tenant {
        Some(tenant) => sqlx::query(LIST).bind(tenant),
        None => sqlx::query(LIST_ALL),
    };
    let rows = statement.fetch_all(&store.readers).await.map_err(doing("list templates"))?;
    rows.iter().map(read).collect()
}

pub(super) async fn remove(store: &SqliteStore, id: &TemplateId) -> Result<(), Error> {
    const DOING: &str = "remove a template";
    let mut transaction = store.begin(Durable::AtOnce).await?;
    sqlx::query(REMOVE).bind(id.as_str()).execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))
}

pub(super) async fn users(store: &SqliteStore, id: &TemplateId) -> Result<u64, Error> {
    let count: i64 = sqlx::query_scalar(USERS)
        .bind(id.as_str())
        .fetch_one(&store.readers)
        .await
        .map_err(doing("count a template's sandboxes"))?;
    Ok(count.unsigned_abs())
}

pub(super) async fn bases(store: &SqliteStore) -> Result<Vec<(TemplateId, String)>, Error> {
    let rows: Vec<(String, String)> =
        sqlx::query_as(BASES).fetch_all(&store.readers).await.map_err(doing("list bases in use"))?;
    let unreadable = |id: &str| Error::Unreadable { id: id.to_owned(), column: "template_id" };
    rows.into_iter().map(|(id, base)| Ok((id.parse().map_err(|_| unreadable(&id))?, base))).collect()
}
