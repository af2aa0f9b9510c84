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
        "sandbox exec sbx_x echo two",
        "sandbox exec sbx_x echo -- true",
        "sandbox exec sbx_x --keep-awake -- true",
        "sandbox exec sbx_x -t -- true",
        "sandbox exec sbx_x -t --detach -- true",
        "sandbox shell",
        "sandbox shell sbx_x",
        "sandbox shell sbx_x --attach 7 --command ls",
        "sandbox logs sbx_x",
        "sandbox logs sbx_x one",
        "sandbox kill sbx_x",
        "sandbox port-forward sbx_x",
        "sandbox port-forward sbx_x 80:",
        "sandbox port-forward sbx_x 80:http",
        "sandbox port-forward sbx_x --address nowhere 80",
        "sandbox ls",
        "sandbox ls sbx_x relative",
        "sandbox rm sbx_x",
        "sandbox mv sbx_x /a",
        "sandbox watch sbx_x",
        "sandbox run -- true",
        "sandbox upload sbx_x /etc/hostname relative/path",
        "sandbox download sbx_x",
        "sandbox destroy",
        "template create",
        "template create x",
        "template create --debian bookworm",
        "template create x --debian bookworm --image python",
        "template create x --image python --packages git",
        "template create x --image python --context .",
        "template create x --debian bookworm --target web",
        "template create x --image python --image-tag 1",
        "template create x --image python --start a --no-start",
        "template create x --image python --ready-timeout soon",
        "template create x --image python --ops-per-sec many",
        "template create x --from-sandbox snp_k3v7q2m5x6a4b2c7d5ef",
        "template create x --from-snapshot nonsense",
        "template create x --dockerfile . --build-arg NO_SUCH_VARIABLE_HERE",
        "template rebuild",
        "template rebuild x --context a --archive b",
        "template rebuild x --dockerfile b",
        "template logs",
        "template cancel",
        "template prune --unused soon",
        "key create",
        "key create --name x --scope everything",
        "key delete",
        "tenant create",
        "tenant create x --sandboxes many",
        "tenant set x",
        "setup --no-templates --template base",
        "completions nosuchshell",
        "--api-url nonsense sandbox list",
        "--api-url ftp://127.0.0.1:1 sandbox list",
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
        "sandbox exec ID line",
        "sandbox exec ID --timeout 0 -- true",
        "sandbox exec ID --detach -- true",
        "sandbox ps ID",
        "sandbox logs ID 7",
        "sandbox kill ID 7",
        "sandbox ls ID",
        "sandbox stat ID /a",
        "sandbox mkdir ID /a",
        "sandbox mv ID /a /b",
        "sandbox rm ID /a",
        "sandbox watch ID /a",
        "sandbox port-forward ID :80",
        "templates list",
        "template create x --debian bookworm",
        "template create x --image python:3.12 --no-wait",
        "template create x --archive /etc/hostname",
        "template create x --rootfs /etc/apt",
        "template create x --from-snapshot ID",
        "template show x",
        "template rebuild x",
        "template rebuild x --context /etc/apt",
        "template logs -f x",
        "template cancel x",
        "template delete x",
        "template prune -f",
        "df",
    ] {
        let id = if line.contains("--from-snapshot") { "snp_k3v7q2m5x6a4b2c7d5ef" } else { ID };
        let args: Vec<&str> = line.split_whitespace().map(|word| if word == "ID" { id } else { word }).collect();
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
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("Dockerfile");
    std::fs::write(&wrong, "FROM scratch\nCOPI a b\n").unwrap();
    let missing = "/nowhere/rootfs";
    for (flag, path, told) in [
        ("--rootfs", missing, missing),
        ("--archive", missing, missing),
        ("--dockerfile", wrong.to_str().unwrap(), "line 2"),
    ] {
        let ended = run(&["--api-url", url, "template", "create", "x", flag, path]);
        assert_eq!(ended.code, 1, "{}", ended.stderr);
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(told), "{}", ended.stderr);
    }
}

#[test]
fn input_holds_nothing_up() {
    let (home, nobody) = (tempfile::tempdir().unwrap(), nobody());
    for (flags, input) in [(&[][..], &b""[..]), (&[], b"some\xff"), (&["-n"], b"")] {
        let begun = Instant::now();
        let args = [&["--api-url", &nobody.url, "sandbox", "exec", ID], flags, &["--", "cat"]].concat();
        let mut command = wakeful(home.path(), &args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut open = child.stdin.take().unwrap();
        open.write_all(input).unwrap();
        // the pipe stays open: nobody knows whether more will come
        let output = child.wait_with_output().unwrap();
        drop(open);
        assert_eq!(output.status.code(), Some(69), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn typing_errors_are_guessed() {
    for (line, guess) in [
        (&["sandbox", "exce", ID][..], "'exec'"),
        (&["sandbx", "list"], "'sandbox'"),
        (&["sandbox", "create", "-t", "python", "--persistant"], "'--persistent'"),
        (&["completions", "bahs"], "'bash'"),
    ] {
        let ended = run(line);
        assert_eq!(ended.code, 2, "{line:?}");
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains("tip: "), "{}", ended.stderr);
        assert!(ended.stderr.contains(guess), "{}", ended.stderr);
    }
}

#[test]
fn errors_look_alike() {
    let nobody = nobody();
    let told = |args: &[&str]| {
        let ended = run(&[&["--api-url", &nobody.url], args].concat());
        format!("exit code {}\n{}", ended.code, ended.stderr.replace(&nobody.url, "URL"))
    };
    let all = [
        &["sandbox", "list"][..],
        &["sandbox", "shell", ID],
        &["sandbox", "upload", ID, "/nowhere", "/x"],
        &["sandbox", "exec", ID],
        &["sandbox", "exec", ID, "two", "words"],
        &["sandbox", "port-forward", ID, "80:http"],
        &["sandbox", "stauts", ID],
    ];
    insta::assert_snapshot!(all.map(|args| format!("$ wakeful {}\n{}", args.join(" "), told(args))).join("\n"));
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
