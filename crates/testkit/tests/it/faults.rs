//! SIGKILL at every point that the daemon names, to itself and to the engine.
//!
//! After each the next daemon must find a sandbox that is whole: memory and files where they were promised, files always,
//! nothing under way, nothing left over; and what was interrupted works when it is asked for again. A point that is not
//! reached is a failure. `make test` takes a quarter of the points, another one each day; `make faults` takes all.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use wakeful_client::{Client, ListQuery};
use wakeful_testkit::{Daemon, Options};

use crate::support::{create, persistent, sh, wait_for};

const PARTS: u64 = 4;
/// Something that nobody has seen, in memory and on disk.
const MARK: &str = "head -c 4M /dev/urandom > /dev/shm/mark; head -c 1M /dev/urandom > ~/mark; sync";
/// What became of it.
const DIGESTS: &str = "cd; cat /dev/shm/mark 2>/dev/null | sha256sum; sha256sum < mark";
/// Enough that it is folded into a base of its own.
const FILL: &str = "head -c 48M /dev/urandom > /dev/shm/fill";

/// Enough that its disk is shared instead of copied.
const LARGE: &str = "head -c 80M /dev/urandom > ~/large; sync";

/// What is true of a sandbox afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nobody was told of it.
    Nothing,
    /// Files only.
    Disk,
    /// Memory and files.
    All,
}

struct Scene {
    point: String,
    daemon: Daemon,
    client: Client,
    /// What it happens to.
    id: String,
    /// What was in its memory and on its disk.
    memory: String,
    disk: String,
}

impl Scene {
    async fn new(point: &str) -> Result<Self> {
        let place = point.strip_prefix("lay.").filter(|rest| rest.contains('.')).unwrap_or(point);
        let mut options = Options::default().env("WAKEFUL_CRASH_AT", place);
        if point.starts_with("create.claimed") {
            options = options.config("[pool]\nenabled = true\n[pool.sizes]\nbase = 1\n");
        }
        let daemon = Daemon::start_with(options).await?;
        let client = daemon.client()?;
        Ok(Self {
            point: point.to_owned(),
            daemon,
            client,
            id: String::new(),
            memory: String::new(),
            disk: String::new(),
        })
    }

    fn step(&self) -> (&str, &str) {
        let place = self.point.strip_suffix(":engine").unwrap_or(&self.point);
        place.split_once('.').expect("an operation and a step")
    }

    fn kills_engine(&self) -> bool {
        self.point.ends_with(":engine")
    }

    /// Everything up to what is to be interrupted.
    async fn prepare(&mut self) -> Result<()> {
        let (operation, step) = (self.step().0.to_owned(), self.step().1.to_owned());
        if (operation.as_str(), step.as_str()) == ("create", "claimed") {
            return wait_for("a pool", Duration::from_secs(60), async || {
                Ok(self.client.pools().await?.pools.iter().any(|pool| pool.ready == 1))
            })
            .await;
        }
        if matches!(operation.as_str(), "create" | "idempotency") {
            return Ok(());
        }
        self.id = persistent(&self.client, "base").await?.id.to_string();
        sh(&self.client, &self.id, MARK).await?;
        (self.memory, self.disk) = self.digests().await?;
        match operation.as_str() {
            "compact" => drop(sh(&self.client, &self.id, FILL).await?),
            "lay" => drop(sh(&self.client, &self.id, LARGE).await?),
            "wake" => drop(self.client.suspend(&self.id, true).await?),
            "snapshot" if step == "removed" => drop(self.snapshot().await?),
            _ => {}
        }
        Ok(())
    }

    async fn digests(&self) -> Result<(String, String)> {
        let told = sh(&self.client, &self.id, DIGESTS).await?;
        let (memory, disk) = told.split_once('\n').context("two digests")?;
        Ok((memory.to_owned(), disk.to_owned()))
    }

    async fn snapshot(&self) -> Result<String, wakeful_client::Error> {
        let name = serde_json::from_value(json!({"name": "kept"})).expect("is one");
        Ok(self.client.create_snapshot(&self.id, &name).await?.id.to_string())
    }

    /// What is interrupted. Whether it says that it was done.
    async fn act(&mut self) -> Result<bool> {
        let (client, id) = (&self.client, &self.id);
        let (operation, step) = self.step();
        Ok(match operation {
            "create" | "idempotency" => {
                let http = reqwest::Client::new().post(format!("{}/v1/sandboxes", self.daemon.url()));
                let sent = http.header("Idempotency-Key", "a key").json(&json!({"template": "base"})).send().await;
                sent.is_ok_and(|answer| answer.status().is_success())
            }
            "suspend" | "compact" => client.suspend(id, true).await.is_ok(),
            "poweroff" => client.suspend(id, false).await.is_ok(),
            "wake" => client.wake(id, true).await.is_ok(),
            "snapshot" if step == "removed" => {
                let kept = client.snapshots().await?.snapshots;
                client.delete_snapshot(kept.first().context("it was taken")?.id.as_str()).await.is_ok()
            }
            "snapshot" | "lay" => self.snapshot().await.is_ok(),
            "fork" => client.fork(id, &serde_json::from_value(json!({"count": 1}))?).await.is_ok(),
            "destroy" => client.destroy_sandbox(id).await.is_ok(),
            other => anyhow::bail!("nobody knows how to interrupt {other}"),
        })
    }

    /// What must be left of what it happened to.
    fn promised(&self) -> Left {
        let (operation, step) = self.step();
        match (operation, step, self.kills_engine()) {
            ("create" | "idempotency" | "destroy", ..) => Left::Nothing,
            // The child is what is lost.
            ("fork", ..) => Left::All,
            // Its image was whole when the engine died, or not spent.
            ("suspend", "saved" | "renamed", true) | ("lay", "linked" | "wake.loaded", true) => Left::All,
            ("poweroff", ..) | (.., true) => Left::Disk,
            (.., false) => Left::All,
        }
    }

