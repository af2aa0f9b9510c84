//! Forks and snapshots: copies that go on from one instant, each as itself, and need nothing that others may delete.

use std::collections::HashSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use wakeful_client::types::{
    Command, CreateKey, CreateSnapshot, CreateTenant, ExecuteRequest, Frame, LimitsRequest, Sandbox, Snapshot,
    StartProcess,
};
use wakeful_client::{Client, ListQuery};
use wakeful_testkit::{Daemon, Options};

use crate::outside::{Guest, on_a_host, options};
use crate::sleep::clock_error;
use crate::support::{code_of, create, persistent, run, sh, wait_for};

/// Counts how often it was asked, and by itself; holds as many random MiB as it is told to.
const WORKER: &str = r#"
import hashlib, os, socketserver, sys, threading, time
data, born, ticks, asked = os.urandom(int(sys.argv[1]) << 20), os.urandom(8).hex(), [0], [0]
def tick():
    while True: time.sleep(.05); ticks[0] += 1
threading.Thread(target=tick, daemon=True).start()
class Tell(socketserver.StreamRequestHandler):
    def handle(self):
        asked[0] += 1
        words = [born, os.getpid(), hashlib.md5(data).hexdigest(), asked[0], ticks[0]]
        self.wfile.write(' '.join(map(str, words)).encode())
class Server(socketserver.TCPServer):
    allow_reuse_address = True
Server(('127.0.0.1', 7000), Tell).serve_forever()
"#;
const ASK: &str =
    "python3 -c \"import socket; s = socket.create_connection(('127.0.0.1', 7000)); print(s.makefile().read())\"";
/// What must differ in every copy.
const WHO: &str = "hostname; echo $WAKEFUL_SANDBOX_ID; cat /proc/sys/kernel/random/uuid; \
                   python3 -c 'import os, random; print(os.getrandom(16).hex(), random.random())'";

/// What a worker tells.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    /// Which process it is, and what it holds.
    same: Vec<String>,
    asked: u64,
    ticks: u64,
}

async fn ask(client: &Client, id: &str) -> Result<Told> {
    let text = sh(client, id, ASK).await?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let [same @ .., asked, ticks] = words.as_slice() else { anyhow::bail!("the worker says {text:?}") };
    Ok(Told { same: same.iter().map(ToString::to_string).collect(), asked: asked.parse()?, ticks: ticks.parse()? })
}

/// Starts a worker, and waits until it answers.
async fn work(client: &Client, id: &str, mib: u32) -> Result<Told> {
    sh(client, id, &format!("cat > /tmp/worker.py <<'EOF'\n{WORKER}\nEOF\n")).await?;
    let words = ["python3", "/tmp/worker.py", &mib.to_string()].map(str::to_owned).to_vec();
    let execute = ExecuteRequest::new(Command::Argv(words));
    client.start_process(id, &StartProcess { execute, pty: None, keep_awake: false }).await?;
    wait_for("the worker", Duration::from_secs(60), || async { Ok(run(client, id, ASK).await?.exit_code == 0) })
        .await?;
    ask(client, id).await
}

/// Asks a copy for the first time: it goes on from where `cut` was.
async fn goes_on(client: &Client, id: &str, cut: &Told) -> Result<Told> {
    let now = ask(client, id).await?;
    ensure!(now.same == cut.same && now.asked == cut.asked + 1, "{id}: {now:?} after {cut:?}");
    ensure!(now.ticks >= cut.ticks, "{id}: {now:?} after {cut:?}");
    Ok(now)
}

async fn fork(client: &Client, id: &str, request: Value) -> Result<Vec<Sandbox>> {
    let forked = client.fork(id, &serde_json::from_value(request)?).await?;
    ensure!(forked.errors.is_empty(), "{:?}", forked.errors);
    for child in &forked.sandboxes {
        ensure!(child.status.to_string() == "running" && child.transition.is_none(), "{child:?}");
        ensure!(child.runtime_generation == 1 && child.id.as_str() != id, "{child:?}");
        ensure!(child.parent_id.as_ref().is_some_and(|parent| parent.as_str() == id), "{child:?}");
    }
    Ok(forked.sandboxes)
}

async fn snapshot(client: &Client, id: &str, name: &str) -> Result<Snapshot> {
    Ok(client.create_snapshot(id, &named(name)).await?)
}

fn named(name: &str) -> CreateSnapshot {
    CreateSnapshot { name: Some(name.to_owned()) }
}

