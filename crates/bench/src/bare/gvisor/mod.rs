//! gVisor, bare.
//!
//! A second implementation on purpose. It shares the options and the bundle with the driver ([`blueprint`]) and nothing
//! else: mounts, cgroups, the control socket and the syncs are its own few lines. Slots and an empty disk are there before
//! any clock runs, as they are in the daemon.

mod blueprint;
mod cgroup;
mod control;
mod process;
mod slot;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use wakeful_guest_client::Guest;

pub(crate) use blueprint::Blueprint;
pub(crate) use cgroup::{Cgroup, erase};
pub(crate) use process::overlay;

use self::process::{Begin, Process};
use self::slot::Slot;
use super::{FIRST_ANSWER, QUIESCE, SPAWN, blocking, sparse_copy, sync_dir, write_synced};
use crate::Error;
use crate::revive::revive;

/// Where the agent listens.
const PORT: u16 = 49982;

/// What all bare sandboxes of one size have in common.
#[derive(Clone)]
pub(crate) struct Bare {
    blueprint: Arc<Blueprint>,
    /// Where their files are.
    dir: PathBuf,
    /// Where their sockets are: such paths must be short.
    run: PathBuf,
    /// What the names of their cgroups begin with.
    prefix: String,
    /// Made ahead.
    slots: Arc<Mutex<Vec<Slot>>>,
}

/// A sandbox without a daemon: one engine, or the files that it left.
pub(crate) struct Sandbox {
    name: String,
    bare: Bare,
    dir: PathBuf,
    secret: [u8; 32],
    generation: u64,
    live: Option<(Process, Slot, Guest)>,
    /// One that stands still, as a member of a pool does.
    still: Option<(Process, Slot)>,
}

impl Bare {
    /// With an empty disk of so many MiB.
    pub(crate) async fn new(
        blueprint: Blueprint,
        disk_mb: u64,
        dir: PathBuf,
        run: PathBuf,
        prefix: String,
    ) -> Result<Self, Error> {
        let bare = Self { blueprint: Arc::new(blueprint), dir, run, prefix, slots: Arc::default() };
        let empty = bare.empty_disk();
        blocking(move || {
            let failed = || Error::io("make an empty disk");
            let _ = fs::remove_file(&empty);
            File::create_new(&empty).and_then(|disk| disk.set_len(disk_mb << 20)).map_err(failed())?;
            let mut make = Command::new("mke2fs");
            make.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "^resize_inode", "-m", "0", "-J", "size=16"]);
            make.args(["-E", "lazy_itable_init=1,lazy_journal_init=1"])
                .arg(&empty)
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            let done = {
                let _turn = SPAWN.lock().unwrap_or_else(PoisonError::into_inner);
                make.spawn()
            };
            match done.and_then(|mut child| child.wait()).map_err(failed())? {
                status if status.success() => Ok(()),
                status => Err(Error::engine("have a disk", format!("mke2fs: {status}"))),
            }
        })
        .await?;
        Ok(bare)
    }

    fn empty_disk(&self) -> PathBuf {
        self.dir.join("empty.ext4")
    }

    /// Makes a slot for the next start.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        let slots = Arc::clone(&self.slots);
        blocking(move || {
            let slot = Slot::make()?;
            slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
            Ok(())
        })
        .await
    }

    async fn slot(&self) -> Result<Slot, Error> {
        let ready = || self.slots.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(slot) = ready() {
            return Ok(slot);
        }
        self.prepare().await?;
        ready().ok_or_else(|| Error::engine("have a network", "another took it"))
    }

    /// From nothing to a guest whose agent has confirmed: disk, mounts, cgroup, engine, hello, identity.
    pub(crate) async fn create(&self, name: String) -> Result<Sandbox, Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::engine("have random bytes", error))?;
        let (dir, slot) = (self.dir.join(&name), self.slot().await?);
        let (bare, place, known) = (self.clone(), dir.clone(), name.clone());
        let started = blocking(move || {
            fs::create_dir(&place).map_err(Error::io("make a bare sandbox's directory"))?;
            sparse_copy(&bare.empty_disk(), &place.join("disk.ext4"))
                .map_err(Error::io("copy a bare sandbox's disk"))?;
            Ok((Process::start(&bare, &known, &place, &slot, &Begin::Run(&secret))?, slot))
        });
        let (process, slot) = started.await?;
        let mut sandbox = Sandbox { name, bare: self.clone(), dir, secret, generation: 0, live: None, still: None };
        sandbox.go(process, slot).await?;
        Ok(sandbox)
    }
}

