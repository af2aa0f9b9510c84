//! Streams of output: what they tell, and that nothing is lost when client, daemon or sandbox go away meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wakeful_api_types::Frame;
use wakeful_testkit::{Daemon, Options};

use crate::support::{create, persistent, run, sh, wait_for};
use crate::wire::{Frames, SOON, answer, background, get, outputs, post, refused};

#[tokio::test]
async fn a_command_is_told_as_it_runs() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let stream =
        |body: serde_json::Value| Ok::<_, anyhow::Error>(post(&daemon, &id, "execute?stream=true")?.json(&body));

    // A character in two writes, a byte that is none, input, and an exit code.
    let script = "printf 'a\\303'; printf '\\251b\\n'; printf '\\377' >&2; cat; exit 7";
    let mut frames = Frames::open(stream(json!({"command": script, "stdin": "in", "timeout": "0"}))?).await?;
    ensure!(frames.content_type() == "application/x-ndjson", "{}", frames.content_type());
    let start = frames.line().await?.context("a start")?;
    let Frame::Start { seq: 0, pid, runtime_generation: 1 } = serde_json::from_str(&start)? else { bail!("{start}") };
    let rest = frames.rest().await?;
    ensure!(outputs(&rest) == ("aéb\nin".as_bytes().to_vec(), vec![0xff]), "{rest:?}");
    for (nth, frame) in rest.iter().enumerate() {
        ensure!(frame.seq() == Some(nth as u64 + 1), "{rest:?}");
    }
    let Some(Frame::Exit { exit_code: 7, signal: None, timed_out: false, .. }) = rest.last() else { bail!("{rest:?}") };
    // Nothing of it was cut in two.
    let text =
        |frame: &Frame| serde_json::to_value(frame).is_ok_and(|v| v["type"] != "stdout" || v["data"].is_string());
    ensure!(rest.iter().all(text), "{rest:?}");

    // The same again as events, from its journal.
    let again = get(&daemon, &id, &format!("processes/{pid}/output"))?.header("accept", "text/event-stream");
    let mut events = Frames::open(again).await?;
    ensure!(events.content_type() == "text/event-stream");
    ensure!(events.line().await?.as_deref() == Some("id: 0"));
    let data = events.line().await?.context("data")?;
    ensure!(data.starts_with("data: {\"type\":\"start\",\"seq\":0,"), "{data}");
    ensure!(events.line().await?.as_deref() == Some(""));

    let rest = Frames::open(stream(json!({"command": "sleep 60", "timeout": "2s"}))?).await?.rest().await?;
    let Some(Frame::Exit { exit_code: 137, signal: Some(9), timed_out: true, .. }) = rest.last() else {
        bail!("{rest:?}")
    };
    for (body, wanted) in [
        (json!({"command": "true", "workdir": "/no/such"}), (400, "workdir_not_found")),
        (json!({"command": ["no-such-program"]}), (422, "command_not_found")),
        (json!({"command": "true", "timeout": "6m"}), (400, "invalid_duration")),
    ] {
        let (status, code) = refused(stream(body.clone())?).await?;
        ensure!((status, code.as_str()) == wanted, "{body}: {status} {code}");
    }
    Ok(())
}

#[tokio::test]
async fn a_command_without_its_client_keeps_the_sandbox_awake() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"mode": "persistent", "idle_timeout": "2s"})).await?.id.to_string();
    let body = json!({"command": "sleep 6; echo done > /tmp/done", "timeout": "0"});
    let mut frames = Frames::open(post(&daemon, &id, "execute?stream=true")?.json(&body)).await?;
    let Some(Frame::Start { pid, .. }) = frames.next().await? else { bail!("no start") };
    drop(frames);
    let sandbox = client.sandbox(&id).await?;
    let because = &sandbox.awake_because[0];
    ensure!(because.reason == "exec" && because.detail == Some(format!("pid {pid}")), "{because:?}");
    ensure!(sandbox.sleeps_at.is_none());
    wait_for("sleep", SOON, || async { Ok(client.sandbox(&id).await?.status.to_string() == "suspended") }).await?;
    ensure!(sh(&client, &id, "cat /tmp/done").await? == "done", "it slept before the command's end");
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);
    Ok(())
}