/// A persistent sandbox that begins with a snapshot.
async fn begin_with(client: &Client, snapshot: &Snapshot) -> Result<Sandbox> {
    let child = persistent(client, snapshot.id.as_str()).await?;
    ensure!(child.parent_id.as_ref() == Some(&snapshot.sandbox_id), "{child:?}");
    Ok(child)
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Everything is destroyed: so is all that it had.
async fn nothing_is_left(daemon: &Daemon) -> Result<()> {
    let client = daemon.client()?;
    for sandbox in client.all_sandboxes(&ListQuery::default()).await? {
        client.destroy_sandbox(sandbox.id.as_str()).await?;
    }
    for snapshot in client.snapshots().await?.snapshots {
        client.delete_snapshot(snapshot.id.as_str()).await?;
    }
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    for dir in ["sandboxes", "snapshots", "trash"] {
        let left = names_in(&daemon.data().join(dir));
        ensure!(left.is_empty(), "left in {dir}: {left:?}");
    }
    Ok(())
}

#[tokio::test]
async fn children_go_on_as_themselves() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let labels = json!({"template": "python", "mode": "persistent", "idle_timeout": "1h", "env": {"TOKEN": "t"},
        "metadata": {"team": "search"}});
    let source = create(&client, labels).await?;
    let id = source.id.to_string();
    sh(&client, &id, "echo shared > ~/file; head -c 3000000 /dev/urandom > ~/data; md5sum ~/data > ~/sum").await?;
    let cut = work(&client, &id, 1).await?;
    let engine = daemon.engine_pid(&id);
    // A call that is under way goes on, whether somebody waits for its end or listens.
    let script = "echo begun; while ! test -e /tmp/go; do sleep .2; done; echo went";
    let mut slow = ExecuteRequest::new(Command::Shell(script.to_owned()));
    slow.timeout = Some(Duration::from_secs(300).into());
    let slow = client.execute(&id, &slow);
    let forking = async {
        wait_for("the command", Duration::from_secs(20), || async {
            let awake = client.sandbox(&id).await?.awake_because;
            Ok(awake.iter().any(|awake| awake.detail.as_ref().is_some_and(|detail| detail.starts_with("pid "))))
        })
        .await?;
        fork(&client, &id, json!({"count": 3, "idle_timeout": "2h"})).await
    };
    let let_go = async {
        let children = forking.await?;
        sh(&client, &id, "touch /tmp/go").await?;
        anyhow::Ok(children)
    };
    let (slow, children) = tokio::join!(slow, let_go);
    let (slow, children) = (slow?, children?);
    ensure!(children.len() == 3);
    ensure!(slow.stdout == "begun\nwent\n" && slow.exit_code == 0, "{slow:?}");
    // A child has it too, at the same place.
    let child = children[0].id.as_str();
    sh(&client, child, "touch /tmp/go").await?;
    let frames: Vec<_> = client.process_output(child, slow.pid, 0, true).await?.try_collect().await?;
    let said = frames.iter().filter(|frame| matches!(frame, Frame::Stdout { .. })).count();
    ensure!(said == 2 && matches!(frames.last(), Some(Frame::Exit { exit_code: 0, .. })), "{frames:?}");

    let now = client.sandbox(&id).await?;
    ensure!(now.runtime_generation == 1 && now.status.to_string() == "running" && now.restored_memory.is_none());
    ensure!(now.transition.is_none() && now.parent_id.is_none() && daemon.engine_pid(&id) == engine, "{now:?}");
    let story: Vec<String> =
        client.events(&id, 0, 100).await?.events.iter().map(|event| event.kind.to_string()).collect();
    ensure!(story == ["created", "forked"], "{story:?}");

    let mut all = vec![id.clone()];
    for child in &children {
        ensure!(child.metadata == source.metadata && child.env_keys == ["TOKEN"] && child.mode == source.mode);
        ensure!(child.idle_timeout_seconds == Some(7200) && child.size == source.size, "{child:?}");
        all.push(child.id.to_string());
    }
    let mut seen = Vec::new();
    for (n, id) in all.iter().enumerate() {
        let told = goes_on(&client, id, &cut).await?;
        let error = clock_error(&client, id).await?;
        ensure!(error.abs() < 100, "{id}: its clock is wrong by {error} ms");
        let who = sh(&client, id, WHO).await?;
        let words: Vec<String> = who.split_whitespace().map(str::to_owned).collect();
        ensure!(words[1] == *id && words[0].contains(&id["sbx_".len()..]), "{id}: {who}");
        seen.push(words);
        sh(&client, id, "cat ~/file && md5sum -c ~/sum && test $TOKEN = t").await?;
        sh(&client, id, &format!("test ! -e ~/mine && echo {n} > ~/mine && echo {n} > ~/file && sync")).await?;
        // Its processes are its own to see, too.
        ensure!(client.processes(id).await?.processes.iter().any(|process| process.running), "{id}");
        ensure!(ask(&client, id).await?.asked == told.asked + 1);
    }
    for column in 0..seen[0].len() {
        let values: HashSet<&String> = seen.iter().map(|words| &words[column]).collect();
        ensure!(values.len() == all.len(), "column {column}: {seen:?}");
    }
    for (n, id) in all.iter().enumerate() {
        ensure!(sh(&client, id, "cat ~/mine ~/file").await? == format!("{n}\n{n}"), "{id}");
    }
    // They sleep and wake, and have children, like any other.
    client.suspend(&all[1], true).await?;
    ensure!(ask(&client, &all[1]).await?.asked == cut.asked + 3);
    let cut = ask(&client, &all[2]).await?;
    let grandchild = fork(&client, &all[2], json!({})).await?.remove(0);
    goes_on(&client, grandchild.id.as_str(), &cut).await?;
    ensure!(sh(&client, grandchild.id.as_str(), "cat ~/mine").await? == "2");
    client.destroy_sandbox(&all[2]).await?;
    ensure!(ask(&client, grandchild.id.as_str()).await?.asked == cut.asked + 2);
    ensure!(names_in(&daemon.data().join("snapshots")).is_empty(), "a fork's copy goes with it");
    nothing_is_left(&daemon).await
}

