//! Processes that nobody waits for in one breath.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use tokio::time::timeout;
use wakeful_guest_client::proto::process::{ProcessConfig, Pty, PtySize, Signal, StartRequest};
use wakeful_guest_client::{Error, ExecEvent, Guest, Job};

use crate::agent::{Agent, SOON};

async fn launch(guest: &Guest, line: &str) -> Job {
    let process =
        ProcessConfig { cmd: "/bin/sh".into(), args: vec!["-c".into(), line.into()], ..ProcessConfig::default() };
    let start = StartRequest { process, keep_awake: true, ..StartRequest::default() };
    timeout(SOON, guest.launch(start, None)).await.expect("in time").expect("starts")
}

/// What a replay tells: bytes, and the exit code if it has ended.
async fn replayed(guest: &Guest, pid: u32, from: u64) -> (Vec<u8>, Option<i32>) {
    let mut events = timeout(SOON, guest.replay(pid, from)).await.expect("in time").expect("is there");
    let (mut output, mut code) = (Vec::new(), None);
    while let Some(event) = timeout(SOON, events.next()).await.expect("in time").expect("goes on") {
        match event {
            ExecEvent::Output { data, .. } => output.extend_from_slice(&data),
            ExecEvent::Ended { end, .. } => code = Some(end.exit_code),
            _ => {}
        }
    }
    (output, code)
}

#[tokio::test]
async fn it_is_described_and_replayed_while_it_runs_and_after() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let mut job = launch(&guest, "echo one; read line; echo $line; exit 5").await;
    let pid = job.pid();
    let told = loop {
        let told = guest.process(pid).await.expect("is there");
        if told.details.as_ref().is_some_and(|details| details.last_seq > 0) {
            break told;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let details = told.details.expect("a native answer");
    assert_eq!((details.end, details.keep_awake, details.pty, details.last_seq), (None, true, false, 1));
    assert!(!details.user.is_empty() && details.workdir.starts_with('/') && details.started_at_ms > 0);
    assert_eq!(replayed(&guest, pid, 0).await, (b"one\n".to_vec(), None));

    guest.feed(pid, Bytes::from_static(b"two\n")).await.expect("is taken");
    assert_eq!(timeout(SOON, job.ended()).await.expect("in time").expect("an end").exit_code, 5);
    assert_eq!(replayed(&guest, pid, 0).await, (b"one\ntwo\n".to_vec(), Some(5)));
    assert_eq!(replayed(&guest, pid, 2).await, (b"two\n".to_vec(), Some(5)));
    let details = guest.process(pid).await.expect("is still there").details.expect("a native answer");
    assert_eq!((details.last_seq, details.end.expect("an end").exit_code), (3, 5));
    let nobody = guest.process(999_999_999).await;
    assert!(matches!(&nobody, Err(Error::Refused { wakeful_code: Some(code), .. }) if code == "process_not_found"));
}

#[tokio::test]
async fn input_is_a_stream_and_may_be_refused() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let mut job = launch(&guest, "wc -c").await;
    let pieces: Vec<io::Result<Bytes>> = (0..30).map(|_| Ok(Bytes::from(vec![b'x'; 100_000]))).collect();
    guest.stream_input(job.pid(), false, stream::iter(pieces)).await.expect("is taken");
    guest.close_stdin(job.pid()).await.expect("is closed");
    timeout(SOON, job.ended()).await.expect("in time").expect("an end");
    assert_eq!(replayed(&guest, job.pid(), 0).await.0, b"3000000\n");

    let job = launch(&guest, "exec <&-; echo closed; sleep 100").await;
    while replayed(&guest, job.pid(), 0).await.0.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = guest.stream_input(job.pid(), false, stream::iter([Ok(Bytes::from_static(b"x"))])).await;
    assert!(matches!(&refused, Err(Error::Refused { wakeful_code: Some(code), .. }) if code == "stdin_closed"));
    guest.signal(job.pid(), Signal::KILL).await.expect("is killed");
}

#[tokio::test]
async fn a_listener_that_stands_still_holds_nothing_up() {
    const TOTAL: u64 = 4_000_000;
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    // It waits for its listener, so that everything goes through it at first.
    let mut job = launch(&guest, &format!("read go; head -c {TOTAL} /dev/zero")).await;
    let mut events = guest.attach(job.pid(), Some(0)).await.expect("is there");
    guest.feed(job.pid(), Bytes::from_static(b"go\n")).await.expect("is taken");
    // Nothing is read from it, and the process comes to its end.
    timeout(SOON, job.ended()).await.expect("it is held up").expect("an end");
    let (mut told, mut lost, mut ended) = (0, 0, false);
    while let Some(event) = timeout(SOON, events.next()).await.expect("in time").expect("goes on") {
        match event {
            ExecEvent::Output { data, .. } => told += data.len() as u64,
            ExecEvent::Gap { dropped_bytes, .. } => lost += dropped_bytes,
            ExecEvent::Ended { .. } => ended = true,
            _ => {}
        }
    }
    assert!(ended && lost > 0 && told > 0, "told {told}, lost {lost}");
    assert!((TOTAL..TOTAL + TOTAL / 4).contains(&(told + lost)), "told {told}, lost {lost}");
}

#[tokio::test]
async fn a_login_shell_knows_what_it_is() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let process = ProcessConfig { cmd: "/bin/sh".into(), args: vec!["-l".into()], ..ProcessConfig::default() };
    let pty = Some(Pty { size: PtySize { cols: 80, rows: 24 } });
    let start = StartRequest { process, pty, login_shell: true, ..StartRequest::default() };
    let mut job = guest.launch(start, None).await.expect("starts");
    let keys = stream::iter([Ok(Bytes::from_static(b"echo I am $0; exit 3\n"))]);
    guest.stream_input(job.pid(), true, keys).await.expect("is taken");
    assert_eq!(timeout(SOON, job.ended()).await.expect("in time").expect("an end").exit_code, 3);
    let (output, _) = replayed(&guest, job.pid(), 0).await;
    let text = String::from_utf8_lossy(&output).into_owned();
    assert!(text.contains("I am -"), "{text}");
}
