//! The trait itself.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use wakeful_model::IoLimits;

use crate::{Capabilities, Error, Image};

/// The virtual hardware: part of what a golden snapshot is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Machine {
    /// Virtual processors.
    pub cpu: u32,
    /// Guest memory in MiB.
    pub memory_mb: u32,
    /// Size of the writable disk in MiB.
    pub disk_mb: u32,
}

impl Machine {
    /// Whether memory of such a machine goes on in that one: all is the same, save for a disk that may have grown since.
    #[must_use]
    pub fn goes_on_in(self, machine: Self) -> bool {
        let disk_mb = self.disk_mb;
        self == Self { disk_mb, ..machine } && disk_mb <= machine.disk_mb
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}-m{}-d{}", self.cpu, self.memory_mb, self.disk_mb)
    }
}

/// Where one engine lives on the host. Everything that a driver makes for it has a name derived from these, so that
/// whoever knows the place can find or remove all of it after a crash.
#[derive(Clone, Debug)]
pub struct Place {
    /// Short name for logs: the sandbox's id.
    pub name: String,
    /// Sockets, pid, start time; on a file system that a reboot empties. Made by `launch`, removed by `reap`.
    pub run: PathBuf,
    /// Disk, own memory base, engine output. Made by the caller; `launch` creates files in it, `reap` leaves it.
    pub data: PathBuf,
}

/// Where a new engine's state comes from.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// A first boot whose memory and disk (made in `place.data`) will become a golden snapshot. Runs at once.
    Golden {
        /// What the agent must know to answer the hello.
        secret: [u8; 32],
    },
    /// A copy-on-write clone of the golden snapshot in this directory; makes the sandbox's disk. Loaded, stopped.
    Clone {
        /// The snapshot's directory.
        golden: &'a Path,
        /// Its account.
        image: &'a Image,
    },
    /// The checkpoint in this directory, over the sandbox's own disk. Loaded, stopped; nothing is spent by it.
    Wake {
        /// The checkpoint's directory.
        checkpoint: &'a Path,
        /// Its account.
        image: &'a Image,
    },
    /// The first boot of a sandbox that no golden snapshot fits, or whose engine has none; makes its disk. Runs at once.
    First {
        /// What the agent must know to answer the hello.
        secret: [u8; 32],
    },
    /// A cold boot of the sandbox's own disk, with fresh memory. Runs at once.
    Boot {
        /// What the agent must know to answer the hello.
        secret: [u8; 32],
    },
}

/// Where the guest's network card ends on the host. The card itself is always there and always the same, so that an
/// image fits whatever it is plugged into.
#[derive(Debug, Default)]
pub enum Card {
    /// Nowhere.
    #[default]
    Unplugged,
    /// In this TAP device, which goes away with the engine.
    Tap(OwnedFd),
    /// In a pair of namespaces, for an engine with a network stack of its own.
    Veth(Veth),
}

/// A slot as two namespaces, each a file to enter it by. They are not the engine's and outlive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Veth {
    /// Where the guest's card lies: `eth0`, with address, route and neighbour, and nothing else.
    pub card: PathBuf,
    /// The other end: where the host's connections to the guest begin.
    pub gateway: PathBuf,
}

/// Which engine this is, and what its images fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineInfo {
    /// Name of the runtime ("qemu").
    pub runtime: String,
    /// How guest code is run ("kvm", "tcg", "systrap").
    pub accel: String,
    /// The engine's own version.
    pub version: String,
    /// Digest of all that an image must match: version, machine, arguments, processor, clock rate.
    pub key: String,
    /// `key` and what a boot puts into memory (kernel, agent): the name of a golden snapshot.
    pub golden_key: String,
}

/// What of a sandbox is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its disk.
    Disk,
    /// Its own memory base ([`MemoryBase::Own`](crate::MemoryBase)).
    Memory,
}

/// How an engine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code or signal, where it is known (an adopted engine's is not).
    pub status: Option<String>,
    /// The last it printed.
    pub output: String,
    /// The host ended it because it used more memory than it may.
    pub out_of_memory: bool,
}

/// A two-way byte stream to the agent.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// One kind of engine.
#[async_trait]
pub trait Driver: Send + Sync {
    /// What its engines can do.
    fn capabilities(&self) -> &Capabilities;

    /// Which engine new sandboxes get.
    fn engine(&self) -> &EngineInfo;

    /// The name of a sandbox's own disk in `place.data`, and in every directory that it is copied to.
    fn disk_file(&self) -> &'static str;