/// Copying its disk would hold it up for long. Where layers can be shared it is, and a command that is under way goes on.
#[tokio::test]
async fn a_large_disk_is_shared_where_it_can_be() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let source = create(&client, json!({"template": "python", "mode": "persistent", "disk_mb": 1024})).await?;
    let id = source.id.to_string();
    let large = 100 << 20;
    sh(&client, &id, &format!("head -c {large} /dev/urandom > ~/data; md5sum ~/data > ~/sum; rm ~/.bashrc; sync"))
        .await?;
    let cut = work(&client, &id, 1).await?;
    let script = "echo begun; while ! test -e /tmp/go; do sleep .2; done; echo went";
    let waiting = ExecuteRequest { timeout: None, ..ExecuteRequest::new(Command::Shell(script.to_owned())) };
    let frames = client.execute_stream(&id, &waiting).await?;
    let children = async {
        let forked = fork(&client, &id, json!({"count": 2})).await?;
        let taken = snapshot(&client, &id, "shared").await?;
        for child in &forked {
            goes_on(&client, child.id.as_str(), &cut).await?;
        }
        sh(&client, &id, "touch /tmp/go").await?;
        Ok::<_, anyhow::Error>((forked, taken))
    };
    let (heard, made) = tokio::join!(frames.try_collect::<Vec<Frame>>(), children);
    let ((forked, taken), heard) = (made?, heard?);
    ensure!(matches!(heard.last(), Some(Frame::Exit { exit_code: 0, .. })), "{heard:?}");
    let after = client.sandbox(&id).await?;
    ensure!(after.runtime_generation == 1 && after.status.to_string() == "running", "{after:?}");
    goes_on(&client, &id, &cut).await?;
    let kept = "md5sum -c ~/sum && ! test -e ~/.bashrc && echo whole";
    for one in forked.iter().map(|child| child.id.as_str()).chain([id.as_str()]) {
        ensure!(sh(&client, one, kept).await?.ends_with("whole"), "{one}");
        let storage = client.sandbox(one).await?.storage;
        let shares = storage.shared_bytes > large && storage.disk_bytes < large;
        ensure!(shares != wakeful_testkit::microvm(), "{one}: {storage:?}");
    }
    // The others do not need it, and it does not need them.
    client.destroy_sandbox(&id).await?;
    client.suspend(forked[0].id.as_str(), true).await?;
    client.destroy_sandbox(forked[1].id.as_str()).await?;
    let later = begin_with(&client, &taken).await?;
    client.delete_snapshot(taken.id.as_str()).await?;
    for one in [&forked[0], &later] {
        ensure!(sh(&client, one.id.as_str(), kept).await?.ends_with("whole"), "{one:?}");
    }
    nothing_is_left(&daemon).await
}

