//! `kill -9` at any moment loses nothing and leaves nothing behind.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use wakeful_testkit::{Daemon, Options};

use crate::support::{code_of, create, persistent, run, sh, wait_for};

const MARK: &str = "echo in-memory > /dev/shm/mark; echo on-disk > ~/mark";
const CHECK: &str = "cat /dev/shm/mark ~/mark";
const MARKED: &str = "in-memory\non-disk";

#[tokio::test]
async fn at_rest_nothing_is_lost() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let awake = persistent(&client, "base").await?.id.to_string();
    let asleep = persistent(&client, "base").await?.id.to_string();
    for id in [&awake, &asleep] {
        sh(&client, id, MARK).await?;
    }
    sh(
        &client,
        &awake,
        "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.2; done' </dev/null >/dev/null 2>&1 &",
    )
    .await?;
    wait_for("the process in the background", Duration::from_secs(20), || async {
        Ok(run(&client, &awake, "cat /tmp/n").await?.exit_code == 0)
    })
    .await?;
    client.suspend(&asleep, true).await?;
    let engine = daemon.engine_pid(&awake).expect("an engine");
    daemon.kill()?;
    ensure!(daemon.engine_pid(&awake) == Some(engine), "the engine must outlive the daemon");
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(daemon.engine_pid(&awake) == Some(engine), "the engine must be adopted");
    ensure!(client.sandbox(&awake).await?.runtime_generation == 1);
    let before: u64 = sh(&client, &awake, "cat /tmp/n").await?.parse()?;
    for id in [&awake, &asleep] {
        ensure!(sh(&client, id, CHECK).await? == MARKED, "{id}");
    }
    let after: u64 = sh(&client, &awake, "sleep 1; cat /tmp/n").await?.parse()?;
    ensure!(after > before, "the process stands still");
    // SIGTERM leaves running sandboxes running, too.
    ensure!(daemon.terminate().await? == Some(0));
    ensure!(daemon.engine_pid(&awake) == Some(engine));
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(sh(&client, &awake, CHECK).await? == MARKED);
    for id in [&awake, &asleep] {
        client.destroy_sandbox(id).await?;
    }
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

/// The daemon dies at `point` of a suspend. What was in memory is there afterwards, whichever side of the commit it was.
async fn in_a_suspend(point: &str, committed: bool) -> Result<()> {
    let mut daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", point)).await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, MARK).await?;
    let engine = daemon.engine_pid(&id).expect("an engine");
    let cut_off = client.suspend(&id, true).await;
    ensure!(cut_off.is_err(), "{point}: the daemon must have died");
    daemon.wait_for_death().await?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    let found = client.sandbox(&id).await?;
    ensure!(found.transition.is_none(), "{point}: {found:?}");
    if committed {
        ensure!(found.status.to_string() == "suspended" && daemon.engines().is_empty(), "{point}: {found:?}");
    } else {
        ensure!(found.status.to_string() == "running" && daemon.engine_pid(&id) == Some(engine), "{point}: {found:?}");
    }
    ensure!(sh(&client, &id, CHECK).await? == MARKED, "{point}");
    ensure!(client.sandbox(&id).await?.runtime_generation == 1 + u64::from(committed), "{point}");
    // And it still sleeps and wakes.
    client.suspend(&id, true).await?;
    ensure!(sh(&client, &id, CHECK).await? == MARKED, "{point}");
    client.destroy_sandbox(&id).await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "{point}: left: {:?}", daemon.places());
    Ok(())
}

#[tokio::test]
async fn before_the_commit_of_a_suspend_it_runs_on() -> Result<()> {
    for point in ["suspend.quiesced", "suspend.stopped", "suspend.saved", "suspend.renamed"] {
        in_a_suspend(point, false).await?;
    }
    Ok(())
}

#[tokio::test]
async fn after_the_commit_of_a_suspend_it_sleeps() -> Result<()> {
    in_a_suspend("suspend.committed", true).await
}

#[tokio::test]
async fn before_spent_a_wake_is_repeated() -> Result<()> {
    let mut daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", "wake.loaded")).await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, MARK).await?;
    client.suspend(&id, true).await?;
    ensure!(client.wake(&id, true).await.is_err());
    daemon.wait_for_death().await?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(client.sandbox(&id).await?.status.to_string() == "suspended" && daemon.engines().is_empty());
    ensure!(sh(&client, &id, CHECK).await? == MARKED, "the memory was not spent");
    let awake = client.sandbox(&id).await?;
    ensure!(awake.restored_memory == Some(true) && awake.runtime_generation == 2);
    Ok(())
}

#[tokio::test]
async fn after_spent_a_wake_is_finished_or_boots() -> Result<()> {
    // The engine is alive, stopped, its memory good: the next daemon finishes the wake.
    for point in ["wake.spent", "wake.restored"] {
        let mut daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", point)).await?;
        let client = daemon.client()?;
        let id = persistent(&client, "base").await?.id.to_string();
        sh(&client, &id, MARK).await?;
        client.suspend(&id, true).await?;
        ensure!(client.wake(&id, true).await.is_err());
        daemon.wait_for_death().await?;
        daemon.start_again(Options::default()).await?;
        let client = daemon.client()?;
        let found = client.sandbox(&id).await?;
        ensure!(found.status.to_string() == "running" && found.runtime_generation == 2, "{point}: {found:?}");
        ensure!(sh(&client, &id, CHECK).await? == MARKED, "{point}");
        ensure!(found.restored_memory == Some(true), "{point}");
    }
    Ok(())
}

