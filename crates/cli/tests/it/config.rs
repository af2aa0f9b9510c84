//! `serve --print-config` and what refuses to start.

use crate::run::{end, run, wakeful};

#[test]
fn the_default_file_is_printed() {
    // an existing file of this machine must not be seen
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("config.toml");
    std::fs::write(&empty, "").unwrap();
    let ended = run(&["serve", "--print-config", "--config", empty.to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    insta::assert_snapshot!(ended.stdout);
}

#[test]
fn flags_and_variables_are_in_it_and_it_reads_itself() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("config.toml");
    std::fs::write(&file, "domain = \"sandboxes.example\"\n").unwrap();
    let file = file.to_str().unwrap();
    let mut command =
        wakeful(home.path(), &["serve", "--listen", "127.0.0.1:1", "--listen", "[::1]:1", "--print-config"]);
    let printed = end(command.env("WAKEFUL_CONFIG", file).env("WAKEFUL_LOG", "debug")).stdout;
    for line in ["domain = \"sandboxes.example\"", "log = \"debug\"", "127.0.0.1:1", "[::1]:1"] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    let again = home.path().join("again.toml");
    std::fs::write(&again, &printed).unwrap();
    assert_eq!(run(&["serve", "--print-config", "--config", again.to_str().unwrap()]).stdout, printed);
}

#[test]
fn mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "[defaults]\ntimeuot = \"5m\"\n").unwrap();
    let ended = run(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains("timeuot"), "{}", ended.stderr);
    let ended = run(&["serve", "--config", "/nowhere/config.toml"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("/nowhere/config.toml"), "{}", ended.stderr);
}