#[tokio::test]
async fn a_silent_stream_lets_it_sleep_and_a_busy_one_does_not() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"mode": "persistent", "idle_timeout": "3s"})).await?.id.to_string();
    let script = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done; sleep 600";
    let pid = background(&daemon, &id, json!({"command": script})).await?;
    let mut frames = Frames::open(get(&daemon, &id, &format!("processes/{pid}/output?follow=true"))?).await?;
    let Some(Frame::Start { runtime_generation: 1, .. }) = frames.next().await? else { bail!("no start") };
    let rest = frames.rest().await?;
    let (stdout, _) = outputs(&rest);
    ensure!(stdout == b"1\n2\n3\n4\n5\n6\n7\n8\n", "it slept while it had something to tell: {rest:?}");
    let Some(Frame::Suspended { pid: told, seq }) = rest.last() else { bail!("{rest:?}") };
    ensure!(*told == pid);
    wait_for("sleep", SOON, || async { Ok(client.sandbox(&id).await?.status.to_string() == "suspended") }).await?;
    // Coming back to it wakes it; there is nothing more to replay from there.
    let more = get(&daemon, &id, &format!("processes/{pid}/output?from={seq}"))?;
    ensure!(Frames::open(more).await?.rest().await?.is_empty());
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);
    Ok(())
}

/// Reads numbered lines until `count` of them are there; where to go on.
async fn read_lines(frames: &mut Frames, lines: &mut String, count: usize) -> Result<u64> {
    let mut next = 0;
    while lines.lines().count() < count {
        match frames.next().await?.context("more lines")? {
            Frame::Start { .. } => {}
            Frame::Stdout { seq, bytes } => {
                next = seq + 1;
                lines.push_str(&String::from_utf8(bytes.into_bytes().context("base64")?)?);
            }
            other => bail!("{other:?}"),
        }
    }
    Ok(next)
}

#[tokio::test]
async fn nothing_is_lost_or_told_twice_over_client_daemon_and_sleep() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done";
    let pid = background(&daemon, &id, json!({"command": script})).await?;
    let output = |from: u64| format!("processes/{pid}/output?follow=true&from={from}");
    let mut lines = String::new();

    let mut frames = Frames::open(get(&daemon, &id, &output(0))?).await?;
    let next = read_lines(&mut frames, &mut lines, 5).await?;
    drop(frames);

    let mut frames = Frames::open(get(&daemon, &id, &output(next))?).await?;
    let next = read_lines(&mut frames, &mut lines, 10).await?;
    daemon.kill()?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;

    let mut frames = Frames::open(get(&daemon, &id, &output(next))?).await?;
    read_lines(&mut frames, &mut lines, 15).await?;
    let (suspended, rest) = tokio::join!(client.suspend(&id, true), frames.rest());
    ensure!(suspended?.status.to_string() == "suspended");
    let rest = rest?;
    lines.push_str(&String::from_utf8(outputs(&rest).0)?);
    let Some(Frame::Suspended { pid: told, seq }) = rest.last() else { bail!("{rest:?}") };
    ensure!(*told == pid);

    let mut frames = Frames::open(get(&daemon, &id, &output(*seq))?).await?;
    let wanted = lines.lines().count() + 5;
    read_lines(&mut frames, &mut lines, wanted).await?;
    for (nth, line) in lines.lines().enumerate() {
        ensure!(line == format!("line {}", nth + 1), "{lines}");
    }
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);

    let listed = answer(get(&daemon, &id, "processes")?).await?;
    let found = listed["processes"].as_array().context("a list")?.iter().find(|p| p["pid"] == pid).context("it")?;
    ensure!(found["command"] == script && found["user"] == "user" && found["workdir"] == "/home/user", "{found}");
    ensure!(found["running"] == true && found["exit_code"].is_null() && found["pty"] == false, "{found}");
    answer(post(&daemon, &id, &format!("processes/{pid}/signal"))?.json(&json!({"signal": "TERM"}))).await?;
    let rest = frames.rest().await?;
    let Some(Frame::Exit { exit_code: 143, signal: Some(15), seq, .. }) = rest.last() else { bail!("{rest:?}") };
    let ended = answer(get(&daemon, &id, &format!("processes/{pid}"))?).await?;
    ensure!(ended["running"] == false && ended["exit_code"] == 143 && ended["last_seq"] == *seq, "{ended}");
    Ok(())
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_nothing_up() -> Result<()> {
    const TOTAL: u64 = 8_000_000;
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"timeout": "10m"})).await?.id.to_string();
    // With a small window of its own, so that the kernel does not read for it.
    let address: std::net::SocketAddr = daemon.url().trim_start_matches("http://").parse()?;
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(8192)?;
    let mut stalled = socket.connect(address).await?;
    let script = format!("head -c {TOTAL} /dev/zero | tr '\\\\0' x; echo done > /tmp/written");
    let body = format!("{{\"command\":\"{script}\",\"timeout\":\"0\"}}");
    let request = format!(
        "POST /v1/sandboxes/{id}/execute?stream=true HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stalled.write_all(request.as_bytes()).await?;
    // Asked for seldom: each look runs a command on the same emulated processor.
    wait_for("the command's end", Duration::from_secs(120), || async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(run(&client, &id, "cat /tmp/written").await?.exit_code == 0)
    })
    .await?;
    // Then it reads: what is left of the journal, and how much is not.
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, stalled.read_to_end(&mut answer)).await??;
    let answer = String::from_utf8(answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{}", &answer[..answer.len().min(300)]);
    let (mut told, mut lost, mut exited) = (0, 0, false);
    for frame in answer.lines().filter_map(|line| serde_json::from_str::<Frame>(line).ok()) {
        match frame {
            Frame::Stdout { bytes, .. } => told += bytes.into_bytes().context("bytes")?.len() as u64,
            Frame::Gap { dropped_bytes, .. } => lost += dropped_bytes,
            Frame::Exit { exit_code: 0, .. } => exited = true,
            _ => {}
        }
    }
    ensure!(exited && lost > 0, "told {told}, lost {lost}");
    // What lies far back is counted coarsely, and never too small.
    ensure!(told + lost >= TOTAL && told + lost < TOTAL + TOTAL / 4, "told {told}, lost {lost}");
    Ok(())
}

