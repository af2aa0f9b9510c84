//! The binary `wakeful`.
//!
//! ```text
//!   args        what can be said on the command line
//!   commands/   one file per verb; serve, setup and doctor work on this machine, all others speak HTTP
//!   server      which server that is
//!   failure     how a command ends badly: text, hint, exit code
//!   follow      a command's stream to its end, over lost connections and sleeps
//!   session     a remote terminal in ours, likewise
//!   output      the only place that writes: data to stdout, talk to stderr (and `sink`, for a command's own bytes)
//! ```

mod args;
mod commands;
mod escape;
mod failure;
mod follow;
mod input;
mod interrupt;
mod output;
mod overview;
mod patience;
mod progress;
mod server;
mod session;
mod sink;
mod table;
mod tty;
mod values;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use crate::args::Cli;
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::read();
    let json = cli.global.json;
    let ended = std::panic::catch_unwind(AssertUnwindSafe(|| commands::run(cli)));
    let failure = match ended {
        Ok(Ok(code)) => return ExitCode::from(code),
        Ok(Err(failure)) => failure,
        // the panic's own text is on stderr already
        Err(_) => Failure::bug(),
    };
    failure.report(json);
    ExitCode::from(failure.code())
}
