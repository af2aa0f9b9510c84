//! The binary `wakeful`.
//!
//! ```text
//!   args        what can be said on the command line
//!   commands/   one file per verb; serve, setup and doctor work on this machine, all others speak HTTP
//!   server      which server that is
//!   failure     how a command ends badly: text, hint, exit code
//!   output      the only place that writes: data to stdout, talk to stderr
//! ```

mod args;
mod commands;
mod failure;
mod interrupt;
mod output;
mod progress;
mod server;
mod table;
mod values;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::failure::Failure;

fn main() -> ExitCode {
    // clap ends usage errors with 2 and help with 0 by itself
    let cli = Cli::parse();
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
