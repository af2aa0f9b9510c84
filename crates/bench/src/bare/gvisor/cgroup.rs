//! A bare sandbox's cgroup: beside those of the daemon's engines, with the limits of one of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;

/// What is copied from one to the other.
const LIMITS: [&str; 9] = [
    "cpuset.cpus",
    "cpuset.mems",
    "memory.limit_in_bytes",
    "memory.max",
    "pids.max",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "cpu.max",
    "cpu.shares",
];
/// Killed processes are gone within this.
const GONE: Duration = Duration::from_secs(20);

/// Where cgroups of engines are, and what is set in each: one for every hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Example {
    beside: PathBuf,
    limits: Vec<(&'static str, String)>,
}

impl Example {
    /// Those of a living engine.
    pub(crate) fn of(pid: u32) -> io::Result<Vec<Self>> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let top = Path::new("/sys/fs/cgroup");
        Ok(directories(&text, top).iter().filter(|dir| dir.is_dir()).map(|dir| Self::at(dir)).collect())
    }

    fn at(dir: &Path) -> Self {
        let limit = |name: &'static str| Some((name, fs::read_to_string(dir.join(name)).ok()?.trim().to_owned()));
        Self { beside: dir.to_owned(), limits: LIMITS.into_iter().filter_map(limit).collect() }
    }
}

/// The directories that a line of `/proc/PID/cgroup` stands for. Whoever was not put anywhere is at the top.
fn directories(text: &str, top: &Path) -> Vec<PathBuf> {
    let lines = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        Some((parts.nth(1)?, parts.next()?.trim_start_matches('/')))
    });
    let lines = lines.filter(|(_, path)| path.contains('/'));
    let mount = |controllers: &str| match controllers {
        "" if top.join("unified").is_dir() => top.join("unified"),
        "" => top.to_owned(),
        named => top.join(named.trim_start_matches("name=")),
    };
    lines.map(|(controllers, path)| mount(controllers).join(path)).collect()
}

/// Of one sandbox. Dropped, everything in it is killed and it is gone.
pub(crate) struct Cgroup {
    dirs: Vec<PathBuf>,
}

impl Cgroup {
    pub(crate) fn make(like: &[Example], name: &str) -> io::Result<Self> {
        let mut made = Self { dirs: Vec::new() };
        for example in like {
            let dir = example.beside.with_file_name(name);
            fs::create_dir(&dir)?;
            made.dirs.push(dir.clone());
            for (file, text) in &example.limits {
                // A period that the kernel does not know, or processors that there are none of, are its own defaults.
                let set = fs::write(dir.join(file), text);
                if file.starts_with("memory") {
                    set?;
                }
            }
        }
        Ok(made)
    }

    /// Like that of a living engine.
    pub(crate) fn like(pid: u32, name: &str) -> Result<Self, Error> {
        let made = Example::of(pid).and_then(|like| Self::make(&like, name));
        made.map_err(Error::io("make a cgroup like an engine's"))
    }

    pub(crate) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    fn pids(&self) -> Vec<i32> {
        let all = self.dirs.iter().filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok());
        let mut pids: Vec<i32> = all.flat_map(|text| numbers(&text)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Ends everything in it, and waits until it is gone.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let began = Instant::now();
        loop {
            let pids = self.pids();
            if pids.is_empty() {
                return Ok(());
            }
            if began.elapsed() > GONE {
                return Err(io::Error::other(format!("processes that do not end: {pids:?}")));
            }
            for pid in pids.into_iter().filter_map(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
            crate::pause(Duration::from_millis(1));
        }
    }

    pub(crate) fn remove(&self) {
        let _ = self.kill();
        for dir in &self.dirs {
            let _ = fs::remove_dir(dir);
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.remove();
    }
}

fn numbers(text: &str) -> Vec<i32> {
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Thaws and ends what is in a cgroup that nobody owns any more; it is removed if that works.
pub(crate) fn erase(dir: &Path, deadline: Instant) {
    let _ = fs::write(dir.join("freezer.state"), "THAWED");
    let _ = fs::write(dir.join("cgroup.freeze"), "0");
    loop {
        let pids = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        for pid in numbers(&pids).into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if fs::remove_dir(dir).is_ok() || !dir.exists() || Instant::now() > deadline {
            return;
        }
        crate::pause(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_directories() {
        let top = tempfile::tempdir().expect("a directory");
        let two = directories("0::/wakeful/ab.sbx\n", top.path());
        assert_eq!(two, [top.path().join("wakeful/ab.sbx")]);
        fs::create_dir(top.path().join("unified")).expect("can be made");
        let text =
            "9:name=systemd:/wakeful/ab.sbx\n4:memory:/wakeful/ab.sbx\n2:cpu,cpuacct:/wakeful/ab.sbx\n1:pids:/\n0::/\n";
        let one: Vec<PathBuf> =
            ["systemd", "memory", "cpu,cpuacct"].map(|name| top.path().join(name).join("wakeful/ab.sbx")).into();
        assert_eq!(directories(text, top.path()), one);
    }

    #[test]
    fn limits_are_copied() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = dir.path().join("ab.first");
        fs::create_dir(&first).expect("can be made");
        fs::write(first.join("memory.max"), "268435456\n").expect("can be written");
        let example = Example::at(&first);
        assert_eq!(example.limits, [("memory.max", "268435456".to_owned())]);
        let made = Cgroup::make(&[example], "ab.second").expect("an empty directory");
        assert_eq!(fs::read_to_string(dir.path().join("ab.second/memory.max")).expect("is there"), "268435456");
        assert!(made.pids().is_empty());
    }
}
