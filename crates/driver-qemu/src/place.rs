//! What an engine of ours writes into its run directory, beside what every engine has there.
//!
//! ```text
//!   RUN/qmp  RUN/agent   sockets that it serves
//! ```

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wakeful_confine::files;
use wakeful_confine::place::{self, ACCOUNT};
use wakeful_confine::process::Process;
use wakeful_driver::{Error, Machine, MemoryBase};
use wakeful_sys::pidfd;

pub(crate) use wakeful_confine::place::{find, is_locked, lock};

use crate::jail::Jail;

/// What an engine was started as.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Name of the kept engine.
    pub(crate) engine: String,
    /// What its images fit.
    pub(crate) key: String,
    pub(crate) accel: String,
    /// Its disk is what the guest was last told.
    pub(crate) machine: Machine,
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
    files::read_json(&run.join(ACCOUNT))
}

pub(crate) fn write_record(run: &Path, record: &Record) -> io::Result<()> {
    files::write_json(&run.join(ACCOUNT), record)
}

/// Whether this process is the one that the record was written for.
pub(crate) fn is_recorded(process: &Process, record: &Record) -> bool {
    record.started.is_some() && pidfd::start_time(process.pid()).ok() == record.started
}

/// Ends whatever lives here and removes the directory. Fine with anything missing.
pub(crate) async fn clear(run: &Path, jail: &Jail) -> Result<(), Error> {
    place::clear(run, &jail.cgroups, jail.claims()).await
}

/// Removes the directory, and before it what is named after it. Whoever is still in the cgroup is ended.
pub(crate) fn remove(run: &Path, jail: &Jail) -> Result<(), Error> {
    place::remove(run, &jail.cgroups, jail.claims())
}
