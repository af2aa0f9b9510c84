//! `make demo`: the whole path in a few seconds, checked from outside.
//!
//! A process counts in memory. The sandbox sleeps: its engine must be gone from the process table. A command wakes it: the
//! engine must be another process, the generation one higher, the guest the same boot, and the count must have gone on
//! from its last value. Anything else ends with exit code 1.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wakeful_api_types::{Command, CreateSandbox, ExecuteRequest};
use wakeful_client::Client;
use wakeful_testkit::Daemon;

/// Counts in a shell variable, which lives nowhere but in memory, and tells its value when asked by SIGUSR1.
const COUNTER: &str = r#"
setsid sh -c '
  n=0
  trap "echo \$n > /tmp/count.new; mv /tmp/count.new /tmp/count" USR1
  while :; do n=$((n + 1)); sleep 0.05; done
' >/dev/null 2>&1 </dev/null &
echo $! > /tmp/counter.pid
"#;
const ASK: &str = r#"
rm -f /tmp/count; kill -USR1 "$(cat /tmp/counter.pid)" || exit 1
for i in $(seq 100); do [ -f /tmp/count ] && exec cat /tmp/count; sleep 0.05; done; exit 1
"#;
const ASLEEP: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let mut rows: Vec<(&str, Duration)> = Vec::new();

    let began = Instant::now();
    let mut request: CreateSandbox =
        serde_json::from_value(serde_json::json!({"template": "python", "mode": "persistent"}))?;
    request.metadata.insert("made-by".into(), "demo".into());
    let sandbox = client.create_sandbox(&request).await?;
    rows.push(("create", began.elapsed()));
    let id = sandbox.id.to_string();
    println!("sandbox    {id}  ({} {}, {} MiB)", sandbox.runtime, sandbox.accel, sandbox.memory_mb);

    let began = Instant::now();
    sh(&client, &id, "true").await?;
    rows.push(("first command", began.elapsed()));
    let began = Instant::now();
    sh(&client, &id, "true").await?;
    rows.push(("command", began.elapsed()));

    sh(&client, &id, COUNTER).await?;
    let boot_id = sh(&client, &id, "cat /proc/sys/kernel/random/boot_id").await?;
    let engine = daemon.engine_pid(&id).context("the sandbox has no engine")?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before: u64 = sh(&client, &id, ASK).await?.trim().parse().context("the counter does not count")?;
    ensure!(before > 0, "the counter stands still");

    let began = Instant::now();
    let asleep = client.suspend(&id, true).await?;
    rows.push(("suspend", began.elapsed()));
    ensure!(
        !std::path::Path::new(&format!("/proc/{engine}")).exists(),
        "engine {engine} is still there while it sleeps"
    );
    ensure!(daemon.engines().is_empty(), "there are engines while everything sleeps: {:?}", daemon.engines());
    println!("asleep     no engine, {} KiB of checkpoint on disk", asleep.storage.checkpoint_bytes / 1024);
    tokio::time::sleep(ASLEEP).await;

    let began = Instant::now();
    sh(&client, &id, "true").await?;
    rows.push(("wake by a command", began.elapsed()));
    let after: u64 = sh(&client, &id, ASK).await?.trim().parse().context("the counter is gone")?;
    let awake = client.sandbox(&id).await?;
    let new_engine = daemon.engine_pid(&id).context("the sandbox has no engine after its wake")?;
    ensure!(new_engine != engine, "the engine is the same process {engine}");
    ensure!(
        awake.runtime_generation == sandbox.runtime_generation + 1,
        "generation {} after {}",
        awake.runtime_generation,
        sandbox.runtime_generation
    );
    ensure!(awake.restored_memory == Some(true), "its memory was not restored");
    ensure!(sh(&client, &id, "cat /proc/sys/kernel/random/boot_id").await? == boot_id, "the guest was booted anew");
    // It went on from its last value: neither from nothing, nor as if it had counted while it slept.
    let most = before + u64::try_from((began.elapsed() + Duration::from_secs(3)).as_millis() / 50)?;
    ensure!(after > before && after <= most, "the count went from {before} to {after}");
    println!(
        "awake      engine {engine} -> {new_engine}, generation {} -> {}, count {before} -> {after}, same boot",
        sandbox.runtime_generation, awake.runtime_generation
    );

    let began = Instant::now();
    client.destroy_sandbox(&id).await?;
    rows.push(("destroy", began.elapsed()));
    ensure!(
        daemon.engines().is_empty() && !daemon.places().iter().any(|name| id.ends_with(name.as_str())),
        "something is left: {:?}",
        daemon.places()
    );

    println!("\n| step | ms |\n|---|---:|");
    for (step, took) in rows {
        println!("| {step} | {:.0} |", took.as_secs_f64() * 1e3);
    }
    Ok(())
}

async fn sh(client: &Client, id: &str, script: &str) -> Result<String> {
    let done = client.execute(id, &ExecuteRequest::new(Command::Shell(script.to_owned()))).await?;
    ensure!(done.exit_code == 0, "`{script}` ended with {}: {}", done.exit_code, done.stderr);
    Ok(done.stdout)
}
