//! Guests that die, hang or fill their disk: they are told apart, and nobody else notices.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use wakeful_api_types::{Command, ExecuteRequest};
use wakeful_client::Client;
use wakeful_testkit::Daemon;

use crate::support::{code_of, create, persistent, run, sh, wait_for};

fn shell(script: &str) -> ExecuteRequest {
    ExecuteRequest::new(Command::Shell(script.into()))
}

/// What its last failure is put down to.
async fn cause_of_failure(client: &Client, id: &str) -> Result<String> {
    let page = serde_json::to_value(client.events(id, 0, 100).await?)?;
    let failed = page["events"].as_array().into_iter().flatten().rfind(|event| event["type"] == "failed");
    Ok(failed.and_then(|event| event["cause"].as_str()).unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_guest_that_dies_is_failed_and_boots_again() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let neighbour = create(&client, json!({})).await?.id.to_string();
    sh(&client, &id, "echo kept > ~/kept; sync").await?;
    let engine =
        || Pid::from_raw(i32::try_from(daemon.engine_pid(&id).expect("an engine")).expect("fits")).expect("a pid");
    if wakeful_testkit::microvm() {
        // A kernel panic ends the engine.
        let cut_off = client.execute(&id, &shell("sudo sh -c 'echo c > /proc/sysrq-trigger'; sleep 20")).await;
        ensure!(code_of(cut_off) == "sandbox_failed");
    } else {
        // There is no kernel to panic but the engine itself.
        let command = shell("sleep 20");
        let (cut_off, killed) = tokio::join!(client.execute(&id, &command), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            kill_process(engine(), Signal::KILL)
        });
        killed?;
        ensure!(code_of(cut_off) == "sandbox_failed");
    }
    let failed = client.sandbox(&id).await?;
    let failure = failed.failure.as_ref().expect("a failure");
    ensure!(failed.status.to_string() == "failed" && failure.bootable, "{failed:?}");
    if wakeful_testkit::microvm() {
        ensure!(failure.detail.contains("its kernel panicked"), "{failed:?}");
        ensure!(cause_of_failure(&client, &id).await? == "guest_exit");
    }
    ensure!(daemon.engine_pid(&id).is_none());
    ensure!(code_of(client.execute(&id, &shell("true")).await) == "sandbox_failed");
    ensure!(code_of(client.suspend(&id, true).await) == "sandbox_failed");
    ensure!(sh(&client, &neighbour, "echo fine").await? == "fine");
    let awake = client.wake(&id, true).await?;
    ensure!(awake.restored_memory == Some(false) && awake.failure.is_none(), "{awake:?}");
    ensure!(sh(&client, &id, "cat ~/kept").await? == "kept");

    // An engine that is killed from outside is the same story.
    kill_process(engine(), Signal::KILL)?;
    wait_for("the failure", Duration::from_secs(10), || async {
        Ok(client.sandbox(&id).await?.status.to_string() == "failed")
    })
    .await?;
    let failed = client.sandbox(&id).await?;
    let failure = failed.failure.as_ref().expect("a failure");
    ensure!(failure.bootable, "{failed:?}");
    // How it ended is known to its parent only, and a sentry's is runsc, which is gone.
    if wakeful_testkit::microvm() {
        ensure!(failure.detail.contains("signal"), "{failed:?}");
        ensure!(cause_of_failure(&client, &id).await? == "engine_died");
    }
    client.wake(&id, true).await?;
    ensure!(sh(&client, &id, "cat ~/kept").await? == "kept");
    client.destroy_sandbox(&id).await?;
    client.destroy_sandbox(&neighbour).await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

microvm_only! { "there is no power switch inside";
#[tokio::test]
async fn a_guest_that_powers_off_has_failed() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let _ = client.execute(&id, &shell("sudo sh -c 'echo o > /proc/sysrq-trigger'; sleep 20")).await;
    wait_for("the failure", Duration::from_secs(20), || async {
        Ok(client.sandbox(&id).await?.status.to_string() == "failed")
    })
    .await?;
    let failed = client.sandbox(&id).await?;
    ensure!(failed.failure.as_ref().is_some_and(|failure| failure.detail.contains("powered off")), "{failed:?}");
    ensure!(client.wake(&id, true).await?.status.to_string() == "running");
    Ok(())
}
}

