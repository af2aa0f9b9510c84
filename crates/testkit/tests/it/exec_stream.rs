//! `wakeful sandbox exec`, `run`, `ps`, `logs` and `kill` as people use them: streams, pipes, signals, sleeps, lost
//! connections.

use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use wakeful_testkit::{Daemon, Options};

use crate::proxy::Proxy;
use crate::support::{create, persistent, sh, wait_for};

const WITHIN: Duration = Duration::from_secs(60);

/// `wakeful …` with pipes on all sides, against the daemon or what stands before it.
fn wakeful(daemon: &Daemon, url: Option<&str>, args: &[&str]) -> Command {
    let mut command = Command::from(daemon.command());
    if let Some(url) = url {
        command.env("WAKEFUL_URL", url);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn ended(command: &mut Command) -> Result<Output> {
    Ok(tokio::time::timeout(WITHIN, command.output()).await.context("it does not end")??)
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

/// Started, with its output to be read as it comes.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Self { child, lines })
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = tokio::time::timeout(WITHIN, self.lines.read_line(&mut line)).await;
        read.context("no line came")??;
        Ok(line)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(kill_process(pid.context("it has ended")?, signal)?)
    }

    /// What else it writes, how it ends, and what it says.
    async fn end(mut self) -> Result<(String, i32, String)> {
        let rest = async {
            let (mut text, mut talk) = (String::new(), String::new());
            let mut stderr = self.child.stderr.take().context("a pipe")?;
            tokio::try_join!(self.lines.read_to_string(&mut text), stderr.read_to_string(&mut talk))?;
            anyhow::Ok((text, self.child.wait().await?.code().unwrap_or(-1), talk))
        };
        tokio::time::timeout(WITHIN, rest).await.context("it does not end")?
    }
}

/// Bytes without any pattern.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(&mut next).take(length).collect()
}

#[tokio::test]
async fn bytes_go_through_unchanged() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let exec = |args: &[&str]| wakeful(&daemon, None, &[&["sandbox", "exec", &id], args].concat());

    // bytes that are no text, on both streams, each on its own
    let output = ended(&mut exec(&[
        "head -c 100000 /dev/urandom | tee /tmp/out; head -c 3000 /dev/urandom | tee /tmp/err >&2; exit 7",
    ]))
    .await?;
    ensure!(code(&output) == 7, "{}", code(&output));
    let sum = |bytes: &[u8]| blake3::hash(bytes);
    let mut copy = ended(&mut wakeful(&daemon, None, &["sandbox", "download", &id, "/tmp/out", "-"])).await?.stdout;
    ensure!(copy.len() == 100_000 && sum(&copy) == sum(&output.stdout), "{} bytes came", output.stdout.len());
    copy = ended(&mut wakeful(&daemon, None, &["sandbox", "download", &id, "/tmp/err", "-"])).await?.stdout;
    ensure!(copy.len() == 3_000 && sum(&copy) == sum(&output.stderr), "{} bytes came", output.stderr.len());

    // in and out again, more than any body may have
    let input = noise(1_500_000);
    let mut child =
        exec(&["--timeout", "2m", "--", "sh", "-c", "head -c 70000; sha256sum"]).stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    let given = input.clone();
    let mut giving = tokio::task::JoinSet::new();
    giving.spawn(async move { stdin.write_all(&given).await });
    let output = tokio::time::timeout(WITHIN, child.wait_with_output()).await??;
    ensure!(code(&output) == 0, "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.stdout[..70_000] == input[..70_000]);
    ensure!(output.stdout[70_000..].ends_with(b"  -\n") && output.stdout.len() == 70_000 + 68);

    // a command that reads only some of it is not waited for
    let mut child = exec(&["--", "head", "-c", "5"]).stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    stdin.write_all(b"hello, world").await?;
    let output = tokio::time::timeout(WITHIN, child.wait_with_output()).await??;
    drop(stdin);
    ensure!(code(&output) == 0 && output.stdout == b"hello", "{output:?}");
    Ok(())
}

