//! One module per group, one file per verb.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod df;
pub(crate) mod doctor;
mod door;
pub(crate) mod fsck;
pub(crate) mod key;
pub(crate) mod pool;
pub(crate) mod sandbox;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod snapshot;
pub(crate) mod suspend_all;
pub(crate) mod template;
pub(crate) mod tenant;

use std::time::Duration;

use tokio::runtime::Runtime;

use crate::args::{Cli, Command};
use crate::failure::Failure;

/// How long what a command leaves behind may take to end.
const LEFT_BEHIND: Duration = Duration::from_millis(200);
/// Of a setup or a probe, which removes what it had begun.
const SETUP: Duration = Duration::from_secs(10);

/// Does what was asked; the exit code of a command that was not refused.
pub(crate) fn run(cli: Cli) -> Result<u8, Failure> {
    let Cli { global, command } = cli;
    match command {
        Command::Completions(args) => args.run(),
        Command::Serve(args) => args.run(),
        Command::Setup(args) => finish(many_threads()?, SETUP, args.run(&global)),
        Command::Bench(args) => finish(many_threads()?, SETUP, args.run(&global)),
        Command::Doctor(args) => finish(many_threads()?, SETUP, args.run(&global)),
        Command::Fsck(args) => finish(many_threads()?, SETUP, args.run(&global)),
        Command::SuspendAll(args) => finish(one_thread()?, LEFT_BEHIND, args.run(&global)),
        Command::Sandbox(command) => finish(one_thread()?, LEFT_BEHIND, command.run(&global)),
        Command::Snapshot(command) => finish(one_thread()?, LEFT_BEHIND, command.run(&global)),
        Command::Df(args) => finish(one_thread()?, LEFT_BEHIND, args.run(&global)),
        Command::Template(command) => finish(one_thread()?, LEFT_BEHIND, command.run(&global)),
        Command::Pool(command) => finish(one_thread()?, LEFT_BEHIND, command.run(&global)),
        Command::Key(command) => finish(one_thread()?, LEFT_BEHIND, command.run(&global)),
        Command::Tenant(command) => finish(one_thread()?, LEFT_BEHIND, command.run(&global)),
    }
}

/// Runs a command to its end. What is left behind (a read of a pipe that never ends, a build after ^C) is dropped.
fn finish(
    runtime: Runtime,
    patience: Duration,
    work: impl Future<Output = Result<u8, Failure>>,
) -> Result<u8, Failure> {
    let ended = runtime.block_on(work);
    runtime.shutdown_timeout(patience);
    ended
}

/// For commands that only wait for a server.
fn one_thread() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_runtime)
}

/// For commands that do the work themselves.
pub(crate) fn many_threads() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(no_runtime)
}

#[expect(clippy::needless_pass_by_value, reason = "it is a map_err")]
fn no_runtime(error: std::io::Error) -> Failure {
    Failure::refused(format!("could not start threads: {error}"))
}
