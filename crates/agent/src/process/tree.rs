//! A process and everything that came from it, so that it can be ended as one: also what daemonized itself by forking
//! twice and leaving the session.
//!
//! With cgroup2 that is a cgroup of its own, from which nothing inside can walk away by itself. Without it (gVisor, an
//! ordinary machine in tests) a variable in the environment is the mark that descendants inherit, beside session, process
//! group and line of parents; a program that scrubs its environment *and* daemonizes escapes that fallback.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

const HIERARCHY: &str = "/sys/fs/cgroup";
const MARK: &str = "WAKEFUL_PROCESS";
/// New members may appear while we kill; a fork bomb must not keep us here for ever.
const ROUNDS: usize = 50;
/// More environment than this is not searched.
const MAX_ENVIRON: u64 = 256 << 10;

static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(crate) struct Tree {
    kind: Kind,
    removed: AtomicBool,
}

#[derive(Debug)]
enum Kind {
    Cgroup(PathBuf),
    Mark(String),
}

impl Tree {
    /// A new and empty one. Blocks for a moment.
    pub(crate) fn create() -> Self {
        Self::create_in(Path::new(HIERARCHY))
    }

    fn create_in(hierarchy: &Path) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = match std::process::id() {
            1 => format!("p{number}"),
            pid => format!("p{pid}-{number}"),
        };
        let kind = make_cgroup(hierarchy, &name).map_or(Kind::Mark(name), Kind::Cgroup);
        Self { kind, removed: AtomicBool::new(false) }
    }

    /// The file by which a child enters.
    pub(crate) fn entrance(&self) -> io::Result<Option<File>> {
        match &self.kind {
            Kind::Cgroup(path) => File::options().write(true).open(path.join("cgroup.procs")).map(Some),
            Kind::Mark(_) => Ok(None),
        }
    }

    /// The variable that marks a child, if marks are needed.
    pub(crate) fn mark(&self) -> Option<(&'static str, &str)> {
        match &self.kind {
            Kind::Cgroup(_) => None,
            Kind::Mark(mark) => Some((MARK, mark)),
        }
    }

    /// Kills all of it. `leader` is the child that was started into it and has not been waited for. Blocks for a moment.
    pub(crate) fn kill(&self, leader: u32) {
        match &self.kind {
            Kind::Cgroup(path) => {
                if fs::write(path.join("cgroup.kill"), "1").is_err() {
                    // Before Linux 5.14.
                    kill_until_none(|| members_of(path), |pid| is_member_of(path, pid));
                }
            }
            Kind::Mark(mark) => {
                let wanted = format!("{MARK}={mark}");
                kill_until_none(|| find_marked(&wanted, leader), |pid| find_marked(&wanted, leader).contains(&pid));
            }
        }
    }

    /// Gives back what the kernel holds for it; false while something in it is still alive.
    pub(crate) fn try_remove(&self) -> bool {
        let Kind::Cgroup(path) = &self.kind else { return true };
        if self.removed.load(Ordering::Relaxed) {
            return true;
        }
        let gone = match fs::remove_dir(path) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        self.removed.store(gone, Ordering::Relaxed);
        gone
    }
}

fn make_cgroup(hierarchy: &Path, name: &str) -> Option<PathBuf> {
    // Only a real cgroup2 mount has this file at its top (a tmpfs with cgroup1 mounts below it has not).
    if !hierarchy.join("cgroup.procs").exists() || !hierarchy.join("cgroup.controllers").exists() {
        return None;
    }
    let parent = hierarchy.join("wakeful");
    fs::create_dir_all(&parent).ok()?;
    let path = parent.join(name);
    match fs::create_dir(&path) {
        Ok(()) => Some(path),
        // Left by an agent that had our pid before: usable once nobody is in it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(&path).ok()?;
            fs::create_dir(&path).ok()?;
            Some(path)
        }
        Err(_) => None,
    }
}

fn kill_until_none(find: impl Fn() -> Vec<u32>, still: impl Fn(u32) -> bool) {
    for _ in 0..ROUNDS {
        let found = find();
        if found.is_empty() {
            return;
        }
        for pid in found {
            let Some(handle) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
            // Held first and looked at again, so that a pid which was given away meanwhile is not hit.
            match pidfd_open(handle, PidfdFlags::empty()) {
                Ok(held) if still(pid) => {
                    let _ = pidfd_send_signal(held, Signal::KILL);
                }
                // gVisor has no such handle; it gives a number away again only after all others.
                Err(Errno::NOSYS) if still(pid) => {
                    let _ = kill_process(handle, Signal::KILL);
                }
                _ => {}
            }
        }
    }
}

fn members_of(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| alive(*pid)).collect()
}

fn is_member_of(path: &Path, pid: u32) -> bool {
    members_of(path).contains(&pid)
}

