//! The bare engine's processes, and the mounts that only they see.
//!
//! ```text
//!   MOUNTS (a tmpfs)/disk    disk.ext4, by a loop device, under the sandbox's ids     upper, work
//!                   /base    the template's directory, read-only, under the same      lower
//!                   /root    the overlay of both: what the sandbox sees
//!                   /agent   what is bound into it
//! ```
//!
//! A thread leaves the host's mounts, makes these, starts `runsc` and ends. They go with the last process in there. The
//! place is one that anybody may pass: the sandbox's users may not pass the data directory.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use serde_json::Value;
use wakeful_sys::mounts::{Access, LoopDevice, as_owner, attach, idmapped, private_mounts, user_namespace};

use super::Bare;
use super::blueprint::Place;
use super::cgroup::Cgroup;
use super::control::call;
use super::slot::Slot;
use crate::Error;
use crate::bare::SPAWN;
use crate::site::within;

/// What the sentry of Debian's 20240729 takes for the sign of the host's own network; newer kernels show it in all.
const ROOT_SIGN: &str = "/proc/sys/net/core/rmem_default";
/// Every host has it.
const MOUNTS: &str = "/mnt";
/// Within which the kernel lets go of a disk whose engine has ended.
const FREE: Duration = Duration::from_secs(20);

