//! The bare engine's process: its own files and sockets under the numbers that its command line names.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;

use super::qmp::Qmp;
use super::{Bare, Blueprint, Role, SPAWN};
use crate::Error;

/// A running engine. Dropped, it is killed and its sockets are gone.
pub(crate) struct Process {
    child: Option<Child>,
    run: PathBuf,
}

impl Process {
    /// Starts an engine over its memory and the disk in `data`; sockets and output go to `run`.
    pub(crate) fn start(bare: &Bare, data: &Path, run: &Path) -> Result<Self, Error> {
        spawn(&bare.blueprint, bare.tap.as_deref(), data, run)
            .map(|child| Self { child: Some(child), run: run.to_owned() })
            .map_err(Error::io("start a bare engine"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.run.join(name)
    }

    /// Its monitor, once it speaks.
    pub(crate) fn monitor(&self) -> Result<Qmp, Error> {
        Qmp::connect(&self.socket("qmp")).map_err(|error| {
            let said = fs::read_to_string(self.socket("output")).unwrap_or_default();
            Error::engine("start", format!("{error}; it said: {}", said.trim()))
        })
    }

    pub(crate) fn end(mut self) {
        self.kill();
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.run);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(blueprint: &Blueprint, tap: Option<&OwnedFd>, data: &Path, run: &Path) -> io::Result<Child> {
    fs::create_dir(run)?;
    fs::set_permissions(run, Permissions::from_mode(0o700))?;
    let output = File::create(run.join("output"))?;
    let _turn = SPAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let listen = |name: &str| UnixListener::bind(run.join(name)).map(OwnedFd::from);
    let open = |path: &Path| File::open(path).map(OwnedFd::from);
    let overlay = File::options().read(true).write(true).open(data.join("overlay.ext4"))?;
    let mut fds = BTreeMap::from([
        (Role::Engine, open(&blueprint.engine_dir)?),
        (Role::Memory, open(&blueprint.memory)?),
        (Role::Base, open(&blueprint.base)?),
        (Role::Overlay, OwnedFd::from(overlay)),
        (Role::Agent, listen("agent")?),
        (Role::Monitor, listen("qmp")?),
    ]);
    if let Some(tap) = tap {
        fds.insert(Role::Tap, tap.try_clone()?);
    }
    for fd in fds.values() {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    }
    let number = |role: Role| fds.get(&role).map_or(-1, AsRawFd::as_raw_fd);
    let dir = format!("/proc/self/fd/{}", number(Role::Engine));
    let place = |role| {
        let number = number(role);
        (format!("/proc/self/fd/{number}"), number.to_string())
    };
    let uplink = if tap.is_some() { blueprint.uplink.as_slice() } else { &[] };
    Command::new(format!("{dir}/lib/ld-linux-x86-64.so.2"))
        .args(["--inhibit-cache", "--library-path"])
        .arg(format!("{dir}/lib"))
        .arg(format!("{dir}/bin/qemu-system-x86_64"))
        .args(["-L", &format!("{dir}/share")])
        .args(Blueprint::render(&blueprint.options, place))
        .args(Blueprint::render(uplink, place))
        .env_clear()
        .env("QEMU_MODULE_DIR", format!("{dir}/modules"))
        .env("LC_ALL", "C")
        .current_dir("/")
        // Another uid takes all capabilities and groups away.
        .gid(blueprint.gid)
        .uid(blueprint.uid)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
}

/// Whether a process has a file open whose path begins with `prefix`.
pub(crate) fn process_uses(pid: u32, prefix: &Path) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target.starts_with(prefix))
}
