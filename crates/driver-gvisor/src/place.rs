//! What an engine was started as, and what was done to it, in its run directory.
//!
//! ```text
//!   RUN/engine.json   this account           RUN/state/   runsc's own: container, control socket
//!   RUN/bundle/       config.json            RUN/image/   links to an image's files; its index is a pipe (see `launch`)
//!   RUN/log           what runsc complains about
//! ```
//!
//! Stops are counted by the sentry and cannot be asked for, so every one is written down before and after. A daemon that
//! dies in between leaves `Stopping` or `Continuing`, and whoever adopts the engine asks its agent.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wakeful_confine::files;
use wakeful_confine::place::ACCOUNT;
use wakeful_driver::Machine;

/// Where an engine stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It waits for its image's index, without which nothing runs; this file is what it waits for.
    Waiting(PathBuf),
    Running,
    Stopping,
    Stopped,
    Continuing,
}

/// The account.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Name of the kept engine.
    pub(crate) engine: String,
    /// What its images fit.
    pub(crate) key: String,
    pub(crate) hardened: bool,
    pub(crate) machine: Machine,
    /// Where the host's connections to it begin.
    pub(crate) gateway: PathBuf,
    /// The first of its ids.
    pub(crate) first_id: u32,
    pub(crate) phase: Phase,
    /// Pid and start time of the sentry; there when the launch is complete.
    pub(crate) pid: Option<u32>,
    pub(crate) started: Option<u64>,
}

pub(crate) fn record(run: &Path) -> Option<Record> {
    files::read_json(&run.join(ACCOUNT))
}

pub(crate) fn write_record(run: &Path, record: &Record) -> io::Result<()> {
    files::write_json(&run.join(ACCOUNT), record)
}

pub(crate) fn state(run: &Path) -> PathBuf {
    run.join("state")
}

pub(crate) fn log(run: &Path) -> PathBuf {
    run.join("log")
}

pub(crate) fn image(run: &Path) -> PathBuf {
    run.join("image")
}
