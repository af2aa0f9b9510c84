//! What is committed: rows, events, templates, tenants and their keys.
//!
//! Everything above asks through [`Store`]; SQL stays in here. A transition is one statement that compares the row's
//! `version` and writes its event in the same transaction, so a state and the story of how it came about never differ.
//! SQLite is the implementation of one machine; the SQL keeps to what Postgres takes too.

mod claim;
mod cursor;
mod sqlite;

use async_trait::async_trait;
use jiff::Timestamp;
use wakeful_model::{
    Event, Key, KeyId, Kind, Limit, Limits, Mode, Port, Sandbox, SandboxId, Snapshot, SnapshotId, Template, TemplateId,
    Tenant, Usage,
};

pub use claim::{Answer, Claim};
pub use sqlite::SqliteStore;

/// Why the store could not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database said no.
    #[error("could not {doing}")]
    Database {
        /// What was under way.
        doing: &'static str,
        /// Its reason.
        source: sqlx::Error,
    },
    /// The schema could not be brought up to date.
    #[error("could not migrate the database")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A row holds what this version cannot read.
    #[error("row {id} has an unreadable {column}")]
    Unreadable {
        /// The row.
        id: String,
        /// The column.
        column: &'static str,
    },
    /// A value that its column cannot hold.
    #[error("row {id} has a {column} that cannot be stored")]
    Unwritable {
        /// The row.
        id: String,
        /// The column.
        column: &'static str,
    },
    /// A cursor that this server did not give out.
    #[error("{0:?} is not a cursor")]
    InvalidCursor(String),
}

impl Error {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::InvalidCursor(_) => Kind::Invalid,
            Self::Database { source, .. } => sqlite::kind(source),
            Self::Migrate(_) | Self::Unreadable { .. } | Self::Unwritable { .. } => Kind::Internal,
        }
    }
}

/// What became of a compare-and-swap.
#[derive(Debug)]
pub enum Swap<T> {
    /// Written; the row's new version.
    Swapped(i64),
    /// Somebody else wrote in between: the row as it is now. Decide again, never overwrite.
    Stale(Box<T>),
    /// There is no such row.
    NotFound,
}

/// What became of a write that a tenant's limits have a say in.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// Written.
    Admitted(T),
    /// It would have too much of something; nothing was written.
    Over {
        /// Of what.
        limit: Limit,
        /// How much it has.
        used: u64,
        /// How much it may have.
        most: u64,
    },
    /// There is no such tenant; nothing was written.
    NoTenant,
}

/// What became of a tenant that was to go.
#[derive(Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// It still has these.
    InUse {
        /// Sandboxes that are not destroyed.
        sandboxes: u64,
        /// Templates that are not deleted.
        templates: u64,
        /// Snapshots.
        snapshots: u64,
        /// Keys.
        keys: u64,
    },
    /// There is none.
    NotFound,
}

/// Which sandboxes to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this tenant.
    pub tenant: String,
    /// In this state, by its word; without one: all that are not destroyed.
    pub status: Option<String>,
    /// Of this mode.
    pub mode: Option<Mode>,
    /// Of this template, by name or id.
    pub template: Option<String>,
    /// With all of these labels.
    pub metadata: Vec<(String, String)>,
    /// At most so many.
    pub limit: u32,
    /// Where the last page ended.
    pub cursor: Option<String>,
}

/// One page, newest first.
#[derive(Debug, Default)]
pub struct Page {
    /// The rows.
    pub sandboxes: Vec<Sandbox>,
    /// Where the next page begins; `None` at the end.
    pub next_cursor: Option<String>,
}

/// The committed truth.
#[async_trait]
pub trait Store: Send + Sync {
    /// Adds a row (its `version` is stored as given) and its first event. As durable as a swap.
    async fn insert_sandbox(&self, row: &Sandbox, event: Option<&Event>) -> Result<(), Error>;

    /// Writes all of `row` if the stored version is still `row.version`, adds one to it, and writes the event, in one
    /// transaction. `last_activity_at` alone never goes back: a later touch stays. Durable when it returns, save the mere
    /// intent of a create, suspend or wake: a crash of the host, which ends every engine as well, may lose that.
    ///
    /// # Cancel safety
    /// Dropped, it is done whole or not at all; read the row to know which.
    async fn swap_sandbox(&self, row: &Sandbox, event: Option<&Event>) -> Result<Swap<Sandbox>, Error>;

    /// Notes use. Never goes back in time, changes no version, need not be durable at once.
    async fn touch_sandbox(&self, id: &SandboxId, last_activity_at: Timestamp) -> Result<(), Error>;

    /// One row, destroyed ones too.
    async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>, Error>;

    /// A page of rows.
    async fn sandboxes(&self, filter: &Filter) -> Result<Page, Error>;

    /// Every row that is not destroyed, of all tenants.
    async fn live_sandboxes(&self) -> Result<Vec<Sandbox>, Error>;

    /// Removes tombstones (and their events) of sandboxes destroyed before this; how many. One with resources in the
    /// journal stays.
    async fn forget_destroyed(&self, before: Timestamp) -> Result<u64, Error>;

    /// Events of a sandbox with a sequence number above `after` (they begin at 1 for each sandbox), oldest first.
    async fn events(&self, id: &SandboxId, after: u64, limit: u32) -> Result<Vec<(u64, Event)>, Error>;

    /// Adds a template; `false` if its tenant has one of that name that is not deleted.
    async fn insert_template(&self, row: &Template) -> Result<bool, Error>;

    /// As [`swap_sandbox`](Self::swap_sandbox).
    async fn swap_template(&self, row: &Template) -> Result<Swap<Template>, Error>;

