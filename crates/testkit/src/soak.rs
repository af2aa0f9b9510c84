//! Random lives of random sandboxes on the real engine, with digests of their memory and files.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use wakeful_api_types::{Command, ExecuteRequest};
use wakeful_client::Client;

use crate::{Daemon, Options};

/// Sandboxes at the same time.
const MOST: usize = 6;
/// How much larger the daemon may be at the end than after the first third.
const GROWTH_KIB: u64 = 12 * 1024;

/// What is done, and how.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// Steps.
    pub cycles: u32,
    /// The same seed does the same.
    pub seed: u64,
    /// Whether the daemon is killed now and then. Its size is not looked at then.
    pub kill: bool,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Soaked {
    /// How often each was done.
    pub done: std::collections::BTreeMap<&'static str, u32>,
    /// Size of the daemon after the first third and at the end, in KiB.
    pub resident_kib: Option<(u64, u64)>,
}

/// What must be true of a sandbox.
#[derive(Clone, Debug)]
struct Life {
    id: String,
    /// Of `/dev/shm/memory`; none if its memory was given up.
    memory: Option<String>,
    /// Of `~/file`.
    file: String,
}

/// A generator that is the same everywhere (xorshift*).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let sides = u64::try_from(sides).unwrap_or(1);
        usize::try_from((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides).unwrap_or(0)
    }
}

async fn sh(client: &Client, id: &str, script: &str) -> Result<String> {
    let done = client.execute(id, &ExecuteRequest::new(Command::Shell(script.to_owned()))).await?;
    ensure!(done.exit_code == 0, "{id}: `{script}` ended with {}: {}", done.exit_code, done.stderr);
    Ok(done.stdout.trim_end().to_owned())
}

async fn create(client: &Client, template: &str) -> Result<String> {
    let request = json!({"template": template, "mode": "persistent", "idle_timeout": "1h"});
    Ok(client.create_sandbox(&serde_json::from_value(request)?).await?.id.to_string())
}

impl Life {
    /// Fills a sandbox with something that nobody has seen.
    async fn fill(client: &Client, id: String, kib: usize) -> Result<Self> {
        let script = format!(
            "head -c {kib}k /dev/urandom > /dev/shm/memory; head -c {kib}k /dev/urandom > ~/file; sync; \
             sha256sum < /dev/shm/memory; sha256sum < ~/file"
        );
        let told = sh(client, &id, &script).await?;
        let (memory, file) = told.split_once('\n').context("two digests")?;
        Ok(Self { id, memory: Some(memory.to_owned()), file: file.to_owned() })
    }

    async fn check(&self, client: &Client) -> Result<()> {
        let file = sh(client, &self.id, "sha256sum < ~/file").await?;
        ensure!(file == self.file, "{}: its file is another", self.id);
        let memory = sh(client, &self.id, "sha256sum < /dev/shm/memory 2>/dev/null || true").await?;
        match &self.memory {
            Some(digest) => ensure!(memory == *digest, "{}: its memory is another", self.id),
            None => ensure!(memory.is_empty(), "{}: memory that was given up is back", self.id),
        }
        Ok(())
    }
}

fn resident_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a size")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Does it, and says what it is at through `tell`.
///
/// # Errors
/// The first thing that was lost, refused or left over, with the step and the seed.
pub async fn soak(how: Soak, mut tell: impl FnMut(u32, &str)) -> Result<Soaked> {
    let mut daemon = Daemon::start().await?;
    let mut client = daemon.client()?;
    let mut dice = Dice(how.seed | 1);
    let (mut lives, mut soaked): (Vec<Life>, Soaked) = (Vec::new(), Soaked::default());
    let mut early = None;
    for cycle in 0..how.cycles {
        let (what, began) = (dice.roll(if how.kill { 11 } else { 10 }), Instant::now());
        let at = dice.roll(lives.len().max(1));
        let done = step(&mut daemon, &mut client, &mut lives, &mut dice, (what, at)).await;
        let done = done.with_context(|| format!("cycle {cycle} of seed {}", how.seed))?;
        *soaked.done.entry(done).or_default() += 1;
        tell(cycle, &format!("{done} {:?}", began.elapsed()));
        if cycle == how.cycles / 3 {
            early = Some(resident_kib(daemon.pid())?);
        }
    }
    for life in &lives {
        life.check(&client).await.context("at the end")?;
        client.destroy_sandbox(&life.id).await?;
    }
    let late = resident_kib(daemon.pid())?;
    soaked.resident_kib = early.filter(|_| !how.kill).map(|early| (early, late));
    if let Some((early, late)) = soaked.resident_kib {
        ensure!(late <= early + GROWTH_KIB, "the daemon grew from {early} to {late} KiB");
    }
    let snapshots = fs::read_dir(daemon.data().join("snapshots")).into_iter().flatten().count();
    ensure!(snapshots == 0, "{snapshots} directories of snapshots are left");
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(soaked)
}

async fn step(
    daemon: &mut Daemon,
    client: &mut Client,
    lives: &mut Vec<Life>,
    dice: &mut Dice,
    (what, at): (usize, usize),
) -> Result<&'static str> {
    let room = lives.len() < MOST;
    if lives.is_empty() || (what == 0 && room) {
        let id = create(client, "base").await?;
        lives.push(Life::fill(client, id, 256 + dice.roll(4096)).await?);
        return Ok("create");
    }
    let life = lives[at].clone();
    match what {
        1..=3 => {
            client.suspend(&life.id, true).await?;
            Ok("suspend")
        }
        4 => {
            client.wake(&life.id, true).await?;
            life.check(client).await?;
            Ok("wake")
        }
        5 if room => {
            let forked = client.fork(&life.id, &serde_json::from_value(json!({"count": 1}))?).await?;
            let child = forked.sandboxes.first().context("a child")?.id.to_string();
            lives.push(Life { id: child, ..life.clone() });
            lives[lives.len() - 1].check(client).await?;
            life.check(client).await?;
            Ok("fork")
        }
        6 if room => {
            let kept = client.create_snapshot(&life.id, &serde_json::from_value(json!({}))?).await?.id;
            let id = create(client, kept.as_str()).await?;
            client.delete_snapshot(kept.as_str()).await?;
            lives.push(Life { id, ..life });
            lives[lives.len() - 1].check(client).await?;
            Ok("snapshot")
        }
        7 => {
            lives[at] = Life::fill(client, life.id, 256 + dice.roll(4096)).await?;
            Ok("change")
        }
        8 => {
            client.suspend(&life.id, false).await?;
            lives[at].memory = if client.sandbox(&life.id).await?.storage.checkpoint_bytes > 0 {
                // It slept already, with its memory.
                life.memory
            } else {
                None
            };
            Ok("suspend without memory")
        }
        9 => {
            client.destroy_sandbox(&life.id).await?;
            lives.remove(at);
            Ok("destroy")
        }
        10 => {
            // In the middle of something, or before, or after: nobody waits for an answer.
            let asked = async {
                let _ = client.suspend(&life.id, true).await;
                let _ = client.wake(&life.id, true).await;
            };
            let moment = Duration::from_millis(u64::try_from(dice.roll(300))?);
            let _ = tokio::time::timeout(moment, asked).await;
            daemon.kill()?;
            daemon.start_again(Options::default()).await?;
            *client = daemon.client()?;
            life.check(client).await?;
            Ok("kill")
        }
        _ => {
            life.check(client).await?;
            Ok("check")
        }
    }
}