#[tokio::test]
async fn output_comes_as_it_is_written_and_codes_pass() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"env": {"GREETING": "hi"}})).await?.id.to_string();
    let exec = |args: &[&str]| wakeful(&daemon, None, &[&["sandbox", "exec", &id], args].concat());

    let mut running = Running::start(&mut exec(&["echo one; while [ ! -e /tmp/go ]; do sleep 0.2; done; echo two"]))?;
    ensure!(running.line().await? == "one\n");
    sh(&client, &id, "touch /tmp/go").await?;
    ensure!(running.end().await? == ("two\n".to_owned(), 0, String::new()));

    for (args, expected) in [
        (&["exit 3"][..], 3),
        (&["kill -9 $$"], 137),
        (&["--", "sh", "-c", "exit 200"], 200),
        (&["--timeout", "2s", "--", "sleep", "60"], 124),
        (&["--timeout", "0", "--", "true"], 0),
        (&["--", "no-such-program"], 125),
        (&["--workdir", "/no/such", "--", "true"], 125),
        (&["-u", "nobody-here", "true"], 125),
        (&["no-such-program"], 127),
    ] {
        let output = ended(&mut exec(args)).await?;
        ensure!(code(&output) == expected, "{args:?}: {output:?}");
    }
    let output =
        ended(&mut exec(&["-e", "NAME=value", "-w", "/tmp", "-u", "root", "echo $NAME $GREETING; pwd; id -un"]))
            .await?;
    ensure!(output.stdout == b"value hi\n/tmp\nroot\n", "{output:?}");

    // one document, as `execute` answers it; a refusal is a problem
    let output = ended(&mut exec(&["--json", "echo out; echo err >&2; exit 3"])).await?;
    let document: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(code(&output) == 3 && output.stderr.is_empty(), "{output:?}");
    ensure!(document["exit_code"] == 3 && document["stdout"] == "out\n" && document["stderr"] == "err\n", "{document}");
    ensure!(document["timed_out"] == false && document["pid"].as_u64().is_some(), "{document}");
    let output = ended(&mut exec(&["--json", "--", "no-such-program"])).await?;
    let problem: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(code(&output) == 125 && problem["code"] == "command_not_found", "{output:?}");
    let talk = String::from_utf8(output.stderr)?;
    ensure!(talk.starts_with("error: ") && talk.contains("\n\nhint: "), "{talk}");

    // whoever stops reading stops the command
    let mut child = exec(&["--timeout", "0", "echo $$ > /tmp/pid; exec yes"]).spawn()?;
    let mut some = [0; 4];
    child.stdout.take().context("a pipe")?.read_exact(&mut some).await?;
    let output = tokio::time::timeout(WITHIN, child.wait_with_output()).await??;
    ensure!(code(&output) == 141, "{output:?}");
    wait_for("the end of what nobody reads", WITHIN, || async {
        Ok(sh(&client, &id, "kill -0 $(cat /tmp/pid) 2>/dev/null && echo alive || echo gone").await? == "gone")
    })
    .await
}

