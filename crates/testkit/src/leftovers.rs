//! What a daemon has left on the host.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// The run directory of a data directory, as the daemon derives it.
pub(crate) fn run_dir(data: &Path) -> Result<PathBuf> {
    let real = data.canonicalize()?;
    let hash = blake3::hash(real.as_os_str().as_encoded_bytes()).to_hex();
    Ok(Path::new("/run/wakeful").join(&hash.as_str()[..12]))
}

/// Engines whose run directory is under `run`: processes that hold a lock file there open.
pub(crate) fn engines(run: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let fds = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let holds = fds
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|target| target.starts_with(run) && target.file_name().is_some_and(|name| name == "lock"));
        if holds && pid != std::process::id() {
            found.push(pid);
        }
    }
    found
}
