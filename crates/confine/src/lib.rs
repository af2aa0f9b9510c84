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
