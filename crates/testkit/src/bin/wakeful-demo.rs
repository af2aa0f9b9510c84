//! `make demo`: the whole path in a few seconds, on every runtime, checked from outside.
//!
//! A process counts in memory. The sandbox sleeps: its engine must be gone from the process table. A command wakes it: the
//! engine must be another process, the generation one higher, the counting process the same one, and the count must have
//! gone on from its last value. Anything else ends with exit code 1.
//!
//! First on the runtime that the daemon takes by itself (QEMU where KVM is proven, else gVisor), then on the other: a
//! daemon has both at once.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wakeful_api_types::{Command, CreateSandbox, ExecuteRequest};
use wakeful_client::Client;
use wakeful_testkit::{Daemon, Options};

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
/// Which boot it is, where the kernel says so, and which process counts: its number and when it began.
const WHO: &str = r#"
cat /proc/sys/kernel/random/boot_id 2>/dev/null
pid=$(cat /tmp/counter.pid); echo "$pid $(cut -d' ' -f22 "/proc/$pid/stat")"
"#;
const RUNTIMES: [&str; 2] = ["gvisor", "qemu"];
const ASLEEP: Duration = Duration::from_secs(2);
/// A first start after a boot of the host tries what there is.
const CHOICE: Duration = Duration::from_secs(90);

/// The steps of a story and how long each took.
type Steps = Vec<(&'static str, Duration)>;

#[tokio::main]
async fn main() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().env("WAKEFUL_RUNTIME", "auto")).await?;
    let client = daemon.client()?;
    let chosen = chosen(&client).await?;
    let why = client.info().await?.runtimes.into_iter().find(|runtime| runtime.accel == "kvm");
    match why.and_then(|kvm| kvm.reason) {
        Some(reason) => println!("runtime    {chosen} is taken here by itself; not KVM: {reason}"),
        None => println!("runtime    {chosen} is taken here by itself"),
    }

    let mut stories = vec![(chosen.clone(), story(&daemon, &client, None, &chosen).await?)];
    for other in RUNTIMES.into_iter().filter(|name| *name != chosen) {
        println!("\nruntime    {other}, because this sandbox asks for it; the daemon is the same");
        stories.push((other.to_owned(), story(&daemon, &client, Some(other), other).await?));
    }

    let names: Vec<&str> = stories.iter().map(|(name, _)| name.as_str()).collect();
    println!("\n| step, ms | {} |\n|---|{}", names.join(" | "), "---:|".repeat(names.len()));
    let (_, first) = &stories[0];
    for (at, (step, _)) in first.iter().enumerate() {
        let took = stories.iter().map(|(_, steps)| format!("{:.0}", steps[at].1.as_secs_f64() * 1e3));
        println!("| {step} | {} |", took.collect::<Vec<_>>().join(" | "));
    }
    Ok(())
}

/// What the daemon takes for who names no runtime, once it knows.
async fn chosen(client: &Client) -> Result<String> {
    let began = Instant::now();
    loop {
        if let Some(name) = client.info().await?.selected_runtime {
            return Ok(name);
        }
        ensure!(began.elapsed() < CHOICE, "no runtime is usable: {:?}", client.info().await?.runtimes);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn story(daemon: &Daemon, client: &Client, wanted: Option<&str>, runtime: &str) -> Result<Steps> {
    let mut steps: Steps = Vec::new();
    let began = Instant::now();
    let mut request: CreateSandbox =
        serde_json::from_value(serde_json::json!({"template": "python", "mode": "persistent"}))?;
    request.runtime = wanted.map(str::to_owned);
    request.metadata.insert("made-by".into(), "demo".into());
    let sandbox = client.create_sandbox(&request).await?;
    steps.push(("create", began.elapsed()));
    ensure!(sandbox.runtime == runtime, "it runs on {}", sandbox.runtime);
    let id = sandbox.id.to_string();
    println!("sandbox    {id}  ({} {}, {} MiB)", sandbox.runtime, sandbox.accel, sandbox.memory_mb);

    let began = Instant::now();
    sh(client, &id, "true").await?;
    steps.push(("first command", began.elapsed()));
    let began = Instant::now();
    sh(client, &id, "true").await?;
    steps.push(("command", began.elapsed()));

    sh(client, &id, COUNTER).await?;
    let who = sh(client, &id, WHO).await?;
    let engine = daemon.engine_pid(&id).context("the sandbox has no engine")?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before: u64 = sh(client, &id, ASK).await?.trim().parse().context("the counter does not count")?;
    ensure!(before > 0, "the counter stands still");

    let began = Instant::now();
    let asleep = client.suspend(&id, true).await?;
    steps.push(("suspend", began.elapsed()));
    ensure!(has_ended(engine, runtime), "engine {engine} is still there while it sleeps");
    ensure!(daemon.engines().is_empty(), "there are engines while everything sleeps: {:?}", daemon.engines());
    println!("asleep     no engine, {} KiB of checkpoint on disk", asleep.storage.checkpoint_bytes / 1024);
    tokio::time::sleep(ASLEEP).await;

    let began = Instant::now();
    sh(client, &id, "true").await?;
    steps.push(("wake by a command", began.elapsed()));
    let after: u64 = sh(client, &id, ASK).await?.trim().parse().context("the counter is gone")?;
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
    let still = sh(client, &id, WHO).await?;
    ensure!(still == who, "the guest was booted anew, or another process counts: {who:?}, {still:?}");
    // It went on from its last value: neither from nothing, nor as if it had counted while it slept.
    let most = before + u64::try_from((began.elapsed() + Duration::from_secs(3)).as_millis() / 50)?;
    ensure!(after > before && after <= most, "the count went from {before} to {after}");
    println!(
        "awake      engine {engine} -> {new_engine}, generation {} -> {}, count {before} -> {after}, same process",
        sandbox.runtime_generation, awake.runtime_generation
    );

    let began = Instant::now();
    client.destroy_sandbox(&id).await?;
    steps.push(("destroy", began.elapsed()));
    ensure!(
        daemon.engines().is_empty() && !daemon.places().iter().any(|name| id.ends_with(name.as_str())),
        "something is left: {:?}",
        daemon.places()
    );
    Ok(steps)
}

/// Whether a process is gone. A sentry's parent is gone too, and whoever takes it over may take a moment to notice its end.
fn has_ended(pid: u32, runtime: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => runtime != "qemu" && stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
    }
}

async fn sh(client: &Client, id: &str, script: &str) -> Result<String> {
    let done = client.execute(id, &ExecuteRequest::new(Command::Shell(script.to_owned()))).await?;
    ensure!(done.exit_code == 0, "`{script}` ended with {}: {}", done.exit_code, done.stderr);
    Ok(done.stdout)
}