#[tokio::test]
async fn sleepers_have_children_and_sleep_on() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "python").await?.id.to_string();
    sh(&client, &id, "echo kept > ~/kept").await?;
    let cut = work(&client, &id, 1).await?;
    client.suspend(&id, true).await?;
    let children = fork(&client, &id, json!({"count": 2, "mode": "ephemeral", "timeout": "1h"})).await?;
    ensure!(client.sandbox(&id).await?.status.to_string() == "suspended" && daemon.engine_pid(&id).is_none());
    for child in &children {
        ensure!(child.mode.to_string() == "ephemeral" && child.timeout_seconds == Some(3600), "{child:?}");
        goes_on(&client, child.id.as_str(), &cut).await?;
    }
    goes_on(&client, &id, &cut).await?;
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);

    // One that sleeps without its memory has children that boot.
    client.suspend(&id, false).await?;
    let child = fork(&client, &id, json!({})).await?.remove(0);
    ensure!(child.restored_memory == Some(false), "{child:?}");
    ensure!(sh(&client, child.id.as_str(), "cat ~/kept").await? == "kept");
    ensure!(run(&client, child.id.as_str(), ASK).await?.exit_code != 0, "nothing of its memory is there");
    let hostname = sh(&client, child.id.as_str(), "hostname; echo $WAKEFUL_SANDBOX_ID").await?;
    ensure!(hostname.contains(child.id.bare()) && hostname.contains(child.id.as_str()), "{hostname}");
    ensure!(client.sandbox(&id).await?.status.to_string() == "suspended");
    ensure!(sh(&client, &id, "cat ~/kept").await? == "kept");
    nothing_is_left(&daemon).await
}

/// In the guest: a connection to an echo, tried again whenever the file `again` appears.
const TALKER: &str = r#"
import os, socket, time
s = socket.create_connection(("203.0.113.2", 9000)); s.settimeout(10)
while True:
    if os.path.exists("/tmp/again"):
        try: s.sendall(b"hello"); said = s.recv(5).decode() or "closed"
        except OSError as e: said = type(e).__name__
        open("/tmp/said.new", "w").write(said); os.unlink("/tmp/again"); os.rename("/tmp/said.new", "/tmp/said")
    time.sleep(.05)
"#;

/// What its open connection says now.
async fn talks(client: &Client, id: &str) -> Result<String> {
    let script = "rm -f /tmp/said; touch /tmp/again; for i in $(seq 300); do test -e /tmp/said && break; sleep .1; done; cat /tmp/said";
    sh(client, id, script).await
}

#[test]
fn networks_are_the_childrens_own() -> Result<()> {
    on_a_host(async |_world| {
        let daemon = Daemon::start_with(options()).await?;
        let client = daemon.client()?;
        let egress = json!({"mode": "deny_all", "allow_cidrs": ["203.0.113.2/32", "203.0.113.10/32"]});
        let source = create(&client, json!({"template": "python", "timeout": "1h", "egress": egress})).await?;
        let id = source.id.to_string();
        let guest = Guest::new(&client, &id).await?;
        guest.reaches("http 203.0.113.10", "203.0.113.10").await?;
        sh(&client, &id, &format!("cat > /tmp/talker.py <<'EOF'\n{TALKER}\nEOF\nsetsid python3 /tmp/talker.py >/dev/null 2>&1 </dev/null &")).await?;
        ensure!(talks(&client, &id).await? == "hello");
        let children = fork(&client, &id, json!({"count": 2})).await?;
        // On gVisor a cut drops them, as `capabilities` say.
        if wakeful_testkit::microvm() {
            ensure!(talks(&client, &id).await? == "hello", "the source's connections go on");
        }
        let ids: Vec<String> = children.iter().map(|child| child.id.to_string()).collect();
        for (child, id) in children.iter().zip(&ids) {
            ensure!(child.egress == source.egress, "{child:?}");
            let said = talks(&client, id).await?;
            ensure!(said != "hello", "a connection of the source's is nobody else's: {said}");
        }
        // Rules are of one sandbox only.
        let other = json!({"egress": {"mode": "deny_all", "allow_cidrs": ["203.0.113.11/32"]}});
        client.patch_sandbox(&ids[0], &serde_json::from_value(other)?).await?;
        for (id, yes, no) in [(&ids[0], "11", "10"), (&ids[1], "10", "11"), (&id, "10", "11")] {
            let guest = Guest::new(&client, id).await?;
            guest.reaches(&format!("http 203.0.113.{yes}"), &format!("203.0.113.{yes}")).await?;
            guest.is_refused(&format!("tcp 203.0.113.{no} 80")).await?;
            guest.blocked("policy", &format!("203.0.113.{no}")).await?;
            let report = guest.report().await?;
            let denied = report.blocked.iter().filter(|line| line.reason == "policy").count();
            ensure!(denied == 1, "only what it did itself: {report:?}");
        }
        nothing_is_left(&daemon).await
    })
}

