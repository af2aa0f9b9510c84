//! What is around an engine on the host, whichever driver started it.
//!
//! Drivers differ in what an engine is; where it lives, who it is and how much it may use is the same for all. That is
//! here, so that any driver clears any [`Place`](wakeful_driver::Place) after a crash, also one of a driver that cannot be
//! opened any more.
//!
//! ```text
//!   cgroup    memory, processor, threads, disk; whoever is in it is ended with it
//!   claim     a uid that no other engine on the host has         range    65536 of them, for a user namespace
//!   place     run directory: lock, pid, account; find and clear  process  one process by descriptor
//!   files     small files, written whole or not at all
//! ```

pub mod cgroup;
pub mod claim;
pub mod files;
pub mod place;
pub mod process;
pub mod range;

use wakeful_driver::Error;

/// Runs what blocks on a thread that may.
///
/// # Errors
/// What the work says, or that it came to no end.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::Io { doing: "finish a blocking step".to_owned(), source: error.into() }))
}
