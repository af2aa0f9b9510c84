//! A sandbox's disk: what may be asked of it, and how it grows.
//!
//! ```text
//!   patch        the row says how large the disk is to be; nothing else happens
//!   next start   the file is made longer (the driver), the guest is told, its file system follows (the agent)
//! ```
//!
//! A boot sees the larger disk by itself. Memory that is loaded does not know of it: its engine tells it, while nothing is
//! spent yet, and its agent grows the mounted file system. If that fails the sandbox has the room that it had; the agent
//! tries again whenever it is put right, and at every boot.

use std::sync::Arc;

use tracing::{info, warn};
use wakeful_driver::{Driver, Engine};
use wakeful_guest_client::Guest;
use wakeful_model::{Code, Sandbox, Size, State};

use crate::Error;
use crate::lifecycle::{Inner, error_chain};

/// Whether the guest's file system has to follow its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    Yes,
    No,
}

/// Before the first thing that the guest does for anybody: its limits, and a disk that has grown since it last ran. Memory is
/// loaded and stopped by then; a boot has come to its agent, which is nobody's work and must not take the longer for them.
pub(crate) async fn prepare(driver: &dyn Driver, engine: &Arc<dyn Engine>, row: &Sandbox) -> Result<Follows, Error> {
    // Where they cannot be had, no sandbox has any: its create was refused.
    if row.io.any() && driver.capabilities().io_limits {
        engine.limit_io(row.io).await?;
    }
    if engine.disk_mb() >= row.disk_mb {
        return Ok(Follows::No);
    }
    engine.grow_disk(row.disk_mb).await?;
    Ok(Follows::Yes)
}

/// Has a guest that runs make its file system as large as its disk.
pub(crate) async fn follow(guest: &Guest, row: &Sandbox, follows: Follows) {
    if follows == Follows::No {
        return;
    }
    match guest.grow(u64::from(row.disk_mb) << 20).await {
        Ok(Some(bytes)) => info!(sandbox_id = %row.id, bytes, "file system has grown"),
        Ok(None) => warn!(sandbox_id = %row.id, "its agent is too old to grow a file system, the next boot does it"),
        Err(error) => {
            warn!(sandbox_id = %row.id, error = error_chain(&error), "file system has not grown, the next start tries again");
        }
    }
}

/// Whether a sandbox can have a disk of this size from now on.
pub(crate) fn check(row: &Sandbox, disk_mb: u32) -> Result<(), Error> {
    let invalid = |detail: String| Err(Error::invalid(Code::InvalidSize, "disk_mb", detail));
    if let Err(error) = Size::check(row.cpu, row.memory_mb, disk_mb) {
        return invalid(error.to_string());
    }
    if disk_mb < row.disk_mb {
        return invalid(format!("a disk can only grow: it has {} MiB", row.disk_mb));
    }
    match row.state {
        State::Suspended(_) => Ok(()),
        _ if disk_mb == row.disk_mb => Ok(()),
        state => Err(Error::NotSuspended { id: row.id.clone(), state: state.name() }),
    }
}

impl Inner {
    /// Whether this host has room for so much more disk.
    pub(crate) fn check_disk(&self, more_mb: u64) -> Result<(), Error> {
        let Some(limit) = self.defaults.limit_disk_mb else { return Ok(()) };
        let used: u64 = {
            let owners = self.owners.lock().expect("no panic while it is held");
            owners.values().map(|handle| u64::from(handle.live.borrow().row.disk_mb)).sum()
        };
        if used.saturating_add(more_mb) <= limit {
            return Ok(());
        }
        let left = limit.saturating_sub(used);
        let detail = format!("{more_mb} MiB of disk do not fit: {left} of {limit} MiB are left");
        Err(Error::InsufficientCapacity { detail, fits: None })
    }
}