#[tokio::test]
async fn processes_are_fed_signalled_and_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"timeout": "10m"})).await?.id.to_string();
    // What warmed its golden snapshot up is none of its processes.
    ensure!(answer(get(&daemon, &id, "processes")?).await? == json!({"processes": []}));

    let pid = background(&daemon, &id, json!({"command": ["sh", "-c", "cat > /tmp/copy"]})).await?;
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| u8::try_from(n % 251).unwrap_or(0)).collect();
    answer(post(&daemon, &id, &format!("processes/{pid}/stdin"))?.body("first,")).await?;
    answer(post(&daemon, &id, &format!("processes/{pid}/stdin?eof=true"))?.body(data.clone())).await?;
    wait_for("its end", SOON, || async {
        Ok(answer(get(&daemon, &id, &format!("processes/{pid}"))?).await?["running"] == false)
    })
    .await?;
    let copy = get(&daemon, &id, "files/tmp/copy")?.send().await?.bytes().await?;
    ensure!(copy.len() == data.len() + 6 && copy.starts_with(b"first,") && copy[6..] == data, "{} bytes", copy.len());

    let sleeper = background(&daemon, &id, json!({"command": "exec <&-; sleep 300", "workdir": "/tmp"})).await?;
    let path = |pid: u32, call: &str| format!("processes/{pid}/{call}");
    let resize = json!({"cols": 80, "rows": 24});
    for (request, wanted) in [
        (post(&daemon, &id, &path(pid, "stdin"))?.body("x"), (404, "process_not_found")),
        (post(&daemon, &id, &path(pid, "signal"))?.json(&json!({"signal": "TERM"})), (404, "process_not_found")),
        (post(&daemon, &id, &path(4_000_000, "stdin?eof=true"))?, (404, "process_not_found")),
        (get(&daemon, &id, "processes/4000000")?, (404, "process_not_found")),
        (get(&daemon, &id, "processes/x/output")?, (404, "process_not_found")),
        (get(&daemon, &id, "processes/4000000/output?follow=true")?, (404, "process_not_found")),
        (get(&daemon, &id, &path(pid, "output?from=x"))?, (400, "invalid_field")),
        (post(&daemon, &id, &path(sleeper, "resize"))?.json(&resize), (400, "invalid_field")),
        (post(&daemon, &id, &path(sleeper, "signal"))?.json(&json!({"signal": "NO"})), (400, "invalid_field")),
        (post(&daemon, &id, &path(sleeper, "signal"))?.json(&json!({})), (400, "missing_field")),
        (post(&daemon, &id, "processes")?.json(&json!({"command": ""})), (400, "missing_command")),
        (
            post(&daemon, &id, "processes")?.json(&json!({"command": "a", "pty": {"cols": 0, "rows": 1}})),
            (400, "invalid_field"),
        ),
        (post(&daemon, &id, "processes")?.json(&json!({"command": ["no-such-program"]})), (422, "command_not_found")),
    ] {
        let (status, code) = refused(request).await?;
        ensure!((status, code.as_str()) == wanted, "{status} {code} where {wanted:?} was expected");
    }
    // Its input is closed as soon as it has begun; until then a pipe takes what fits.
    wait_for("a closed input", SOON, || async {
        let response = post(&daemon, &id, &path(sleeper, "stdin"))?.body("x").send().await?;
        let status = response.status().as_u16();
        ensure!(status == 204 || response.json::<serde_json::Value>().await?["code"] == "stdin_closed", "{status}");
        Ok(status == 409)
    })
    .await?;
    answer(post(&daemon, &id, &path(sleeper, "signal"))?.json(&json!({"signal": "KILL"}))).await?;
    let rest = Frames::open(get(&daemon, &id, &path(sleeper, "output?follow=true"))?).await?.rest().await?;
    let Some(Frame::Exit { exit_code: 137, signal: Some(9), .. }) = rest.last() else { bail!("{rest:?}") };
    Ok(())
}
