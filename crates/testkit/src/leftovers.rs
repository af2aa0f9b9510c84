//! What a daemon has left on the host.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// The run directory of a data directory, as the daemon derives it.
pub(crate) fn run_dir(data: &Path) -> Result<PathBuf> {
    let real = data.canonicalize()?;
    let hash = blake3::hash(real.as_os_str().as_encoded_bytes()).to_hex();
    Ok(Path::new("/run/wakeful").join(&hash.as_str()[..12]))
}

/// Whether a process is there. An engine that the daemon itself has started must not even be a zombie; a sentry's parent is
/// gone, and whoever takes it over may take a moment to notice its end.
#[must_use]
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| crate::microvm() || !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Everybody in a cgroup of an engine whose run directory is under `run`.
pub(crate) fn members(run: &Path) -> Vec<u32> {
    let texts =
        cgroups(run).into_iter().map(|dir| std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default());
    texts.flat_map(|text| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Engines whose run directory is under `run`: processes that hold a lock file there open, or that a file there names.
pub(crate) fn engines(run: &Path) -> Vec<u32> {
    let places = std::fs::read_dir(run).into_iter().flatten().flatten();
    let named = places.filter_map(|place| std::fs::read_to_string(place.path().join("pid")).ok()?.trim().parse().ok());
    let mut found: Vec<u32> = named.filter(|pid| lives(*pid)).collect();
    found.sort_unstable();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let fds = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let holds = fds
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|target| target.starts_with(run) && target.file_name().is_some_and(|name| name == "lock"));
        if holds && pid != std::process::id() && !found.contains(&pid) {
            found.push(pid);
        }
    }
    found
}

/// Network slots that belong to a sandbox.
pub(crate) fn slots(run: &Path) -> Vec<PathBuf> {
    let slots = std::fs::read_dir(run.join("net")).into_iter().flatten().flatten().map(|entry| entry.path());
    slots.filter(|slot| slot.join("owner").exists()).collect()
}

/// Where engines' cgroups are, in one of the hierarchies that they use.
pub(crate) fn cgroup_top() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = mounts.lines().filter(|line| line.contains(" cgroup")).filter_map(|line| line.split(' ').nth(1));
    mounts.map(|mount| Path::new(mount).join("wakeful")).find(|top| top.is_dir())
}

/// The name of an engine's cgroup.
pub(crate) fn cgroup_name(run: &Path, bare: &str) -> String {
    format!("{}.{bare}", run.file_name().unwrap_or_default().to_string_lossy())
}

/// Cgroups of engines whose run directory is under `run`, in every hierarchy that is mounted.
pub(crate) fn cgroups(run: &Path) -> Vec<PathBuf> {
    let Some(hash) = run.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter(|line| line.contains(" cgroup")).filter_map(|line| line.split(' ').nth(1));
    let children = mounts.flat_map(|mount| std::fs::read_dir(Path::new(mount).join("wakeful")).into_iter().flatten());
    let ours = children.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{hash}.")));
    ours.map(|entry| entry.path()).collect()
}
