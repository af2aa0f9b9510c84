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

/// What the real bash offers for a line, its last word unfinished.
fn offered(line: &[&str]) -> Vec<String> {
    let script = run(&["completions", "bash"]).stdout;
    let words: Vec<String> = line.iter().map(|word| format!("'{word}'")).collect();
    let ask = format!(
        "{script}\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_wakeful wakeful '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words.join(" "),
        line.len() - 1,
        line[line.len() - 1],
        line[line.len() - 2],
    );
    // An argument could not be so long.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(ask.as_bytes()).unwrap();
    let bash = Command::new("bash").arg("--norc").arg(file.path()).output().expect("Debian has bash");
    assert!(bash.status.success(), "{}", String::from_utf8_lossy(&bash.stderr));
    String::from_utf8(bash.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes() {
    assert_eq!(offered(&["wakeful", "sand"]), ["sandbox"]);
    assert_eq!(offered(&["wakeful", "sandbox", "po"]), ["port", "ports", "port-forward", "pool"]);
    assert_eq!(offered(&["wakeful", "sandbox", "s"]), ["status", "suspend", "shell", "stat"]);
    assert_eq!(offered(&["wakeful", "sandbox", "exec", "--det"]), ["--detach"]);
    assert_eq!(offered(&["wakeful", "completions", "f"]), ["fish"]);
    assert_eq!(offered(&["wakeful", "sandbox", "fork", "--id"]), ["--idle-timeout"]);
    assert_eq!(offered(&["wakeful", "snapshot", "s"]), ["show"]);
    assert_eq!(offered(&["wakeful", "sandbox", "create", "--persi"]), ["--persistent"]);
    assert_eq!(offered(&["wakeful", "template", "c"]), ["create", "cancel"]);
    assert_eq!(offered(&["wakeful", "template", "create", "--from"]), ["--from-sandbox", "--from-snapshot"]);
    assert_eq!(offered(&["wakeful", "template", "rebuild", "--con"]), ["--context"]);
    assert_eq!(offered(&["wakeful", "df", "--js"]), ["--json"]);
}
