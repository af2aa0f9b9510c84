//! Runs the binary in an environment of its own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What came of it.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The binary, with nothing of this machine's settings, in a home of its own.
pub(crate) fn wakeful(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wakeful"));
    command.env_clear();
    // CI sets variables of its own, and a colour can hang on one of them
    command.envs(["PATH", "TMPDIR"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    // a width of its own: help is wrapped to the terminal
    command.env("HOME", home).env("COLUMNS", "100").env("NO_COLOR", "1").args(args).stdin(Stdio::null());
    command
}

pub(crate) fn end(command: &mut Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().expect("the binary was built");
    Ended {
        code: status.code().expect("no signal killed it"),
        stdout: String::from_utf8(stdout).expect("it speaks UTF-8"),
        stderr: String::from_utf8(stderr).expect("it speaks UTF-8"),
    }
}

/// Runs it to its end.
pub(crate) fn run(args: &[&str]) -> Ended {
    let home = tempfile::tempdir().expect("there is a temporary directory");
    end(&mut wakeful(home.path(), args))
}