/// How it begins.
pub(crate) enum Begin<'a> {
    /// With the agent, which reads this secret first.
    Run(&'a [u8; 32]),
    /// With the memory in this directory.
    Restore(&'a Path),
}

/// A running engine. Dropped, it is killed and its sockets are gone.
pub(crate) struct Process {
    cgroup: Cgroup,
    run: PathBuf,
    /// The directory on which its disk is mounted, open.
    disk: Option<File>,
    control: PathBuf,
}

impl Process {
    /// Starts an engine over the disk in `dir`.
    pub(crate) fn start(bare: &Bare, name: &str, dir: &Path, slot: &Slot, begin: &Begin<'_>) -> Result<Self, Error> {
        let failed = || Error::io("start a bare engine");
        let (run, cgroup_name) = (bare.run.join(name), format!("{}.{name}", bare.prefix));
        let state = run.join("s");
        fs::create_dir(&run).and_then(|()| fs::create_dir(&state)).map_err(failed())?;
        let control = state.join(format!("runsc-{name}.sock"));
        let cgroup = Cgroup::make(&bare.blueprint.cgroups, &cgroup_name).map_err(Error::io("make a bare cgroup"))?;
        let mut process = Self { cgroup, run, disk: None, control };
        let (mounts, card) = (Path::new(MOUNTS), slot.card_path());
        let config = bare.blueprint.config(&Place { mounts, card: &card, cgroup: &cgroup_name });
        fs::write(dir.join("config.json"), config.to_string()).map_err(failed())?;
        free(&dir.join("disk.ext4")).map_err(failed())?;

        let log = process.run.join("output");
        let mut command = Command::new(&bare.blueprint.runsc);
        command.args(&bare.blueprint.options).arg(format!("--root={}", state.display()));
        match begin {
            Begin::Run(_) => command.arg("run"),
            Begin::Restore(image) => command.arg("restore").arg("-image-path").arg(image),
        };
        // Not pipes: what it leaves running keeps them open.
        let output = File::create(&log).map_err(failed())?;
        command.args(["-detach", "-bundle"]).arg(dir).arg(name).stdout(output.try_clone().map_err(failed())?);
        command.stderr(output).stdin(if matches!(begin, Begin::Run(_)) { Stdio::piped() } else { Stdio::null() });
        let launch = || -> io::Result<(File, bool)> {
            private_mounts()?;
            let disk = world(dir, bare)?;
            within(slot.card(), || {
                if Path::new(ROOT_SIGN).exists() {
                    mount("none", "/proc/sys/net/core", "tmpfs", MountFlags::empty(), None)?;
                }
                Ok(())
            })?;
            let mut child = {
                let _turn = SPAWN.lock().unwrap_or_else(PoisonError::into_inner);
                command.spawn()?
            };
            if let (Some(mut input), Begin::Run(secret)) = (child.stdin.take(), begin) {
                input.write_all(*secret)?;
            }
            Ok((disk, child.wait()?.success()))
        };
        let launched = thread::scope(|scope| scope.spawn(launch).join());
        let (disk, well) = launched.map_err(|_| Error::engine("start", "a thread failed"))?.map_err(failed())?;
        process.disk = Some(disk);
        if well {
            return Ok(process);
        }
        let said = fs::read_to_string(log).unwrap_or_default();
        Err(Error::engine("start", said.lines().last().unwrap_or("it says nothing")))
    }

    pub(crate) fn pause(&self) -> Result<(), Error> {
        call(&self.control, "Pause", &Value::Null, &[])
    }

    pub(crate) fn resume(&self) -> Result<(), Error> {
        call(&self.control, "Resume", &Value::Null, &[])
    }

    /// Writes the memory of the stopped engine into a directory, and makes it and the disk durable. It stays stopped.
    pub(crate) fn save(&self, into: &Path) -> Result<(), Error> {
        let failed = || Error::io("write a bare checkpoint");
        let create = |name: &str| File::options().read(true).write(true).create_new(true).open(into.join(name));
        let files = ["checkpoint.img", "pages_meta.img", "pages.img"].map(create);
        let [state, index, pages] = files;
        let files = [state.map_err(failed())?, index.map_err(failed())?, pages.map_err(failed())?];
        let handed = files.each_ref().map(std::os::fd::AsFd::as_fd);
        let arg = serde_json::json!({"metadata": {"compression": "none"}, "have_pages_file": true, "Resume": true});
        call(&self.control, "Checkpoint", &arg, &handed)?;
        // The save has written out what the sentry kept of files; the disk's sync goes on beside that of the image.
        thread::scope(|scope| {
            let disk = scope.spawn(|| self.disk.as_ref().map_or(Ok(()), |disk| Ok(rustix::fs::syncfs(disk)?)));
            files.iter().try_for_each(File::sync_all).map_err(failed())?;
            disk.join().map_err(|_| Error::engine("sync its disk", "a thread failed"))?.map_err(failed())
        })
    }

    pub(crate) fn end(mut self) -> Result<(), Error> {
        self.disk = None;
        self.cgroup.kill().map_err(Error::io("end a bare engine"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.disk = None;
        self.cgroup.remove();
        let _ = fs::remove_dir_all(&self.run);
    }
}

/// Waits until nothing is mounted from a disk: two at once would ruin it.
fn free(disk: &Path) -> io::Result<()> {
    let began = Instant::now();
    while LoopDevice::find(disk).is_some() {
        if began.elapsed() > FREE {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "its disk is still in use"));
        }
        crate::pause(Duration::from_millis(1));
    }
    Ok(())
}

/// What the sandbox stands on, in the calling thread's mounts; the disk, open.
fn world(dir: &Path, bare: &Bare) -> io::Result<File> {
    let mounts = Path::new(MOUNTS);
    mount("none", mounts, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=755,size=1m"))?;
    let place = |name: &str| -> io::Result<PathBuf> {
        let path = mounts.join(name);
        fs::create_dir(&path)?;
        Ok(path)
    };
    let (raw, at, base, root) = (place("raw")?, place("disk")?, place("base")?, place("root")?);
    let (first, count) = bare.blueprint.ids;
    let users = user_namespace(first, count)?;
    {
        let file = File::options().read(true).write(true).open(dir.join("disk.ext4"))?;
        let device = LoopDevice::attach(&file, Access::ReadWrite)?;
        mount(device.path(), &raw, "ext4", MountFlags::NODEV | MountFlags::NOATIME, Some(c"discard"))?;
    }
    for name in ["upper", "work"] {
        match fs::create_dir(raw.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => done?,
        }
    }
    attach(idmapped(&raw, users.as_fd(), Access::ReadWrite)?.as_fd(), &at)?;
    unmount(&raw, UnmountFlags::DETACH)?;
    attach(idmapped(&bare.blueprint.base, users.as_fd(), Access::ReadOnly)?.as_fd(), &base)?;
    // Not as root: the kernel makes a directory in there, and root is none of the mapped ids.
    as_owner(first, || overlay(&base, &at, &root))?;
    for (name, source) in &bare.blueprint.bound {
        mount_bind(source, place(name)?)?;
    }
    File::open(&at)
}

/// Mounts an overlay whose upper layer is in a directory `upper` below `over`.
pub(crate) fn overlay(lower: &Path, over: &Path, at: &Path) -> io::Result<()> {
    let (lower, over) = (lower.display(), over.display());
    let options = format!("lowerdir={lower},upperdir={over}/upper,workdir={over}/work");
    let options = CString::new(options).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(mount("overlay", at, "overlay", MountFlags::NODEV | MountFlags::NOATIME, Some(options.as_c_str()))?)
}
