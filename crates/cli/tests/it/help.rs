//! Every command explains itself, with examples.

use crate::run::run;

const COMMANDS: &[&str] = &[
    "",
    "serve",
    "setup",
    "doctor",
    "completions",
    "sandbox",
    "sandbox create",
    "sandbox list",
    "sandbox status",
    "sandbox exec",
    "sandbox run",
    "sandbox upload",
    "sandbox download",
    "sandbox suspend",
    "sandbox wake",
    "sandbox keepalive",
    "sandbox update",
    "sandbox events",
    "sandbox destroy",
    "template",
    "template create",
    "template list",
    "template delete",
    "key",
    "key create",
    "key list",
    "key delete",
    "tenant",
    "tenant create",
    "tenant list",
    "tenant set",
    "tenant delete",
];

fn help(command: &str) -> String {
    let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
    let ended = run(&args);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{command}");
    ended.stdout
}

#[test]
fn is_as_it_was() {
    let all: Vec<String> = COMMANDS.iter().map(|command| format!("$ wakeful {command}\n{}", help(command))).collect();
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn has_examples() {
    for command in COMMANDS.iter().filter(|command| !matches!(**command, "sandbox" | "template" | "key" | "tenant")) {
        assert!(help(command).contains("Examples:\n  wakeful"), "{command}");
    }
}

#[test]
fn templates_is_template() {
    let plural = run(&["templates", "create", "--help"]).stdout;
    assert_eq!(plural.replace("templates", "template"), help("template create").replace("templates", "template"));
}

#[test]
fn the_version_is_printed() {
    let ended = run(&["--version"]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, concat!("wakeful ", env!("CARGO_PKG_VERSION"))));
}
