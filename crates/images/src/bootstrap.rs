//! A root file system from Debian packages, by mmdebstrap.

use std::path::Path;
use std::time::Duration;

use wakeful_debian::Program;

use crate::build::Reporter;
use crate::workplace::mount_points;
use crate::{DebianSpec, Error};

const HOOKS: &str = include_str!("bootstrap.sh");
const DEADLINE: Duration = Duration::from_secs(45 * 60);
pub(crate) const STEP: &str = "bootstrap";

/// How far mmdebstrap is, by the words that it announces its phases with. The shares are those of a small template.
const PHASES: [(&str, f32); 6] = [
    ("I: running apt-get update", 0.0),
    ("I: downloading packages", 0.08),
    ("I: extracting archives", 0.12),
    ("I: installing essential packages", 0.3),
    ("I: installing remaining packages", 0.6),
    ("I: cleaning package lists", 0.98),
];

/// Makes `work/root`.
pub(crate) async fn run(
    spec: &DebianSpec,
    sources: &[String],
    work: &Path,
    cache: &Path,
    reporter: &Reporter<'_>,
) -> Result<(), Error> {
    let write = |name: &str, text: &str| {
        let path = work.join(name);
        std::fs::write(&path, text).map_err(Error::io("write", &path)).map(|()| path)
    };
    let hooks = write("bootstrap.sh", HOOKS)?;
    let options = write("apt.conf", &apt_options().await?)?;
    std::fs::create_dir_all(cache).map_err(Error::io("make", cache))?;
    let cache = cache.canonicalize().map_err(Error::io("find", cache))?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let program = Program::new("setpriv")
        .named("mmdebstrap")
        // If we die, it dies; if it dies, so does all that it started, and every mount with them.
        .args(["--pdeathsig", "KILL", "unshare", "--fork", "--pid", "--kill-child=KILL", "--mount", "--mount-proc"])
        .args(["--propagation", propagation(&mounts)])
        .args(["mmdebstrap", "--verbose", "--mode=root", "--format=directory", "--variant=apt"])
        .args(["--dpkgopt=force-unsafe-io", "--skip=essential/unlink", "--skip=check/empty"])
        .arg(with("--aptopt=", &options))
        .args(["setup", "extract", "customize"].map(hook))
        .arg(format!("--include={}", spec.all_packages().join(",")))
        .arg(&spec.suite)
        .arg(work.join("root"))
        .args(sources)
        .env("WAKEFUL_HOOKS", hooks)
        .env("WAKEFUL_CACHE", cache)
        .env("WAKEFUL_USER", &spec.user)
        .env("TMPDIR", work)
        .env("HOME", "/root")
        .deadline(DEADLINE);
    let on_line = |line: &str| reporter.line(phase(line), line);
    program.follow(&on_line).await.map_err(Error::step_of(STEP)).map_err(explain)
}

/// Adds to a failure what its words leave open.
fn explain(error: Error) -> Error {
    match error {
        Error::Step { step, detail } if detail.contains("unshare failed") || detail.contains("cannot mount") => {
            let why = "a build needs the right to make namespaces and to mount (CAP_SYS_ADMIN), and /proc";
            Error::Step { step, detail: format!("{detail}\n{why}") }
        }
        other => other,
    }
}

fn with(option: &str, path: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(option);
    text.push(path);
    text
}

/// mmdebstrap runs it as `sh -c '…' exec ROOT`.
fn hook(stage: &str) -> String {
    format!("--{stage}-hook=sh \"$WAKEFUL_HOOKS\" {stage} \"$1\"")
}

fn phase(line: &str) -> Option<f32> {
    PHASES.iter().find(|(words, _)| line.starts_with(words)).map(|(_, share)| *share)
}

/// How the host reaches its archive, which mmdebstrap's own apt would not know: proxies and the like. The file is
/// removed from the root file system at the end, so that a proxy's password stays on the host.
async fn apt_options() -> Result<String, Error> {
    let dump = Program::new("apt-config")
        .args(["dump", "--no-empty", "Acquire"])
        .text()
        .await
        .map_err(Error::step_of(STEP))?;
    let mut text = String::from("Acquire::Languages \"none\";\nAcquire::Retries \"6\";\n");
    for line in dump.lines().filter(|line| wanted(line)) {
        text.push_str(line);
        text.push('\n');
    }
    Ok(text)
}

fn wanted(line: &str) -> bool {
    let key = line.split(' ').next().unwrap_or_default().to_ascii_lowercase();
    key.contains("::proxy") || key.contains("valid-until") || key.contains("::cainfo") || key.contains("forceipv4")
}

/// New mounts must not be seen outside. But where our root is no mount point (a plain chroot) the kernel has nothing to
/// make private; what is mounted there is detached again by whoever removes the tree.
fn propagation(mountinfo: &str) -> &'static str {
    if mount_points(mountinfo).iter().any(|point| point == Path::new("/")) { "private" } else { "unchanged" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        assert!(PHASES.windows(2).all(|two| two[0].1 < two[1].1));
        assert_eq!(phase("I: extracting archives..."), Some(0.12));
        assert_eq!(phase("Setting up curl"), None);
    }

    #[test]
    fn a_missing_right_is_explained() {
        let fail = |detail: &str| explain(Error::Step { step: STEP, detail: detail.to_owned() }).to_string();
        assert!(fail("unshare: unshare failed: Operation not permitted").contains("CAP_SYS_ADMIN"));
        assert!(!fail("dpkg: error").contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn only_ways_to_the_archive_are_taken_over() {
        assert!(wanted("Acquire::http::Proxy \"http://proxy.example.invalid:3128\";"));
        assert!(wanted("Acquire::Check-Valid-Until \"false\";"));
        assert!(!wanted("Acquire::cdrom::mount \"/media/cdrom/\";"));
    }

    #[test]
    fn a_plain_chroot_has_no_root_mount() {
        assert_eq!(propagation("22 1 254:0 / / rw - ext4 /dev/vda rw\n"), "private");
        assert_eq!(propagation("23 22 0:5 / /proc rw - proc proc rw\n"), "unchanged");
    }
}
