//! QEMU, bare.
//!
//! It is a second implementation on purpose. It shares the command line with the driver ([`blueprint`]) and nothing
//! else: it starts engines, speaks QMP, finds dirty pages and syncs files with its own few lines.

mod blueprint;
mod pages;
mod process;
mod qmp;

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use wakeful_guest_client::{Guest, Tunnel};

pub(crate) use blueprint::{Blueprint, Golden, Piece, Role};
pub(crate) use process::process_uses;

use self::process::Process;
use self::qmp::Qmp;
use super::{FIRST_ANSWER, QUIESCE, SPAWN, blocking, sparse_copy, sync_dir, write_synced};
use crate::Error;
use crate::revive::revive;

/// What all bare sandboxes of one size have in common.
#[derive(Clone, Debug)]
pub(crate) struct Bare {
    pub(crate) blueprint: Blueprint,
    pub(crate) golden: Golden,
    /// Where their files are.
    pub(crate) dir: PathBuf,
    /// Where their sockets are: such paths must be short.
    pub(crate) run: PathBuf,
    /// What their card is plugged into. One at a time can have it.
    pub(crate) tap: Option<Arc<OwnedFd>>,
}

/// A sandbox without a daemon: one engine, or the files that it left.
pub(crate) struct Sandbox {
    name: String,
    bare: Bare,
    dir: PathBuf,
    secret: [u8; 32],
    generation: u64,
    live: Option<Live>,
    /// One that stands still, as a member of a pool does.
    still: Option<(Process, Qmp)>,
}

struct Live {
    process: Process,
    qmp: Qmp,
    guest: Guest,
}

impl Bare {
    /// From nothing to a guest whose agent has confirmed: disk, engine, state, hello, clock, entropy, identity.
    pub(crate) async fn create(&self, name: String) -> Result<Sandbox, Error> {
        let dir = self.dir.join(&name);
        let (bare, place) = (self.clone(), dir.clone());
        let started = blocking(move || {
            fs::create_dir(&place).map_err(Error::io("make a bare sandbox's directory"))?;
            sparse_copy(&bare.golden.dir.join("overlay.ext4"), &place.join("overlay.ext4"))
                .map_err(Error::io("copy a bare sandbox's disk"))?;
            let run = bare.run.join(place.file_name().unwrap_or_default());
            let process = Process::start(&bare, &place, &run)?;
            let mut qmp = process.monitor()?;
            let state = File::open(bare.golden.dir.join("dev.state")).map_err(Error::io("open a golden state"))?;
            qmp.load(state.as_fd(), bare.blueprint.version)?;
            Ok((process, qmp))
        });
        let (process, qmp) = started.await?;
        let secret = self.golden.secret;
        let mut sandbox = Sandbox { name, bare: self.clone(), dir, secret, generation: 0, live: None, still: None };
        sandbox.go(process, qmp).await?;
        Ok(sandbox)
    }
}

impl Sandbox {
    /// From "loaded and stopped" to "the agent has confirmed".
    async fn go(&mut self, process: Process, mut qmp: Qmp) -> Result<(), Error> {
        let agent = process.socket("agent");
        let stream = UnixStream::connect(agent).await.map_err(Error::io("connect to the bare engine's agent"))?;
        // The hello is under way before the vCPUs are.
        let run = blocking(move || qmp.call("cont", &serde_json::json!({})).map(|_| qmp));
        let answered = revive(stream, &self.secret, FIRST_ANSWER, &self.name, self.generation + 1);
        let (qmp, answered) = tokio::join!(run, answered);
        let (guest, secret) = answered?;
        self.secret = secret;
        self.generation += 1;
        self.live = Some(Live { process, qmp: qmp?, guest });
        Ok(())
    }

    /// Quiesces and stops it, as a pool does with one that has given its first answer.
    pub(crate) async fn stand(&mut self) -> Result<(), Error> {
        let Some(Live { process, mut qmp, guest }) = self.live.take() else { return Ok(()) };
        guest.quiesce(QUIESCE).await.map_err(Error::guest("quiesce"))?;
        guest.close().await;
        let stopped = blocking(move || {
            qmp.wait_disconnected()?;
            qmp.call("stop", &serde_json::json!({}))?;
            Ok((process, qmp))
        });
        self.still = Some(stopped.await?);
        Ok(())
    }

    /// From standing still to "the agent has confirmed who it is".
    pub(crate) async fn claim(&mut self) -> Result<(), Error> {
        let (process, qmp) = self.still.take().ok_or_else(|| Error::engine("be claimed", "it does not stand still"))?;
        self.go(process, qmp).await
    }

    /// Runs a program on the agent's own channel.
    pub(crate) async fn run(&self, program: &str, args: &[&str]) -> Result<(), Error> {
        super::run(self.live.as_ref().map(|live| &live.guest), program, args).await
    }

    /// A connection to a port on the guest's loopback, through the agent.
    pub(crate) async fn tunnel(&self, port: u16) -> Result<Tunnel, Error> {
        let live = self.live.as_ref().ok_or_else(|| Error::engine("open a tunnel", "it sleeps"))?;
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        live.guest.tunnel(target, FIRST_ANSWER).await.map_err(Error::guest("open a tunnel"))
    }