/// Whether it has not ended.
pub(crate) fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.ended)
}

#[derive(Debug)]
struct Stat {
    ended: bool,
    parent: u32,
    process_group: u32,
    session: u32,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&text))
}

/// `pid (name) state ppid pgrp session …`; the name may hold anything, brackets too.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let mut number = || fields.next()?.parse().ok();
    Some(Stat { ended, parent: number()?, process_group: number()?, session: number()? })
}

/// Signals every process of a session.
pub(super) fn signal_session(session: u32, signal: Signal) {
    for pid in processes().filter(|pid| stat(*pid).is_some_and(|stat| !stat.ended && stat.session == session)) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn find_marked(wanted: &str, leader: u32) -> Vec<u32> {
    let own = std::process::id();
    let stats: HashMap<u32, Stat> = processes().filter_map(|pid| Some((pid, stat(pid)?))).collect();
    // The leader's number means something only while it is our child.
    let leads = stats.get(&leader).is_some_and(|stat| stat.parent == own);
    let descends = |mut pid: u32| {
        for _ in 0..stats.len() {
            if pid == leader {
                return true;
            }
            let Some(stat) = stats.get(&pid) else { return false };
            pid = stat.parent;
        }
        false
    };
    let belongs = |pid: u32, stat: &Stat| {
        (leads && (stat.session == leader || stat.process_group == leader || descends(pid))) || marked(pid, wanted)
    };
    let members = stats.iter().filter(|(pid, stat)| **pid != own && !stat.ended && belongs(**pid, stat));
    let mut members: Vec<u32> = members.map(|(pid, _)| *pid).collect();
    // The leader first: it must not live to see its children killed and draw its own conclusions.
    members.sort_unstable_by_key(|pid| *pid != leader);
    members
}

fn marked(pid: u32, wanted: &str) -> bool {
    let mut environ = Vec::new();
    let Ok(file) = File::open(format!("/proc/{pid}/environ")) else { return false };
    let _ = file.take(MAX_ENVIRON).read_to_end(&mut environ);
    environ.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use wakeful_sys::child::{Setup, prepare};

    use super::*;

    impl Tree {
        pub(crate) fn nowhere() -> Self {
            Self::create_in(Path::new("/nonexistent"))
        }
    }

    /// Starts a shell that daemonizes a sleeper, and kills the tree after the shell is gone from the line of parents.
    fn kill_a_daemon(tree: &Tree) {
        let dir = std::env::temp_dir().join(format!("wakeful-tree-{}-{:?}", std::process::id(), tree.kind));
        let file = PathBuf::from(dir.to_string_lossy().replace(['"', '(', ')', '/'], "_"));
        let file = std::env::temp_dir().join(file.file_name().expect("has a name"));
        let script =
            "(setsid sh -c 'echo $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; exec sleep 300' \"$0\" &) ; exec sleep 300";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.envs(tree.mark());
        let cgroup = tree.entrance().expect("can be opened");
        prepare(&mut command, Setup { uid: 0, gid: 0, groups: vec![0], cgroup, terminal: false });
        let mut child = command.spawn().expect("starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !file.exists() {
            assert!(Instant::now() < deadline, "the daemon did not start");
            std::thread::yield_now();
        }
        let daemon: u32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let _ = fs::remove_file(&file);
        assert!(alive(daemon));
        tree.kill(child.id());
        assert_eq!(child.wait().map(|status| status.success()).ok(), Some(false));
        while alive(daemon) {
            assert!(Instant::now() < deadline, "the daemon is still alive");
            std::thread::yield_now();
        }
        while !tree.try_remove() {
            assert!(Instant::now() < deadline, "the cgroup is not empty");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_mark_finds_what_daemonized() {
        let tree = Tree::nowhere();
        assert!(tree.mark().is_some());
        kill_a_daemon(&tree);
    }

    #[test]
    fn a_cgroup_finds_what_daemonized() {
        // Where this machine has cgroup2 at all; in the guest it always is at the first place.
        let Some(hierarchy) = [HIERARCHY, "/sys/fs/cgroup/unified"]
            .map(Path::new)
            .into_iter()
            .find(|path| path.join("cgroup.controllers").exists() && path.join("cgroup.procs").exists())
        else {
            return;
        };
        let tree = Tree::create_in(hierarchy);
        if tree.mark().is_some() {
            return; // it is not writable here
        }
        kill_a_daemon(&tree);
        let _ = fs::remove_dir(hierarchy.join("wakeful"));
    }

    #[test]
    fn names_with_brackets_do_not_confuse() {
        let stat = parse_stat("5 (a) Z (b) S 1 2 3 4").unwrap();
        assert_eq!((stat.ended, stat.parent, stat.process_group, stat.session), (false, 1, 2, 3));
        assert!(parse_stat("").is_none() && parse_stat("5 (a) S").is_none());
    }
}
