//! What a sandbox may ask of its disk, and a disk that grows while it sleeps.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use wakeful_api_types::{CreateSnapshot, PatchSandbox};
use wakeful_client::Client;
use wakeful_testkit::{Daemon, Options};

use crate::support::{code_of, create, persistent, run, sh};

/// Writes past the guest's cache.
async fn writing(client: &Client, id: &str, dd: &str) -> Result<Duration> {
    let begun = Instant::now();
    sh(client, id, &format!("dd if=/dev/zero of=$HOME/written {dd} 2>&1")).await?;
    Ok(begun.elapsed())
}

async fn grow(client: &Client, id: &str, disk_mb: u32) -> Result<(), wakeful_client::Error> {
    client.patch_sandbox(id, &PatchSandbox { disk_mb: Some(disk_mb), ..PatchSandbox::default() }).await.map(drop)
}

/// MiB of the root file system.
async fn room(client: &Client, id: &str) -> Result<u64> {
    Ok(sh(client, id, "df -m --output=size / | tail -n 1").await?.trim().parse()?)
}

microvm_only! { "gVisor cannot limit what a sandbox asks of its disk";
#[tokio::test]
async fn what_it_asks_of_its_disk_is_limited() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let limited = |io| json!({"mode": "persistent", "idle_timeout": "1h", "io": io});
    let slow = create(&client, limited(json!({"bandwidth_mbps": 2}))).await?;
    ensure!(slow.io.bandwidth_mbps == Some(2), "{slow:?}");
    let slow = slow.id.to_string();
    let few = create(&client, limited(json!({"ops_per_sec": 20}))).await?.id.to_string();
    let free = persistent(&client, "base").await?.id.to_string();
    // 8 MiB at 2 MB/s are four seconds; 100 writes at 20 a second are five. Less a burst of a tenth of a second, and what
    // is found in caches.
    let (bytes, ops) = ("bs=1M count=8 conv=fsync", "bs=4k count=100 oflag=direct");
    let unlimited = writing(&client, &free, bytes).await?.max(writing(&client, &free, ops).await?);
    ensure!(unlimited < Duration::from_secs(3), "a disk without limits takes {unlimited:?}");
    let least = Duration::from_secs(3);
    for how in ["created", "woken", "booted", "adopted"] {
        for (id, dd) in [(&slow, bytes), (&few, ops)] {
            let client = daemon.client()?;
            match how {
                "woken" | "booted" => drop(client.suspend(id, how == "woken").await?),
                _ => {}
            }
            sh(&client, id, "true").await?;
            let took = writing(&client, id, dd).await?;
            ensure!(took > least, "{how}: `dd {dd}` took {took:?}");
        }
        if how == "booted" {
            daemon.kill()?;
            daemon.start_again(Options::default()).await?;
        }
    }
    Ok(())
}
}

#[tokio::test]
async fn a_disk_grows_under_a_running_file_system() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, "echo kept > ~/file; echo here > /dev/shm/mark").await?;
    let before = room(&client, &id).await?;
    ensure!((1800..=2048).contains(&before), "{before} MiB");
    ensure!(code_of(grow(&client, &id, 4096).await) == "not_suspended");
    client.suspend(&id, true).await?;
    ensure!(code_of(grow(&client, &id, 1024).await) == "invalid_size");
    grow(&client, &id, 4096).await?;
    ensure!(client.sandbox(&id).await?.disk_mb == 4096);
    // Nothing but the row knows of it yet.
    daemon.kill()?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    let after = room(&client, &id).await?;
    ensure!((3800..=4096).contains(&after), "{after} MiB");
    ensure!(sh(&client, &id, "cat ~/file /dev/shm/mark").await? == "kept\nhere");
    sh(&client, &id, "fallocate -l 2500M ~/large").await?;
    // And once more from what was saved since, far beyond what its file system was made for.
    client.suspend(&id, true).await?;
    grow(&client, &id, 65_536).await?;
    let after = room(&client, &id).await?;
    ensure!((63_000..=65_536).contains(&after), "{after} MiB");
    sh(&client, &id, "cat ~/file /dev/shm/mark && fallocate -l 40G ~/larger && rm ~/larger ~/large").await?;
    whole(&daemon, &client, &id).await
}

#[tokio::test]
async fn a_disk_grows_before_a_boot() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, "echo kept > ~/file").await?;
    client.suspend(&id, false).await?;
    grow(&client, &id, 4096).await?;
    let after = room(&client, &id).await?;
    ensure!((3800..=4096).contains(&after), "{after} MiB");
    ensure!(client.sandbox(&id).await?.restored_memory == Some(false));
    sh(&client, &id, "cat ~/file && fallocate -l 2500M ~/large && rm ~/large").await?;
    whole(&daemon, &client, &id).await
}

/// The file system on the disk is in order, and takes no more room than what is in it.
async fn whole(daemon: &Daemon, client: &Client, id: &str) -> Result<()> {
    client.suspend(id, false).await?;
    let disk = daemon.sandbox_dir(id).join(wakeful_testkit::disk_file());
    let checked = std::process::Command::new("e2fsck").args(["-f", "-n"]).arg(&disk).output()?;
    ensure!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&disk)?);
    ensure!(blocks * 512 < 200 << 20, "{} KiB", blocks / 2);
    Ok(())
}

#[tokio::test]
async fn copies_of_one_that_has_grown_have_its_room() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, "echo kept > ~/file; echo here > /dev/shm/mark").await?;
    client.suspend(&id, true).await?;
    grow(&client, &id, 4096).await?;
    // A copy of memory that does not know of it yet.
    let snapshot = client.create_snapshot(&id, &CreateSnapshot::default()).await?;
    let copy = create(&client, json!({"template": snapshot.id.to_string(), "timeout": "1h"})).await?.id.to_string();
    for id in [&copy, &id] {
        let room = room(&client, id).await?;
        ensure!((3800..=4096).contains(&room), "{id}: {room} MiB");
        ensure!(sh(&client, id, "cat ~/file /dev/shm/mark").await? == "kept\nhere", "{id}");
    }
    // And of memory that does.
    let snapshot = client.create_snapshot(&id, &CreateSnapshot::default()).await?;
    let copy = create(&client, json!({"template": snapshot.id.to_string(), "timeout": "1h"})).await?.id.to_string();
    ensure!(run(&client, &copy, "fallocate -l 2500M ~/large").await?.exit_code == 0);
    Ok(())
}

/// Wherever the daemon ends between a patch and the end of the wake, the room is there in the end.
#[tokio::test]
async fn a_daemon_that_dies_while_a_disk_grows_is_followed_by_one_that_ends_it() -> Result<()> {
    for point in ["wake.loaded", "wake.sized", "wake.spent", "wake.restored"] {
        let mut daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", point)).await?;
        let client = daemon.client()?;
        let id = persistent(&client, "base").await?.id.to_string();
        sh(&client, &id, "echo here > /dev/shm/mark").await?;
        client.suspend(&id, true).await?;
        grow(&client, &id, 3000).await?;
        ensure!(client.wake(&id, true).await.is_err(), "{point}");
        daemon.wait_for_death().await?;
        daemon.start_again(Options::default()).await?;
        let client = daemon.client()?;
        ensure!(sh(&client, &id, "cat /dev/shm/mark").await? == "here", "{point}");
        crate::support::wait_for("room", Duration::from_secs(20), || async {
            Ok((2700..=3000).contains(&room(&client, &id).await?))
        })
        .await?;
    }
    Ok(())
}
