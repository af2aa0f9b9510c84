//! Leases and idleness.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use wakeful_testkit::{Daemon, Options};

use crate::support::{code_of, create, run, sh, wait_for};

#[tokio::test]
async fn a_lease_ends_and_is_extended() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let short = create(&client, json!({"timeout": "3s"})).await?;
    let kept = create(&client, json!({"timeout": "3s"})).await?;
    ensure!(short.timeout_seconds == Some(3) && short.expires_at.is_some() && short.idle_timeout_seconds.is_none());
    let extended = client.keepalive(kept.id.as_str(), Some(serde_json::from_value(json!("48h"))?)).await?;
    let day = extended.expires_at.expect("a lease").0.duration_since(extended.updated_at.0).as_secs();
    ensure!((86_395..=86_400).contains(&day), "clamped to 24 h, not {day} s");

    wait_for("the end of the lease", Duration::from_secs(15), || async {
        Ok(client.sandbox(short.id.as_str()).await?.status.to_string() == "destroyed")
    })
    .await?;
    let gone = client.sandbox(short.id.as_str()).await?;
    ensure!(gone.destroyed_at.is_some() && gone.storage.disk_bytes == 0);
    let refused = client
        .execute(
            short.id.as_str(),
            &wakeful_api_types::ExecuteRequest::new(wakeful_api_types::Command::Shell("true".into())),
        )
        .await;
    ensure!(code_of(refused) == "sandbox_destroyed");
    ensure!(code_of(client.suspend(short.id.as_str(), true).await) == "sandbox_destroyed");
    ensure!(code_of(client.wake(short.id.as_str(), false).await) == "not_wakeable");
    ensure!(code_of(client.keepalive(short.id.as_str(), None).await) == "not_running");
    client.destroy_sandbox(short.id.as_str()).await?;
    ensure!(daemon.engine_pid(short.id.as_str()).is_none());
    sh(&client, kept.id.as_str(), "true").await?;
    // May be shortened too.
    client.keepalive(kept.id.as_str(), Some(serde_json::from_value(json!(1))?)).await?;
    wait_for("the shortened lease's end", Duration::from_secs(15), || async {
        Ok(client.sandbox(kept.id.as_str()).await?.status.to_string() == "destroyed")
    })
    .await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

#[tokio::test]
async fn idleness_puts_to_sleep_and_work_keeps_awake() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let sandbox = create(&client, json!({"mode": "persistent", "idle_timeout": "3s"})).await?;
    let id = sandbox.id.to_string();
    ensure!(sandbox.idle_timeout_seconds == Some(3) && sandbox.sleeps_at.is_some() && sandbox.expires_at.is_none());
    ensure!(code_of(client.keepalive(&id, None).await) == "not_ephemeral");
    // A command that is longer than the idle timeout is not cut off.
    let long = run(&client, &id, "sleep 6; echo awake").await?;
    ensure!(long.stdout == "awake\n", "{long:?}");
    ensure!(client.sandbox(&id).await?.runtime_generation == 1, "it slept in the middle of a command");
    // Looking at it is no activity.
    wait_for("sleep", Duration::from_secs(20), || async {
        Ok(client.sandbox(&id).await?.status.to_string() == "suspended")
    })
    .await?;
    ensure!(daemon.engines().is_empty());
    let asleep = client.sandbox(&id).await?;
    ensure!(asleep.suspended_at.is_some() && asleep.sleeps_at.is_none() && asleep.awake_because.is_empty());
    sh(&client, &id, "true").await?;
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);
    Ok(())
}

#[tokio::test]
async fn deadlines_that_pass_while_nobody_looks_are_kept() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let leased = create(&client, json!({"timeout": "4s"})).await?.id.to_string();
    let hard = create(&client, json!({"mode": "persistent", "hard_ttl": "4s"})).await?.id.to_string();
    daemon.kill()?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    for id in [leased, hard] {
        wait_for("the end", Duration::from_secs(15), || async {
            Ok(client.sandbox(&id).await?.status.to_string() == "destroyed")
        })
        .await?;
    }
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}
