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

#[test]
fn keys_and_tenants_without_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let at = |args: &[&str]| run(&[args, &["--data-dir", data.to_str().unwrap()]].concat());
    let none = at(&["key", "list"]);
    assert_eq!(none.code, 1, "{}", none.stderr);
    assert!(!data.exists(), "looking makes nothing");

    let made = at(&["key", "create", "--name", "ci"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let key = made.stdout.strip_suffix('\n').unwrap();
    assert!(key.starts_with("wkf_") && key.len() == 44 && !made.stderr.contains(&key[4..]), "{}", made.stderr);
    let unknown = at(&["key", "create", "--name", "ci", "--tenant", "acme"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("acme") && unknown.stderr.contains("wakeful tenant list"), "{}", unknown.stderr);
    assert_eq!(at(&["tenant", "create", "acme", "--sandboxes", "3"]).stdout, "acme\n");
    let json = at(&["--json", "tenant", "create", "acme"]);
    let problem: serde_json::Value = serde_json::from_str(&json.stdout).expect("the problem");
    assert_eq!((json.code, &problem["code"], &problem["status"]), (1, &"name_taken".into(), &409.into()));
    assert_eq!(at(&["key", "create", "--name", "b", "--tenant", "acme"]).code, 0);
    let used = at(&["tenant", "delete", "acme"]);
    assert!(used.code == 1 && used.stderr.contains("1 keys"), "{}", used.stderr);

    let list: serde_json::Value =
        serde_json::from_str(&at(&["--json", "key", "list", "--tenant", "acme"]).stdout).unwrap();
    let [only] = list.as_array().unwrap().as_slice() else { panic!("{list}") };
    assert_eq!((&only["name"], &only["last_used_at"]), (&"b".into(), &serde_json::Value::Null));
    assert_eq!(at(&["key", "delete", only["id"].as_str().unwrap()]).code, 0);
    assert_eq!(at(&["key", "delete", only["id"].as_str().unwrap()]).code, 1);
    let set = at(&["--json", "tenant", "set", "acme", "--sandboxes", "none", "--disk-mb", "0"]);
    let tenant: serde_json::Value = serde_json::from_str(&set.stdout).unwrap();
    assert_eq!(tenant["limits"], serde_json::json!({"sandboxes": null, "memory_mb": null, "disk_mb": 0}));
    assert_eq!(at(&["tenant", "delete", "acme"]).code, 0);
    let table = at(&["tenant", "list"]).stdout;
    assert_eq!(
        table.split_whitespace().collect::<Vec<_>>(),
        ["NAME", "SANDBOXES", "MEMORY_MB", "DISK_MB", "default", "0/-", "0/-", "0/-"]
    );
}

#[test]
fn fsck_makes_nothing_where_nothing_is() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ended = run(&["fsck", "--repair", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("there is no database in") && ended.stderr.contains("hint:"), "{}", ended.stderr);
    assert!(!data.exists());
}
