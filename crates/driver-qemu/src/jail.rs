//! Who an engine is, and what it may see, open, call and use.
//!
//! ```text
//!   claim     a uid and gid that no other engine on the host has
//!   walls     its root is its own kept directory, read-only; it is alone in its process table and its network
//!   filter    system calls that it never needs
//!   cgroup    memory, processor, threads, disk
//! ```
//!
//! It has no path: it gets descriptors. Two kinds of file it opens itself, through `/proc/self/fd`, where only the
//! file's own mode counts: the kernel, and the memory file. A memory file of its own belongs to its group. A golden one
//! belongs to root and is read-only; but before 8.2 QEMU opens a memory file for writing even if it maps it privately, so
//! there every engine that maps a golden file has the group that may write to it ("degraded").

use std::ffi::CStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::Arc;

use wakeful_driver::{Machine, MemoryBase};
use wakeful_sys::spawn::{self, Identity, Instruction};
use wakeful_sys::walls::{self, Rights, Walls};

use crate::boot::{self, Accelerator};
use crate::engines::Pinned;
use crate::filter;
use crate::place::Memory;
use wakeful_confine::cgroup::{Cgroups, Controller, Io, Limits, Version};
use wakeful_confine::claim::{Claim, Claims, UIDS};

/// What an engine needs beside the guest's memory and the translation buffer.
const MEMORY_BESIDE: u64 = 128 << 20;
/// Threads beside the guest's processors: the main one, the emulator's, and those that wait for the disk (at most 64).
const TASKS_BESIDE: u32 = 96;
/// How much longer than the guest's disk or memory a file may be: what an engine prints, and its device state.
const FILE_BESIDE: u64 = 64 << 20;

const KVM: &str = "/dev/kvm";
/// Devices that engines open, and where each is in an engine's world. On `/dev/null` QEMU tries how files are locked.
pub(crate) const DEVICES: [(&str, &CStr); 3] =
    [("/dev/null", c"dev/null"), ("/dev/urandom", c"dev/urandom"), (KVM, c"dev/kvm")];

/// What is around engines here.
#[derive(Clone, Debug)]
pub(crate) struct Jail {
    /// `None` if engines run as whoever we are.
    claims: Option<Claims>,
    walls: bool,
    filter: Arc<[Instruction]>,
    pub(crate) cgroups: Arc<Cgroups>,
    io: Option<Io>,
}

/// How well engines are confined on this host; `None` where all is well, else what was in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Own root, process table, network.
    pub namespaces: Option<String>,
    /// What is limited, and by which version of cgroups (1 or 2).
    pub limits: Vec<(&'static str, u32)>,
    /// What cannot be limited.
    pub unlimited: Vec<&'static str>,
    /// System call filter.
    pub filter: Option<String>,
}

impl Confinement {
    /// Tries everything that engines are confined by. Quick, and leaves nothing.
    #[must_use]
    pub fn examine() -> Self {
        let told = |result: io::Result<()>| result.err().map(|error| error.to_string());
        let limits = Cgroups::open().controllers();
        let unlimited = [Controller::Memory, Controller::Pids, Controller::Cpu, Controller::Io]
            .into_iter()
            .filter(|wanted| limits.iter().all(|(there, _)| there != wanted));
        let number = |version| if version == Version::One { 1 } else { 2 };
        Self {
            namespaces: told(attempt(true, &[])),
            unlimited: unlimited.map(Controller::name).collect(),
            limits: limits.iter().map(|&(controller, version)| (controller.name(), number(version))).collect(),
            filter: told(attempt(false, &filter::program())),
        }
    }
}

