//! Sandboxes.

use jiff::Timestamp;
use sqlx::Row;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};
use wakeful_model::{
    Bootable, Event, Failure, Memory, Mode, Op, Policy, Sandbox, SandboxId, State, TemplateId, Transition,
};

use super::row::{Reader, Writer, microseconds};
use super::{Durable, SqliteStore, doing, events};
use crate::cursor::Cursor;
use crate::{Error, Filter, Page, Swap};

const INSERT: &str = r#"INSERT INTO sandboxes
    (id, version, tenant, state, memory, bootable, op_id, op, op_since, op_automatic, template, template_id,
     base, size, cpu, memory_mb, disk_mb, "user", workdir, env, env_keys, metadata, egress, runtime, accel,
     runtime_generation, restored_memory, expires_at, on_expiry, timeout, idle_timeout, hard_expires_at,
     auto_resume, resume_lease, suspend_memory, checkpoint, secret, created_at, updated_at, started_at,
     suspended_at, destroyed_at, last_activity_at, parent_id, failure_code, failure_detail, failure_at,
     failure_bootable, io, entry)
    VALUES
    ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
     $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44,
     $45, $46, $47, $48, $49, $50)"#;

/// All of the row, save that use is never forgotten: a touch that came after the caller's reading stays.
const SWAP: &str = r#"UPDATE sandboxes SET
    version = version + 1, tenant = $3, state = $4, memory = $5, bootable = $6, op_id = $7, op = $8,
    op_since = $9, op_automatic = $10, template = $11, template_id = $12, base = $13, size = $14, cpu = $15,
    memory_mb = $16, disk_mb = $17, "user" = $18, workdir = $19, env = $20, env_keys = $21, metadata = $22,
    egress = $23, runtime = $24, accel = $25, runtime_generation = $26, restored_memory = $27, expires_at = $28,
    on_expiry = $29, timeout = $30, idle_timeout = $31, hard_expires_at = $32, auto_resume = $33,
    resume_lease = $34, suspend_memory = $35, checkpoint = $36, secret = $37, created_at = $38,
    updated_at = $39, started_at = $40, suspended_at = $41, destroyed_at = $42,
    last_activity_at = CASE WHEN last_activity_at > $43 THEN last_activity_at ELSE $43 END, parent_id = $44,
    failure_code = $45, failure_detail = $46, failure_at = $47, failure_bootable = $48, io = $49,
    entry = $50
    WHERE id = $1 AND version = $2 RETURNING version"#;

const GET: &str = "SELECT * FROM sandboxes WHERE id = $1";
const TOUCH: &str = "UPDATE sandboxes SET last_activity_at = $2 WHERE id = $1 AND last_activity_at < $2";
const LIVE: &str = "SELECT * FROM sandboxes WHERE state <> 'destroyed' ORDER BY created_at, id";

/// A tombstone with something left in the journal stays until that is gone. Its events go with it.
const FORGET: &str = "DELETE FROM sandboxes \
    WHERE state = 'destroyed' AND COALESCE(destroyed_at, updated_at) < $1 \
    AND NOT EXISTS (SELECT 1 FROM resources WHERE resources.sandbox_id = sandboxes.id)";

/// A page, with the state's condition in its place: written out, so that each of the two finds its index.
/// Labels are compared by SQLite's own JSON functions; Postgres will say `metadata::jsonb @> $8`.
macro_rules! page {
    ($state:literal) => {
        concat!(
            "SELECT * FROM sandboxes WHERE tenant = $1 AND ",
            $state,
            " AND (created_at, id) < ($3, $4)",
            " AND (CAST($5 AS BOOLEAN) IS NULL OR (idle_timeout IS NOT NULL) = $5)",
            " AND (CAST($6 AS TEXT) IS NULL OR template = $6 OR template_id = $7)",
            " AND NOT EXISTS (SELECT 1 FROM json_each($8) AS wanted WHERE NOT EXISTS (",
            "SELECT 1 FROM json_each(sandboxes.metadata) AS label",
            " WHERE label.key = json_extract(wanted.value, '$[0]')",
            " AND label.value = json_extract(wanted.value, '$[1]')))",
            " ORDER BY created_at DESC, id DESC LIMIT $9"
        )
    };
}
const PAGE_LIVING: &str = page!("state <> 'destroyed' AND $2 IS NULL");
const PAGE_IN_STATE: &str = page!("state = $2");

