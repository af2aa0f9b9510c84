//! Packages on the host itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::{self, Access, Lock};
use crate::package::unlocated;
use crate::program::{Splitter, Tail};
use crate::{Error, Program, Progress, check_name};

const UPDATE: Duration = Duration::from_secs(300);
const INSTALL: Duration = Duration::from_secs(1500);

/// Which of `packages` are not installed, in the order given.
///
/// # Errors
/// [`Error::InvalidName`]; why `dpkg-query` failed.
pub async fn missing<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>, Error> {
    for name in packages {
        check_name(name)?;
    }
    // it exits with 1 when one of them is unknown to it, which is an answer
    let output = Program::new("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Status} ${Package}\n", "--"])
        .args(packages)
        .output()
        .await?;
    Ok(without(packages, &output.stdout))
}

/// Installs those of `packages` that are missing, without recommended ones. Asks nothing of the network when none is.
///
/// # Errors
/// [`Error::InvalidName`]; [`Error::NoPackage`]; [`Error::Excluded`]; [`Error::Locked`] when another process installs for too long; why
/// `apt-get` failed.
///
/// # Cancel safety
/// A started `apt-get` is not killed but left to finish: a dpkg that is stopped half way leaves the host to be repaired.
pub async fn ensure_installed(packages: &[&str], progress: &(dyn Fn(Progress<'_>) + Send + Sync)) -> Result<(), Error> {
    if missing(packages).await?.is_empty() {
        return Ok(());
    }
    let lock = lock::take(Access::Exclusive).await?;
    // whoever held the lock may have installed them
    let wanted = missing(packages).await?;
    if wanted.is_empty() {
        return Ok(());
    }
    update(&lock, progress).await?;
    let install = apt_get()
        .args(["-q", "-y", "--no-install-recommends", "--no-remove", "-o", "Acquire::Retries=3"])
        .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"])
        .args(["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"])
        .args(["install", "--"])
        .args(&wanted)
        .deadline(INSTALL);
    match finish(install, progress).await {
        Err(Error::Failed { output, .. }) if let Some(name) = unlocated(&output) => Err(Error::NoPackage { name }),
        Err(Error::Failed { output, .. }) if output.contains("Packages need to be removed") => {
            Err(Error::Excluded { packages: wanted.join(", ") })
        }
        other => other,
    }
}

/// Refreshes the package lists. The lock only has to be held.
pub(crate) async fn update(_: &Lock, progress: &(dyn Fn(Progress<'_>) + Send + Sync)) -> Result<(), Error> {
    let until = Instant::now() + UPDATE;
    loop {
        let update = apt_get().args(["-q", "-o", "Acquire::Retries=3", "update"]).deadline(UPDATE);
        match finish(update, progress).await {
            // someone else's apt: it has no option to wait for this lock
            Err(Error::Failed { output, .. }) if output.contains("Could not get lock") && Instant::now() < until => {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            other => return other,
        }
    }
}

/// `apt-get` with its status lines between its other output. They need a descriptor of their own: apt closes that one
/// for its children, and a package's script that finds its standard output closed fails.
fn apt_get() -> Program {
    Program::new("sh").named("apt-get").args(["-c", "exec \"$@\" 3>&1", "sh", "apt-get", "-o", "APT::Status-Fd=3"])
}

/// Runs to the end, come what may. The output goes to a file that has no name: neither a closed pipe nor a signal to
/// our own process group stops an installation half way.
async fn finish(program: Program, progress: &(dyn Fn(Progress<'_>) + Send + Sync)) -> Result<(), Error> {
    let (name, mut command, deadline) = program.into_parts();
    let spawn = |source| Error::Spawn { program: name.clone(), source };
    let log = tempfile::tempfile().map_err(spawn)?;
    command.stdout(log.try_clone().map_err(spawn)?).stderr(log.try_clone().map_err(spawn)?);
    let mut child = command.kill_on_drop(false).process_group(0).spawn().map_err(spawn)?;

    let mut follower =
        Follower { log, at: 0, splitter: Splitter::default(), tail: Tail::default(), last: String::new() };
    let until = Instant::now() + deadline;
    loop {
        let ended = tokio::time::timeout(Duration::from_millis(200), child.wait()).await;
        follower.read(progress);
        match ended {
            Ok(Ok(status)) if status.success() => return Ok(()),
            Ok(Ok(status)) => {
                return Err(Error::Failed { program: name, status: status.to_string(), output: follower.tail.text() });
            }
            Ok(Err(source)) => return Err(Error::Spawn { program: name, source }),
            Err(_) if Instant::now() < until => {}
            Err(_) => return Err(Error::Late { program: name, after: deadline, output: follower.tail.text() }),
        }
    }
}

/// Reads what a growing file has got since the last look.
struct Follower {
    log: File,
    at: u64,
    splitter: Splitter,
    tail: Tail,
    last: String,
}

impl Follower {
    fn read(&mut self, progress: &(dyn Fn(Progress<'_>) + Send + Sync)) {
        let mut chunk = [0; 8192];
        while let Ok(n @ 1..) = self.log.read_at(&mut chunk, self.at) {
            self.at += n as u64;
            let (tail, last) = (&mut self.tail, &mut self.last);
            self.splitter.feed(&chunk[..n], &mut |line| {
                // apt repeats its status several times a second, and errors as status lines too
                if *last == line || line.starts_with("pmerror:") {
                    return;
                }
                line.clone_into(last);
                if let Some((fraction, words)) = status(line) {
                    progress(Progress { fraction: Some(fraction), line: words });
                } else {
                    tail.push(line);
                    progress(Progress { fraction: None, line });
                }
            });
        }
    }
}

/// Reads a line of apt's status descriptor: `pmstatus:PACKAGE:PERCENT:WORDS`, `dlstatus:NUMBER:PERCENT:WORDS`.
fn status(line: &str) -> Option<(f32, &str)> {
    let rest = line.strip_prefix("pmstatus:").or_else(|| line.strip_prefix("dlstatus:"))?;
    // a package may be named with its architecture, so the number is looked for
    let (at, percent) = rest.split(':').enumerate().skip(1).find_map(|(at, f)| Some((at, f.parse::<f32>().ok()?)))?;
    let words = rest.splitn(at + 2, ':').nth(at + 1).unwrap_or_default();
    Some(((percent / 100.0).clamp(0.0, 1.0), words))
}

fn without<'a>(packages: &[&'a str], installed: &str) -> Vec<&'a str> {
    let there = |name: &str| installed.lines().any(|line| line.split_once(' ') == Some(("installed", name)));
    packages.iter().copied().filter(|name| !there(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::{status, without};

    #[test]
    fn only_installed_counts() {
        let text = "installed bash\nconfig-files lz4\nnot-installed zstd\ninstalled libc6\ninstalled libc6\n";
        assert_eq!(without(&["bash", "lz4", "libc6", "zstd", "git"], text), ["lz4", "zstd", "git"]);
        assert!(without(&[], text).is_empty());
    }

    #[test]
    fn status_lines_give_a_fraction() {
        assert_eq!(status("dlstatus:1:25:Retrieving file 1 of 4"), Some((0.25, "Retrieving file 1 of 4")));
        assert_eq!(status("pmstatus:libc6:amd64:50.0000:Unpacking: libc6"), Some((0.5, "Unpacking: libc6")));
        assert_eq!(status("pmstatus:x"), None);
        assert_eq!(status("Setting up libc6"), None);
    }

    #[tokio::test]
    async fn children_keep_their_output_and_status_lines_come_between() {
        let seen = std::sync::Mutex::new(Vec::new());
        let progress = |p: crate::Progress<'_>| seen.lock().unwrap().push((p.fraction, p.line.to_owned()));
        let script =
            "echo dlstatus:1:50:half >&3; echo dlstatus:1:50:half >&3; sh -c 'echo words' 3>&-; echo bad >&2; exit 3";
        let program = crate::Program::new("sh").args(["-c", "exec \"$@\" 3>&1", "sh", "sh", "-c", script]);
        let error = super::finish(program, &progress).await.unwrap_err();
        assert!(matches!(error, crate::Error::Failed { output, .. } if output == "words\nbad"));
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen, [(Some(0.5), "half".to_owned()), (None, "words".to_owned()), (None, "bad".to_owned())]);
    }

    #[tokio::test]
    async fn installed_packages_ask_nothing() {
        assert_eq!(
            super::missing(&["bash", "wakeful-has-no-such-package"]).await.unwrap(),
            ["wakeful-has-no-such-package"]
        );
        super::ensure_installed(&["bash", "coreutils"], &|_| panic!("nothing to do")).await.unwrap();
        assert!(super::ensure_installed(&["bash", "-oX=y"], &|_| {}).await.is_err());
    }
}