impl Jail {
    /// Without root there is only one uid to have, and no wall to build; and 0 asks for engines that run as root, without
    /// its capabilities.
    pub(crate) fn open(engine_uid: u32, io: Option<Io>) -> io::Result<Self> {
        let root = rustix::process::geteuid().is_root();
        let claims = if root && engine_uid != 0 { Some(Claims::new(Path::new(UIDS), engine_uid)?) } else { None };
        if let Some(claims) = &claims {
            claims.sweep();
        }
        let walls = root
            && attempt(true, &[])
                .inspect_err(|error| {
                    tracing::warn!(error = error.to_string(), "engines cannot have namespaces of their own");
                })
                .is_ok();
        if !root {
            tracing::warn!("not running as root: engines share our user, and are neither walled in nor limited");
        }
        let cgroups = if root { Cgroups::open() } else { Cgroups::default() };
        Ok(Self { claims, walls, filter: filter::program().into(), cgroups: Arc::new(cgroups), io })
    }

    /// Whether engines have ids of their own.
    pub(crate) fn switches(&self) -> bool {
        self.claims.is_some()
    }

    pub(crate) fn claim(&self, name: &str) -> io::Result<Option<Claim>> {
        self.claims.as_ref().map(|claims| claims.take(name)).transpose()
    }

    /// Where uids are claimed, if engines have their own.
    pub(crate) fn claims(&self) -> Option<&Claims> {
        self.claims.as_ref()
    }

    /// Who the engine is that has this claim. `groups` are further ones it needs (for `/dev/kvm`).
    pub(crate) fn identity(&self, claim: &Claim, groups: &[u32], memory: &Memory, engine: &Pinned) -> Identity {
        let mut groups = groups.to_vec();
        if let (Some(claims), Memory::Private(MemoryBase::Golden(_))) = (&self.claims, memory)
            && !engine.maps_read_only()
        {
            groups.push(claims.shared_group());
        }
        Identity { uid: claim.uid, gid: claim.uid, groups }
    }

    /// Lets an engine open its memory file, with the least that this version needs.
    pub(crate) fn grant(&self, file: &File, memory: &Memory, claim: Option<&Claim>, engine: &Pinned) -> io::Result<()> {
        match (memory, claim) {
            (Memory::Private(MemoryBase::Golden(_)), _) => self.seal(file, engine),
            (_, None) => file.set_permissions(Permissions::from_mode(0o600)),
            (memory, Some(claim)) => {
                let read_only = engine.maps_read_only() && *memory != Memory::Shared;
                give(file, claim.uid, if read_only { 0o440 } else { 0o660 })
            }
        }
    }

    /// Makes golden memory nobody's to write, as far as this version can do without.
    pub(crate) fn seal(&self, file: &File, engine: &Pinned) -> io::Result<()> {
        match &self.claims {
            Some(claims) if !engine.maps_read_only() => give(file, claims.shared_group(), 0o660),
            Some(_) => give(file, 0, 0o444),
            None if engine.maps_read_only() => file.set_permissions(Permissions::from_mode(0o444)),
            None => file.set_permissions(Permissions::from_mode(0o600)),
        }
    }

    /// The mounts that the engine's world is made of; `None` if it stays in ours.
    pub(crate) fn world(&self, engine: &Pinned, accelerator: Accelerator) -> io::Result<Option<World>> {
        if !self.walls {
            return Ok(None);
        }
        let root = walls::detached(&engine.path, Rights::ReadOnly)?;
        let wanted = DEVICES.iter().filter(|(path, _)| *path != KVM || accelerator == Accelerator::Kvm);
        let devices = wanted.map(|(path, place)| Ok((walls::detached(Path::new(path), Rights::Device)?, *place)));
        Ok(Some(World { root, devices: devices.collect::<io::Result<_>>()? }))
    }

    pub(crate) fn filter(&self) -> &[Instruction] {
        &self.filter
    }

    /// What an engine with this guest may use.
    pub(crate) fn limits(&self, machine: Machine, accelerator: Accelerator) -> Limits {
        let buffer = if accelerator == Accelerator::Tcg { boot::TRANSLATION_MB << 20 } else { 0 };
        Limits {
            memory_bytes: (u64::from(machine.memory_mb) << 20) + buffer + MEMORY_BESIDE,
            tasks: TASKS_BESIDE + 2 * machine.cpu,
            cpus: machine.cpu,
            // One more than it has, for what works beside it.
            processors: machine.cpu + 1,
            io: self.io,
        }
    }