#[tokio::test]
async fn snapshots_need_neither_source_nor_template() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let source = persistent(&client, "python").await?;
    let id = source.id.to_string();
    sh(&client, &id, "echo first > ~/file").await?;
    let running = work(&client, &id, 1).await?;
    let awake = snapshot(&client, &id, "awake").await?;
    ensure!(client.sandbox(&id).await?.runtime_generation == 1);
    ensure!(awake.name == "awake" && awake.sandbox_id == source.id && awake.template == "python" && awake.memory);
    let asleep_at = goes_on(&client, &id, &running).await?;
    sh(&client, &id, "echo second > ~/file").await?;
    client.suspend(&id, true).await?;
    let asleep = client.create_snapshot(&id, &CreateSnapshot::default()).await?;
    ensure!(asleep.name == asleep.id.as_str() && asleep.memory, "{asleep:?}");
    ensure!(client.sandbox(&id).await?.status.to_string() == "suspended");
    let story: Vec<String> =
        client.events(&id, 0, 100).await?.events.iter().map(|event| event.kind.to_string()).collect();
    ensure!(story.iter().filter(|kind| *kind == "snapshot").count() == 2, "{story:?}");
    let all = client.snapshots().await?.snapshots;
    ensure!(all == [asleep.clone(), awake.clone()], "newest first: {all:?}");
    for one in &all {
        ensure!(client.snapshot(one.id.as_str()).await? == *one);
        let blocks: u64 = std::fs::read_dir(daemon.data().join("snapshots").join(one.id.as_str()))?
            .map(|entry| Ok(std::os::unix::fs::MetadataExt::blocks(&entry?.metadata()?) * 512))
            .sum::<Result<u64>>()?;
        ensure!(one.own_bytes == blocks && blocks > 0 && one.shared_bytes > 0, "{one:?} takes {blocks}");
    }
    ensure!(code_of(client.create_snapshot(&id, &named("awake")).await) == "name_taken");
    ensure!(code_of(client.create_snapshot(&id, &named("Not a Name")).await) == "invalid_name");

    // What they were taken of goes, and what that was made from.
    client.destroy_sandbox(&id).await?;
    client.delete_template("python").await?;
    let golden = daemon.data().join("golden").join(source.template_id.to_string());
    ensure!(golden.exists() || !wakeful_testkit::microvm(), "they stand on it");
    let mut children = Vec::new();
    for _ in 0..2 {
        for (snapshot, cut, file) in [(&awake, &running, "first"), (&asleep, &asleep_at, "second")] {
            let child = begin_with(&client, snapshot).await?.id.to_string();
            goes_on(&client, &child, cut).await?;
            ensure!(sh(&client, &child, "cat ~/file; echo mine > ~/file").await? == file);
            children.push(child);
        }
    }
    ensure!(
        code_of(client.create_sandbox(&serde_json::from_value(json!({"template": "python"}))?).await)
            == "template_not_found"
    );
    let larger = json!({"template": awake.id.as_str(), "size": "performance-1x"});
    ensure!(code_of(client.create_sandbox(&serde_json::from_value(larger)?).await) == "invalid_combination");

    // A snapshot that goes takes nothing from those that began with it, awake or asleep.
    client.suspend(&children[0], true).await?;
    client.suspend(&children[1], true).await?;
    for snapshot in [&awake, &asleep] {
        client.delete_snapshot(snapshot.id.as_str()).await?;
        ensure!(code_of(client.snapshot(snapshot.id.as_str()).await) == "snapshot_not_found");
        ensure!(code_of(client.delete_snapshot(snapshot.id.as_str()).await) == "snapshot_not_found");
        let again = json!({"template": snapshot.id.as_str()});
        ensure!(code_of(client.create_sandbox(&serde_json::from_value(again)?).await) == "snapshot_not_found");
    }
    ensure!(names_in(&daemon.data().join("snapshots")).is_empty());
    for (n, child) in children.iter().enumerate() {
        let cut = if n % 2 == 0 { &running } else { &asleep_at };
        let told = ask(&client, child).await?;
        ensure!(told.same == cut.same && told.asked == cut.asked + 2, "{told:?} after {cut:?}");
        client.suspend(child, true).await?;
        ensure!(ask(&client, child).await?.asked == cut.asked + 3);
        ensure!(client.sandbox(child).await?.restored_memory == Some(true));
        ensure!(sh(&client, child, "cat ~/file").await? == "mine");
    }
    nothing_is_left(&daemon).await?;
    ensure!(!golden.exists(), "the last one that stood on the template is gone");
    Ok(())
}

