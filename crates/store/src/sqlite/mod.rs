//! SQLite in one file: the store of one machine, nothing else to run.
//!
//! ```text
//!   readers (a few)  ──▶ a snapshot each, never wait for the writer (WAL)
//!   writer  (one)    ──▶ BEGIN IMMEDIATE … COMMIT, one fsync of the log
//! ```
//!
//! SQLite has one writer at a time whatever we do. With one writing connection those who wait do so in the pool, first
//! come, first served, instead of in SQLite's busy loop, which sleeps and is unfair. The busy timeout is there for other
//! processes that look into the file.
//!
//! Each writing transaction says first how durable it is to be, so that one that was dropped half-way cannot leave its
//! choice to the next.

mod claims;
mod events;
mod keys;
mod ports;
mod resources;
mod row;
mod sandboxes;
mod snapshots;
mod templates;
mod tenants;

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, SqlitePool, Transaction};
use wakeful_model::{
    Event, Key, KeyId, Kind, Limits, Port, Sandbox, SandboxId, Snapshot, SnapshotId, Template, TemplateId, Tenant,
    Usage,
};

use crate::{Admission, Answer, Claim, Error, Filter, Page, Removal, Store, Swap};

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("migrations/sqlite");

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller waits for its turn: far more than any queue of ours, short enough to be noticed.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(20);
const READERS: u32 = 4;

/// When a commit is on the disk.
#[derive(Clone, Copy)]
enum Durable {
    /// Before it is answered.
    AtOnce,
    /// With the next one that is; a crash of the host may lose it, a crash of the program does not.
    Later,
}

/// SQLite in one file.
pub struct SqliteStore {
    writer: SqlitePool,
    readers: SqlitePool,
}

impl SqliteStore {
    /// Opens the database, makes it if there is none (readable by its owner only), and brings its schema up to date.
    ///
    /// # Errors
    /// If the file cannot be made or opened, is no database, or was written by a newer version.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        let file = path.to_owned();
        tokio::task::spawn_blocking(move || keep_private(&file))
            .await
            .unwrap_or_else(|ended| Err(std::io::Error::other(ended)))
            .map_err(|source| Error::Database { doing: "make the database file", source: source.into() })?;

        let options = SqliteConnectOptions::new()
            .filename(path)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(true)
            .disable_statement_logging();
        let pool = || SqlitePoolOptions::new().acquire_timeout(ACQUIRE_TIMEOUT).idle_timeout(None).max_lifetime(None);
        let writer = pool()
            .max_connections(1)
            .connect_with(options.clone().journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full))
            .await
            .map_err(doing("open the database"))?;
        MIGRATIONS.run(&writer).await?;
        let readers = pool()
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "ON"))
            .await
            .map_err(doing("open the database for reading"))?;
        Ok(Self { writer, readers })
    }

    /// Waits for what is under way, folds the log into the file and closes it. Every later call fails.
    pub async fn close(&self) {
        self.readers.close().await;
        // The last connection to go is the one that may write: it folds the log.
        self.writer.close().await;
    }

    /// Reads all of the file and tells what is wrong in it; nothing, if it is sound.
    ///
    /// # Errors
    /// If it cannot even be read.
    pub async fn examine(&self) -> Result<Vec<String>, Error> {
        let lines: Vec<String> = sqlx::query_scalar("PRAGMA integrity_check")
            .fetch_all(&self.readers)
            .await
            .map_err(doing("check the database"))?;
        let mut wrong: Vec<String> = lines.into_iter().filter(|line| line != "ok").collect();
        let lost: Vec<(String, Option<i64>, String, i64)> = sqlx::query_as("PRAGMA foreign_key_check")
            .fetch_all(&self.readers)
            .await
            .map_err(doing("check the database's references"))?;
        wrong.extend(
            lost.into_iter().map(|(table, _, parent, _)| format!("a row of {table} refers to no row of {parent}")),
        );
        wrong.dedup();
        Ok(wrong)
    }

    /// Begins a writing transaction. Dropped without a commit, it leaves nothing.
    async fn begin(&self, durable: Durable) -> Result<Transaction<'static, Sqlite>, Error> {
        // The level cannot change inside a transaction, and the log's single fsync covers what lazy commits left there.
        let begun = match durable {
            Durable::AtOnce => self.writer.begin_with("PRAGMA synchronous = FULL; BEGIN IMMEDIATE").await,
            Durable::Later => self.writer.begin_with("PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE").await,
        };
        begun.map_err(doing("begin a transaction"))
    }
}