    /// Starts an engine in `place`, over the read-only root file system `base` (a file or a directory, as
    /// [`Capabilities::disk`] says), with its network card plugged into `card`.
    ///
    /// `Clone` and `Wake` come back with the vCPUs stopped; the boots are running. A failed launch has killed its engine
    /// and removed what it made in `place.run`. A disk that is smaller than the machine's is made larger, never smaller; the
    /// guest of a `Wake` learns of it by [`Engine::grow_disk`].
    ///
    /// # Errors
    /// `Damaged` or `Unfit` if the image cannot be loaded: nothing has been spent then.
    async fn launch(
        &self,
        place: &Place,
        machine: Machine,
        base: &Path,
        card: Card,
        source: Source<'_>,
    ) -> Result<Arc<dyn Engine>, Error>;

    /// Finds the engine that an earlier daemon launched in `place`. It may be running or stopped.
    async fn adopt(&self, place: &Place) -> Result<Option<Arc<dyn Engine>>, Error>;

    /// Ends whatever runs in `place` and removes `place.run`. Works twice, with half of it missing, and without an
    /// engine; it is how a crash is cleaned up.
    async fn reap(&self, place: &Place) -> Result<(), Error>;

    /// Folds a checkpoint's pages into an own memory base (`place.data/mem.base`) while nothing maps it, and returns the
    /// account of the image that it is now. The old files stay until the caller has committed that and deletes them
    /// ([`Image::files`] that are no longer named).
    ///
    /// # Cancel safety
    /// Dropping it leaves the old image valid: the new base is renamed into place only when it is complete, and the old
    /// pages over the new base give the same memory.
    async fn compact(&self, place: &Place, checkpoint: &Path, image: &Image) -> Result<Image, Error>;

    /// Copies a part of what lies in one directory (`place.data`, or a snapshot's) into another, where it must not be yet.
    /// Nobody may write the disk meanwhile; a memory base is never written, nor are layers that the disk stands on: those are
    /// shared. The copy is not synced.
    async fn copy(&self, part: Part, from: &Path, to: &Path) -> Result<(), Error>;

    /// Whether copying the disk in `data` (of a machine with so much of it) would hold somebody up, and [laying](Self::lay) it
    /// would not. A look; the disk may be in use.
    async fn worth_laying(&self, data: &Path, disk_mb: u32) -> Result<bool, Error> {
        let _ = (data, disk_mb);
        Ok(false)
    }

    /// Turns the disk in `data`, which nobody uses, into a layer that is never written again, under an empty disk of this
    /// size: nothing has changed for whoever sees both, and a [copy](Self::copy) shares the layer. Durable when it returns; a
    /// crash leaves it done or not done. Only where [`worth_laying`](Self::worth_laying) said so.
    async fn lay(&self, data: &Path, disk_mb: u32) -> Result<(), Error> {
        let _ = (data, disk_mb);
        Err(Error::Refused { doing: "turn a disk into a layer", answer: "its disks are whole".to_owned() })
    }

    /// Engines kept for images that are not among `needed` (keys) are removed, save the current one.
    async fn forget_engines(&self, needed: &[String]) -> Result<(), Error>;
}

/// One engine: a process that holds a guest.
#[async_trait]
pub trait Engine: Send + Sync {
    /// Its process id on the host.
    fn pid(&self) -> u32;

    /// Opens the byte stream to the agent. One at a time: drop the last one first.
    async fn connect(&self) -> Result<Box<dyn ByteStream>, Error>;

    /// Waits until the engine has seen that the stream was closed; a stopped engine would not notice.
    async fn disconnected(&self) -> Result<(), Error>;

    /// Limits what the guest may ask of its disks, all of them together, from now on; what is not said is not limited. In
    /// force until the engine ends; no image keeps it. Fine stopped or running, and twice.
    async fn limit_io(&self, limits: IoLimits) -> Result<(), Error>;

    /// The size of the writable disk that the guest was last told of, in MiB: less than what `launch` was given if its
    /// memory is of before the disk grew.
    fn disk_mb(&self) -> u32;

    /// Makes the writable disk so large, never smaller, and has the guest told: at once, or when it runs. Fine twice.
    async fn grow_disk(&self, disk_mb: u32) -> Result<(), Error>;

    /// Lets the vCPUs run. Fine on a running engine.
    async fn resume(&self) -> Result<(), Error>;

    /// Stops the vCPUs and drains the disk. Fine on a stopped engine.
    async fn pause(&self) -> Result<(), Error>;

    /// Writes the state of the stopped engine into the directory `into`; durable (files, disk and directory synced) when it
    /// returns. The engine stays alive and stopped, whatever the outcome.
    async fn save(&self, into: &Path) -> Result<Image, Error>;

    /// Resolves when the process has ended.
    ///
    /// # Cancel safety
    /// Safe; can be called any number of times.
    async fn exited(&self) -> Exit;

    /// Ends it at once and waits until it is gone. Fine twice.
    async fn kill(&self) -> Result<(), Error>;
}
