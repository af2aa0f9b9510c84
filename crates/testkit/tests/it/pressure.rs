//! A host that runs short: of memory, of disk, of what it may give away.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use wakeful_api_types::{Command, ExecuteRequest};
use wakeful_client::Client;
use wakeful_testkit::{Daemon, Options};

use crate::support::{code_of, create, persistent, sh, wait_for};

/// What happened to a sandbox: type, cause and when.
async fn story(client: &Client, id: &str) -> Result<Vec<(String, String, String)>> {
    let page = serde_json::to_value(client.events(id, 0, 100).await?)?;
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let events = page["events"].as_array().context("events")?;
    Ok(events.iter().map(|event| (text(event, "type"), text(event, "cause"), text(event, "at"))).collect())
}

fn when(story: &[(String, String, String)], kind: &str, cause: &str) -> Option<String> {
    story.iter().find(|(found, why, _)| found == kind && why == cause).map(|(_, _, at)| at.clone())
}

#[tokio::test]
async fn the_longest_idle_sleeps_first() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let meminfo = dir.path().join("meminfo");
    let tell = |available: u32| -> Result<()> {
        let new = dir.path().join("new");
        fs::write(&new, format!("MemTotal: 1000000 kB\nMemAvailable: {available} kB\n"))?;
        Ok(fs::rename(new, &meminfo)?)
    };
    tell(900_000)?;
    let config = format!(
        "[pressure]\navailable_percent = 10\nidle = \"200ms\"\ninterval = \"100ms\"\nmeminfo = \"{}\"\n",
        meminfo.display()
    );
    let daemon = Daemon::start_with(Options::default().config(&config)).await?;
    let client = daemon.client()?;
    let working = persistent(&client, "base").await?.id.to_string();
    let leased = create(&client, json!({"timeout": "1h"})).await?.id.to_string();
    let stubborn = json!({"mode": "persistent", "idle_timeout": "1h", "auto_resume": false});
    let stubborn = create(&client, stubborn).await?.id.to_string();
    let longest = persistent(&client, "base").await?.id.to_string();
    let shorter = persistent(&client, "base").await?.id.to_string();
    let busy = {
        let (client, id) = (daemon.client()?, working.clone());
        tokio_util::task::AbortOnDropHandle::new(tokio::runtime::Handle::current().spawn(async move {
            let command = "while [ ! -e /tmp/enough ]; do sleep 0.1; done; echo done";
            client.execute(&id, &ExecuteRequest::new(Command::Shell(command.into()))).await
        }))
    };
    sh(&client, &longest, "echo memory > /dev/shm/mark").await?;
    sh(&client, &shorter, "echo memory > /dev/shm/mark").await?;
    let before = last_event(&client, &shorter).await?;

    tell(90_000)?;
    for id in [&longest, &shorter] {
        wait_for("the sleep", Duration::from_secs(60), || async {
            Ok(client.sandbox(id).await?.status.to_string() == "suspended")
        })
        .await?;
    }
    tell(900_000)?;
    let (first, second) = (story(&client, &longest).await?, story(&client, &shorter).await?);
    let slept = when(&first, "suspended", "pressure").with_context(|| format!("{first:?}"))?;
    let began = when(&second, "suspend_started", "pressure").with_context(|| format!("{second:?}"))?;
    ensure!(slept <= began, "one after the other: {first:?} {second:?}");
    ensure!(when(&first, "suspend_started", "pressure") >= Some(before), "not before there was pressure: {first:?}");

    // Who is at work, who has a lease, and who could not be woken by use, stay.
    for id in [&working, &leased, &stubborn] {
        ensure!(client.sandbox(id).await?.status.to_string() == "running", "{id}");
    }
    let enough = daemon.command().args(["sandbox", "exec", &working, "--", "touch", "/tmp/enough"]).status()?;
    ensure!(enough.success() && busy.await??.stdout.trim() == "done");
    for id in [&longest, &shorter] {
        ensure!(sh(&client, id, "cat /dev/shm/mark").await? == "memory", "{id}");
        ensure!(client.sandbox(id).await?.restored_memory == Some(true));
    }
    Ok(())
}

