//! The runtime that the scenarios are walked on.

/// Its name: the scenarios are compiled once for each, and the program's name tells which it is. `gvisor` for the tests of that
/// name, `qemu` for all others.
///
/// # Panics
/// If the process has no program.
#[must_use]
pub fn runtime() -> &'static str {
    let program = std::env::current_exe().expect("this process has a program");
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("gvisor") { "gvisor" } else { "qemu" }
}

/// The name of a sandbox's own disk on it.
#[must_use]
pub fn disk_file() -> &'static str {
    if runtime() == "gvisor" { "disk.ext4" } else { "overlay.ext4" }
}

/// Whether sandboxes are virtual machines on it.
#[must_use]
pub fn microvm() -> bool {
    runtime() == "qemu"
}