type Statement = Query<'static, Sqlite, SqliteArguments>;

/// `$1` to `$50`, the same in [`INSERT`] and [`SWAP`].
fn bind(statement: Statement, row: &Sandbox) -> Result<Statement, Error> {
    let write = Writer { id: row.id.as_str() };
    let (memory, bootable) = match row.state {
        State::Suspended(memory) => (Some(memory.to_string()), None),
        State::Failed(bootable) => (None, Some(bootable == Bootable::Yes)),
        State::Creating | State::Running | State::Destroyed => (None, None),
    };
    let transition = row.transition.as_ref();
    let policy = &row.policy;
    let failure = row.failure.as_ref();
    Ok(statement
        .bind(row.id.as_str())
        .bind(row.version)
        .bind(&row.tenant)
        .bind(row.state.name())
        .bind(memory)
        .bind(bootable)
        .bind(transition.map(|transition| transition.id.as_str()))
        .bind(transition.map(|transition| transition.op.to_string()))
        .bind(transition.map(|transition| transition.since.as_microsecond()))
        .bind(transition.map(|transition| transition.automatic))
        .bind(&row.template)
        .bind(row.template_id.as_str())
        .bind(&row.base)
        .bind(row.size.as_deref())
        .bind(i64::from(row.cpu))
        .bind(i64::from(row.memory_mb))
        .bind(i64::from(row.disk_mb))
        .bind(&row.user)
        .bind(&row.workdir)
        .bind(write.json("env", &row.env)?)
        .bind(write.json("env_keys", &row.env_keys)?)
        .bind(write.json("metadata", &row.metadata)?)
        .bind(write.json("egress", &row.egress)?)
        .bind(&row.runtime)
        .bind(&row.accel)
        .bind(write.number("runtime_generation", row.runtime_generation)?)
        .bind(row.restored_memory)
        .bind(microseconds(policy.expires_at))
        .bind(policy.on_expiry.to_string())
        .bind(write.duration("timeout", policy.timeout)?)
        .bind(write.duration("idle_timeout", policy.idle_timeout)?)
        .bind(microseconds(policy.hard_expires_at))
        .bind(policy.auto_resume)
        .bind(write.duration("resume_lease", policy.resume_lease)?)
        .bind(policy.suspend_memory)
        .bind(row.checkpoint.as_deref())
        .bind(row.secret.as_slice())
        .bind(row.created_at.as_microsecond())
        .bind(row.updated_at.as_microsecond())
        .bind(microseconds(row.started_at))
        .bind(microseconds(row.suspended_at))
        .bind(microseconds(row.destroyed_at))
        .bind(row.last_activity_at.as_microsecond())
        .bind(row.parent_id.as_ref().map(SandboxId::as_str))
        .bind(failure.map(|failure| failure.code.as_str()))
        .bind(failure.map(|failure| failure.detail.as_str()))
        .bind(failure.map(|failure| failure.at.as_microsecond()))
        .bind(failure.map(|failure| failure.bootable))
        .bind(write.json("io", &row.io)?)
        .bind(write.optional_json("entry", row.entry.as_ref())?))
}

