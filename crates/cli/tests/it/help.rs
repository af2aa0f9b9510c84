//! Every command explains itself, with examples.

use crate::run::run;

const COMMANDS: &[&str] = &[
    "",
    "serve",
    "setup",
    "doctor",
    "df",
    "fsck",
    "suspend-all",
    "bench",
    "completions",
    "sandbox",
    "sandbox create",
    "sandbox list",
    "sandbox status",
    "sandbox suspend",
    "sandbox wake",
    "sandbox keepalive",
    "sandbox update",
    "sandbox events",
    "sandbox egress",
    "sandbox fork",
    "sandbox destroy",
    "sandbox exec",
    "sandbox run",
    "sandbox shell",
    "sandbox ps",
    "sandbox logs",
    "sandbox kill",
    "sandbox upload",
    "sandbox download",
    "sandbox ls",
    "sandbox stat",
    "sandbox mkdir",
    "sandbox mv",
    "sandbox rm",
    "sandbox watch",
    "sandbox url",
    "sandbox port",
    "sandbox ports",
    "sandbox port-forward",
    "snapshot",
    "snapshot create",
    "snapshot list",
    "snapshot show",
    "snapshot delete",
    "template",
    "template create",
    "template list",
    "template show",
    "template rebuild",
    "template logs",
    "template cancel",
    "template delete",
    "template prune",
    "pool",
    "pool list",
    "pool set",
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

/// Every command that the lists of commands show, so that the constant above cannot lack one.
fn listed(command: &str) -> Vec<String> {
    let mut found = Vec::new();
    let text = help(command);
    let lists = text.split("\nOptions:\n").next().unwrap_or_default();
    for line in lists.lines().filter_map(|line| line.strip_prefix("  ")) {
        let Some(name) = line.split_whitespace().next().filter(|_| !line.starts_with(' ')) else { continue };
        if name != "help" {
            found.push(format!("{command} {name}").trim().to_owned());
        }
    }
    found
}

#[test]
fn is_as_it_was() {
    for command in COMMANDS {
        let name = if command.is_empty() { "wakeful".to_owned() } else { command.replace(' ', "-") };
        insta::assert_snapshot!(name, help(command));
    }
}

#[test]
fn knows_every_command() {
    for group in ["", "sandbox", "snapshot", "template", "pool", "key", "tenant"] {
        for command in listed(group) {
            assert!(COMMANDS.contains(&command.as_str()), "{command} has no snapshot");
        }
    }
    assert!(listed("sandbox").contains(&"sandbox port-forward".to_owned()), "{:?}", listed("sandbox"));
}

#[test]
fn has_a_purpose_and_examples() {
    for command in COMMANDS {
        let text = help(command);
        let purpose = text.lines().next().unwrap_or_default();
        assert!(purpose.len() > 8 && purpose.len() < 100, "{command}: {purpose}");
        assert!(text.contains("Examples:\n  "), "{command}");
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{command}: {line}");
        }
    }
}

#[test]
fn can_be_asked_for_in_every_way() {
    let exec = help("sandbox exec");
    assert_eq!(run(&["help", "sandbox", "exec"]).stdout, exec);
    assert_eq!(run(&["sandbox", "help", "exec"]).stdout, exec);
    assert_eq!(run(&["sandbox", "exec", "-h"]).stdout, exec);
    // no command at all: help, as a refusal
    let nothing = run(&["sandbox"]);
    assert_eq!((nothing.code, nothing.stderr), (2, help("sandbox")));
}

#[test]
fn has_no_colours_where_nobody_sees_them() {
    assert!(!help("").contains('\x1b'));
}

#[test]
fn templates_is_template() {
    let plural = run(&["templates", "create", "--help"]).stdout;
    assert_eq!(plural.replace("templates", "template"), help("template create").replace("templates", "template"));
}

#[test]
fn a_pool_is_a_pool_of_sandboxes() {
    let longer = run(&["sandbox", "pool", "set", "--help"]).stdout;
    assert_eq!(longer.replace("wakeful sandbox pool", "wakeful pool"), help("pool set"));
}

#[test]
fn the_version_is_printed() {
    let ended = run(&["--version"]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, concat!("wakeful ", env!("CARGO_PKG_VERSION"))));
}
