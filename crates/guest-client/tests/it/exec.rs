//! Commands, from their start to their last byte.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::timeout;
use wakeful_guest_client::proto::process::{
    Base64, EndEvent, ProcessConfig, ProcessInput, Pty, PtySize, Signal, StartRequest,
};
use wakeful_guest_client::{Error, Exec, ExecEvent, ExecStream, Guest, OutputStream};

use crate::agent::{Agent, SOON};

async fn shell(guest: &Guest, line: &str) -> wakeful_guest_client::ExecOutput {
    timeout(SOON, guest.exec(&Exec::shell(line))).await.expect("in time").expect("the command runs")
}

/// A long-lived process.
async fn background(guest: &Guest, line: &str, pty: Option<Pty>) -> (ExecStream, u32) {
    let process =
        ProcessConfig { cmd: "/bin/sh".into(), args: vec!["-c".into(), line.into()], ..ProcessConfig::default() };
    let start = StartRequest { process, pty, ..StartRequest::default() };
    let mut stream = timeout(SOON, guest.start(&start, None)).await.expect("in time").expect("starts");
    match next(&mut stream).await {
        Some(ExecEvent::Started { pid }) => (stream, pid),
        other => panic!("{other:?}"),
    }
}

async fn next(stream: &mut ExecStream) -> Option<ExecEvent> {
    timeout(SOON, stream.next()).await.expect("in time").expect("the stream goes on")
}

/// Everything until the end.
async fn rest(stream: &mut ExecStream) -> (Vec<u8>, EndEvent) {
    let mut output = Vec::new();
    loop {
        match next(stream).await.expect("an end comes first") {
            ExecEvent::Output { data, .. } => output.extend_from_slice(&data),
            ExecEvent::Ended { end, .. } => {
                assert_eq!(next(stream).await, None);
                return (output, end);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn read_pid(path: &Path) -> u32 {
    wait_for("the pid", || std::fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))).await;
    std::fs::read_to_string(path).expect("is there").trim().parse().expect("a number")
}

fn kill(pid: u32) {
    let _ = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status();
}

fn refused_as(result: &Result<wakeful_guest_client::ExecOutput, Error>) -> (&str, Option<&str>) {
    match result {
        Err(Error::Refused { code, wakeful_code, .. }) => (code, wakeful_code.as_deref()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn both_streams_and_the_exit_code() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let output = shell(&guest, "echo out; echo err >&2; exit 7").await;
    assert_eq!((output.exit_code, output.signal, output.timed_out), (7, None, false));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert!(!output.stdout_truncated && !output.stderr_truncated && output.pid > 0);
    assert!(output.duration < SOON);
    for code in [0, 1, 255] {
        assert_eq!(shell(&guest, &format!("exit {code}")).await.exit_code, code);
    }
    let ended = |p: wakeful_guest_client::proto::process::ProcessInfo| p.details.is_some_and(|d| d.end.is_some());
    assert!(guest.processes().await.expect("list").into_iter().all(ended));
}

#[tokio::test]
async fn environment_user_and_workdir() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let mut exec = Exec::shell("echo $A $HOME $USER $LOGNAME $(id -un) $(pwd) $(umask); cat /proc/self/oom_score_adj");
    exec.env = [("A".to_owned(), "ä b".to_owned())].into();
    exec.cwd = Some("/usr/bin".to_owned());
    exec.user = Some("nobody".to_owned());
    let output = guest.exec(&exec).await.expect("runs");
    let home = "/nonexistent"; // Debian's
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, format!("ä b {home} nobody nobody nobody /usr/bin 0022\n0\n"));
    // Nothing of the agent's own environment gets in.
    let env = String::from_utf8(shell(&guest, "env | cut -d= -f1 | sort").await.stdout).expect("text");
    let names: Vec<_> = env.lines().filter(|name| !matches!(*name, "PWD" | "OLDPWD" | "SHLVL" | "_")).collect();
    assert!(names.iter().all(|name| ["HOME", "LOGNAME", "PATH", "USER", "WAKEFUL_PROCESS"].contains(name)), "{env}");
}

#[tokio::test]
async fn standard_input_comes_whole_and_ends() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let mut exec = Exec::new("sha256sum", Vec::<String>::new());
    exec.stdin = Some(Bytes::from(vec![b'a'; 1_000_000]));
    let output = timeout(SOON, guest.exec(&exec)).await.expect("in time").expect("runs");
    assert!(output.stdout.starts_with(b"cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
    // An input that nobody reads is nobody's error.
    exec.cmd = "true".to_owned();
    assert_eq!(timeout(SOON, guest.exec(&exec)).await.expect("in time").expect("runs").exit_code, 0);
    exec = Exec::new("cat", Vec::<String>::new());
    exec.stdin = Some(Bytes::new());
    assert_eq!(timeout(SOON, guest.exec(&exec)).await.expect("in time").expect("runs").stdout, b"");
    // Without one, it is at its end from the start.
    exec.stdin = None;
    assert_eq!(timeout(SOON, guest.exec(&exec)).await.expect("in time").expect("runs").exit_code, 0);
}

#[tokio::test]
async fn a_signal_is_told() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let output = shell(&guest, "kill -TERM $$").await;
    assert_eq!((output.exit_code, output.signal, output.timed_out), (143, Some(15), false));
    let (mut stream, pid) =
        background(&guest, "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done", None).await;
    assert!(matches!(next(&mut stream).await, Some(ExecEvent::Output { stream: OutputStream::Stdout, .. })));
    assert!(guest.processes().await.expect("list").iter().any(|process| process.pid == pid));
    guest.signal(pid, Signal::TERM).await.expect("signal");
    assert_eq!(rest(&mut stream).await.1.exit_code, 3);
    let gone = guest.signal(pid, Signal::KILL).await;
    assert!(matches!(&gone, Err(Error::Refused { wakeful_code: Some(code), .. }) if code == "process_not_found"));
}

#[tokio::test]
async fn a_timeout_kills_the_whole_tree() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let file = agent.directory().join("pid");
    let daemon = "sh -c 'setsid sh -c \"echo \\$\\$ > $F; exec sleep 300\" &' & sleep 300";
    let mut exec = Exec::shell(format!("echo before; {daemon}"));
    exec.env = [("F".to_owned(), file.display().to_string())].into();
    exec.timeout = Some(Duration::from_secs(2));
    let begun = Instant::now();
    let output = timeout(SOON, guest.exec(&exec)).await.expect("in time").expect("runs");
    assert!(begun.elapsed() >= Duration::from_secs(2) && begun.elapsed() < Duration::from_secs(10));
    assert_eq!((output.exit_code, output.signal, output.timed_out), (137, Some(9), true));
    assert_eq!(output.stdout, b"before\n");
    assert!(output.duration >= Duration::from_millis(1900), "{:?}", output.duration);
    let daemon = read_pid(&file).await;
    wait_for("the daemon's end", || !alive(daemon)).await;
}

#[tokio::test]
async fn a_background_child_holds_nothing_up_and_never_blocks() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let file = agent.directory().join("pid");
    let done = agent.directory().join("done");
    // It holds both pipes, and writes more than a pipe takes after its parent is gone.
    let line = format!(
        "(echo $BASHPID >/dev/null; sh -c 'echo $$ > {}; sleep 1; head -c 1000000 /dev/zero; echo x > {}; exec sleep 300') & echo main",
        file.display(),
        done.display()
    );
    let begun = Instant::now();
    let output = shell(&guest, &line).await;
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    assert_eq!((output.exit_code, output.stdout.as_slice()), (0, &b"main\n"[..]));
    let child = read_pid(&file).await;
    wait_for("its own end of writing", || done.exists()).await;
    assert!(alive(child), "the child goes on");
    kill(child);
}

