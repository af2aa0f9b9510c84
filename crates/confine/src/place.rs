//! What an engine leaves in its run directory, so that a later daemon finds it.
//!
//! ```text
//!   RUN/lock          held by the engine itself (an inherited lock): while it cannot be taken, the engine lives
//!   RUN/pid           written by the child before it became the engine
//!   RUN/engine.json   what it was started as; complete, with its start time, when the launch is
//! ```
//!
//! An engine is recognised by the lock, then by its pid, then by its start time; never by the pid alone. One that inherits
//! nothing is recognised by its start time, and whatever became of it is in its cgroup. A launch that was cut off (its daemon
//! died) is not adopted but ended: nothing was committed for it.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use wakeful_driver::Error;
use wakeful_sys::pidfd;

use crate::cgroup::Cgroups;
use crate::claim::Claims;
use crate::process::Process;
use crate::{files, range};

/// How long a child may take from the fork to writing its pid.
const PID_WRITTEN: Duration = Duration::from_secs(1);
/// Name of an engine's account in its run directory.
pub const ACCOUNT: &str = "engine.json";

/// What every driver's account has.
#[derive(Deserialize)]
struct Account {
    #[serde(default)]
    started: Option<u64>,
    #[serde(default)]
    uid: Option<u32>,
    /// The first of a range.
    #[serde(default)]
    first_id: Option<u32>,
}

fn account(run: &Path) -> Option<Account> {
    files::read_json(&run.join(ACCOUNT))
}

/// Takes the lock for an engine that is about to be started.
pub fn lock(run: &Path) -> io::Result<File> {
    let path = run.join("lock");
    match files::create_new(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // For reading: a lock needs no more, and the engine gets no file to write to.
    let file = files::open_regular(&path, false)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Whether an engine holds the lock. A shared lock is tried, so that two who look do not see each other.
pub fn is_locked(run: &Path) -> io::Result<bool> {
    let file = match File::open(run.join("lock")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// The process that lives in this directory, if one does.
pub async fn find(run: &Path) -> Result<Option<Process>, Error> {
    let failed = |source| Error::io("look for an engine", source);
    let steps = 100;
    for _ in 0..steps {
        if !is_locked(run).map_err(failed)? {
            return Ok(None);
        }
        if let Some(pid) = read_pid(run) {
            return match pidfd::open(pid) {
                // The descriptor first, then the proof: what still holds the lock now is what the descriptor means.
                Ok(fd) if is_locked(run).map_err(failed)? => Process::new(pid, fd).map(Some).map_err(failed),
                Ok(_) => Ok(None),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(failed(error)),
            };
        }
        tokio::time::sleep(PID_WRITTEN / steps).await;
    }
    Err(Error::Late { doing: "write its pid", after: PID_WRITTEN })
}

fn read_pid(run: &Path) -> Option<u32> {
    let text = fs::read_to_string(run.join("pid")).ok()?;
    text.strip_suffix('\n')?.parse().ok()
}

/// Ends whatever lives here and removes the directory. Fine with anything missing.
pub async fn clear(run: &Path, cgroups: &Cgroups, claims: Option<&Claims>) -> Result<(), Error> {
    match find(run).await {
        Ok(Some(process)) => process.kill().await?,
        Ok(None) => take_zombie(run),
        // Its pid is missing, but it is in its cgroup, and goes with that.
        Err(Error::Late { .. }) if !cgroups.members(run).is_empty() => {}
        Err(error) => return Err(error),
    }
    remove(run, cgroups, claims)
}

/// Removes the directory, and before it what is named after it. Whoever is still in the cgroup is ended.
pub fn remove(run: &Path, cgroups: &Cgroups, claims: Option<&Claims>) -> Result<(), Error> {
    cgroups.remove(run).map_err(|source| Error::io("remove an engine's cgroup", source))?;
    let account = account(run);
    files::absent_is_fine(fs::remove_dir_all(run))
        .map_err(|source| Error::io("remove an engine's run directory", source))?;
    if let (Some(claims), Some(uid)) = (claims, account.as_ref().and_then(|account| account.uid)) {
        claims.release(uid);
    }
    if let Some(first) = account.and_then(|account| account.first_id) {
        // It is free in any case, now that its owner is gone.
        let _ = range::remove_stale(&Path::new(range::RANGES).join(first.to_string()));
    }
    Ok(())
}

/// An engine that ended while nobody watched, as a child of this very process, would stay a zombie.
fn take_zombie(run: &Path) {
    if let (Some(pid), Some(Account { started: Some(started), .. })) = (read_pid(run), account(run))
        && let Ok(fd) = pidfd::open(pid)
        && pidfd::start_time(pid).is_ok_and(|now| now == started)
    {
        let _ = pidfd::reap(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_empty_place_has_no_engine() {
        let dir = tempfile::tempdir().expect("can be made");
        let (run, cgroups) = (dir.path().join("run"), Cgroups::default());
        assert!(find(&run).await.expect("can be looked at").is_none());
        clear(&run, &cgroups, None).await.expect("nothing to do");
        fs::create_dir(&run).expect("can be made");
        fs::write(run.join("pid"), "1\n").expect("can be written");
        assert!(find(&run).await.expect("can be looked at").is_none(), "a pid alone is nobody");
        drop(lock(&run).expect("nobody holds it"));
        assert!(find(&run).await.expect("can be looked at").is_none(), "a lock that nobody holds");
        clear(&run, &cgroups, None).await.expect("can be removed");
        assert!(!run.exists());
        clear(&run, &cgroups, None).await.expect("twice is fine");
    }

    #[tokio::test]
    async fn a_pid_that_never_comes_is_late() {
        let dir = tempfile::tempdir().expect("can be made");
        let held = lock(dir.path()).expect("nobody holds it");
        assert!(matches!(find(dir.path()).await, Err(Error::Late { .. })));
        fs::write(dir.path().join("pid"), "12").expect("can be written");
        assert!(matches!(find(dir.path()).await, Err(Error::Late { .. })), "half a pid is none");
        drop(held);
    }
}
