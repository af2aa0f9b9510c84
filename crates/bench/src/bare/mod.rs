//! The bare engine: the same technique with the same durability, without daemon, HTTP or database.
//!
//! ```text
//!   qemu      QMP, dirty pages, its own process       ┐ each takes over from the driver what its engines are started
//!   gvisor    runsc, its control socket, its mounts   ┘ with, read off a living one, and nothing else
//! ```
//!
//! Hello, restore and `true` go through `wakeful-guest-client`, which is the probe on both sides, since the agent speaks
//! nothing else.

pub(crate) mod gvisor;
pub(crate) mod qemu;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::{SeekFrom, copy_file_range, seek};
use wakeful_guest_client::{Exec, Guest};

use crate::Error;

/// Held while descriptors can be inherited: whoever else starts a process must not get them.
pub(crate) static SPAWN: Mutex<()> = Mutex::new(());

const QUIESCE: Duration = Duration::from_secs(20);
/// A burst of a hundred on two cores keeps each of them waiting.
const FIRST_ANSWER: Duration = Duration::from_secs(120);

/// What all bare sandboxes of one size have in common.
pub(crate) enum Bare {
    Qemu(Box<qemu::Bare>),
    Gvisor(gvisor::Bare),
}

/// A sandbox without a daemon: one engine, or the files that it left.
pub(crate) enum Sandbox {
    Qemu(Box<qemu::Sandbox>),
    Gvisor(Box<gvisor::Sandbox>),
}

impl Bare {
    /// What the daemon has made ahead too, before any clock runs: a slot for the next start.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        match self {
            Self::Qemu(_) => Ok(()),
            Self::Gvisor(bare) => bare.prepare().await,
        }
    }

    /// From nothing to a guest whose agent has confirmed.
    pub(crate) async fn create(&self, name: String) -> Result<Sandbox, Error> {
        Ok(match self {
            Self::Qemu(bare) => Sandbox::Qemu(Box::new(bare.create(name).await?)),
            Self::Gvisor(bare) => Sandbox::Gvisor(Box::new(bare.create(name).await?)),
        })
    }
}

impl Sandbox {
    /// As [`Bare::prepare`], for its next wake.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        match self {
            Self::Qemu(_) => Ok(()),
            Self::Gvisor(sandbox) => sandbox.prepare().await,
        }
    }

    /// Quiesces and stops it, as a pool does with one that has given its first answer.
    pub(crate) async fn stand(&mut self) -> Result<(), Error> {
        match self {
            Self::Qemu(sandbox) => sandbox.stand().await,
            Self::Gvisor(sandbox) => sandbox.stand().await,
        }
    }

    /// From standing still to "the agent has confirmed who it is".
    pub(crate) async fn claim(&mut self) -> Result<(), Error> {
        match self {
            Self::Qemu(sandbox) => sandbox.claim().await,
            Self::Gvisor(sandbox) => sandbox.claim().await,
        }
    }

    /// Runs a program on the agent's own channel.
    pub(crate) async fn run(&self, program: &str, args: &[&str]) -> Result<(), Error> {
        match self {
            Self::Qemu(sandbox) => sandbox.run(program, args).await,
            Self::Gvisor(sandbox) => sandbox.run(program, args).await,
        }
    }

    /// Everything to disk, all synced and renamed; then the engine goes.
    pub(crate) async fn suspend(&mut self) -> Result<(), Error> {
        match self {
            Self::Qemu(sandbox) => sandbox.suspend().await,
            Self::Gvisor(sandbox) => sandbox.suspend().await,
        }
    }

    /// Loaded; one durable mark; then it runs and the agent confirms.
    pub(crate) async fn wake(&mut self) -> Result<(), Error> {
        match self {
            Self::Qemu(sandbox) => sandbox.wake().await,
            Self::Gvisor(sandbox) => sandbox.wake().await,
        }
    }

    /// Everything goes.
    pub(crate) async fn destroy(self) -> Result<(), Error> {
        match self {
            Self::Qemu(sandbox) => sandbox.destroy().await,
            Self::Gvisor(sandbox) => sandbox.destroy().await,
        }
    }
}

/// Runs a program on the agent's own channel.
async fn run(guest: Option<&Guest>, program: &str, args: &[&str]) -> Result<(), Error> {
    let guest = guest.ok_or_else(|| Error::engine("run a command", "it sleeps"))?;
    let mut exec = Exec::new(program, args.iter().copied());
    exec.timeout = Some(Duration::from_secs(120));
    let output = guest.exec(&exec).await.map_err(Error::guest("run a command"))?;
    if output.exit_code == 0 {
        return Ok(());
    }
    Err(Error::Command { command: program.to_owned(), exit_code: output.exit_code })
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|ended| Err(Error::engine("go on", ended)))
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    io::Write::write_all(&mut file, content)?;
    file.sync_all()?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Only the extents of data: a fresh disk has 2 MB in 2 GiB.
fn sparse_copy(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (File::open(from)?, File::create_new(to)?);
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut at = 0;
    while at < size {
        match seek(&from, SeekFrom::Data(at)) {
            Ok(start) => at = start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        }
        let end = seek(&from, SeekFrom::Hole(at))?;
        while at < end {
            let (mut source, mut target) = (at, at);
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 30);
            let copied = copy_file_range(&from, Some(&mut source), &to, Some(&mut target), wanted)?;
            if copied == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += copied as u64;
        }
    }
    Ok(())
}