#[tokio::test]
async fn last_words_are_not_lost() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    // More than the pipes and queues hold, and a reader that is slower than the grace after the exit.
    let (mut stream, _) = background(&guest, "head -c 3000000 /dev/zero; echo end", None).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let (output, end) = rest(&mut stream).await;
    assert_eq!((output.len(), end.exit_code), (3_000_004, 0));
    assert!(output.ends_with(b"end\n"));
}

#[tokio::test]
async fn output_without_end_is_cut_at_its_limit() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let mut exec = Exec::new("yes", ["0123456789"]);
    exec.timeout = Some(Duration::from_secs(2));
    exec.output_limit = 1_000_000;
    let output = timeout(SOON, guest.exec(&exec)).await.expect("in time").expect("runs");
    assert!(output.timed_out && output.stdout_truncated && !output.stderr_truncated);
    assert_eq!(output.stdout.len(), 1_000_000);
    assert!(output.stdout.starts_with(b"0123456789\n0123"));
    // The agent is well after that.
    assert_eq!(shell(&guest, "echo fine").await.stdout, b"fine\n");
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let plain = agent.directory().join("plain");
    std::fs::write(&plain, "text").expect("a file");
    let exec = |cmd: &str| Exec::new(cmd, Vec::<String>::new());
    let at = |cwd: &str| Exec { cwd: Some(cwd.to_owned()), ..exec("true") };
    let by = |user: &str| Exec { user: Some(user.to_owned()), ..exec("true") };
    for (exec, code, reason) in [
        (exec("no-such-command-here"), "invalid_argument", Some("command_not_found")),
        (exec("/no/such/command"), "invalid_argument", Some("command_not_found")),
        (exec(plain.to_str().expect("text")), "invalid_argument", Some("not_executable")),
        (exec("/usr/bin"), "invalid_argument", Some("not_executable")),
        (exec(""), "invalid_argument", None),
        (exec("nul\0"), "invalid_argument", None),
        (at("/no/such/directory"), "invalid_argument", Some("workdir_not_found")),
        (at("/etc/passwd"), "invalid_argument", Some("workdir_not_found")),
        (by("no-such-user"), "unauthenticated", Some("unknown_user")),
    ] {
        let result = timeout(SOON, guest.exec(&exec)).await.expect("in time");
        assert_eq!(refused_as(&result), (code, reason), "{exec:?}");
    }
    // The command's own 127 is something else.
    assert_eq!(shell(&guest, "no-such-command-here").await.exit_code, 127);
}

