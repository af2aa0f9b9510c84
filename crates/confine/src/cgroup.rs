//! How much of the host an engine may use.
//!
//! Each engine has a cgroup of its own, `wakeful/<run directory's parent>.<its name>`, in every hierarchy that has a
//! controller we want: the one of version 2, or those of version 1, or some here and some there. The name comes from the
//! run directory, which is made before and removed after it, so whoever finds the one can remove the other. `wakeful`
//! lies at the top and not below the daemon's own cgroup: engines outlive the daemon, and a service manager could not
//! start the next one in a cgroup that has engines below it.
//!
//! In version 2 an engine is born in its cgroup. In version 1 it is put there while it starts: joining waits for all
//! processors (7 ms), so it goes on beside the start, and no engine is handed out before it is inside.
//!
//! A host on which some of this cannot be had runs engines without it, and `doctor` says so.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use wakeful_sys::pidfd;

use crate::files;

const TOP: &str = "wakeful";
/// Length of the period in which processor time is counted, in microseconds.
const PERIOD: u64 = 100_000;
/// Within which the kernel must let go of a cgroup whose processes were killed.
const EMPTY: Duration = Duration::from_secs(2);

/// Tells apart those of one process that look at the same time.
static TRIES: AtomicU32 = AtomicU32::new(0);

/// What can be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Memory, page cache included.
    Memory,
    /// Threads.
    Pids,
    /// Processor time.
    Cpu,
    /// Bytes to and from disks.
    Io,
}

impl Controller {
    const ALL: [Self; 4] = [Self::Memory, Self::Pids, Self::Cpu, Self::Io];

    /// As version 2 and people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Io => "io",
        }
    }

    fn version_1_name(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.name(),
        }
    }
}

/// Of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One hierarchy for all.
    Two,
}

/// What one engine may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory, page cache included.
    pub memory_bytes: u64,
    /// Threads, that is.
    pub tasks: u32,
    /// Processors of the guest, by which it is weighed.
    pub cpus: u32,
    /// Processors' time that it may use.
    pub processors: u32,
    /// Of each direction, on the disk that the data is on.
    pub io: Option<Io>,
}

/// Limits of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// The disk's numbers.
    pub device: (u32, u32),
    /// Of each direction.
    pub bytes_per_second: u64,
}

/// One mounted hierarchy, as far as we use it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    mount: PathBuf,
    controllers: Vec<Controller>,
}

/// The hierarchies of this host.
#[derive(Clone, Debug, Default)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    /// Mounts of version 1 without a controller that we want.
    others: Vec<PathBuf>,
}

/// In how many hierarchies an engine has a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those that limit something.
    Limits,
    /// Every one of version 1: an engine that joins its cgroup by itself would make what is missing, and leave it.
    Everywhere,
}