#[tokio::test]
async fn interrupts_go_to_the_command() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let exec = |args: &[&str]| wakeful(&daemon, None, &[&["sandbox", "exec", &id], args].concat());

    let script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.2; done";
    let mut running = Running::start(&mut exec(&[script]))?;
    ensure!(running.line().await? == "ready\n");
    running.signal(Signal::INT)?;
    ensure!(running.end().await? == ("caught\n".to_owned(), 7, String::new()));

    let mut running = Running::start(&mut exec(&["--", "sh", "-c", "echo ready; exec sleep 60"]))?;
    ensure!(running.line().await? == "ready\n");
    running.signal(Signal::INT)?;
    ensure!(running.end().await?.1 == 130);

    // one that does not listen is left by the second ^C, and can still be ended
    let mut running =
        Running::start(&mut exec(&["--timeout", "0", "trap '' INT; echo $$; while :; do sleep 0.2; done"]))?;
    let pid = running.line().await?.trim().to_owned();
    running.signal(Signal::INT)?;
    // both are one if the second comes before the first was seen
    let left = loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        if running.signal(Signal::INT).is_err() || running.child.try_wait()?.is_some() {
            break running.end().await?;
        }
    };
    ensure!(left.1 == 130 && left.2.contains(&format!("wakeful sandbox kill {id} {pid}")), "{left:?}");
    let ps = || async {
        let output = ended(&mut wakeful(&daemon, None, &["sandbox", "ps", &id, "--json"])).await?;
        let list: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        let number: u64 = pid.parse()?;
        anyhow::Ok(list.into_iter().find(|process| process["pid"] == number))
    };
    ensure!(ps().await?.context("it is listed")?["running"] == true);
    ensure!(code(&ended(&mut wakeful(&daemon, None, &["sandbox", "kill", &id, &pid, "-s", "KILL"])).await?) == 0);
    wait_for("its end", WITHIN, || async { Ok(ps().await?.context("it is listed")?["exit_code"] == 137) }).await?;

    // a sandbox of `run` goes with its command
    let mut running = Running::start(&mut wakeful(
        &daemon,
        None,
        &["sandbox", "run", "-t", "base", "--", "sh", "-c", "echo ready; exec sleep 60"],
    ))?;
    ensure!(running.line().await? == "ready\n");
    ensure!(client.all_sandboxes(&Default::default()).await?.len() == 2);
    running.signal(Signal::INT)?;
    ensure!(running.end().await?.1 == 130);
    ensure!(client.all_sandboxes(&Default::default()).await?.len() == 1);
    Ok(())
}

#[tokio::test]
async fn nothing_is_lost_or_doubled() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();

    // a network that breaks after every few frames
    let proxy = Proxy::start(daemon.url(), Some(40_000)).await?;
    let script = "for i in $(seq 1 30); do seq $((i * 1000)) $((i * 1000 + 999)); done; echo end >&2";
    let args = ["sandbox", "exec", "-n", &id, "--timeout", "2m", script];
    let output = ended(&mut wakeful(&daemon, Some(&proxy.url), &args)).await?;
    let expected: String = (1000..31_000).map(|number| format!("{number}\n")).collect();
    ensure!(
        code(&output) == 0 && output.stderr == b"end\n",
        "{} {}",
        code(&output),
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(String::from_utf8(output.stdout)? == expected, "not the same bytes");
    ensure!(proxy.connections() > 3, "{} connections", proxy.connections());

    // a sleep, and a daemon that dies, in the middle
    let proxy = Proxy::start(daemon.url(), None).await?;
    let script = "echo one; until [ -e /tmp/two ]; do sleep 0.2; done; echo two; until [ -e /tmp/three ]; do sleep 0.2; done; echo three; exit 5";
    let mut running =
        Running::start(&mut wakeful(&daemon, Some(&proxy.url), &["sandbox", "exec", &id, "--timeout", "0", script]))?;
    ensure!(running.line().await? == "one\n");
    let slept = client.suspend(&id, true).await?;
    ensure!(slept.status.to_string() == "suspended", "{slept:?}");
    // nobody but the waiting command wakes it
    wait_for("the wake", WITHIN, || async {
        let sandbox = client.sandbox(&id).await?;
        Ok(sandbox.status.to_string() == "running" && sandbox.runtime_generation == 2)
    })
    .await?;
    sh(&client, &id, "touch /tmp/two").await?;
    ensure!(running.line().await? == "two\n");
    proxy.cut();
    daemon.kill()?;
    daemon.start_again(Options::default()).await?;
    sh(&daemon.client()?, &id, "touch /tmp/three").await?;
    proxy.point_to(daemon.url())?;
    let (rest, code, talk) = running.end().await?;
    ensure!((rest.as_str(), code) == ("three\n", 5), "{rest:?} {code} {talk}");
    Ok(())
}

