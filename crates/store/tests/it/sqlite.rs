//! SQLite: the contract, and its own manners.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;
use tempfile::TempDir;
use wakeful_model::{Cause, EventType, Kind};
use wakeful_store::{Error, SqliteStore, Store};

use crate::contract::{Fixture, store_contract};
use crate::rows::{event, sandbox};

struct File(TempDir);

impl Fixture for File {
    type Store = SqliteStore;

    async fn new() -> Self {
        Self(TempDir::new().expect("a directory"))
    }

    fn address(&self) -> String {
        self.0.path().join("wakeful.db").to_str().expect("plain").to_owned()
    }

    async fn open(address: &str) -> SqliteStore {
        SqliteStore::open(Path::new(address)).await.expect("opens")
    }

    async fn close(store: &SqliteStore) {
        store.close().await;
    }
}

store_contract!(contract, File);

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[tokio::test]
async fn nobody_else_reads_the_files() {
    let file = File::new().await;
    let path = file.0.path().join("wakeful.db");
    let store = File::open(&file.address()).await;
    store.insert_sandbox(&sandbox(), None).await.expect("insert");
    for name in ["wakeful.db", "wakeful.db-wal", "wakeful.db-shm"] {
        assert_eq!(mode(&file.0.path().join(name)), 0o600, "{name}");
    }
    store.close().await;
    assert!(!file.0.path().join("wakeful.db-wal").exists(), "the log is folded into the file");

    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("widened");
    let store = File::open(&file.address()).await;
    assert_eq!(mode(&path), 0o600);
    store.close().await;
}

#[tokio::test]
async fn what_is_no_database_is_refused_and_left_alone() {
    let file = File::new().await;
    let path = file.0.path().join("wakeful.db");
    let text = "not a database, but somebody's text\n".repeat(100);
    std::fs::write(&path, &text).expect("written");
    let Err(error) = SqliteStore::open(&path).await else { panic!("opened") };
    assert!(matches!(error, Error::Database { .. } | Error::Migrate(_)), "{error:?}");
    assert_eq!(error.kind(), Kind::Internal);
    assert_eq!(std::fs::read_to_string(&path).expect("readable"), text);
    assert!(SqliteStore::open(&file.0.path().join("no/such/folder/wakeful.db")).await.is_err());
}

/// Changes the file as another program, or another version of this one, would.
async fn meddle(file: &File, sql: &'static str) {
    let mut connection = SqliteConnection::connect(&file.address()).await.expect("opens");
    let done = sqlx::raw_sql(sql).execute(&mut connection).await.expect("runs");
    assert_eq!(done.rows_affected(), 1);
    connection.close().await.expect("closes");
}

#[tokio::test]
async fn a_word_from_the_future_is_not_guessed() {
    let file = File::new().await;
    let store = File::open(&file.address()).await;
    let row = sandbox();
    store.insert_sandbox(&row, None).await.expect("insert");
    meddle(&file, "UPDATE sandboxes SET on_expiry = 'archive'").await;
    match store.sandbox(&row.id).await {
        Err(Error::Unreadable { id, column: "on_expiry" }) => assert_eq!(id, row.id.as_str()),
        other => panic!("{other:?}"),
    }
    store.close().await;
}

#[tokio::test]
async fn what_refers_to_nothing_is_found() {
    let file = File::new().await;
    let store = File::open(&file.address()).await;
    store.insert_sandbox(&sandbox(), None).await.expect("insert");
    assert_eq!(store.examine().await.expect("can be read"), Vec::<String>::new());
    meddle(
        &file,
        "PRAGMA foreign_keys = OFF; INSERT INTO ports (sandbox_id, port, public) VALUES ('sbx_nobody', 80, 0)",
    )
    .await;
    assert_eq!(store.examine().await.expect("can be read"), ["a row of ports refers to no row of sandboxes"]);
    store.close().await;
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let file = File::new().await;
    File::open(&file.address()).await.close().await;
    meddle(
        &file,
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'later', TRUE, x'00', 0)",
    )
    .await;
    let Err(error) = SqliteStore::open(Path::new(&file.address())).await else { panic!("opened") };
    assert!(matches!(error, Error::Migrate(_)), "{error:?}");
}

/// A caller that hangs up in the middle takes nothing with it: the writer goes on, and rows have their events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_callers_leave_the_writer_usable() {
    let file = File::new().await;
    let store = File::open(&file.address()).await;
    let created = event(EventType::Created, Cause::Api);
    for wait in 0..100 {
        let row = sandbox();
        let hang_up = std::time::Duration::from_micros(wait * 30);
        let answered = tokio::time::timeout(hang_up, store.insert_sandbox(&row, Some(&created))).await.is_ok();
        let there = store.sandbox(&row.id).await.expect("read").is_some();
        assert!(there || !answered, "answered, so it is there");
        let _ = tokio::time::timeout(hang_up, store.touch_sandbox(&row.id, row.created_at)).await;
    }
    let row = sandbox();
    store.insert_sandbox(&row, Some(&created)).await.expect("insert");
    for row in store.live_sandboxes().await.expect("live") {
        assert_eq!(store.events(&row.id, 0, 10).await.expect("events").len(), 1);
    }
    store.close().await;
}