    /// The longest file that an engine with this guest writes.
    pub(crate) fn longest_file(machine: Machine) -> u64 {
        (u64::from(machine.memory_mb.max(machine.disk_mb)) << 20) + FILE_BESIDE
    }
}

/// What an engine sees.
pub(crate) struct World {
    root: OwnedFd,
    devices: Vec<(OwnedFd, &'static CStr)>,
}

impl World {
    /// Calls `then` with the walls around it.
    pub(crate) fn with<T>(world: Option<&Self>, then: impl FnOnce(Option<Walls<'_>>) -> T) -> T {
        let Some(world) = world else { return then(None) };
        let devices: Vec<_> = world.devices.iter().map(|(device, place)| (device.as_fd(), *place)).collect();
        then(Some(Walls { root: world.root.as_fd(), devices: &devices }))
    }
}

/// Root's, and this group's as far as the mode says. Nothing is done to a file that is so already: several engines share
/// a golden one.
fn give(file: &File, group: u32, mode: u32) -> io::Result<()> {
    let meta = file.metadata()?;
    if (meta.uid(), meta.gid()) != (0, group) {
        fchown(file, Some(0), Some(group))?;
    }
    if meta.mode() & 0o7777 != mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Starts a program that does not exist: when that is what fails, all before it has worked.
fn attempt(walled: bool, filter: &[Instruction]) -> io::Result<()> {
    let root = if walled { Some(walls::detached(Path::new("/"), Rights::ReadOnly)?) } else { None };
    let nowhere = File::options().write(true).open("/dev/null")?;
    let started = spawn::spawn(&spawn::Spec {
        program: Path::new("/nonexistent/engine"),
        args: &[],
        env: &[],
        inherit: &[],
        output: &nowhere,
        pid_file: nowhere.as_fd(),
        identity: None,
        walls: root.as_ref().map(|root| Walls { root: root.as_fd(), devices: &[] }),
        cgroup: None,
        longest_file: None,
        filter,
    });
    match started {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("a program that does not exist was started")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn engine(version: &str) -> Pinned {
        Pinned { name: String::new(), path: PathBuf::new(), version: version.to_owned(), digest: String::new() }
    }

    #[test]
    fn only_old_engines_may_write_to_golden_memory() {
        let (dir, file) = (tempfile::tempdir().expect("can be made"), tempfile::tempfile().expect("can be made"));
        let claims = Claims::new(dir.path(), 1_900_000_000).expect("can be made");
        let jail =
            Jail { claims: Some(claims), walls: false, filter: Arc::from([]), cgroups: Arc::default(), io: None };
        let claim = jail.claim("sbx_a").expect("one is free").expect("it switches");
        let golden = Memory::Private(MemoryBase::Golden("/golden".into()));
        let own = Memory::Private(MemoryBase::Own);
        let groups = |memory: &Memory, version: &str| jail.identity(&claim, &[], memory, &engine(version)).groups;
        assert_eq!(groups(&golden, "7.2.22"), [1_900_000_000]);
        assert!(groups(&golden, "10.0.2").is_empty() && groups(&own, "7.2.22").is_empty());

        let rights = |memory: &Memory, version: &str| {
            jail.grant(&file, memory, Some(&claim), &engine(version)).expect("root may do that");
            let meta = file.metadata().expect("is open");
            (meta.gid(), meta.mode() & 0o777)
        };
        assert_eq!(rights(&golden, "7.2.22"), (1_900_000_000, 0o660));
        assert_eq!(rights(&golden, "8.2.0"), (0, 0o444));
        assert_eq!(rights(&own, "8.2.0"), (claim.uid, 0o440));
        assert_eq!(rights(&own, "7.2.22"), (claim.uid, 0o660));
        assert_eq!(rights(&Memory::Shared, "10.0.2"), (claim.uid, 0o660));
    }

    #[test]
    fn this_host_confines() {
        let found = Confinement::examine();
        assert_eq!((found.namespaces, found.filter), (None, None), "tests run as root");
        assert_eq!(found.limits.len() + found.unlimited.len(), 4);
    }
}