impl Sandbox {
    /// From "it runs" to "the agent has confirmed".
    async fn go(&mut self, process: Process, slot: Slot) -> Result<(), Error> {
        let stream = slot.connect(PORT, FIRST_ANSWER).await?;
        let (guest, secret) = revive(stream, &self.secret, FIRST_ANSWER, &self.name, self.generation + 1).await?;
        self.secret = secret;
        self.generation += 1;
        self.live = Some((process, slot, guest));
        Ok(())
    }

    /// Makes a slot for its next wake.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        self.bare.prepare().await
    }

    /// Quiesces and stops it, as a pool does with one that has given its first answer.
    pub(crate) async fn stand(&mut self) -> Result<(), Error> {
        let Some((process, slot, guest)) = self.live.take() else { return Ok(()) };
        guest.quiesce(QUIESCE).await.map_err(Error::guest("quiesce"))?;
        guest.close().await;
        let process = blocking(move || process.pause().map(|()| process)).await?;
        self.still = Some((process, slot));
        Ok(())
    }

    /// From standing still to "the agent has confirmed who it is".
    pub(crate) async fn claim(&mut self) -> Result<(), Error> {
        let (process, slot) =
            self.still.take().ok_or_else(|| Error::engine("be claimed", "it does not stand still"))?;
        let process = blocking(move || process.resume().map(|()| process)).await?;
        self.go(process, slot).await
    }

    /// Runs a program on the agent's own channel.
    pub(crate) async fn run(&self, program: &str, args: &[&str]) -> Result<(), Error> {
        super::run(self.live.as_ref().map(|(_, _, guest)| guest), program, args).await
    }

    /// Quiesce, pause, memory to disk, all synced and renamed; then the engine goes.
    pub(crate) async fn suspend(&mut self) -> Result<(), Error> {
        let Some((process, slot, guest)) = self.live.take() else { return Ok(()) };
        let synced = guest.quiesce(QUIESCE).await.map_err(Error::guest("quiesce"))?;
        guest.close().await;
        let (dir, generation) = (self.dir.clone(), self.generation);
        blocking(move || {
            let failed = || Error::io("write a bare checkpoint");
            process.pause()?;
            let new = dir.join("checkpoint.new");
            fs::create_dir(&new).map_err(failed())?;
            process.save(&new)?;
            let manifest = format!("{{\"generation\":{generation},\"disk_synced\":{synced}}}\n");
            write_synced(&new.join("manifest.json"), manifest.as_bytes()).map_err(failed())?;
            let old = dir.join("checkpoint");
            if old.exists() {
                fs::remove_dir_all(&old).map_err(failed())?;
            }
            fs::rename(&new, &old).map_err(failed())?;
            sync_dir(&dir).map_err(failed())?;
            // This stands for the database's write that commits.
            write_synced(&dir.join(format!("committed-{generation}")), b"kept\n").map_err(failed())?;
            process.end()?;
            drop(slot);
            Ok(())
        })
        .await
    }

    /// One durable mark, engine and memory loaded; it runs and the agent confirms. The mark comes first: `runsc restore`
    /// lets it run at once.
    pub(crate) async fn wake(&mut self) -> Result<(), Error> {
        let (bare, dir, name, generation) = (self.bare.clone(), self.dir.clone(), self.name.clone(), self.generation);
        let slot = bare.slot().await?;
        let started = blocking(move || {
            let failed = || Error::io("spend a bare checkpoint");
            // And this for the one that spends the checkpoint.
            write_synced(&dir.join(format!("spent-{generation}")), b"spent\n").map_err(failed())?;
            let checkpoint = dir.join("checkpoint");
            Ok((Process::start(&bare, &name, &dir, &slot, &Begin::Restore(&checkpoint))?, slot))
        });
        let (process, slot) = started.await?;
        self.go(process, slot).await
    }

    /// Everything goes.
    pub(crate) async fn destroy(mut self) -> Result<(), Error> {
        let still = self.still.take();
        let live = self.live.take();
        let dir = self.dir.clone();
        let (process, slot) = match (live, still) {
            (Some((process, slot, guest)), _) => {
                guest.close().await;
                (Some(process), Some(slot))
            }
            (None, Some((process, slot))) => (Some(process), Some(slot)),
            (None, None) => (None, None),
        };
        blocking(move || {
            process.map_or(Ok(()), Process::end)?;
            drop(slot);
            fs::remove_dir_all(dir).map_err(Error::io("remove a bare sandbox"))
        })
        .await
    }
}