    /// Quiesce, stop, state and dirty pages to disk, all synced and renamed; then the engine goes.
    pub(crate) async fn suspend(&mut self) -> Result<(), Error> {
        let Some(Live { process, mut qmp, guest }) = self.live.take() else { return Ok(()) };
        let synced = guest.quiesce(QUIESCE).await.map_err(Error::guest("quiesce"))?;
        guest.close().await;
        let (dir, memory, generation) = (self.dir.clone(), self.bare.blueprint.memory.clone(), self.generation);
        blocking(move || {
            qmp.wait_disconnected()?;
            qmp.call("stop", &serde_json::json!({}))?;
            let save = |qmp: &mut Qmp| -> Result<(), Error> {
                let failed = || Error::io("write a bare checkpoint");
                let new = dir.join("checkpoint.new");
                fs::create_dir(&new).map_err(failed())?;
                // The disk's sync goes on beside the rest, as ours does.
                std::thread::scope(|scope| {
                    let disk = scope.spawn(|| File::open(dir.join("overlay.ext4"))?.sync_all());
                    // For writing only: the engine opens it that way, and nothing else fits.
                    let state = File::create(new.join("dev.state")).map_err(failed())?;
                    qmp.save(state.as_fd())?;
                    state.sync_all().map_err(failed())?;
                    let diff = File::create_new(new.join("mem.diff")).map_err(failed())?;
                    pages::save(process.pid(), &memory, &diff).map_err(failed())?;
                    diff.sync_all().map_err(failed())?;
                    let manifest = format!("{{\"generation\":{generation},\"disk_synced\":{synced}}}\n");
                    write_synced(&new.join("manifest.json"), manifest.as_bytes()).map_err(failed())?;
                    sync_dir(&new).map_err(failed())?;
                    disk.join().map_err(|_| Error::engine("sync its disk", "a thread failed"))?.map_err(failed())
                })?;
                let old = dir.join("checkpoint");
                if old.exists() {
                    fs::remove_dir_all(&old).map_err(failed())?;
                }
                fs::rename(&new, &old).map_err(failed())?;
                sync_dir(&dir).map_err(failed())?;
                // This stands for the database's write that commits.
                write_synced(&dir.join(format!("committed-{generation}")), b"kept\n").map_err(failed())
            };
            save(&mut qmp)?;
            process.end();
            Ok(())
        })
        .await
    }

    /// Stop, state and dirty pages and disk copied, nothing synced, go on: how long it stood still.
    pub(crate) async fn cut(&mut self) -> Result<Duration, Error> {
        let Some(Live { process, mut qmp, guest }) = self.live.take() else { return Ok(Duration::ZERO) };
        let (dir, memory) = (self.dir.clone(), self.bare.blueprint.memory.clone());
        let done = blocking(move || {
            let failed = || Error::io("write a bare copy");
            let copy = dir.join("copy");
            fs::create_dir(&copy).map_err(failed())?;
            let began = Instant::now();
            qmp.call("stop", &serde_json::json!({}))?;
            let state = File::create(copy.join("dev.state")).map_err(failed())?;
            qmp.save(state.as_fd())?;
            let diff = File::create_new(copy.join("mem.diff")).map_err(failed())?;
            pages::save(process.pid(), &memory, &diff).map_err(failed())?;
            sparse_copy(&dir.join("overlay.ext4"), &copy.join("overlay.ext4")).map_err(failed())?;
            qmp.call("cont", &serde_json::json!({}))?;
            let stood = began.elapsed();
            fs::remove_dir_all(&copy).map_err(failed())?;
            Ok((process, qmp, stood))
        });
        let (process, qmp, stood) = done.await?;
        self.live = Some(Live { process, qmp, guest });
        Ok(stood)
    }

    /// Engine, pages and state loaded; one durable mark; then the vCPUs run and the agent confirms.
    pub(crate) async fn wake(&mut self) -> Result<(), Error> {
        let (bare, dir, generation) = (self.bare.clone(), self.dir.clone(), self.generation);
        let started = blocking(move || {
            let failed = || Error::io("read a bare checkpoint");
            let checkpoint = dir.join("checkpoint");
            let run = bare.run.join(dir.file_name().unwrap_or_default());
            let process = Process::start(&bare, &dir, &run)?;
            let diff = File::open(checkpoint.join("mem.diff")).map_err(failed())?;
            let state = File::open(checkpoint.join("dev.state")).map_err(failed())?;
            // Pages go in while the engine is still starting; all must be in before the load.
            let (qmp, injected) = std::thread::scope(|scope| {
                let (pid, memory) = (process.pid(), &bare.blueprint.memory);
                let inject = scope.spawn(move || pages::inject(pid, memory, &diff));
                (process.monitor(), inject.join())
            });
            let mut qmp = qmp?;
            injected.map_err(|_| Error::engine("take its pages", "a thread failed"))?.map_err(failed())?;
            qmp.load(state.as_fd(), bare.blueprint.version)?;
            // And this for the one that spends the checkpoint.
            write_synced(&dir.join(format!("spent-{generation}")), b"spent\n").map_err(failed())?;
            Ok((process, qmp))
        });
        let (process, qmp) = started.await?;
        self.go(process, qmp).await
    }

    /// Everything goes.
    pub(crate) async fn destroy(mut self) -> Result<(), Error> {
        if let Some(Live { process, qmp, guest }) = self.live.take() {
            guest.close().await;
            blocking(move || {
                drop(qmp);
                process.end();
                Ok(())
            })
            .await?;
        }
        if let Some((process, qmp)) = self.still.take() {
            blocking(move || {
                drop(qmp);
                process.end();
                Ok(())
            })
            .await?;
        }
        let dir = self.dir.clone();
        blocking(move || fs::remove_dir_all(dir).map_err(Error::io("remove a bare sandbox"))).await
    }
}
