//! Engines that exist in memory only, for tests of the state machine: thousands of lives in a minute, with every fault at
//! every step. No daemon can be told to use it.
//!
//! ```text
//!   Host ── outlives every daemon, as real engines do; a test holds, fails and kills here
//!    ├ Process ── one "engine": life, memory, the line to its agent
//!    │   └ agent ── speaks the real hello, contact and HTTP/2 over a pipe
//!    └ images ── which saved memory may still be loaded
//!   Driver, SimEngine ── what a daemon holds of them; goes with the daemon
//! ```
//!
//! What a lifecycle must never do is noted as a [wrong](Host::wrongs): two engines in one place, or memory loaded that has
//! run on since it was saved.

mod agent;
mod engine;
mod host;
mod launch;
mod process;
mod snapshot;

pub use host::{Fault, Host, Point};
pub use launch::SimDriver;
pub use process::{Disk, Memory};
pub use wakeful_guest_proto::control::{Obstacle, ObstacleKind};