microvm_only! { "an image of gVisor stands on no base, so nothing is folded into one";
#[tokio::test]
async fn memory_of_their_own_is_copied_whole() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "python").await?.id.to_string();
    work(&client, &id, 64).await?;
    // Large enough to be folded into a base of its own while it sleeps.
    let compacted = async |id: &str| -> Result<()> {
        let base = daemon.sandbox_dir(id).join("mem.base");
        client.suspend(id, true).await?;
        wait_for("the compaction", Duration::from_secs(60), || async {
            let line = format!("sandbox_id={id}");
            let told = daemon.log().lines().any(|log| log.contains("checkpoint compacted") && log.contains(&line));
            Ok(told && base.exists())
        })
        .await
    };
    compacted(&id).await?;
    let asleep = snapshot(&client, &id, "asleep").await?;
    let child = fork(&client, &id, json!({})).await?.remove(0).id.to_string();
    let cut = ask(&client, &id).await?;
    ensure!(ask(&client, &child).await?.same == cut.same);
    // Awake over that base, with changes of its own.
    sh(&client, &id, "head -c 8000000 /dev/urandom > /dev/shm/more; md5sum /dev/shm/more > /dev/shm/sum").await?;
    let awake = snapshot(&client, &id, "awake").await?;
    let twin = fork(&client, &id, json!({})).await?.remove(0).id.to_string();
    client.destroy_sandbox(&id).await?;
    let second = begin_with(&client, &awake).await?.id.to_string();
    let first = begin_with(&client, &asleep).await?.id.to_string();
    for one in [&twin, &second] {
        goes_on(&client, one, &cut).await?;
        sh(&client, one, "md5sum -c /dev/shm/sum").await?;
    }
    let told = ask(&client, &first).await?;
    ensure!(told.same == cut.same && told.asked == cut.asked, "{told:?} after {cut:?}");
    for snapshot in [&awake, &asleep] {
        client.delete_snapshot(snapshot.id.as_str()).await?;
    }
    // Each has all of it, and folds into its own.
    sh(&client, &child, "head -c 48000000 /dev/urandom > /dev/shm/more; md5sum /dev/shm/more > /dev/shm/sum").await?;
    compacted(&child).await?;
    sh(&client, &child, "md5sum -c /dev/shm/sum").await?;
    for one in [&twin, &child, &second, &first] {
        client.suspend(one, true).await?;
        let told = ask(&client, one).await?;
        ensure!(told.same == cut.same, "{one}: {told:?} after {cut:?}");
        ensure!(client.sandbox(one).await?.restored_memory == Some(true), "{one}");
    }
    nothing_is_left(&daemon).await
}
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let other = create(&client, json!({})).await?.id.to_string();
    let refused = async |id: &str, request: Value| -> Result<String> {
        Ok(code_of(client.fork(id, &serde_json::from_value(request)?).await))
    };
    for (request, code) in [
        (json!({"count": 0}), "invalid_field"),
        (json!({"count": 101}), "invalid_field"),
        (json!({"mode": "forever"}), "invalid_mode"),
        (json!({"timeout": "5m"}), "invalid_combination"),
        (json!({"mode": "ephemeral", "idle_timeout": "5m"}), "invalid_combination"),
        (json!({"timeout": "0s", "mode": "ephemeral"}), "invalid_duration"),
    ] {
        let answer = refused(&id, request.clone()).await?;
        ensure!(answer == code, "{request}: {answer}");
    }
    // Two at once under one name: one of them.
    let (one, two) = (named("twice"), named("twice"));
    let (one, two) = tokio::join!(client.create_snapshot(&id, &one), client.create_snapshot(&other, &two));
    let (taken, refusal) = if one.is_ok() { (one, two) } else { (two, one) };
    ensure!(code_of(refusal) == "name_taken");
    ensure!(names_in(&daemon.data().join("snapshots")) == [taken?.id.to_string()]);
    // Both are as they were.
    for id in [&id, &other] {
        sh(&client, id, "true").await?;
        ensure!(client.sandbox(id).await?.runtime_generation == 1);
    }

    let engine = daemon.engine_pid(&id).context("an engine")?;
    kill_process(Pid::from_raw(i32::try_from(engine)?).context("a pid")?, Signal::KILL)?;
    wait_for("the failure", Duration::from_secs(10), || async {
        Ok(client.sandbox(&id).await?.status.to_string() == "failed")
    })
    .await?;
    ensure!(refused(&id, json!({})).await? == "sandbox_failed");
    ensure!(code_of(client.create_snapshot(&id, &named("of-a-wreck")).await) == "sandbox_failed");
    client.destroy_sandbox(&other).await?;
    ensure!(refused(&other, json!({})).await? == "sandbox_destroyed");
    ensure!(code_of(client.create_snapshot(&other, &named("of-nothing")).await) == "sandbox_destroyed");
    nothing_is_left(&daemon).await
}

#[tokio::test]
async fn those_that_do_not_fit_are_told_of() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    client.limit_tenant("default", serde_json::from_value(json!({"sandboxes": 3}))?).await?;
    let id = persistent(&client, "base").await?.id.to_string();
    let forked = client.fork(&id, &serde_json::from_value(json!({"count": 5}))?).await?;
    ensure!(forked.sandboxes.len() == 2 && forked.errors.len() == 3, "{forked:?}");
    ensure!(forked.errors.iter().all(|error| error.code == "quota_exceeded"), "{:?}", forked.errors);
    let none = client.fork(&id, &serde_json::from_value(json!({"count": 2}))?).await;
    ensure!(code_of(none) == "quota_exceeded");
    sh(&client, &id, "true").await?;
    ensure!(client.sandbox(&id).await?.runtime_generation == 1);
    nothing_is_left(&daemon).await
}