impl Cgroups {
    /// Those in which a cgroup can really be made: each is tried.
    pub fn open() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut hierarchies = parse_mounts(&mounts);
        let known: Vec<Controller> = hierarchies.iter().flat_map(|found| found.controllers.clone()).collect();
        for found in &mut hierarchies {
            if found.version == Version::Two {
                found.controllers = enable(&found.mount, |controller| !known.contains(&controller));
            }
        }
        hierarchies.retain(|found| !found.controllers.is_empty());
        let limits = Limits { memory_bytes: 64 << 20, tasks: 16, cpus: 1, processors: 1, io: None };
        let name = format!("try.{}.{}", std::process::id(), TRIES.fetch_add(1, Ordering::Relaxed));
        hierarchies.retain(|found| {
            let dir = found.directory(&name);
            let works = empty_and_remove(&dir).and_then(|()| found.create(&name, &limits)).and_then(fs::remove_dir);
            if let Err(error) = &works {
                let mount = found.mount.display().to_string();
                tracing::warn!(mount, error = error.to_string(), "engines cannot be limited here");
            }
            works.is_ok()
        });
        Self { hierarchies, others: parse_others(&mounts) }
    }

    /// What is limited, and by which version.
    pub fn controllers(&self) -> Vec<(Controller, Version)> {
        let all = self.hierarchies.iter();
        all.flat_map(|found| found.controllers.iter().map(|&controller| (controller, found.version))).collect()
    }

    /// Makes the cgroup of the engine in this run directory, which must exist.
    ///
    /// # Errors
    /// If the kernel does not take it; nothing is left of it at the next [`Cgroups::remove`].
    pub fn create(&self, run: &Path, limits: &Limits, reach: Reach) -> io::Result<Cgroup> {
        self.remove(run)?;
        let (mut cgroup, name) = (Cgroup { dirs: Vec::new() }, name(run));
        for hierarchy in &self.hierarchies {
            cgroup.dirs.push((hierarchy.version, hierarchy.create(&name, limits)?));
        }
        if reach == Reach::Everywhere {
            for mount in &self.others {
                make_plain(mount, &name)?;
            }
        }
        Ok(cgroup)
    }

    /// Where the cgroup of the engine in this run directory is, from the top of every hierarchy.
    #[must_use]
    pub fn path(run: &Path) -> PathBuf {
        Path::new("/").join(TOP).join(name(run))
    }

    /// The file of the first hierarchy by which a process enters it; what is in there is found by [`Cgroups::members`].
    ///
    /// # Errors
    /// If there is none.
    pub fn door(&self, run: &Path) -> io::Result<Option<File>> {
        let Some(hierarchy) = self.hierarchies.first() else { return Ok(None) };
        File::options().write(true).open(hierarchy.directory(&name(run)).join("cgroup.procs")).map(Some)
    }

    /// The processes in it.
    #[must_use]
    pub fn members(&self, run: &Path) -> Vec<u32> {
        let Some(hierarchy) = self.hierarchies.first() else { return Vec::new() };
        let text = fs::read_to_string(hierarchy.directory(&name(run)).join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Removes it, and ends what is still in it: an engine that has given up its lock hides nowhere else.
    pub fn remove(&self, run: &Path) -> io::Result<()> {
        let name = name(run);
        let others = self.others.iter().map(|mount| mount.join(TOP).join(&name));
        self.hierarchies
            .iter()
            .map(|hierarchy| hierarchy.directory(&name))
            .chain(others)
            .try_for_each(|dir| empty_and_remove(&dir))
    }

    /// Whether the kernel has ended a process of it for want of memory.
    pub fn out_of_memory(&self, run: &Path) -> bool {
        let name = name(run);
        let memory = self.hierarchies.iter().find(|found| found.controllers.contains(&Controller::Memory));
        memory.is_some_and(|found| {
            let file = match found.version {
                Version::One => "memory.oom_control",
                Version::Two => "memory.events",
            };
            let text = fs::read_to_string(found.directory(&name).join(file)).unwrap_or_default();
            text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
        })
    }
}

/// Cgroups of engines in `run` whose run directory is gone, in every hierarchy that is mounted.
pub fn orphans(run: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let tops = parse_mounts(&mounts).into_iter().map(|found| found.mount.join(TOP));
    let cgroups = tops.flat_map(|top| fs::read_dir(top).into_iter().flatten().flatten());
    let prefix = format!("{}.", run.file_name().unwrap_or_default().to_string_lossy());
    let orphaned = |name: &str| name.strip_prefix(&prefix).is_some_and(|place| !run.join(place).exists());
    cgroups.filter(|cgroup| cgroup.file_name().to_str().is_some_and(orphaned)).map(|cgroup| cgroup.path()).collect()
}

/// One engine's cgroup.
#[derive(Debug)]
pub struct Cgroup {
    dirs: Vec<(Version, PathBuf)>,
}

impl Cgroup {
    /// The directory that the engine is born in.
    pub fn cradle(&self) -> io::Result<Option<OwnedFd>> {
        let Some((_, dir)) = self.dirs.iter().find(|(version, _)| *version == Version::Two) else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Some(rustix::fs::open(dir, flags, Mode::empty())?))
    }

    /// Puts a process into those that it was not born in. Blocks for some milliseconds.
    pub fn join(&self, pid: u32) -> io::Result<()> {
        for (_, dir) in self.dirs.iter().filter(|(version, _)| *version == Version::One) {
            write(&dir.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }
}

impl Hierarchy {
    fn directory(&self, name: &str) -> PathBuf {
        self.mount.join(TOP).join(name)
    }

    fn create(&self, name: &str, limits: &Limits) -> io::Result<PathBuf> {
        let dir = self.directory(name);
        files::make_dir(&self.mount.join(TOP), 0o755)?;
        fs::create_dir(&dir)?;
        let limited = self.controllers.iter().try_for_each(|&controller| self.limit(&dir, controller, limits));
        match limited {
            Ok(()) => Ok(dir),
            Err(error) => {
                let _ = fs::remove_dir(dir);
                Err(error)
            }
        }
    }

    fn limit(&self, dir: &Path, controller: Controller, limits: &Limits) -> io::Result<()> {
        let set = |file: &str, value: String| write(&dir.join(file), &value);
        let (cpus, quota) = (u64::from(limits.cpus), u64::from(limits.processors) * PERIOD);
        match (controller, self.version) {
            (Controller::Memory, Version::One) => set("memory.limit_in_bytes", limits.memory_bytes.to_string()),
            (Controller::Memory, Version::Two) => set("memory.max", limits.memory_bytes.to_string()),
            (Controller::Pids, _) => set("pids.max", limits.tasks.to_string()),
            // Weight by the size of the guest.
            (Controller::Cpu, Version::One) => {
                set("cpu.shares", (1024 * cpus).min(262_144).to_string())?;
                files::absent_is_fine(set("cpu.cfs_period_us", PERIOD.to_string()))?;
                files::absent_is_fine(set("cpu.cfs_quota_us", quota.to_string()))
            }
            (Controller::Cpu, Version::Two) => {
                set("cpu.weight", (100 * cpus).min(10_000).to_string())?;
                files::absent_is_fine(set("cpu.max", format!("{quota} {PERIOD}")))
            }
            (Controller::Io, version) => {
                let Some(Io { device: (major, minor), bytes_per_second: most }) = limits.io else { return Ok(()) };
                match version {
                    Version::One => {
                        set("blkio.throttle.read_bps_device", format!("{major}:{minor} {most}"))?;
                        set("blkio.throttle.write_bps_device", format!("{major}:{minor} {most}"))
                    }
                    Version::Two => set("io.max", format!("{major}:{minor} rbps={most} wbps={most}")),
                }
            }
        }
    }
}

/// The whole disk that a file is on; limits are not for partitions. `None` if it is on no disk.
pub fn disk_of(path: &Path) -> io::Result<Option<(u32, u32)>> {
    let device = fs::metadata(path)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(mut dir) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else { return Ok(None) };
    if dir.join("partition").exists() {
        dir.pop();
    }
    let text = fs::read_to_string(dir.join("dev"))?;
    let (major, minor) = text.trim().split_once(':').ok_or(io::ErrorKind::InvalidData)?;
    let number = |text: &str| text.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    Ok(Some((number(major)?, number(minor)?)))
}

/// Data directory and sandbox, in one word.
fn name(run: &Path) -> String {
    let word = |path: Option<&Path>| {
        let name = path.and_then(Path::file_name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    format!("{}.{}", word(run.parent()), word(Some(run)))
}

/// Kernel files take a value in one write, at once or not at all.
fn write(path: &Path, value: &str) -> io::Result<()> {
    use std::io::Write;
    let mut file = File::options().write(true).open(path)?;
    file.write_all(value.as_bytes())
        .map_err(|error| io::Error::new(error.kind(), format!("write {value} to {}: {error}", path.display())))
}

/// The controllers of version 2 that are wanted and can be had below `wakeful`.
fn enable(mount: &Path, wanted: impl Fn(Controller) -> bool) -> Vec<Controller> {
    let there = |dir: &Path, file: &str| {
        let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
        let named = |controller: &Controller| text.split_ascii_whitespace().any(|word| word == controller.name());
        Controller::ALL.into_iter().filter(named).collect::<Vec<_>>()
    };
    let wanted: Vec<Controller> = there(mount, "cgroup.controllers").into_iter().filter(|one| wanted(*one)).collect();
    if wanted.is_empty() {
        return wanted;
    }
    let top = mount.join(TOP);
    for dir in [mount, &top] {
        if files::make_dir(dir, 0o755).is_err() {
            return Vec::new();
        }
        for controller in &wanted {
            // What is enabled already may be all that we are allowed to have; the outcome is looked at.
            let _ = write(&dir.join("cgroup.subtree_control"), &format!("+{}", controller.name()));
        }
    }
    there(&top, "cgroup.subtree_control").into_iter().filter(|controller| wanted.contains(controller)).collect()
}

/// A cgroup that limits nothing. Processors and memory nodes must be named before anybody may join.
fn make_plain(mount: &Path, name: &str) -> io::Result<()> {
    let top = mount.join(TOP);
    files::make_dir(&top, 0o755)?;
    let dir = top.join(name);
    fs::create_dir(&dir)?;
    for (above, dir) in [(mount, &top), (&top, &dir)] {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if dir.join(file).exists() && fs::read_to_string(dir.join(file))?.trim().is_empty() {
                write(&dir.join(file), fs::read_to_string(above.join(file))?.trim())?;
            }
        }
    }
    Ok(())
}

/// Mounts of version 1 that [`parse_mounts`] leaves out.
fn parse_others(text: &str) -> Vec<PathBuf> {
    let known: Vec<PathBuf> = parse_mounts(text).into_iter().map(|found| found.mount).collect();
    let mounts = text.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mount = mount.split(' ').nth(4).filter(|mount| !mount.contains('\\'))?;
        let same = |options: &str| {
            options.split(',').any(|word| Controller::ALL.iter().any(|one| one.version_1_name() == word))
        };
        let options = system.split(' ').nth(2).unwrap_or_default();
        (system.starts_with("cgroup ") && !same(options)).then(|| PathBuf::from(mount))
    });
    mounts.filter(|mount| !known.contains(mount)).collect()
}

/// Hierarchies of version 1 with a controller that we want, and that of version 2, whose controllers are not known yet.
fn parse_mounts(text: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in text.lines() {
        let Some((mount, system)) = line.split_once(" - ") else { continue };
        let Some(mount) = mount.split(' ').nth(4).filter(|mount| !mount.contains('\\')) else { continue };
        let mut words = system.split(' ');
        let (kind, options) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
        let has = |controller: &Controller| options.split(',').any(|word| word == controller.version_1_name());
        let known = |controller: &Controller| found.iter().any(|other| other.controllers.contains(controller));
        let (version, controllers) = match kind {
            "cgroup" => {
                let new = Controller::ALL.into_iter().filter(|one| has(one) && !known(one)).collect::<Vec<_>>();
                (Version::One, new)
            }
            "cgroup2" if found.iter().all(|other| other.version == Version::One) => (Version::Two, Vec::new()),
            _ => continue,
        };
        if version == Version::Two || !controllers.is_empty() {
            found.push(Hierarchy { version, mount: PathBuf::from(mount), controllers });
        }
    }
    found
}

/// A cgroup whose last process has just ended may be busy for a moment.
pub fn empty_and_remove(dir: &Path) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < EMPTY => {
                let members = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                for pid in members.lines().filter_map(|line| line.parse().ok()) {
                    if let Ok(process) = pidfd::open(pid)
                        && pidfd::kill(&process).is_ok()
                    {
                        let _ = pidfd::wait_ended(&process, EMPTY);
                    }
                }
                std::thread::yield_now();
            }
            other => return files::absent_is_fine(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_both_versions_are_found() {
        let hybrid = "\
24 23 0:20 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
25 24 0:21 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
26 24 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
27 24 0:23 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
28 24 0:24 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
29 24 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
30 24 0:26 / /mnt/again rw - cgroup cgroup rw,memory
";
        let found = parse_mounts(hybrid);
        assert_eq!(parse_others(hybrid), [Path::new("/sys/fs/cgroup/systemd")]);
        let shown: Vec<_> = found
            .iter()
            .map(|one| (one.version, one.mount.to_str().expect("text"), one.controllers.as_slice()))
            .collect();
        assert_eq!(
            shown,
            [
                (Version::One, "/sys/fs/cgroup/cpu,cpuacct", [Controller::Cpu].as_slice()),
                (Version::One, "/sys/fs/cgroup/memory", &[Controller::Memory]),
                (Version::One, "/sys/fs/cgroup/blkio", &[Controller::Io]),
                (Version::Two, "/sys/fs/cgroup/unified", &[]),
            ]
        );
        let unified = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(parse_mounts(unified).len(), 1);
        assert_eq!(parse_mounts("nonsense\n1 2 3\n"), []);
    }

    #[test]
    fn a_name_tells_daemon_and_sandbox() {
        assert_eq!(name(Path::new("/run/wakeful/1626faa6bd6b/k3vabc")), "1626faa6bd6b.k3vabc");
    }

    #[test]
    fn the_data_s_disk_is_found() {
        let disk = disk_of(&std::env::current_dir().expect("there is one")).expect("can be looked at");
        if let Some((major, minor)) = disk {
            assert!(!Path::new(&format!("/sys/dev/block/{major}:{minor}/partition")).exists());
        }
        assert_eq!(disk_of(Path::new("/proc")).expect("can be looked at"), None);
    }
}