#[tokio::test]
async fn a_client_that_goes_away_stops_nothing_and_can_come_back() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let go = agent.directory().join("go");
    let line = format!("echo first; while ! [ -e {} ]; do sleep 0.02; done; echo second; exit 4", go.display());
    let (mut stream, pid) = background(&guest, &line, None).await;
    assert!(matches!(next(&mut stream).await, Some(ExecEvent::Output { seq: Some(1), .. })));
    drop(stream);
    guest.close().await;

    let guest = agent.connect().await;
    assert_eq!(guest.processes().await.expect("list")[0].pid, pid);
    std::fs::write(&go, "").expect("a file");
    let mut stream = timeout(SOON, guest.attach(pid, Some(1))).await.expect("in time").expect("is there");
    assert_eq!(next(&mut stream).await, Some(ExecEvent::Started { pid }));
    let (output, end) = rest(&mut stream).await;
    assert_eq!((output.as_slice(), end.exit_code), (&b"first\nsecond\n"[..], 4));
    // Ended, and still there; from a place in the middle only what comes after it.
    let mut stream = timeout(SOON, guest.attach(pid, Some(2))).await.expect("in time").expect("is there");
    assert_eq!(next(&mut stream).await, Some(ExecEvent::Started { pid }));
    assert_eq!(rest(&mut stream).await.0, b"second\n");
    let mut nobody = guest.attach(999_999_999, None).await.expect("an answer");
    assert!(matches!(nobody.next().await, Err(Error::Refused { code, .. }) if code == "not_found"));
}

#[tokio::test]
async fn a_replay_names_what_is_lost() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let (mut stream, pid) = background(&guest, "head -c 3000000 /dev/zero", None).await;
    assert_eq!(rest(&mut stream).await.0.len(), 3_000_000);
    let mut replay = guest.attach(pid, Some(0)).await.expect("is there");
    assert!(matches!(next(&mut replay).await, Some(ExecEvent::Started { .. })));
    let Some(ExecEvent::Gap { dropped_bytes, .. }) = next(&mut replay).await else { panic!("a gap") };
    let kept = rest(&mut replay).await.0.len() as u64;
    assert_eq!(dropped_bytes + kept, 3_000_000);
    assert!(kept > 900_000 && kept <= 1 << 20, "{kept}");
}

#[tokio::test]
async fn a_terminal() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let size = PtySize { cols: 91, rows: 17 };
    let line = "stty size; tty >/dev/null && echo tty; read answer; stty size; echo got $answer";
    let (mut stream, pid) = background(&guest, line, Some(Pty { size })).await;
    let mut seen = String::new();
    while !seen.contains("tty\r\n") {
        match next(&mut stream).await {
            Some(ExecEvent::Output { stream: OutputStream::Pty, data, .. }) => {
                seen.push_str(&String::from_utf8_lossy(&data));
            }
            other => panic!("{other:?} after {seen}"),
        }
    }
    assert!(seen.starts_with("17 91\r\n"), "{seen}");
    guest.resize(pid, PtySize { cols: 100, rows: 30 }).await.expect("resize");
    let stdin = guest.send_input(pid, ProcessInput::Stdin(Base64(b"x".to_vec()))).await;
    assert!(matches!(stdin, Err(Error::Refused { .. })), "{stdin:?}");
    assert!(matches!(guest.close_stdin(pid).await, Err(Error::Refused { .. })));
    guest.send_input(pid, ProcessInput::Pty(Base64(b"yes\n".to_vec()))).await.expect("input");
    let (output, end) = rest(&mut stream).await;
    let text = String::from_utf8_lossy(&output);
    assert!(text.contains("30 100") && text.contains("got yes"), "{text}");
    assert_eq!(end.exit_code, 0);
}

#[tokio::test]
async fn input_piece_by_piece() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let (mut stream, pid) = background(&guest, "cat", None).await;
    for text in ["one\n", "two\n"] {
        guest.send_input(pid, ProcessInput::Stdin(Base64(text.into()))).await.expect("input");
        match next(&mut stream).await {
            Some(ExecEvent::Output { data, .. }) => assert_eq!(data, text),
            other => panic!("{other:?}"),
        }
    }
    guest.close_stdin(pid).await.expect("close");
    assert_eq!(rest(&mut stream).await.1.exit_code, 0);
}

#[tokio::test]
async fn many_at_once() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let mut running = tokio::task::JoinSet::new();
    for nth in 0..40_u32 {
        let guest = guest.clone();
        running.spawn(async move { (nth, guest.exec(&Exec::shell(format!("echo {nth}; exit {nth}"))).await) });
    }
    while let Some(done) = timeout(SOON, running.join_next()).await.expect("in time") {
        let (nth, output) = done.expect("no panic");
        let output = output.expect("runs");
        assert_eq!((output.stdout, output.exit_code), (format!("{nth}\n").into_bytes(), nth.cast_signed()));
    }
}
