//! `wakeful sandbox port-forward`: ports inside as if they were here.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use wakeful_client::types::{ExecuteRequest, StartProcess};
use wakeful_testkit::Daemon;

use crate::support::{persistent, wait_for};

const WITHIN: Duration = Duration::from_secs(60);

/// Says back what it is told, and how much that was when the other side has ended: only one that passes half-closes on
/// ever hears of it.
const ECHO: &str = "
import socket, sys, threading
def serve(one):
    total = 0
    while True:
        data = one.recv(65536)
        if not data: break
        total += len(data)
        one.sendall(data)
    one.sendall(b'|%d' % total)
    one.close()
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
listener = socket.socket(family)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(50)
print('listening', flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
";

async fn echo(daemon: &Daemon, id: &str, address: &str, port: &str) -> Result<()> {
    let command = ["python3", "-c", ECHO, address, port].map(str::to_owned).to_vec();
    let execute = ExecuteRequest::new(wakeful_client::types::Command::Argv(command));
    let client = daemon.client()?;
    let process = client.start_process(id, &StartProcess { execute, pty: None, keep_awake: false }).await?;
    wait_for("a listener", WITHIN, || async { Ok(client.process(id, process.pid).await?.last_seq > 0) }).await
}

pub(crate) struct Forward {
    child: Child,
    pub(crate) at: Vec<SocketAddr>,
}

impl Forward {
    pub(crate) async fn start(daemon: &Daemon, args: &[&str]) -> Result<Self> {
        let mut command = Command::from(daemon.command());
        command.args(["sandbox", "port-forward"]).args(args);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        let mut at = Vec::new();
        for _ in args.iter().skip(1) {
            let line = tokio::time::timeout(WITHIN, lines.next_line()).await?.context("a line")?.context("a line")?;
            at.push(line.split_once(" -> ").context("where")?.0.parse()?);
        }
        Ok(Self { child, at })
    }

    /// ^C; its exit code and what it said.
    async fn end(mut self) -> Result<(Option<i32>, String)> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        kill_process(pid.context("it runs")?, Signal::INT)?;
        let mut said = String::new();
        self.child.stderr.take().context("a pipe")?.read_to_string(&mut said).await?;
        Ok((tokio::time::timeout(WITHIN, self.child.wait()).await??.code(), said))
    }
}

/// Says something, ends, and hears all.
async fn talk(at: SocketAddr, words: &[u8]) -> Result<Vec<u8>> {
    let talk = async {
        let mut stream = TcpStream::connect(at).await?;
        let (mut from, mut to) = stream.split();
        let say = async {
            to.write_all(words).await?;
            to.shutdown().await
        };
        let mut heard = Vec::new();
        tokio::try_join!(say, from.read_to_end(&mut heard))?;
        anyhow::Ok(heard)
    };
    tokio::time::timeout(WITHIN, talk).await.context("it says nothing")?
}

#[tokio::test]
async fn ports_are_here_and_come_back_after_a_sleep() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "python").await?.id.to_string();
    echo(&daemon, &id, "127.0.0.1", "7001").await?;
    echo(&daemon, &id, "::1", "7002").await?;
    let forward = Forward::start(&daemon, &[&id, ":7001", ":7002", ":7003"]).await?;
    ensure!(forward.at.iter().all(|at| at.ip().is_loopback() && at.port() > 0), "{:?}", forward.at);

    // both families, the other side's end heard, more than any buffer holds, several at a time
    let much: Vec<u8> = (0..2_000_000_u32).map(|number| (number * 7 % 251) as u8).collect();
    let (small, other, large) =
        tokio::try_join!(talk(forward.at[0], b"hello"), talk(forward.at[1], b"six"), talk(forward.at[0], &much))?;
    ensure!(small == b"hello|5" && other == b"six|3", "{small:?} {other:?}");
    ensure!(large.len() == much.len() + 8 && large.starts_with(&much), "{} bytes came", large.len());

    // nobody listens there: a reset, and a word about it
    let refused = talk(forward.at[2], b"anyone?").await;
    ensure!(refused.is_err(), "{refused:?}");

    // an open connection ends with the sleep, the next one wakes
    let mut open = TcpStream::connect(forward.at[0]).await?;
    open.write_all(b"before").await?;
    let mut heard = [0; 6];
    tokio::time::timeout(WITHIN, open.read_exact(&mut heard)).await??;
    client.suspend(&id, true).await?;
    let over = tokio::time::timeout(WITHIN, open.read(&mut heard)).await.context("it is held open")?;
    ensure!(matches!(over, Ok(0) | Err(_)), "{over:?}");
    ensure!(client.sandbox(&id).await?.status.to_string() == "suspended", "an ended connection woke it");
    ensure!(talk(forward.at[0], b"again").await? == b"again|5");
    ensure!(client.sandbox(&id).await?.status.to_string() == "running");

    let (code, said) = forward.end().await?;
    ensure!(code == Some(130), "{code:?} {said}");
    ensure!(said.contains("port 7003") && said.contains("listens"), "{said}");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_forwarded_is_said_at_once() -> Result<()> {
    let daemon = Daemon::start().await?;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = taken.local_addr()?.port().to_string();
    let run = |args: &[&str]| {
        let mut command = Command::from(daemon.command());
        command.args(["sandbox", "port-forward"]).args(args).stdin(Stdio::null()).kill_on_drop(true);
        command
    };
    let never = "sbx_k3v7q2m5x6a4b2c7d5ef";
    let output = tokio::time::timeout(WITHIN, run(&[never, ":80", "--json"]).output()).await??;
    let problem: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(output.status.code() == Some(1) && problem["code"] == "sandbox_not_found", "{output:?}");
    let output = tokio::time::timeout(WITHIN, run(&[never, &format!("{port}:80")]).output()).await??;
    ensure!(output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains(&port), "{output:?}");
    Ok(())
}