#[tokio::test]
async fn spent_memory_is_never_loaded_again() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", "wake.spent:engine")).await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let boot_id = sh(&client, &id, &format!("{MARK}; cat /proc/sys/kernel/random/boot_id")).await?;
    client.suspend(&id, true).await?;
    ensure!(
        code_of(client.wake(&id, true).await) == "wake_timeout",
        "the engine was killed after the checkpoint was spent"
    );
    let found = client.sandbox(&id).await?;
    ensure!(found.status.to_string() == "suspended" && daemon.engines().is_empty(), "{found:?}");
    // Only the disk is true now.
    ensure!(
        sh(&client, &id, "cat ~/mark; cat /proc/sys/kernel/random/boot_id").await? != format!("on-disk\n{boot_id}")
    );
    ensure!(sh(&client, &id, "cat ~/mark").await? == "on-disk");
    ensure!(run(&client, &id, "cat /dev/shm/mark").await?.exit_code != 0, "that memory must not have come back");
    let awake = client.sandbox(&id).await?;
    ensure!(awake.restored_memory == Some(false) && awake.runtime_generation == 2, "{awake:?}");
    Ok(())
}

#[tokio::test]
async fn a_create_that_was_interrupted_leaves_nothing() -> Result<()> {
    for point in ["create.directory", "create.plugged", "create.launched", "create.restored"] {
        let mut daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", point)).await?;
        ensure!(create(&daemon.client()?, json!({})).await.is_err());
        daemon.wait_for_death().await?;
        daemon.start_again(Options::default()).await?;
        let client = daemon.client()?;
        wait_for("clean-up", Duration::from_secs(20), || async {
            Ok(client.sandboxes(&wakeful_client::ListQuery::default()).await?.sandboxes.is_empty())
        })
        .await?;
        ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "{point}: left: {:?}", daemon.places());
        sh(&client, create(&client, json!({})).await?.id.as_str(), "true").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_destroy_that_was_interrupted_is_finished() -> Result<()> {
    for point in ["destroy.reaped", "destroy.removed"] {
        let mut daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", point)).await?;
        let client = daemon.client()?;
        let id = create(&client, json!({})).await?.id.to_string();
        ensure!(client.destroy_sandbox(&id).await.is_err());
        daemon.wait_for_death().await?;
        daemon.start_again(Options::default()).await?;
        let client = daemon.client()?;
        wait_for("the destroy's end", Duration::from_secs(20), || async {
            Ok(client.sandbox(&id).await?.status.to_string() == "destroyed")
        })
        .await?;
        ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "{point}: left: {:?}", daemon.places());
    }
    Ok(())
}

#[tokio::test]
async fn engines_that_are_gone_after_a_reboot() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let kept = persistent(&client, "base").await?.id.to_string();
    let leased = create(&client, json!({"timeout": "1h"})).await?.id.to_string();
    sh(&client, &kept, "echo on-disk > ~/mark; sync").await?;
    daemon.kill()?;
    for pid in daemon.engines() {
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(i32::try_from(pid)?).expect("a pid"),
            rustix::process::Signal::KILL,
        )?;
    }
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(client.sandbox(&kept).await?.status.to_string() == "suspended");
    wait_for("the ephemeral one's end", Duration::from_secs(20), || async {
        Ok(client.sandbox(&leased).await?.status.to_string() == "destroyed")
    })
    .await?;
    ensure!(sh(&client, &kept, "cat ~/mark").await? == "on-disk");
    ensure!(client.sandbox(&kept).await?.restored_memory == Some(false));
    Ok(())
}

#[tokio::test]
async fn lost_files_cost_one_sandbox_and_no_other() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let robbed = persistent(&client, "base").await?.id.to_string();
    let half_robbed = persistent(&client, "base").await?.id.to_string();
    let whole = persistent(&client, "base").await?.id.to_string();
    for id in [&robbed, &half_robbed, &whole] {
        sh(&client, id, MARK).await?;
        client.suspend(id, true).await?;
    }
    daemon.kill()?;
    std::fs::remove_dir_all(daemon.sandbox_dir(&robbed))?;
    std::fs::remove_file(daemon.sandbox_dir(&half_robbed).join(wakeful_testkit::disk_file()))?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(sh(&client, &whole, CHECK).await? == MARKED);
    for id in [&robbed, &half_robbed] {
        ensure!(client.sandbox(id).await?.status.to_string() == "suspended");
        ensure!(client.wake(id, true).await.is_err(), "there is no disk to wake on");
        client.destroy_sandbox(id).await?;
        ensure!(client.sandbox(id).await?.status.to_string() == "destroyed");
    }
    client.destroy_sandbox(&whole).await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}
