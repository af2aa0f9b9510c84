//! Checkpoints that are damaged, or that another engine made, are never loaded.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use wakeful_testkit::{Daemon, Options};

use crate::support::{persistent, run, sh};

fn flip(path: &PathBuf, at: impl Fn(u64) -> u64) -> Result<()> {
    let file =
        std::fs::OpenOptions::new().read(true).write(true).open(path).with_context(|| path.display().to_string())?;
    let at = at(file.metadata()?.len());
    let mut byte = [0u8];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 0x40], at)?;
    Ok(())
}

#[tokio::test]
async fn a_flipped_byte_means_a_boot_from_disk() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let dir = |generation: u64| daemon.sandbox_dir(&id).join(format!("checkpoint-{generation}"));
    type Damage = (&'static str, fn(u64) -> u64);
    let damages: [Damage; 4] = [
        ("dev.state", |length| length / 2),
        ("mem.diff", |_| 9),
        ("mem.diff", |length| length - 3),
        ("dev.state", |_| 0),
    ];
    for (n, (file, at)) in damages.into_iter().enumerate() {
        let generation = client.sandbox(&id).await?.runtime_generation;
        sh(&client, &id, &format!("echo {n} > /dev/shm/mark; echo {n} > ~/mark")).await?;
        client.suspend(&id, true).await?;
        flip(&dir(generation).join(file), at)?;
        ensure!(sh(&client, &id, "cat ~/mark").await? == n.to_string(), "{file}");
        ensure!(run(&client, &id, "cat /dev/shm/mark").await?.exit_code != 0, "{file}: that memory must not be loaded");
        let awake = client.sandbox(&id).await?;
        ensure!(
            awake.restored_memory == Some(false) && awake.runtime_generation == generation + 1,
            "{file}: {awake:?}"
        );
    }
    // One that is cut short, and one that is not there at all.
    let generation = client.sandbox(&id).await?.runtime_generation;
    client.suspend(&id, true).await?;
    std::fs::OpenOptions::new().write(true).open(dir(generation).join("mem.diff"))?.set_len(5000)?;
    sh(&client, &id, "true").await?;
    client.suspend(&id, true).await?;
    std::fs::remove_dir_all(dir(generation + 1))?;
    sh(&client, &id, "true").await?;
    ensure!(client.sandbox(&id).await?.restored_memory == Some(false));
    client.destroy_sandbox(&id).await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

#[tokio::test]
async fn another_engines_checkpoint_means_a_boot_from_disk() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, "echo mark > /dev/shm/mark; echo mark > ~/mark").await?;
    client.suspend(&id, true).await?;
    ensure!(daemon.terminate().await? == Some(0));
    // As if the engine that made it had been lost: the row names one that is not here.
    let status = std::process::Command::new("sqlite3")
        .arg(daemon.data().join("wakeful.db"))
        .arg("UPDATE sandboxes SET checkpoint = json_set(checkpoint, '$.image.engine', 'ffffffffffffffff')")
        .status()
        .context("sqlite3 is installed by `make setup`")?;
    ensure!(status.success());
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(sh(&client, &id, "cat ~/mark").await? == "mark");
    ensure!(client.sandbox(&id).await?.restored_memory == Some(false));
    Ok(())
}
