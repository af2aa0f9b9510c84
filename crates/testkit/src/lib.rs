//! A whole daemon in a temporary directory, on real engines.
//!
//! Kernel, engine, bases and golden snapshots are made once, in the directory that `WAKEFUL_TEST_CACHE` names
//! (`wakeful setup` fills it; `make test` calls that). A test's own data directory is made of hard links to them, which
//! takes milliseconds and shares the page cache; everything else in it is the test's own. The daemon is the real program,
//! started as a user would, reached over HTTP, and may be killed.

mod daemon;
mod data;
mod leftovers;
mod runtime;
mod soak;

pub use daemon::{Daemon, Options};
pub use data::{cache_dir, wakeful_binary};
pub use leftovers::lives;
pub use runtime::{disk_file, microvm, runtime};
pub use soak::{Soak, Soaked, soak};
