//! Sleep and wake: what was in memory is there again, and nothing is while it sleeps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use serde_json::json;
use wakeful_testkit::{Daemon, Options};

use crate::support::{code_of, create, persistent, run, sh, wait_for, wait_for_golden};

/// Holds 100 MiB of random data, an open (deleted) file and a listening socket, and tells about them when asked.
const WORKER: &str = r#"
import hashlib, os, socketserver, tempfile, threading, time
data = os.urandom(100 << 20)
held = open('/tmp/held', 'w+b'); held.write(os.urandom(1 << 20)); held.flush(); os.unlink('/tmp/held')
born, count = os.urandom(8).hex(), [0]
def tick():
    while True: time.sleep(.05); count[0] += 1
threading.Thread(target=tick, daemon=True).start()
class Tell(socketserver.StreamRequestHandler):
    def handle(self):
        held.seek(0)
        digests = hashlib.md5(data).hexdigest(), hashlib.md5(held.read()).hexdigest()
        self.wfile.write(' '.join([str(os.getpid()), born, *digests, str(count[0])]).encode())
class Server(socketserver.TCPServer):
    allow_reuse_address = True
Server(('127.0.0.1', 7000), Tell).serve_forever()
"#;
const ASK: &str =
    "python3 -c \"import socket; s = socket.create_connection(('127.0.0.1', 7000)); print(s.makefile().read())\"";

/// Milliseconds by which the guest's clock is ahead of ours, as well as a call can tell.
pub(crate) async fn clock_error(client: &wakeful_client::Client, id: &str) -> Result<i128> {
    let mut best: Option<(i128, i128)> = None;
    for _ in 0..3 {
        let before = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as i128;
        let guest: i128 = sh(client, id, "date +%s%N").await?.parse()?;
        let after = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as i128;
        // The guest read its clock somewhere in between: outside of that it is wrong for sure.
        let wrong = if guest < before { guest - before } else { (guest - after).max(0) };
        let width = after - before;
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            best = Some((width, wrong));
        }
    }
    Ok(best.map_or(0, |(_, wrong)| wrong) / 1_000_000)
}