microvm_only! { "memory that runs out costs all of a gVisor sandbox: see the tests of its driver";
#[tokio::test]
async fn memory_that_runs_out_inside_costs_a_process_and_outside_the_engine() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, "echo kept > ~/kept; sync").await?;
    // More than the guest has: its own kernel ends the one that wants it.
    let eaten = run(&client, &id, "tail /dev/zero").await?;
    ensure!(eaten.exit_code == 137, "{eaten:?}");
    ensure!(sh(&client, &id, "cat ~/kept").await? == "kept", "nobody else notices");
    ensure!(client.sandbox(&id).await?.runtime_generation == 1);
    client.destroy_sandbox(&id).await?;

    // Less than the guest believes to have: the host ends the engine, and says so. One that has used little so far.
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, "echo kept > ~/kept; sync").await?;
    let bare = id.strip_prefix("sbx_").unwrap_or(&id);
    let limit = daemon.memory_limit(bare).expect("memory is limited");
    // Refused while more than this is in use.
    let fits = |mb: &u64| std::fs::write(&limit, (mb << 20).to_string()).is_ok();
    ensure!((16..400).step_by(8).any(|mb| fits(&mb)), "{}", limit.display());
    let _ = client.execute(&id, &shell("head -c 150000000 /dev/urandom > /dev/shm/eaten")).await;
    wait_for("the failure", Duration::from_secs(30), || async {
        Ok(client.sandbox(&id).await?.status.to_string() == "failed")
    })
    .await?;
    let failed = client.sandbox(&id).await?;
    let failure = failed.failure.as_ref().expect("a failure");
    ensure!(failure.code == "out_of_memory" && failure.bootable, "{failed:?}");
    ensure!(cause_of_failure(&client, &id).await? == "out_of_memory");
    ensure!(client.wake(&id, true).await?.restored_memory == Some(false));
    ensure!(sh(&client, &id, "cat ~/kept").await? == "kept");
    client.destroy_sandbox(&id).await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}
}

#[tokio::test]
async fn a_guest_that_hangs_is_said_to() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let neighbour = create(&client, json!({})).await?.id.to_string();
    let engine = Pid::from_raw(i32::try_from(daemon.engine_pid(&id).expect("an engine"))?).expect("a pid");
    kill_process(engine, Signal::STOP)?;
    let command = shell("true");
    let (hung, listed) = tokio::join!(client.execute(&id, &command), client.list_directory(&id, "/"));
    ensure!(code_of(hung) == "guest_unresponsive" && code_of(listed) == "guest_unresponsive");
    ensure!(sh(&client, &neighbour, "echo fine").await? == "fine");
    kill_process(engine, Signal::CONT)?;
    ensure!(sh(&client, &id, "echo back").await? == "back", "it goes on when it goes on");
    kill_process(engine, Signal::STOP)?;
    client.destroy_sandbox(&id).await?;
    ensure!(daemon.engine_pid(&id).is_none());
    Ok(())
}

#[tokio::test]
async fn a_full_disk_is_the_guests_own_problem() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"mode": "persistent", "disk_mb": 64})).await?.id.to_string();
    let full = run(&client, &id, "head -c 200000000 /dev/zero | tr '\\0' 'x' > ~/full").await?;
    ensure!(full.exit_code != 0 || full.stderr.contains("space"), "{full:?}");
    let http = reqwest::Client::new();
    let answer = http
        .put(format!("{}/v1/sandboxes/{id}/files/home/user/more", daemon.url()))
        .body(vec![1u8; 5_000_000])
        .send()
        .await?;
    ensure!(answer.status() == 507, "{}", answer.status());
    let problem: Value = answer.json().await?;
    ensure!(problem["code"] == "guest_disk_full", "{problem}");
    // It still sleeps, wakes, and can be cleared.
    client.suspend(&id, true).await?;
    sh(&client, &id, "rm ~/full; echo ok > ~/ok; cat ~/ok").await?;
    Ok(())
}