#[tokio::test]
async fn in_the_background() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let run = |args: &[&str]| wakeful(&daemon, None, &[&["sandbox"], args].concat());

    let script = "cat; echo started; echo trouble >&2; until [ -e /tmp/go ]; do sleep 0.2; done; echo over; exit 4";
    let output = ended(&mut run(&["exec", &id, "--detach", script])).await?;
    ensure!(code(&output) == 0, "{output:?}");
    let pid = String::from_utf8(output.stdout)?.trim().to_owned();
    ensure!(pid.parse::<u32>().is_ok(), "{pid}");

    let mut following = Running::start(&mut run(&["logs", "-f", &id, &pid]))?;
    ensure!(following.line().await? == "started\n");
    let table = String::from_utf8(ended(&mut run(&["ps", &id])).await?.stdout)?;
    let row = table.lines().find(|line| line.trim_start().starts_with(&format!("{pid} "))).context("a row")?;
    ensure!(table.trim_start().starts_with("PID") && row.contains("running") && row.contains("cat; echo"), "{table}");

    sh(&client, &id, "touch /tmp/go").await?;
    ensure!(following.end().await? == ("over\n".to_owned(), 0, "trouble\n".to_owned()));
    let output = ended(&mut run(&["logs", &id, &pid])).await?;
    ensure!(output.stdout == b"started\nover\n" && output.stderr == b"trouble\n", "{output:?}");

    // frames, whole and from a place
    let frames: Vec<Value> = serde_json::from_slice(&ended(&mut run(&["logs", &id, &pid, "--json"])).await?.stdout)?;
    let exit = frames.last().context("frames")?;
    ensure!(exit["type"] == "exit" && exit["exit_code"] == 4, "{frames:?}");
    let from = exit["seq"].to_string();
    let lines = ended(&mut run(&["logs", "-f", &id, &pid, "--json", "--from", &from])).await?.stdout;
    let lines = String::from_utf8(lines)?;
    ensure!(serde_json::from_str::<Value>(lines.lines().last().context("a line")?)?["exit_code"] == 4, "{lines}");

    let output = ended(&mut run(&["logs", &id, "999999"])).await?;
    let talk = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1) && talk.contains("hint: `wakeful sandbox ps ID`"), "{talk}");
    Ok(())
}

#[tokio::test]
async fn files_by_name() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let run = |args: &[&str]| wakeful(&daemon, None, &[&["sandbox"], args].concat());
    sh(&client, &id, "printf 12345 > $HOME/a.txt; ln -s a.txt $HOME/link; touch \"$HOME/$(printf 'b\\033[2J')\"")
        .await?;
    for args in [&["mkdir", &id, "/home/user/d/e"][..], &["mv", &id, "/home/user/a.txt", "/home/user/d/c.txt"]] {
        let output = ended(&mut run(args)).await?;
        ensure!(code(&output) == 0, "{args:?}: {output:?}");
    }
    let listed = String::from_utf8(ended(&mut run(&["ls", &id, "/home/user"])).await?.stdout)?;
    ensure!(listed.contains("link -> a.txt") && listed.contains(" d/") && listed.contains("b\\u{1b}[2J"), "{listed}");
    ensure!(!listed.contains('\x1b'), "{listed:?}");
    let entries: Vec<Value> =
        serde_json::from_slice(&ended(&mut run(&["ls", &id, "/home/user/d", "--json"])).await?.stdout)?;
    ensure!(
        entries[0]["name"] == "c.txt" && entries[0]["size"] == 5 && entries[1]["type"] == "directory",
        "{entries:?}"
    );
    let entry: Value =
        serde_json::from_slice(&ended(&mut run(&["stat", &id, "/home/user/d/c.txt", "--json"])).await?.stdout)?;
    ensure!(entry["name"] == "c.txt" && entry["owner"] == "user", "{entry}");
    ensure!(code(&ended(&mut run(&["rm", &id, "/home/user/d", "/home/user/not-there"])).await?) == 0);
    let gone = ended(&mut run(&["stat", &id, "/home/user/d"])).await?;
    ensure!(code(&gone) == 1 && String::from_utf8_lossy(&gone.stderr).contains("hint: "), "{gone:?}");
    ensure!(sh(&client, &id, "ls /home/user/d 2>/dev/null || echo gone").await? == "gone");
    Ok(())
}
