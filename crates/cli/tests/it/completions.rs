//! Scripts for shells.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::run::run;

#[test]
fn every_shell_gets_one() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(&["completions", shell]);
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{shell}");
        assert!(ended.stdout.contains("keepalive"), "{shell}");
    }
}

#[test]
fn bash_takes_it() {
    let script = run(&["completions", "bash"]).stdout;
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("Debian has bash");
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
}