#[tokio::test]
async fn ten_cycles_lose_nothing() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let sandbox = persistent(&client, "python").await?;
    let id = sandbox.id.to_string();
    sh(&client, &id, &format!("cat > /tmp/worker.py <<'EOF'\n{WORKER}\nEOF\nsetsid python3 /tmp/worker.py >/tmp/worker.log 2>&1 </dev/null & ")).await?;
    sh(&client, &id, "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/shell.new; mv /tmp/shell.new /tmp/shell; sleep 0.2; done' >/dev/null 2>&1 </dev/null &").await?;
    sh(&client, &id, "head -c 5000000 /dev/urandom > ~/file; md5sum ~/file > ~/sum").await?;
    let mut told = None;
    for _ in 0..60 {
        let answer = run(&client, &id, ASK).await?;
        if answer.exit_code == 0 && !answer.stdout.trim().is_empty() {
            told = Some(answer.stdout);
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let told = told.expect("the worker answers");
    const BOOT: &str = "cat /proc/sys/kernel/random/boot_id 2>/dev/null || stat -c %X /proc/1";
    let boot_id = sh(&client, &id, BOOT).await?;
    let split = |text: &str| {
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let count: u64 = words.pop().and_then(|n| n.parse().ok()).unwrap_or(0);
        (words, count)
    };
    let (first, mut count) = split(&told);
    ensure!(first.len() == 4, "{told}");
    let mut shell: u64 = sh(&client, &id, "cat /tmp/shell").await?.parse()?;

    for cycle in 1..=10u64 {
        let engine = daemon.engine_pid(&id).expect("it has an engine");
        let asleep = client.suspend(&id, true).await?;
        ensure!(asleep.status.to_string() == "suspended" && asleep.transition.is_none(), "{asleep:?}");
        ensure!(daemon.engine_pid(&id).is_none() && !wakeful_testkit::lives(engine), "engine {engine} is still there");
        ensure!(daemon.engines().is_empty(), "engines while asleep");
        if cycle % 3 == 0 {
            // Long enough for a compaction to get somewhere, and sometimes to its end.
            tokio::time::sleep(Duration::from_millis(700 * cycle / 3)).await;
        }
        let (now, after) = split(&sh(&client, &id, ASK).await?);
        ensure!(now == first, "cycle {cycle}: {now:?} was {first:?}");
        ensure!(after >= count, "cycle {cycle}: the count went from {count} to {after}");
        count = after;
        let error = clock_error(&client, &id).await?;
        ensure!(error.abs() < 100, "cycle {cycle}: the clock is wrong by {error} ms");
        let awake = client.sandbox(&id).await?;
        ensure!(awake.runtime_generation == cycle + 1, "generation {} in cycle {cycle}", awake.runtime_generation);
        ensure!(awake.restored_memory == Some(true));
        ensure!(daemon.engine_pid(&id).is_some_and(|pid| pid != engine), "the same engine");
    }
    ensure!(sh(&client, &id, BOOT).await? == boot_id, "it was booted");
    let forget = if wakeful_testkit::microvm() { "sudo sh -c 'echo 3 > /proc/sys/vm/drop_caches'" } else { "true" };
    sh(&client, &id, &format!("{forget}; md5sum -c ~/sum")).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let later: u64 = sh(&client, &id, "cat /tmp/shell").await?.parse()?;
    ensure!(later > shell, "the shell in the background stands still at {later}");
    shell = later;
    ensure!(shell > 0);
    client.destroy_sandbox(&id).await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

#[tokio::test]
async fn an_idle_giant_takes_little_disk() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let giant = || serde_json::json!({"mode": "persistent", "size": "performance-2x"});
    // The first of its size boots, and all of its memory is its own.
    let first = create(&client, giant()).await?.id.to_string();
    if wakeful_testkit::microvm() {
        wait_for_golden(&daemon, "c2-m4096-d2048").await?;
    }
    client.destroy_sandbox(&first).await?;
    let sandbox = create(&client, giant()).await?;
    ensure!(sandbox.memory_mb == 4096);
    let id = sandbox.id.to_string();
    sh(&client, &id, "true").await?;
    let asleep = client.suspend(&id, true).await?;
    let blocks: u64 = std::fs::read_dir(daemon.sandbox_dir(&id).join("checkpoint-1"))?
        .map(|entry| Ok(std::os::unix::fs::MetadataExt::blocks(&entry?.metadata()?) * 512))
        .sum::<Result<u64>>()?;
    // A whole image of a small program, or what differs from the golden one.
    let most = if wakeful_testkit::microvm() { 8 << 20 } else { 48 << 20 };
    ensure!(blocks > 0 && blocks < most, "the checkpoint takes {blocks} bytes");
    ensure!(
        asleep.storage.checkpoint_bytes == blocks,
        "it says {} and takes {blocks}",
        asleep.storage.checkpoint_bytes
    );
    ensure!(sh(&client, &id, "grep MemTotal /proc/meminfo").await?.contains("kB"));
    Ok(())
}

#[tokio::test]
async fn many_callers_are_one_wake() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    client.suspend(&id, true).await?;
    ensure!(client.suspend(&id, true).await?.status.to_string() == "suspended", "twice is no error");
    let calls = (0..200).map(|n| {
        let (client, id) = (client.clone(), id.clone());
        async move { sh(&client, &id, &format!("echo {n}")).await }
    });
    let answers = futures_util::future::join_all(calls).await;
    for (n, answer) in answers.into_iter().enumerate() {
        ensure!(answer? == n.to_string());
    }
    let awake = client.sandbox(&id).await?;
    ensure!(awake.runtime_generation == 2, "generation {}", awake.runtime_generation);
    ensure!(client.wake(&id, false).await?.runtime_generation == 2, "a wake of a running one changes nothing");
    Ok(())
}

#[tokio::test]
async fn auto_resume_off_is_a_conflict() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, serde_json::json!({"mode": "persistent", "auto_resume": false})).await?.id.to_string();
    client.suspend(&id, true).await?;
    let refused = client
        .execute(&id, &wakeful_api_types::ExecuteRequest::new(wakeful_api_types::Command::Shell("true".into())))
        .await;
    ensure!(code_of(refused) == "sandbox_suspended");
    ensure!(client.wake(&id, true).await?.status.to_string() == "running");
    sh(&client, &id, "true").await?;
    Ok(())
}

#[tokio::test]
async fn without_memory_the_disk_is_kept() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let boot_id = sh(&client, &id, "echo kept > ~/kept; cat /proc/sys/kernel/random/boot_id").await?;
    let asleep = client.suspend(&id, false).await?;
    ensure!(asleep.status.to_string() == "suspended" && asleep.storage.checkpoint_bytes == 0, "{:?}", asleep.storage);
    ensure!(daemon.engines().is_empty());
    ensure!(sh(&client, &id, "cat ~/kept").await? == "kept");
    ensure!(sh(&client, &id, "cat /proc/sys/kernel/random/boot_id").await? != boot_id, "it must have been booted");
    let awake = client.sandbox(&id).await?;
    ensure!(awake.restored_memory == Some(false) && awake.runtime_generation == 2);
    // A booted one sleeps and wakes like any other.
    sh(&client, &id, "echo again > /dev/shm/again").await?;
    client.suspend(&id, true).await?;
    ensure!(sh(&client, &id, "cat /dev/shm/again").await? == "again");
    ensure!(client.sandbox(&id).await?.restored_memory == Some(true));
    Ok(())
}