#[tokio::test]
async fn tenants_have_their_own() -> Result<()> {
    let daemon = Daemon::start().await?;
    let token = std::fs::read_to_string(daemon.data().join("admin.token"))?.trim().to_owned();
    let admin = Client::new(daemon.url(), Some(&token))?;
    let mut clients = Vec::new();
    for tenant in ["acme", "other"] {
        admin.create_tenant(&CreateTenant { name: tenant.into(), limits: LimitsRequest::default() }).await?;
        let new = CreateKey { name: "test".into(), tenant: Some(tenant.into()), scopes: vec!["sandbox:*".into()] };
        let created = serde_json::to_value(admin.create_key(&new).await?)?;
        clients.push(Client::new(daemon.url(), Some(created["key"].as_str().context("the key")?))?);
    }
    let (acme, other) = (&clients[0], &clients[1]);
    let id = persistent(acme, "base").await?.id.to_string();
    let theirs = snapshot(acme, &id, "kept").await?;
    ensure!(other.snapshots().await?.snapshots.is_empty() && admin.snapshots().await?.snapshots.is_empty());
    for stranger in [other, &admin] {
        ensure!(code_of(stranger.snapshot(theirs.id.as_str()).await) == "snapshot_not_found");
        ensure!(code_of(stranger.delete_snapshot(theirs.id.as_str()).await) == "snapshot_not_found");
        let new = serde_json::from_value(json!({"template": theirs.id.as_str()}))?;
        ensure!(code_of(stranger.create_sandbox(&new).await) == "snapshot_not_found");
        ensure!(code_of(stranger.create_snapshot(&id, &named("kept")).await) == "wrong_tenant");
        ensure!(code_of(stranger.fork(&id, &serde_json::from_value(json!({}))?).await) == "wrong_tenant");
    }
    // The same name elsewhere is another snapshot.
    let own = persistent(other, "base").await?.id.to_string();
    snapshot(other, &own, "kept").await?;
    ensure!(acme.snapshots().await?.snapshots == std::slice::from_ref(&theirs));
    sh(acme, begin_with(acme, &theirs).await?.id.as_str(), "true").await?;
    Ok(())
}

/// A call with a key; its status and body, if the daemon lives to tell.
async fn with_key(daemon: &Daemon, path: &str, body: &Value) -> Result<(u16, Value)> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let request = client.post(format!("{}{path}", daemon.url())).header("Idempotency-Key", "k").json(body);
    let response = request.send().await?;
    Ok((response.status().as_u16(), response.json().await?))
}

fn ids(forked: &Value) -> Vec<&str> {
    forked["sandboxes"].as_array().into_iter().flatten().filter_map(|sandbox| sandbox["id"].as_str()).collect()
}

#[tokio::test]
async fn one_key_is_one_fork() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let path = format!("/v1/sandboxes/{id}/fork");
    let body = json!({"count": 2});
    let (first, second) = tokio::join!(with_key(&daemon, &path, &body), with_key(&daemon, &path, &body));
    let ((status, first), (_, second)) = (first?, second?);
    ensure!(status == 201 && first == second && ids(&first).len() == 2, "{first} {second}");
    ensure!(client.all_sandboxes(&ListQuery::default()).await?.len() == 3);
    let (status, other) = with_key(&daemon, &path, &json!({"count": 3})).await?;
    ensure!(status == 409 && other["code"] == "idempotency_mismatch", "{other}");
    let (status, other) = with_key(&daemon, &format!("/v1/sandboxes/{id}/snapshots"), &json!({})).await?;
    ensure!(status == 409 && other["code"] == "idempotency_mismatch", "{other}");
    nothing_is_left(&daemon).await
}