    async fn settled(&self) -> Result<()> {
        if self.kills_engine() && self.promised() == Left::Disk {
            // It may have gone well before its engine died.
            wait_for("the death is known", Duration::from_secs(30), async || {
                Ok(self.client.sandbox(&self.id).await?.status.to_string() != "running")
            })
            .await?;
        }
        wait_for("nothing is under way", Duration::from_secs(30), async || {
            let sandboxes = self.client.sandboxes(&ListQuery::default()).await?.sandboxes;
            Ok(sandboxes.iter().all(|sandbox| sandbox.transition.is_none() && sandbox.status.to_string() != "creating"))
        })
        .await
    }

    async fn check(&self) -> Result<()> {
        let (operation, step) = self.step();
        if self.promised() == Left::Nothing {
            if !self.id.is_empty() {
                let found = self.client.sandbox(&self.id).await?;
                ensure!(found.status.to_string() == "destroyed", "{found:?}");
            }
            return Ok(());
        }
        let found = self.client.sandbox(&self.id).await?;
        if found.status.to_string() == "failed" {
            let failure = found.failure.context("a failure says why")?;
            ensure!(failure.bootable, "{failure:?}");
            self.client.wake(&self.id, true).await?;
        }
        let (memory, disk) = self.digests().await?;
        ensure!(disk == self.disk, "its files are others");
        ensure!(self.promised() == Left::Disk || memory == self.memory, "its memory is lost");
        let snapshots = self.client.snapshots().await?.snapshots.len();
        let kept = match operation {
            "snapshot" => step == "recorded" || (step == "goes_on" && self.kills_engine()),
            // Its source wakes when it is whole.
            "lay" => step.starts_with("wake.") || self.kills_engine(),
            _ => false,
        };
        ensure!(snapshots == usize::from(kept), "{snapshots} snapshots");
        Ok(())
    }

    /// What was interrupted works, and so does everything else.
    async fn again(&mut self) -> Result<()> {
        for kept in self.client.snapshots().await?.snapshots {
            self.client.delete_snapshot(kept.id.as_str()).await?;
        }
        if self.promised() == Left::Nothing {
            let fresh = create(&self.client, json!({})).await?;
            ensure!(sh(&self.client, fresh.id.as_str(), "echo usable").await? == "usable");
        } else {
            match self.step() {
                ("wake", _) => drop(self.client.suspend(&self.id, true).await?),
                ("snapshot", "removed") => drop(self.snapshot().await?),
                _ => {}
            }
            ensure!(self.act().await?, "it does not work the second time");
            ensure!(self.digests().await?.1 == self.disk, "its files are others the second time");
        }
        for kept in self.client.snapshots().await?.snapshots {
            self.client.delete_snapshot(kept.id.as_str()).await?;
        }
        for sandbox in self.client.sandboxes(&ListQuery::default()).await?.sandboxes {
            self.client.destroy_sandbox(sandbox.id.as_str()).await?;
        }
        for pool in self.client.pools().await?.pools {
            self.client.put_pool(&pool.template, &pool.size, 0).await?;
        }
        wait_for("an empty pool", Duration::from_secs(30), async || {
            Ok(self.client.pools().await?.pools.iter().all(|pool| pool.memory_mb == 0))
        })
        .await
    }

    fn left_over(&self) -> Vec<String> {
        let mut left = self.daemon.places();
        left.extend(self.daemon.engines().iter().map(|pid| format!("engine {pid}")));
        for dir in ["snapshots", "trash"] {
            let entries = std::fs::read_dir(self.daemon.data().join(dir)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        left
    }
}

async fn interrupted(point: &str) -> Result<()> {
    let mut scene = Scene::new(point).await?;
    scene.prepare().await?;
    let done = scene.act().await?;
    if scene.kills_engine() {
        let log = scene.daemon.log();
        ensure!(log.contains("crash point"), "the point was never reached");
        // Where nothing of the operation is left to fail, it has not.
        let harmless = matches!(
            scene.step(),
            ("suspend", "saved" | "renamed")
                | ("snapshot", "goes_on")
                | ("lay", "linked")
                | (_, "restored" | "claimed")
        );
        ensure!(!done || harmless, "it says that all is well");
    } else {
        scene.daemon.wait_for_death().await.context("the point was never reached")?;
        scene.daemon.start_again(Options::default()).await?;
        scene.client = scene.daemon.client()?;
    }
    scene.settled().await?;
    scene.check().await?;
    scene.again().await?;
    let left = scene.left_over();
    ensure!(left.is_empty(), "left over: {left:?}");
    Ok(())
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "which of them it is at, for those who wait for all")]
async fn killed_at_any_point_nothing_is_lost_and_nothing_left() -> Result<()> {
    let all = std::env::var_os("WAKEFUL_FAULTS").is_some_and(|which| which == "all");
    let day = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400;
    let mut points = wakeful_lifecycle::crash_points();
    if wakeful_testkit::microvm() {
        // Its disks are copied.
        points.retain(|point| !point.starts_with("lay."));
    } else {
        // Whoever sleeps for a moment wakes, too.
        points.extend(["loaded", "spent", "spent:engine", "restored"].map(|step| format!("lay.wake.{step}")));
    }
    let chosen = points.iter().zip(0..).filter(|(_, number)| all || number % PARTS == day % PARTS);
    let mut failed = Vec::new();
    for (point, _) in chosen {
        eprintln!("{point}");
        if let Err(error) = interrupted(point).await {
            failed.push(format!("{point}: {error:#}"));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}
