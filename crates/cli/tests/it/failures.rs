//! How the binary says no, and with which code.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};

use crate::run::{end, run, wakeful};

const ID: &str = "sbx_k3v7q2m5x6a4b2c7d5ef";

#[test]
fn usage_errors_end_with_2() {
    for line in [
        "",
        "nonsense",
        "sandbox",
        "sandbox create",
        "sandbox create -t python --timeout soon",
        "sandbox create -t python --idle-timeout 10m",
        "sandbox create -t python --persistent --timeout 5m",
        "sandbox create -t python -e NOVALUE",
        "sandbox create -t python --egress-allow-port http",
        "sandbox exec sbx_x",
        "sandbox exec sbx_x --",
        "sandbox exec sbx_x echo",
        "sandbox exec sbx_x --timeout 0 -- true",
        "sandbox run -- true",
        "sandbox upload sbx_x /etc/hostname relative/path",
        "sandbox download sbx_x",
        "sandbox destroy",
        "template create",
        "template create x",
        "key create",
        "key create --name x --scope everything",
        "key delete",
        "tenant create",
        "tenant create x --sandboxes many",
        "tenant set x",
        "setup --no-templates --template base",
        "completions nosuchshell",
        "--api-url nonsense sandbox list",
        "--api-url https://127.0.0.1:1 sandbox list",
        "serve --runtime docker --print-config",
        "serve --listen nowhere --print-config",
    ] {
        let ended = run(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(ended.code, 2, "{line}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{line}");
        assert!(!ended.stderr.is_empty(), "{line}");
    }
}

/// An address at which nobody listens, and which nobody else can take meanwhile.
struct Nobody {
    url: String,
    _bound: OwnedFd,
}

fn nobody() -> Nobody {
    let bound = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&bound).unwrap()).unwrap();
    Nobody { url: format!("http://{address}"), _bound: bound }
}

#[test]
fn an_absent_server_ends_with_69_and_a_hint() {
    let nobody = nobody();
    let url = &nobody.url;
    for line in [
        "sandbox list",
        "sandbox create -t python",
        "sandbox status ID",
        "sandbox exec ID -- true",
        "sandbox run -t python -- true",
        "sandbox upload ID /etc/hostname /tmp/x",
        "sandbox download ID /tmp/x -",
        "sandbox suspend ID",
        "sandbox wake ID",
        "sandbox keepalive ID",
        "sandbox destroy ID",
        "templates list",
        "template create x --debian bookworm",
        "template delete x",
    ] {
        let args: Vec<&str> = line.split_whitespace().map(|word| if word == "ID" { ID } else { word }).collect();
        let ended = run(&[&["--api-url", url][..], &args].concat());
        assert_eq!(ended.code, 69, "{line}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{line}");
        let (error, hint) = ended.stderr.split_once("\n\n").expect("error, blank line, hint");
        assert!(error.starts_with("error: could not reach ") && error.contains(url), "{line}: {error}");
        assert!(hint.starts_with("hint: ") && hint.contains("`wakeful serve`"), "{line}: {hint}");
    }
}

#[test]
fn local_files_are_looked_at_first() {
    let nobody = nobody();
    let url = &nobody.url;
    let missing = run(&["--api-url", url, "sandbox", "upload", ID, "/nowhere/file", "/tmp/x"]);
    assert_eq!(missing.code, 1, "{}", missing.stderr);
    assert!(missing.stderr.contains("/nowhere/file"), "{}", missing.stderr);
    let directory = run(&["--api-url", url, "sandbox", "upload", ID, "/tmp", "/tmp/x"]);
    assert_eq!(directory.code, 1);
    assert!(directory.stderr.contains("is a directory"), "{}", directory.stderr);
}

#[test]
fn input_that_cannot_be_sent_never_runs() {
    let (home, nobody) = (tempfile::tempdir().unwrap(), nobody());
    let large = vec![b'x'; (1 << 20) + 1];
    for (input, part) in [(&large[..], "larger than 1 MiB"), (&b"\xff\xfe"[..], "not UTF-8")] {
        let mut command = wakeful(home.path(), &["--api-url", &nobody.url, "sandbox", "exec", ID, "--", "cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // it may stop reading before the end
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{stderr}");
        assert!(stderr.contains(part), "{stderr}");
    }
}

#[test]
fn a_pipe_that_never_ends_does_not_hold_it() {
    let (home, nobody) = (tempfile::tempdir().unwrap(), nobody());
    let begun = Instant::now();
    let mut command =
        wakeful(home.path(), &["--api-url", &nobody.url, "sandbox", "exec", ID, "--timeout", "300ms", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(open);
    assert_eq!(output.status.code(), Some(125), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn no_stdin_does_not_read_it() {
    let (home, nobody) = (tempfile::tempdir().unwrap(), nobody());
    let mut command = wakeful(home.path(), &["--api-url", &nobody.url, "sandbox", "exec", "-n", ID, "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let open = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(open);
    assert_eq!(output.status.code(), Some(69), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_users_file_names_the_server() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join(".config/wakeful");
    std::fs::create_dir_all(&dir).unwrap();
    let (from_file, from_variable) = (nobody(), nobody());
    std::fs::write(dir.join("config.toml"), format!("url = {:?}\n", from_file.url)).unwrap();
    let ended = end(&mut wakeful(home.path(), &["sandbox", "list"]));
    assert!(ended.stderr.contains(&from_file.url), "{}", ended.stderr);
    let ended = end(wakeful(home.path(), &["sandbox", "list"]).env("WAKEFUL_URL", &from_variable.url));
    assert!(ended.stderr.contains(&from_variable.url), "{}", ended.stderr);
    std::fs::write(dir.join("config.toml"), "api_kye = \"wkf_secret\"\n").unwrap();
    let ended = end(&mut wakeful(home.path(), &["sandbox", "list"]));
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("api_kye") && !ended.stderr.contains("wkf_secret"), "{}", ended.stderr);
}