    /// By id, deleted ones too.
    async fn template(&self, id: &TemplateId) -> Result<Option<Template>, Error>;

    /// By name; not deleted ones.
    async fn template_by_name(&self, tenant: &str, name: &str) -> Result<Option<Template>, Error>;

    /// All of a tenant that are not deleted, by name. `None`: of all tenants, deleted ones too.
    async fn templates(&self, tenant: Option<&str>) -> Result<Vec<Template>, Error>;

    /// Removes the row.
    async fn remove_template(&self, id: &TemplateId) -> Result<(), Error>;

    /// How many sandboxes that are not destroyed, and snapshots, stand on this template.
    async fn template_users(&self, id: &TemplateId) -> Result<u64, Error>;

    /// The bases that sandboxes which are not destroyed, and snapshots, stand on, each with the template it was of.
    async fn bases_in_use(&self) -> Result<Vec<(TemplateId, String)>, Error>;

    /// Writes down what a key of a tenant stands for, durably, unless it stands for something since `expired` or later:
    /// then that.
    async fn claim(
        &self,
        tenant: &str,
        key: &str,
        claim: &Claim,
        now: Timestamp,
        expired: Timestamp,
    ) -> Result<Option<Claim>, Error>;

    /// Keeps the answer of a claim; nothing happens if the key no longer stands for `subject`.
    async fn answer_claim(&self, tenant: &str, key: &str, subject: &str, answer: &Answer) -> Result<(), Error>;

    /// The key stands for nothing any more, if it stood for `subject`.
    async fn release_claim(&self, tenant: &str, key: &str, subject: &str) -> Result<(), Error>;

    /// Forgets keys that were claimed before this; how many.
    async fn forget_claims(&self, before: Timestamp) -> Result<u64, Error>;

    /// Journals something on the host (a namespace, a tap, a cgroup) that is about to be made for a sandbox. Durable when
    /// it returns; twice is once.
    async fn note_resource(&self, id: &SandboxId, kind: &str, name: &str) -> Result<(), Error>;

    /// All that was made for a sandbox is gone.
    async fn forget_resources(&self, id: &SandboxId) -> Result<(), Error>;

    /// Kind and name of all that was, or was about to be, made for a sandbox, oldest first.
    async fn resources(&self, id: &SandboxId) -> Result<Vec<(String, String)>, Error>;

    /// Says who may reach a port of a sandbox. Durable when it returns; nothing happens if there is no such sandbox.
    async fn put_port(&self, id: &SandboxId, port: Port) -> Result<(), Error>;

    /// Forgets what was said of a port.
    async fn remove_port(&self, id: &SandboxId, port: u16) -> Result<(), Error>;

    /// All ports of a sandbox that something was said about, by number.
    async fn ports(&self, id: &SandboxId) -> Result<Vec<Port>, Error>;

    /// One of them.
    async fn port(&self, id: &SandboxId, port: u16) -> Result<Option<Port>, Error>;

    /// Adds a snapshot, whose files are whole by now; `false` if its tenant has one of that name. Durable when it returns.
    async fn insert_snapshot(&self, row: &Snapshot) -> Result<bool, Error>;

    /// Removes a snapshot, before its files; `false` if there is none. Durable when it returns.
    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<bool, Error>;

    /// One snapshot.
    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>, Error>;

    /// All named ones of a tenant, the newest first. `None`: of all tenants, those of forks too.
    async fn snapshots(&self, tenant: Option<&str>) -> Result<Vec<Snapshot>, Error>;

    /// As [`insert_sandbox`](Self::insert_sandbox), if its tenant's limits allow one more of its memory and disk. However
    /// many ask at once, a limit is never passed.
    async fn admit_sandbox(&self, row: &Sandbox, event: Option<&Event>) -> Result<Admission<()>, Error>;

    /// As [`swap_sandbox`](Self::swap_sandbox) with the intent to wake, if its tenant's limits allow its memory.
    async fn admit_wake(&self, row: &Sandbox, event: Option<&Event>) -> Result<Admission<Swap<Sandbox>>, Error>;

    /// As [`swap_sandbox`](Self::swap_sandbox) with a disk that is larger than before, if its tenant's limits allow it.
    async fn admit_growth(&self, row: &Sandbox, event: Option<&Event>) -> Result<Admission<Swap<Sandbox>>, Error>;

    /// Adds a tenant; `false` if there is one of that name. `default` is there from the start.
    async fn insert_tenant(&self, row: &Tenant) -> Result<bool, Error>;

    /// Changes a tenant's limits; `false` if there is none.
    async fn limit_tenant(&self, name: &str, limits: &Limits) -> Result<bool, Error>;

    /// One tenant.
    async fn tenant(&self, name: &str) -> Result<Option<Tenant>, Error>;

    /// All tenants, by name.
    async fn tenants(&self) -> Result<Vec<Tenant>, Error>;

    /// What a tenant has now; nothing for one that is not there.
    async fn tenant_usage(&self, name: &str) -> Result<Usage, Error>;

    /// Removes a tenant that has nothing left but tombstones, and those with it.
    async fn remove_tenant(&self, name: &str) -> Result<Removal, Error>;

    /// Adds a key; `false` if there is no such tenant.
    async fn insert_key(&self, row: &Key) -> Result<bool, Error>;

    /// All keys of all tenants, oldest first.
    async fn keys(&self) -> Result<Vec<Key>, Error>;

    /// Removes a key; `false` if there is none.
    async fn remove_key(&self, id: &KeyId) -> Result<bool, Error>;

    /// Notes when keys were last used. Never goes back in time, need not be durable at once; keys that are gone are no
    /// error.
    async fn note_key_uses(&self, uses: &[(KeyId, Timestamp)]) -> Result<(), Error>;
}