#[tokio::test]
async fn a_crash_in_between_makes_nothing_twice() -> Result<()> {
    // At the end of a fork, in the middle of it; at the end of a snapshot, and before it counts.
    for (point, what, survives) in [
        ("idempotency.keep", "fork", true),
        ("fork.restored", "fork", false),
        ("idempotency.keep", "snapshots", true),
        ("snapshot.published", "snapshots", false),
    ] {
        let mut daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", point)).await?;
        let client = daemon.client()?;
        let id = persistent(&client, "base").await?.id.to_string();
        sh(&client, &id, "echo here > /dev/shm/here").await?;
        let (path, body) = (
            format!("/v1/sandboxes/{id}/{what}"),
            if what == "fork" { json!({"count": 2}) } else { json!({"name": "kept"}) },
        );
        ensure!(with_key(&daemon, &path, &body).await.is_err(), "{point}: it must have died");
        daemon.wait_for_death().await?;
        daemon.start_again(Options::default()).await?;
        let client = daemon.client()?;
        let children = async || -> Result<HashSet<String>> {
            let all = client.all_sandboxes(&ListQuery::default()).await?;
            Ok(all.into_iter().map(|sandbox| sandbox.id.to_string()).filter(|child| *child != id).collect())
        };
        let copies = daemon.data().join("snapshots");
        if !survives {
            wait_for("what was half made goes", Duration::from_secs(30), || async {
                Ok(children().await?.is_empty() && names_in(&copies).is_empty())
            })
            .await?;
        }
        let before = (children().await?, names_in(&copies));
        let (status, again) = with_key(&daemon, &path, &body).await?;
        ensure!(status == 201, "{point}: {again}");
        let after = (children().await?, names_in(&copies));
        ensure!(!survives || before == after, "{point}: {before:?} {after:?}");
        if what == "fork" {
            let told: HashSet<String> = ids(&again).into_iter().map(str::to_owned).collect();
            ensure!(told == after.0 && told.len() == 2 && after.1.is_empty(), "{point}: {again} {after:?}");
        } else {
            ensure!(after.1 == [again["id"].as_str().context("an id")?], "{point}: {again} {after:?}");
        }
        for id in after.0.iter().chain([&id]) {
            ensure!(sh(&client, id, "cat /dev/shm/here").await? == "here", "{point}: {id}");
            ensure!(client.sandbox(id).await?.runtime_generation == 1, "{point}: {id}");
        }
        nothing_is_left(&daemon).await?;
    }
    Ok(())
}

/// `wakeful …`: its exit code and output.
async fn wakeful(daemon: &Daemon, args: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = daemon.command();
    command.args(args).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

#[tokio::test]
async fn by_the_command_line() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, "echo here > /dev/shm/here").await?;
    let done = async |args: &[&str]| -> Result<String> {
        let (code, said) = wakeful(&daemon, args).await?;
        ensure!(code == Some(0), "{args:?}: {code:?} {said}");
        Ok(said)
    };
    let printed = done(&["sandbox", "fork", &id, "--count", "2", "--mode", "ephemeral", "--timeout", "1h"]).await?;
    let children: Vec<&str> = printed.lines().collect();
    ensure!(children.len() == 2 && children.iter().all(|child| child.starts_with("sbx_")), "{printed}");
    ensure!(done(&["sandbox", "exec", children[0], "--", "cat", "/dev/shm/here"]).await? == "here\n");
    ensure!(done(&["sandbox", "status", children[0]]).await?.contains(&format!("parent      {id}\n")));
    let whole: Value = serde_json::from_str(&done(&["--json", "sandbox", "fork", &id]).await?)?;
    ensure!(ids(&whole).len() == 1 && whole["errors"] == json!([]), "{whole}");
    ensure!(wakeful(&daemon, &["sandbox", "fork", &id, "-n", "0"]).await?.0 == Some(1));

    let kept = done(&["snapshot", "create", &id, "kept"]).await?;
    let kept = kept.trim();
    ensure!(kept.starts_with("snp_"), "{kept}");
    ensure!(wakeful(&daemon, &["snapshot", "create", &id, "kept"]).await?.0 == Some(1));
    let nameless = done(&["snapshots", "create", &id]).await?;
    let table = done(&["snapshot", "list"]).await?;
    ensure!(
        table.starts_with("ID") && table.contains(kept) && table.contains("kept") && table.contains(&id),
        "{table}"
    );
    ensure!(done(&["snapshot", "ls", "-q"]).await? == format!("{nameless}{kept}\n"));
    let list: Value = serde_json::from_str(&done(&["snapshot", "list", "--json"]).await?)?;
    ensure!(list[1]["name"] == "kept" && list[1]["sandbox_id"] == id, "{list}");
    let shown = done(&["snapshot", "show", kept]).await?;
    ensure!(shown.contains("name        kept\n") && shown.contains("files, memory and processes"), "{shown}");
    let child = done(&["sandbox", "create", "-t", kept]).await?;
    ensure!(done(&["sandbox", "exec", child.trim(), "--", "cat", "/dev/shm/here"]).await? == "here\n");
    done(&["snapshot", "rm", "-f", kept, nameless.trim()]).await?;
    ensure!(done(&["snapshot", "list", "-q"]).await?.is_empty());
    ensure!(wakeful(&daemon, &["snapshot", "show", kept]).await?.0 == Some(1));
    nothing_is_left(&daemon).await
}
