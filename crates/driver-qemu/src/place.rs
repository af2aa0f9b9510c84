//! What an engine leaves in its run directory, so that a later daemon finds it.
//!
//! ```text
//!   RUN/lock          held by the engine itself (an inherited lock): while it cannot be taken, the engine lives
//!   RUN/pid           written by the child before it became the engine
//!   RUN/engine.json   what it was started as; complete, with its start time, when the launch is
//!   RUN/qmp  RUN/agent   sockets that it serves
//! ```
//!
//! An engine is recognised by the lock, then by its pid, then by its start time; never by the pid alone. A launch that
//! was cut off (its daemon died) is not adopted but ended: nothing was committed for it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use wakeful_driver::{Error, Machine, MemoryBase};
use wakeful_sys::pidfd;

use crate::files;
use crate::jail::Jail;
use crate::process::Process;

/// How long a child may take from the fork to writing its pid.
const PID_WRITTEN: Duration = Duration::from_secs(1);

/// What an engine was started as.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Name of the kept engine.
    pub(crate) engine: String,
    /// What its images fit.
    pub(crate) key: String,
    pub(crate) accel: String,
    pub(crate) machine: MachineRecord,
    pub(crate) memory: Memory,
    /// Inode and length of the memory file that is mapped: its name may belong to another file some day.
    pub(crate) memory_inode: u64,
    pub(crate) memory_bytes: u64,
    /// Bulk digest of an own base.
    #[serde(default)]
    pub(crate) memory_digest: Option<String>,
    /// Where its output begins in the console file.
    pub(crate) console_from: u64,
    /// Start time of the process; there when the launch is complete.
    pub(crate) started: Option<u64>,
    /// The uid that was claimed for it.
    #[serde(default)]
    pub(crate) uid: Option<u32>,
}

/// [`Machine`], as it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineRecord {
    cpu: u32,
    pub(crate) memory_mb: u32,
    /// What the guest was last told.
    pub(crate) disk_mb: u32,
}

impl MachineRecord {
    /// Whether memory of such a machine goes on in this one: all is the same, save for a disk that may have grown since.
    pub(crate) fn goes_on_in(self, machine: Machine) -> bool {
        let disk_mb = self.disk_mb;
        self == Machine { disk_mb, ..machine }.into() && disk_mb <= machine.disk_mb
    }
}

impl From<Machine> for MachineRecord {
    fn from(Machine { cpu, memory_mb, disk_mb }: Machine) -> Self {
        Self { cpu, memory_mb, disk_mb }
    }
}

/// What the guest's memory is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Memory {
    /// The file itself (`mem`): it will be a golden snapshot.
    Shared,
    /// A private mapping of this base.
    Private(MemoryBase),
}

impl Memory {
    /// The file that is mapped.
    pub(crate) fn path(&self, data: &Path) -> PathBuf {
        match self {
            Self::Shared => data.join("mem"),
            Self::Private(base) => base_path(base, data),
        }
    }
}

/// A sandbox's own memory base.
pub(crate) const OWN_BASE: &str = "mem.base";

/// The file of a memory base.
pub(crate) fn base_path(base: &MemoryBase, data: &Path) -> PathBuf {
    match base {
        MemoryBase::Golden(dir) => dir.join("mem"),
        MemoryBase::Own => data.join(OWN_BASE),
    }
}

pub(crate) fn record(run: &Path) -> Option<Record> {
    files::read_json(&run.join("engine.json"))
}

pub(crate) fn write_record(run: &Path, record: &Record) -> io::Result<()> {
    files::write_json(&run.join("engine.json"), record)
}

/// Takes the lock for an engine that is about to be started.
pub(crate) fn lock(run: &Path) -> io::Result<File> {
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
pub(crate) fn is_locked(run: &Path) -> io::Result<bool> {
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
pub(crate) async fn find(run: &Path) -> Result<Option<Process>, Error> {
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

/// Whether this process is the one that the record was written for.
pub(crate) fn is_recorded(process: &Process, record: &Record) -> bool {
    record.started.is_some() && pidfd::start_time(process.pid()).ok() == record.started
}

fn read_pid(run: &Path) -> Option<u32> {
    let text = fs::read_to_string(run.join("pid")).ok()?;
    text.strip_suffix('\n')?.parse().ok()
}

/// Ends whatever lives here and removes the directory. Fine with anything missing.
pub(crate) async fn clear(run: &Path, jail: &Jail) -> Result<(), Error> {
    match find(run).await? {
        Some(process) => process.kill().await?,
        None => take_zombie(run),
    }
    remove(run, jail)
}

/// Removes the directory, and before it what is named after it. Whoever is still in the cgroup is ended.
pub(crate) fn remove(run: &Path, jail: &Jail) -> Result<(), Error> {
    jail.cgroups.remove(run).map_err(|source| Error::io("remove an engine's cgroup", source))?;
    let uid = record(run).and_then(|record| record.uid);
    files::absent_is_fine(fs::remove_dir_all(run))
        .map_err(|source| Error::io("remove an engine's run directory", source))?;
    jail.release(uid);
    Ok(())
}

/// An engine that ended while nobody watched, as a child of this very process, would stay a zombie.
fn take_zombie(run: &Path) {
    if let (Some(pid), Some(Record { started: Some(started), .. })) = (read_pid(run), record(run))
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
        let (run, jail) = (dir.path().join("run"), Jail::open(0, None).expect("can be opened"));
        assert!(find(&run).await.expect("can be looked at").is_none());
        clear(&run, &jail).await.expect("nothing to do");
        fs::create_dir(&run).expect("can be made");
        fs::write(run.join("pid"), "1\n").expect("can be written");
        assert!(find(&run).await.expect("can be looked at").is_none(), "a pid alone is nobody");
        drop(lock(&run).expect("nobody holds it"));
        assert!(find(&run).await.expect("can be looked at").is_none(), "a lock that nobody holds");
        clear(&run, &jail).await.expect("can be removed");
        assert!(!run.exists());
        clear(&run, &jail).await.expect("twice is fine");
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