#[tokio::test]
async fn a_command_under_way_at_a_suspend_is_told_so() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let call = {
        let (client, id) = (client.clone(), id.clone());
        tokio_util::task::AbortOnDropHandle::new(
            tokio::runtime::Handle::current()
                .spawn(async move { run(&client, &id, "sleep 5; echo done > ~/done").await }),
        )
    };
    crate::support::wait_for("the command", Duration::from_secs(10), || async {
        Ok(client.sandbox(&id).await?.awake_because.iter().any(|awake| awake.reason == "exec"))
    })
    .await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    client.suspend(&id, true).await?;
    let error = call.await?.expect_err("it was cut off");
    let problem = error.downcast::<wakeful_client::Error>()?;
    ensure!(problem.code() == Some("suspended_during_exec"), "{problem}");
    ensure!(
        problem.problem().is_some_and(|problem| problem.more["pid"].as_u64().is_some_and(|pid| pid > 0)),
        "{problem:?}"
    );
    // It was frozen, not killed: after the wake it comes to its end.
    crate::support::wait_for("the command's end", Duration::from_secs(30), || async {
        Ok(run(&client, &id, "cat ~/done").await?.exit_code == 0)
    })
    .await
}

/// A daemon whose suspends stay for two seconds where their image is written and not committed.
async fn that_dawdles() -> Result<Daemon> {
    Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", "suspend.saved:wait")).await
}

async fn suspending(client: &wakeful_client::Client, id: &str) -> Result<()> {
    wait_for("it falls asleep", Duration::from_secs(20), async || {
        let sandbox = client.sandbox(id).await?;
        Ok(sandbox
            .transition
            .is_some_and(|transition| transition.kind == wakeful_api_types::TransitionKind::Suspending))
    })
    .await
}

async fn story(client: &wakeful_client::Client, id: &str) -> Result<Vec<String>> {
    Ok(client.events(id, 0, 100).await?.events.iter().map(|event| event.kind.to_string()).collect())
}

#[tokio::test]
async fn an_access_calls_off_a_suspend_that_nobody_asked_for() -> Result<()> {
    let daemon = that_dawdles().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"mode": "persistent", "idle_timeout": "2s"})).await?.id.to_string();
    sh(&client, &id, "echo here > /tmp/here; sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid").await?;
    suspending(&client, &id).await?;
    let engine = daemon.engine_pid(&id);
    ensure!(sh(&client, &id, "cat /tmp/here; kill -0 $(cat /tmp/pid) && echo alive").await? == "here\nalive");
    let sandbox = client.sandbox(&id).await?;
    ensure!(sandbox.runtime_generation == 1 && sandbox.restored_memory.is_none(), "{sandbox:?}");
    ensure!(engine.is_some() && daemon.engine_pid(&id) == engine, "the stopped engine goes on");
    ensure!(story(&client, &id).await? == ["created", "suspend_started", "suspend_cancelled"]);
    ensure!(sandbox.storage.checkpoint_bytes == 0, "nothing of it is left: {:?}", sandbox.storage);
    // It sleeps later, when it is not needed.
    wait_for("it sleeps", Duration::from_secs(30), async || {
        Ok(client.sandbox(&id).await?.status.to_string() == "suspended")
    })
    .await?;
    ensure!(sh(&client, &id, "cat /tmp/here").await? == "here");
    Ok(())
}

#[tokio::test]
async fn an_access_waits_for_a_suspend_that_was_asked_for() -> Result<()> {
    let daemon = that_dawdles().await?;
    let client = daemon.client()?;
    // One that begins by itself and is then asked for is asked for.
    let id = create(&client, json!({"mode": "persistent", "idle_timeout": "2s"})).await?.id.to_string();
    suspending(&client, &id).await?;
    let asked = async { client.suspend(&id, true).await.map_err(anyhow::Error::from) };
    let needed = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        sh(&client, &id, "echo awake").await
    };
    let (asked, needed) = tokio::join!(asked, needed);
    ensure!(asked?.suspended_at.is_some() && needed? == "awake");
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);
    ensure!(!story(&client, &id).await?.contains(&"suspend_cancelled".to_owned()));
    Ok(())
}
