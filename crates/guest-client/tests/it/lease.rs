//! Busy leases, taken by programs beside the agent and told to the host.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::time::timeout;
use wakeful_guest_client::Guest;
use wakeful_guest_client::proto::process::{ProcessConfig, StartRequest};

use crate::agent::{Agent, SOON, binary};

async fn agent() -> (Agent, PathBuf) {
    let agent =
        Agent::start_with(|directory| vec!["--lease-socket".to_owned(), directory.join("lease").display().to_string()])
            .await;
    let socket = agent.directory().join("lease");
    let deadline = Instant::now() + SOON;
    // Bound a moment before its permissions are set.
    while !socket.metadata().is_ok_and(|found| found.permissions().mode() & 0o777 == 0o666) {
        assert!(Instant::now() < deadline, "no socket for leases that everybody may use");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    (agent, socket)
}

async fn ask(socket: &PathBuf, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let stream = UnixStream::connect(socket).await.expect("the socket");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    let body = if body.is_null() { Full::default() } else { Full::new(bytes::Bytes::from(body.to_string())) };
    let request = Request::builder().method(method).uri(path).header("host", "sandbox").body(body).expect("a request");
    let exchange = async {
        let answer = sender.send_request(request).await.expect("an answer");
        let status = answer.status();
        let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    };
    tokio::select! {
        answer = timeout(SOON, exchange) => answer.expect("in time"),
        _ = connection => panic!("hung up"),
    }
}

async fn held(guest: &Guest) -> Vec<String> {
    guest.busy(SOON).await.expect("an answer").leases.into_iter().map(|lease| lease.name).collect()
}

#[tokio::test]
async fn leases_are_taken_listed_and_given_back() {
    let (agent, socket) = agent().await;
    let guest = agent.connect().await;
    assert_eq!(guest.busy(SOON).await.expect("an answer"), Default::default());
    let put = async |body: Value| ask(&socket, Method::PUT, "/lease", &body).await;
    assert_eq!(put(json!({"ttl": "60s", "name": "build"})).await, (StatusCode::NO_CONTENT, Value::Null));
    assert_eq!(put(json!({"ttl": 3600})).await.0, StatusCode::NO_CONTENT);
    assert_eq!(put(json!({"ttl": "50ms", "name": "short"})).await.0, StatusCode::NO_CONTENT);
    let busy = guest.busy(SOON).await.expect("an answer");
    let build = busy.leases.iter().find(|lease| lease.name == "build").expect("held");
    assert!((1..=60_000).contains(&build.ttl_ms) && build.since_ms < 60_000, "{build:?}");
    let deadline = Instant::now() + SOON;
    while held(&guest).await != ["build", "default"] {
        assert!(Instant::now() < deadline, "{:?}", held(&guest).await);
    }
    let (status, list) = ask(&socket, Method::GET, "/lease", &Value::Null).await;
    assert_eq!((status, &list["leases"][0]["name"]), (StatusCode::OK, &json!("build")));
    for _ in 0..2 {
        assert_eq!(ask(&socket, Method::DELETE, "/lease/build", &Value::Null).await.0, StatusCode::NO_CONTENT);
    }
    assert_eq!(held(&guest).await, ["default"]);
    for bad in [
        json!({}),
        json!({"ttl": "61m"}),
        json!({"ttl": 0}),
        json!({"ttl": "soon"}),
        json!({"ttl": "1s", "name": "a b"}),
        json!({"ttl": "1s", "nmae": "x"}),
        json!({"ttl": "1s", "name": "x".repeat(5000)}),
    ] {
        let (status, answer) = put(bad.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}");
        assert!(answer["message"].is_string(), "{answer}");
    }
    assert_eq!(ask(&socket, Method::POST, "/lease", &Value::Null).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(ask(&socket, Method::GET, "/_wakeful/busy", &Value::Null).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_wrapped_command_holds_one_as_long_as_it_runs() {
    let (agent, socket) = agent().await;
    let guest = agent.connect().await;
    let wrapped = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["lease", "1s", "--name", "work", "--"]).args(arguments).env("WAKEFUL_LEASE_SOCKET", &socket);
        command
    };
    // Longer than its time to live, so it must have been renewed.
    let mut child = wrapped(&["/bin/sh", "-c", "read line; exit 7"]).stdin(Stdio::piped()).spawn().expect("starts");
    let begun = Instant::now();
    while held(&guest).await.is_empty() {
        assert!(begun.elapsed() < SOON, "no lease");
    }
    let begun = Instant::now();
    while begun.elapsed() < std::time::Duration::from_millis(1500) {
        assert_eq!(held(&guest).await, ["work"]);
    }
    drop(child.stdin.take());
    let status = child.wait().expect("ends");
    assert_eq!((status.code(), held(&guest).await), (Some(7), Vec::<String>::new()));

    // It *is* the command: signals reach it, and its end is the command's end.
    let mut child = wrapped(&["/bin/sleep", "60"]).spawn().expect("starts");
    while held(&guest).await.is_empty() {
        assert!(begun.elapsed() < SOON, "no lease");
    }
    kill_process(Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("a pid"), Signal::TERM).expect("sent");
    assert_eq!(child.wait().expect("ends").signal(), Some(15));
    assert!(held(&guest).await.is_empty());

    let output = wrapped(&["/no/such/program"]).output().expect("ends");
    assert_eq!(output.status.code(), Some(127));
    assert!(held(&guest).await.is_empty());
    let mut odd = Command::new(binary());
    odd.args(["lease", "2h", "--", "/bin/true"]).env("WAKEFUL_LEASE_SOCKET", &socket);
    assert_eq!(odd.output().expect("ends").status.code(), Some(125));
    // Without a socket the command still runs.
    let output = wrapped(&["/bin/echo", "ran"]).env("WAKEFUL_LEASE_SOCKET", "/no/such").output().expect("ends");
    assert_eq!((output.status.code(), output.stdout), (Some(0), b"ran\n".to_vec()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no lease"));
}

#[tokio::test]
async fn a_process_that_asked_for_it_counts_while_it_runs() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let start = |keep_awake| StartRequest {
        process: ProcessConfig { cmd: "/bin/sleep".to_owned(), args: vec!["60".to_owned()], ..Default::default() },
        stdin: Some(false),
        keep_awake,
        ..StartRequest::default()
    };
    let _plain = guest.start(&start(false), None).await.expect("started");
    let mut events = guest.start(&start(true), None).await.expect("started");
    let Ok(Some(wakeful_guest_client::ExecEvent::Started { pid, .. })) = events.next().await else {
        panic!("a process that runs");
    };
    let busy = guest.busy(SOON).await.expect("an answer");
    assert_eq!(busy.keep_awake.iter().map(|process| process.pid).collect::<Vec<_>>(), [pid]);
    assert!(busy.keep_awake[0].since_ms < 60_000 && busy.leases.is_empty());
    guest.signal(pid, wakeful_guest_client::proto::process::Signal::KILL).await.expect("killed");
    let begun = Instant::now();
    while !guest.busy(SOON).await.expect("an answer").keep_awake.is_empty() {
        assert!(begun.elapsed() < SOON, "it counts on");
    }
}