/// The time by the sandbox's own log: its last event.
async fn last_event(client: &Client, id: &str) -> Result<String> {
    Ok(story(client, id).await?.last().context("an event")?.2.clone())
}

#[tokio::test]
async fn a_full_disk_ends_the_suspend_and_not_the_sandbox() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().disk_mb(1200)).await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let generation = client.sandbox(&id).await?.runtime_generation;
    sh(&client, &id, "head -c 60000000 /dev/urandom > /dev/shm/large; echo disk > ~/mark; sync").await?;
    let sum = sh(&client, &id, "sha256sum < /dev/shm/large").await?;
    // Room for the database, not for the pages.
    let filler = daemon.data().join("filler");
    let free = rustix::fs::statvfs(daemon.data())?;
    let free = (free.f_bavail * free.f_frsize).checked_sub(20 << 20).context("there is room to fill")?;
    let file = fs::File::create(&filler)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free)?;

    for _ in 0..2 {
        ensure!(code_of(client.suspend(&id, true).await) == "disk_full");
        let found = client.sandbox(&id).await?;
        ensure!(found.status.to_string() == "running" && found.transition.is_none(), "{found:?}");
        ensure!(found.runtime_generation == generation);
        ensure!(sh(&client, &id, "sha256sum < /dev/shm/large").await? == sum, "it runs on as it was");
        let names = fs::read_dir(daemon.sandbox_dir(&id))?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<Result<Vec<_>>>()?;
        ensure!(!names.iter().any(|name| name.to_string_lossy().starts_with("checkpoint-")), "left: {names:?}");
    }
    let told = story(&client, &id).await?;
    ensure!(when(&told, "suspend_cancelled", "api").is_some(), "{told:?}");

    drop(file);
    fs::remove_file(filler)?;
    client.suspend(&id, true).await?;
    ensure!(sh(&client, &id, "sha256sum < /dev/shm/large; cat ~/mark").await? == format!("{sum}\ndisk"));
    ensure!(client.sandbox(&id).await?.restored_memory == Some(true));
    client.destroy_sandbox(&id).await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

#[tokio::test]
async fn what_the_host_may_give_away_is_counted_once() -> Result<()> {
    let config = "[limits]\nmemory_mb = 600\ndisk_mb = 7000\n";
    let daemon = Daemon::start_with(Options::default().config(config)).await?;
    let client = daemon.client()?;
    // However many ask at once, two of 256 MiB fit.
    let all = futures_util::future::join_all((0..6).map(|_| persistent(&client, "base"))).await;
    let made: Vec<String> = all.iter().flatten().map(|sandbox| sandbox.id.to_string()).collect();
    ensure!(made.len() == 2, "{all:?}");
    // A sleeper has no memory, but one that wakes needs it.
    client.suspend(&made[0], true).await?;
    let third = persistent(&client, "base").await?.id.to_string();
    ensure!(code_of(client.wake(&made[0], true).await) == "insufficient_capacity");
    let refused = client.execute(&made[0], &ExecuteRequest::new(Command::Shell("true".into()))).await;
    ensure!(code_of(refused) == "insufficient_capacity");
    client.suspend(&third, true).await?;
    client.wake(&made[0], true).await?;
    // Disk is needed awake and asleep.
    client.suspend(&made[0], true).await?;
    let http = reqwest::Client::new();
    let body = json!({"template": "base", "disk_mb": 2048});
    let answer = http.post(format!("{}/v1/sandboxes", daemon.url())).json(&body).send().await?;
    let (status, problem) = (answer.status(), answer.json::<Value>().await?);
    ensure!(status == 507 && problem["code"] == "insufficient_capacity", "{status} {problem}");
    ensure!(problem["detail"].as_str().is_some_and(|text| text.contains("856 of 7000 MiB")), "{problem}");
    create(&client, json!({"disk_mb": 512})).await?;
    Ok(())
}
