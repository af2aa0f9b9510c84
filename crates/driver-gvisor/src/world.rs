//! The mounts of one engine.
//!
//! ```text
//!   HERE (a tmpfs)/lower   the template's directory, read-only ┐
//!                 /layer-N what the disk stands on, read-only  ├ under the engine's ids
//!                 /disk    the sandbox's disk                  ┘
//!                 /root    an overlay of them all: the guest's root
//!                 /agent   the agent that belongs to this engine
//! ```
//!
//! They are made by a thread that has left the host's mounts, and runsc is started from it. Nobody else sees them, they
//! have no path on the host, and they go with the engine's last process: nothing of them can be left over.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use wakeful_confine::range::IDS;
use wakeful_sys::child::{self, Setup};
use wakeful_sys::mounts::{self, Access};
use wakeful_sys::net;

use crate::{disk, layers};

/// A directory that every host has, that anybody may pass, and that nothing of ours lies in.
pub const HERE: &str = "/mnt";

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct World {
    /// The template's directory.
    pub base: PathBuf,
    /// The sandbox's disk.
    pub disk: PathBuf,
    /// The disks that it stands on, the lowest first ([`layers::of`]).
    pub layers: Vec<PathBuf>,
    /// The directory with the agent.
    pub agent: PathBuf,
    /// The namespace that the card lies in.
    pub card: PathBuf,
    /// The first of the engine's ids on the host.
    pub first_id: u32,
    /// Hide a part of `/proc` that runsc 2024 takes for a sign of the host's own network (kernels from 6.11 on).
    pub cover: bool,
}

impl World {
    /// The guest's root, in it.
    #[must_use]
    pub fn root() -> PathBuf {
        Path::new(HERE).join("root")
    }

    /// The agent's directory, in it.
    #[must_use]
    pub fn agent() -> PathBuf {
        Path::new(HERE).join("agent")
    }

    /// Makes it around the calling thread, which must be there for nothing else. Blocks.
    ///
    /// # Errors
    /// Without the right to, or where the kernel cannot do it.
    pub fn enter(&self) -> io::Result<()> {
        let doing =
            |what: &'static str| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
        mounts::private_mounts().map_err(doing("leave the host's mounts"))?;
        let here = Path::new(HERE);
        let tmpfs =
            |at: &Path| mount("none", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=755,size=1m"));
        tmpfs(here).map_err(|error| doing("mount a place to build")(error.into()))?;
        let at = |name: &str| here.join(name);
        for name in ["lower", "raw", "raw-layer", "disk", "root", "agent"] {
            fs::create_dir(at(name))?;
        }
        let users = mounts::user_namespace(self.first_id, IDS).map_err(doing("map ids"))?;
        let lower = mounts::idmapped(&self.base, users.as_fd(), Access::ReadOnly).map_err(doing("map the template"))?;
        mounts::attach(lower.as_fd(), &at("lower")).map_err(doing("mount the template"))?;
        disk::mount_at(&self.disk, &at("raw"), self.first_id).map_err(doing("mount the disk"))?;
        let mapped = mounts::idmapped(&at("raw"), users.as_fd(), Access::ReadWrite).map_err(doing("map the disk"))?;
        mounts::attach(mapped.as_fd(), &at("disk")).map_err(doing("mount the mapped disk"))?;
        let mut lower = vec![at("lower")];
        for (number, layer) in self.layers.iter().enumerate() {
            let place = at(&format!("layer-{number}"));
            if layers::mount_at(layer, &at("raw-layer"), &place, users.as_fd()).map_err(doing("mount a layer"))? {
                lower.insert(0, place);
            }
        }
        let lower: Vec<_> = lower.iter().map(|path| path.display().to_string()).collect();
        let layers = format!("lowerdir={},upperdir={HERE}/disk/upper,workdir={HERE}/disk/work", lower.join(":"));
        let layers = CString::new(layers).expect("no zero in it");
        let overlay = || {
            let flags = MountFlags::NODEV | MountFlags::NOATIME;
            Ok(mount("overlay", at("root"), "overlay", flags, Some(layers.as_c_str()))?)
        };
        mounts::as_owner(self.first_id, overlay).map_err(doing("mount the root"))?;
        disk::keep_reserve(&at("raw")).map_err(doing("keep the disk's reserve"))?;
        unmount(at("raw"), UnmountFlags::DETACH)?;
        mount_bind(&self.agent, at("agent"))?;
        mount_remount(
            at("agent"),
            MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
            c"",
        )?;
        if self.cover {
            self.cover_sysctl().map_err(doing("cover a part of /proc"))?;
        }
        Ok(())
    }

    /// What `/proc/sys/net` shows depends on who looks: it is covered for whoever is in the card's namespace.
    fn cover_sysctl(&self) -> io::Result<()> {
        let card = fs::File::open(&self.card)?;
        // A thread of its own, with these mounts and that network.
        std::thread::scope(|scope| {
            let covering = scope.spawn(|| {
                net::enter_network(card.as_fd())?;
                Ok(mount("none", "/proc/sys/net/core", "tmpfs", MountFlags::RDONLY, None)?)
            });
            covering.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
        })
    }
}

/// Starts runsc from the calling thread, in its mounts, and in the cgroup that this is the door of.
pub(crate) fn start(program: &Path, arguments: Vec<OsString>, input: Stdio, door: Option<File>) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir("/");
    command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    child::prepare(&mut command, Setup { uid: 0, gid: 0, groups: Vec::new(), cgroup: door, terminal: false });
    command.spawn()
}
