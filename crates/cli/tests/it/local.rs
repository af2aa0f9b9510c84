//! Commands that look at this machine.

use crate::run::run;

#[test]
fn doctor_speaks_json_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ended = run(&["doctor", "--json", "--data-dir", data.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one document");
    let keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["version", "data_dir", "selected_runtime", "runtimes", "checks"]);
    assert_eq!(report["data_dir"], data.to_str().unwrap());
    for check in report["checks"].as_array().unwrap() {
        let keys: Vec<&str> = check.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["name", "status", "detail", "fix"]);
        assert!(["ok", "warn", "fail"].contains(&check["status"].as_str().unwrap()), "{check}");
    }
    // nothing is prepared there, so no runtime is usable
    assert_eq!(report["selected_runtime"], serde_json::Value::Null);
    assert_eq!(ended.code, 1);
    assert!(!data.exists());
}

#[test]
fn doctor_says_what_would_help() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ended = run(&["doctor", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("fail  guest_kernel")).expect("none is prepared there");
    assert_eq!(lines[at + 1].trim(), "fix: wakeful setup");
}

#[test]
fn setup_knows_its_templates() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ended = run(&["setup", "--template", "nosuch", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("error: "), "{}", ended.stderr);
    assert!(!data.exists());
}

#[test]
fn a_daemon_that_anyone_could_reach_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ended = run(&["serve", "--listen", "0.0.0.0:0", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("0.0.0.0:0") && ended.stderr.contains("hint: "), "{}", ended.stderr);
    assert!(!data.exists());
}
