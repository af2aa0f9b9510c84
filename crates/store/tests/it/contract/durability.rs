//! What is still there afterwards.

use std::io::Write;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use wakeful_model::{Cause, DEFAULT_TENANT, EventType, Memory, Port, Sandbox, SandboxId, State};
use wakeful_store::Store;

use super::{Fixture, PATIENCE, fresh, swapped};
use crate::rows::{at, event, sandbox, template};

pub(crate) async fn resources_are_journalled<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let (id, other) = (SandboxId::random(), SandboxId::random());
    // Before there is a row: the journal comes first.
    for (kind, name) in [("netns", "wk-1"), ("tap", "wk1"), ("tap", "wk1"), ("cgroup", "wakeful/1")] {
        store.note_resource(&id, kind, name).await.expect("note");
    }
    store.note_resource(&other, "tap", "wk1").await.expect("note");
    let pair = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    let made = [pair("netns", "wk-1"), pair("tap", "wk1"), pair("cgroup", "wakeful/1")];
    let mut seen = store.resources(&id).await.expect("list");
    let mut wanted = made.to_vec();
    // Two of one microsecond have no order.
    seen.sort();
    wanted.sort();
    assert_eq!(seen, wanted);
    store.forget_resources(&id).await.expect("forget");
    store.forget_resources(&id).await.expect("twice is no error");
    assert_eq!(store.resources(&id).await.expect("list"), []);
    assert_eq!(store.resources(&other).await.expect("list"), [pair("tap", "wk1")]);
}

pub(crate) async fn ports_are_kept_and_go<F: Fixture>() {
    let (_fixture, store) = fresh::<F>().await;
    let row = sandbox();
    store.insert_sandbox(&row, None).await.expect("insert");
    let port = |port, public| Port { port, public };
    for put in [port(8080, true), port(80, false), port(8080, false), port(65535, true)] {
        store.put_port(&row.id, put).await.expect("put");
    }
    assert_eq!(store.ports(&row.id).await.expect("list"), [port(80, false), port(8080, false), port(65535, true)]);
    assert_eq!(store.port(&row.id, 65535).await.expect("read"), Some(port(65535, true)));
    store.remove_port(&row.id, 65535).await.expect("remove");
    store.remove_port(&row.id, 65535).await.expect("twice is no error");
    assert_eq!(store.port(&row.id, 65535).await.expect("read"), None);
    let nobody = SandboxId::random();
    store.put_port(&nobody, port(1, true)).await.expect("no error");
    assert_eq!(store.ports(&nobody).await.expect("list"), []);
}

pub(crate) async fn everything_is_there_after_reopening<F: Fixture>() {
    let (fixture, store) = fresh::<F>().await;
    let (mut row, base) = (sandbox(), template("python"));
    store.insert_sandbox(&row, Some(&event(EventType::Created, Cause::Cli))).await.expect("insert");
    row.state = State::Suspended(Memory::Spent);
    swapped(&store, &mut row, Some(EventType::Suspended)).await;
    store.touch_sandbox(&row.id, at(77)).await.expect("touch");
    row.last_activity_at = at(77);
    assert!(store.insert_template(&base).await.expect("insert"));
    store.note_resource(&row.id, "tap", "wk0").await.expect("note");
    F::close(&store).await;
    assert!(store.sandbox(&row.id).await.is_err(), "closed is closed");
    assert!(store.insert_sandbox(&sandbox(), None).await.is_err());
    drop(store);

    let store = F::open(&fixture.address()).await;
    assert_eq!(store.live_sandboxes().await.expect("live"), std::slice::from_ref(&row));
    let kinds: Vec<_> = store.events(&row.id, 0, 9).await.expect("events").into_iter().map(|(_, e)| e.kind).collect();
    assert_eq!(kinds, [EventType::Created, EventType::Suspended]);
    assert_eq!(store.template_by_name(DEFAULT_TENANT, "python").await.expect("read"), Some(base));
    assert_eq!(store.resources(&row.id).await.expect("list"), [("tap".to_owned(), "wk0".to_owned())]);
    F::close(&store).await;
}

const ADDRESS: &str = "WAKEFUL_TEST_STORE_ADDRESS";

/// The test starts itself as a child that commits and tells, and kills it between two words. What was told is there; of
/// what was not told, there is all or nothing.
pub(crate) async fn committed_rows_outlive_kill_nine<F: Fixture>(test: &str) {
    const ROUNDS: usize = 5;
    if let Ok(address) = std::env::var(ADDRESS) {
        return tokio::time::timeout(PATIENCE, commit_for_ever::<F>(&address)).await.expect("killed before that");
    }
    let fixture = F::new().await;
    let mut told = Vec::new();
    for round in 0..ROUNDS {
        let mut child = tokio::process::Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", test, "--nocapture"])
            .env(ADDRESS, fixture.address())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let enough = told.len() + 20 + 7 * round;
        let reading = async {
            while let Some(line) = lines.next_line().await.expect("readable") {
                if let Some(said) = line.strip_prefix("committed ") {
                    let (id, version) = said.split_once(' ').expect("id and version");
                    told.push((id.parse::<SandboxId>().expect("an id"), version.parse::<i64>().expect("a number")));
                }
                if told.len() == enough {
                    child.kill().await.expect("killed");
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("in time");
        assert!(told.len() >= enough, "the child ended by itself");

        let store = F::open(&fixture.address()).await;
        for (id, version) in &told {
            let row = store.sandbox(id).await.expect("read").expect("told, so it is there");
            assert!(row.version >= *version, "{id} is at {}, was told {version}", row.version);
        }
        for row in store.live_sandboxes().await.expect("live") {
            // One event came with the insert and one with each swap.
            let events = store.events(&row.id, 0, 100).await.expect("events");
            assert_eq!(events.len().try_into(), Ok(row.version), "state and story of {}", row.id);
        }
        F::close(&store).await;
    }
}

async fn commit_for_ever<F: Fixture>(address: &str) {
    let store = F::open(address).await;
    let tell = |row: &Sandbox| {
        // A full line in one write, or none: the parent reads lines.
        let line = format!("\ncommitted {} {}\n", row.id, row.version);
        std::io::stdout()
            .write_all(line.as_bytes())
            .and_then(|()| std::io::stdout().flush())
            .expect("the parent reads");
    };
    loop {
        let mut row = sandbox();
        store.insert_sandbox(&row, Some(&event(EventType::Created, Cause::Api))).await.expect("insert");
        tell(&row);
        for _ in 0..3 {
            swapped(&store, &mut row, Some(EventType::Woken)).await;
            tell(&row);
        }
    }
}