/// Only the owner reads it, before the first secret is in it. SQLite gives the mode to the files beside it.
fn keep_private(path: &Path) -> std::io::Result<()> {
    let file =
        std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o777 != 0o600 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

fn doing(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Database { doing, source }
}

/// A full disk and a database that is busy are nobody's mistake.
pub(crate) fn kind(error: &sqlx::Error) -> Kind {
    const BUSY: u32 = 5;
    const FULL: u32 = 13;
    match error {
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Kind::Unavailable,
        sqlx::Error::Database(answer) => {
            // The lower byte is the code, the rest refines it.
            match answer.code().and_then(|code| code.parse::<u32>().ok()).map(|code| code & 0xff) {
                Some(BUSY) => Kind::Unavailable,
                Some(FULL) => Kind::Exhausted,
                _ => Kind::Internal,
            }
        }
        _ => Kind::Internal,
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn insert_sandbox(&self, row: &Sandbox, event: Option<&Event>) -> Result<(), Error> {
        sandboxes::insert(self, row, event).await
    }

    async fn swap_sandbox(&self, row: &Sandbox, event: Option<&Event>) -> Result<Swap<Sandbox>, Error> {
        sandboxes::swap(self, row, event).await
    }

    async fn touch_sandbox(&self, id: &SandboxId, last_activity_at: Timestamp) -> Result<(), Error> {
        sandboxes::touch(self, id, last_activity_at).await
    }

    async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>, Error> {
        sandboxes::get(self, id).await
    }

    async fn sandboxes(&self, filter: &Filter) -> Result<Page, Error> {
        sandboxes::page(self, filter).await
    }

    async fn live_sandboxes(&self) -> Result<Vec<Sandbox>, Error> {
        sandboxes::live(self).await
    }

    async fn forget_destroyed(&self, before: Timestamp) -> Result<u64, Error> {
        sandboxes::forget_destroyed(self, before).await
    }

    async fn events(&self, id: &SandboxId, after: u64, limit: u32) -> Result<Vec<(u64, Event)>, Error> {
        events::list(self, id, after, limit).await
    }

    async fn insert_template(&self, row: &Template) -> Result<bool, Error> {
        templates::insert(self, row).await
    }

    async fn swap_template(&self, row: &Template) -> Result<Swap<Template>, Error> {
        templates::swap(self, row).await
    }

    async fn template(&self, id: &TemplateId) -> Result<Option<Template>, Error> {
        templates::get(self, id).await
    }

    async fn template_by_name(&self, tenant: &str, name: &str) -> Result<Option<Template>, Error> {
        templates::by_name(self, tenant, name).await
    }

    async fn templates(&self, tenant: Option<&str>) -> Result<Vec<Template>, Error> {
        templates::list(self, tenant).await
    }

    async fn remove_template(&self, id: &TemplateId) -> Result<(), Error> {
        templates::remove(self, id).await
    }

    async fn template_users(&self, id: &TemplateId) -> Result<u64, Error> {
        templates::users(self, id).await
    }

    async fn bases_in_use(&self) -> Result<Vec<(TemplateId, String)>, Error> {
        templates::bases(self).await
    }

    async fn claim(
        &self,
        tenant: &str,
        key: &str,
        claim: &Claim,
        now: Timestamp,
        expired: Timestamp,
    ) -> Result<Option<Claim>, Error> {
        claims::claim(self, tenant, key, claim, now, expired).await
    }

    async fn answer_claim(&self, tenant: &str, key: &str, subject: &str, answer: &Answer) -> Result<(), Error> {
        claims::answer(self, tenant, key, subject, answer).await
    }

    async fn release_claim(&self, tenant: &str, key: &str, subject: &str) -> Result<(), Error> {
        claims::release(self, tenant, key, subject).await
    }

    async fn forget_claims(&self, before: Timestamp) -> Result<u64, Error> {
        claims::forget(self, before).await
    }

    async fn note_resource(&self, id: &SandboxId, kind: &str, name: &str) -> Result<(), Error> {
        resources::note(self, id, kind, name).await
    }

    async fn forget_resources(&self, id: &SandboxId) -> Result<(), Error> {
        resources::forget(self, id).await
    }

    async fn resources(&self, id: &SandboxId) -> Result<Vec<(String, String)>, Error> {
        resources::list(self, id).await
    }

    async fn put_port(&self, id: &SandboxId, port: Port) -> Result<(), Error> {
        ports::put(self, id, port).await
    }

    async fn remove_port(&self, id: &SandboxId, port: u16) -> Result<(), Error> {
        ports::remove(self, id, port).await
    }

    async fn ports(&self, id: &SandboxId) -> Result<Vec<Port>, Error> {
        ports::list(self, id).await
    }

    async fn port(&self, id: &SandboxId, port: u16) -> Result<Option<Port>, Error> {
        ports::get(self, id, port).await
    }

    async fn insert_snapshot(&self, row: &Snapshot) -> Result<bool, Error> {
        snapshots::insert(self, row).await
    }

    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<bool, Error> {
        snapshots::remove(self, id).await
    }

    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>, Error> {
        snapshots::get(self, id).await
    }

    async fn snapshots(&self, tenant: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        snapshots::list(self, tenant).await
    }

    async fn admit_sandbox(&self, row: &Sandbox, event: Option<&Event>) -> Result<Admission<()>, Error> {
        tenants::admit_sandbox(self, row, event).await
    }

    async fn admit_wake(&self, row: &Sandbox, event: Option<&Event>) -> Result<Admission<Swap<Sandbox>>, Error> {
        tenants::admit_wake(self, row, event).await
    }

    async fn admit_growth(&self, row: &Sandbox, event: Option<&Event>) -> Result<Admission<Swap<Sandbox>>, Error> {
        tenants::admit_growth(self, row, event).await
    }

    async fn insert_tenant(&self, row: &Tenant) -> Result<bool, Error> {
        tenants::insert(self, row).await
    }

    async fn limit_tenant(&self, name: &str, limits: &Limits) -> Result<bool, Error> {
        tenants::limit(self, name, limits).await
    }

    async fn tenant(&self, name: &str) -> Result<Option<Tenant>, Error> {
        tenants::get(self, name).await
    }

    async fn tenants(&self) -> Result<Vec<Tenant>, Error> {
        tenants::list(self).await
    }

    async fn tenant_usage(&self, name: &str) -> Result<Usage, Error> {
        tenants::usage(self, name).await
    }

    async fn remove_tenant(&self, name: &str) -> Result<Removal, Error> {
        tenants::remove(self, name).await
    }

    async fn insert_key(&self, row: &Key) -> Result<bool, Error> {
        keys::insert(self, row).await
    }

    async fn keys(&self) -> Result<Vec<Key>, Error> {
        keys::list(self).await
    }

    async fn remove_key(&self, id: &KeyId) -> Result<bool, Error> {
        keys::remove(self, id).await
    }

    async fn note_key_uses(&self, uses: &[(KeyId, Timestamp)]) -> Result<(), Error> {
        keys::used(self, uses).await
    }
}