fn read(row: &SqliteRow) -> Result<Sandbox, Error> {
    let read = Reader::new(row, "id")?;
    Ok(Sandbox {
        id: read.word("id")?,
        version: read.get("version")?,
        tenant: read.get("tenant")?,
        state: read_state(&read)?,
        transition: read_transition(&read)?,
        template: read.get("template")?,
        template_id: read.word("template_id")?,
        base: read.get("base")?,
        size: read.get("size")?,
        cpu: read.number("cpu")?,
        memory_mb: read.number("memory_mb")?,
        disk_mb: read.number("disk_mb")?,
        user: read.get("user")?,
        workdir: read.get("workdir")?,
        env: read.json("env")?,
        env_keys: read.json("env_keys")?,
        metadata: read.json("metadata")?,
        egress: read.json("egress")?,
        io: read.json("io")?,
        entry: read.optional_json("entry")?,
        runtime: read.get("runtime")?,
        accel: read.get("accel")?,
        runtime_generation: read.number("runtime_generation")?,
        restored_memory: read.get("restored_memory")?,
        policy: Policy {
            expires_at: read.optional_instant("expires_at")?,
            on_expiry: read.word("on_expiry")?,
            timeout: read.optional_duration("timeout")?,
            idle_timeout: read.optional_duration("idle_timeout")?,
            hard_expires_at: read.optional_instant("hard_expires_at")?,
            auto_resume: read.get("auto_resume")?,
            resume_lease: read.optional_duration("resume_lease")?,
            suspend_memory: read.get("suspend_memory")?,
        },
        checkpoint: read.get("checkpoint")?,
        secret: read.get::<&[u8]>("secret")?.try_into().map_err(|_| read.unreadable("secret"))?,
        created_at: read.instant("created_at")?,
        updated_at: read.instant("updated_at")?,
        started_at: read.optional_instant("started_at")?,
        suspended_at: read.optional_instant("suspended_at")?,
        destroyed_at: read.optional_instant("destroyed_at")?,
        last_activity_at: read.instant("last_activity_at")?,
        parent_id: read.optional_word("parent_id")?,
        failure: read_failure(&read)?,
    })
}

fn read_state(read: &Reader<'_>) -> Result<State, Error> {
    Ok(match read.get("state")? {
        "creating" => State::Creating,
        "running" => State::Running,
        "suspended" => State::Suspended(read.word::<Memory>("memory")?),
        "failed" if read.get("bootable")? => State::Failed(Bootable::Yes),
        "failed" => State::Failed(Bootable::No),
        "destroyed" => State::Destroyed,
        _ => return Err(read.unreadable("state")),
    })
}

fn read_transition(read: &Reader<'_>) -> Result<Option<Transition>, Error> {
    let Some(id) = read.optional_word("op_id")? else { return Ok(None) };
    Ok(Some(Transition {
        id,
        op: read.word("op")?,
        since: read.instant("op_since")?,
        automatic: read.get("op_automatic")?,
    }))
}

fn read_failure(read: &Reader<'_>) -> Result<Option<Failure>, Error> {
    let Some(code) = read.get("failure_code")? else { return Ok(None) };
    Ok(Some(Failure {
        code,
        detail: read.get("failure_detail")?,
        at: read.instant("failure_at")?,
        bootable: read.get("failure_bootable")?,
    }))
}

/// A mere intent needs to outlive this program, not the host: with the host goes the engine that it is about, and the
/// files that no row names are removed at the next start. A checkpoint that is spent and a destroy are more than that.
pub(super) fn durable(row: &Sandbox) -> Durable {
    let op = row.transition.as_ref().map(|transition| transition.op);
    match (op, row.state) {
        (_, State::Suspended(Memory::Spent)) => Durable::AtOnce,
        (Some(Op::Create | Op::Suspend | Op::Wake), _) => Durable::Later,
        _ => Durable::AtOnce,
    }
}

pub(super) async fn insert(store: &SqliteStore, row: &Sandbox, event: Option<&Event>) -> Result<(), Error> {
    const DOING: &str = "add a sandbox";
    let mut transaction = store.begin(durable(row)).await?;
    insert_in(&mut transaction, row, event).await?;
    transaction.commit().await.map_err(doing(DOING))
}

/// Within a transaction.
pub(super) async fn insert_in(
    connection: &mut SqliteConnection,
    row: &Sandbox,
    event: Option<&Event>,
) -> Result<(), Error> {
    bind(sqlx::query(INSERT), row)?.execute(&mut *connection).await.map_err(doing("add a sandbox"))?;
    if let Some(event) = event {
        events::insert(connection, &row.id, event).await?;
    }
    Ok(())
}

pub(super) async fn swap(store: &SqliteStore, row: &Sandbox, event: Option<&Event>) -> Result<Swap<Sandbox>, Error> {
    const DOING: &str = "swap a sandbox";
    let mut transaction = store.begin(durable(row)).await?;
    let swap = swap_in(&mut transaction, row, event).await?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(swap)
}

