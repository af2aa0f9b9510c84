//! `wakeful bench`: what the daemon adds to the engine that it runs.
//!
//! ```text
//!   server   a private daemon, this program itself      ┐ measured in turns: ours, bare, ours, bare, … so that
//!   bare     the same engine without it                 ┘ whatever else the machine does is in both
//!   site     namespaces for both: a world beyond the uplink, and a bare TAP
//!   cases    what is measured        stats, report   medians of pairs against the targets
//!   print    the bare engine's commands, for a shell
//! ```
//!
//! It runs as root on a prepared data directory and leaves nothing behind, also when it is interrupted: dropping the
//! future ends the daemon, every engine and every file of the run.

mod bare;
mod case;
mod cases;
mod error;
mod print;
mod report;
mod revive;
mod runtime;
mod server;
mod site;
pub mod stats;

use std::path::PathBuf;
use std::time::Duration;

pub use case::{Case, Effort, UnknownCase};
pub use error::Error;
pub use report::Row;
pub use runtime::{Runtime, UnknownRuntime};

/// What to measure, and with what.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory that `wakeful setup` has prepared.
    pub data_dir: PathBuf,
    /// The program `wakeful`.
    pub program: PathBuf,
    /// Which engines; the one that the daemon picks, if none is named.
    pub runtimes: Vec<Runtime>,
    /// Which cases; all, if none is named.
    pub cases: Vec<Case>,
    /// How thoroughly.
    pub effort: Effort,
}

/// The commands of the bare engine, for a shell, with real paths.
///
/// # Errors
/// If one of our engines, of which they are read, cannot be started.
pub async fn baseline(options: &Options, tell: &dyn Fn(&str, f32)) -> Result<String, Error> {
    print::script(options, tell).await
}

/// Measures. `tell` hears what is under way, and how much of it is done (0 to 1).
///
/// # Errors
/// If something could not be measured at all. A missed target is no error.
///
/// # Cancel safety
/// Dropped, it leaves nothing behind.
pub async fn run(options: &Options, tell: &dyn Fn(&str, f32)) -> Result<Vec<Row>, Error> {
    cases::run(options, tell).await
}

/// Waits on a thread that nothing else waits for: the bare engine's own, or the one that tidies up after everything.
#[expect(clippy::disallowed_methods, reason = "no task shares the thread")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