/// Within a transaction; what is stale has written nothing.
pub(super) async fn swap_in(
    connection: &mut SqliteConnection,
    row: &Sandbox,
    event: Option<&Event>,
) -> Result<Swap<Sandbox>, Error> {
    const DOING: &str = "swap a sandbox";
    let swapped = bind(sqlx::query(SWAP), row)?.fetch_optional(&mut *connection).await.map_err(doing(DOING))?;
    if let Some(swapped) = swapped {
        let version = swapped.try_get("version").map_err(doing(DOING))?;
        if let Some(event) = event {
            events::insert(connection, &row.id, event).await?;
        }
        return Ok(Swap::Swapped(version));
    }
    let there = sqlx::query(GET).bind(row.id.as_str()).fetch_optional(&mut *connection).await.map_err(doing(DOING))?;
    match there {
        Some(there) => Ok(Swap::Stale(Box::new(read(&there)?))),
        None => Ok(Swap::NotFound),
    }
}

pub(super) async fn touch(store: &SqliteStore, id: &SandboxId, at: Timestamp) -> Result<(), Error> {
    const DOING: &str = "note a sandbox's use";
    let mut transaction = store.begin(Durable::Later).await?;
    sqlx::query(TOUCH)
        .bind(id.as_str())
        .bind(at.as_microsecond())
        .execute(&mut *transaction)
        .await
        .map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))
}

pub(super) async fn get(store: &SqliteStore, id: &SandboxId) -> Result<Option<Sandbox>, Error> {
    let row =
        sqlx::query(GET).bind(id.as_str()).fetch_optional(&store.readers).await.map_err(doing("read a sandbox"))?;
    row.as_ref().map(read).transpose()
}

pub(super) async fn live(store: &SqliteStore) -> Result<Vec<Sandbox>, Error> {
    let rows = sqlx::query(LIVE).fetch_all(&store.readers).await.map_err(doing("list live sandboxes"))?;
    rows.iter().map(read).collect()
}

pub(super) async fn page(store: &SqliteStore, filter: &Filter) -> Result<Page, Error> {
    let after = filter.cursor.as_deref().map(Cursor::parse).transpose()?;
    // Without a cursor the page begins below a key that is above all rows.
    let (created_at, id) = match &after {
        Some(cursor) => (cursor.created_at.as_microsecond(), cursor.id.as_str()),
        None => (i64::MAX, ""),
    };
    // An id is taken with and without its prefix; a name may look like the latter, so both are compared.
    let template_id = filter.template.as_deref().and_then(|text| text.parse::<TemplateId>().ok());
    let labels = Writer { id: "(filter)" }.json("metadata", &filter.metadata)?;
    let statement = if filter.status.is_some() { PAGE_IN_STATE } else { PAGE_LIVING };
    let rows = sqlx::query(statement)
        .bind(&filter.tenant)
        .bind(filter.status.as_deref())
        .bind(created_at)
        .bind(id)
        // As `Policy::mode` has it.
        .bind(filter.mode.map(|mode| mode == Mode::Persistent))
        .bind(filter.template.as_deref())
        .bind(template_id.as_ref().map(TemplateId::as_str))
        .bind(labels)
        // One more than asked for tells whether there is another page.
        .bind(i64::from(filter.limit) + 1)
        .fetch_all(&store.readers)
        .await
        .map_err(doing("list sandboxes"))?;
    let limit = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let sandboxes = rows.iter().take(limit).map(read).collect::<Result<Vec<_>, _>>()?;
    let next_cursor = if rows.len() > limit { sandboxes.last().map(|last| Cursor::of(last).to_string()) } else { None };
    Ok(Page { sandboxes, next_cursor })
}

pub(super) async fn forget_destroyed(store: &SqliteStore, before: Timestamp) -> Result<u64, Error> {
    const DOING: &str = "forget destroyed sandboxes";
    // Lost by a crash, the next round does it again.
    let mut transaction = store.begin(Durable::Later).await?;
    let done =
        sqlx::query(FORGET).bind(before.as_microsecond()).execute(&mut *transaction).await.map_err(doing(DOING))?;
    transaction.commit().await.map_err(doing(DOING))?;
    Ok(done.rows_affected())
}
