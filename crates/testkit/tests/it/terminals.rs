//! Terminals: a person at the keys, one who comes back, and nonsense.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use wakeful_testkit::Daemon;

use crate::support::{create, persistent, wait_for};
use crate::wire::{SOON, Socket, Terminal, answer, background, get, refused};

#[tokio::test]
async fn a_shell_that_one_can_live_in() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"timeout": "10m"})).await?.id.to_string();
    let mut terminal = Terminal::open(&daemon, &id, "cols=80&rows=24").await?;
    // Words are put together by the shell, so that the echo of the keys is not taken for the answer.
    terminal.keys("echo si''ze $(stty size); echo te''rm $TERM\n").await?;
    terminal.wait_for("size 24 80").await?;
    terminal.wait_for("term xterm-256color").await?;
    terminal.keys("echo sh''ell $0\n").await?;
    terminal.wait_for("shell -").await?;
    terminal.resize(100, 30).await?;
    terminal.keys("echo si''ze $(stty size)\n").await?;
    terminal.wait_for("size 30 100").await?;
    // Told by the one that is to be interrupted: a shell that is only about to make it the foreground would lose the key.
    terminal.keys("sh -c 'echo be\"\"fore; exec sleep 1000'\n").await?;
    terminal.wait_for("before").await?;
    terminal.keys("\u{3}").await?;
    terminal.keys("echo al''ive\n").await?;
    terminal.wait_for("alive").await?;
    terminal.keys("exit 7\n").await?;
    let (last, code) = terminal.end().await?;
    ensure!(last["type"] == "exit" && last["exit_code"] == 7 && code == Some(1000), "{last} {code:?}");

    // A command instead of the shell, and a signal instead of a key.
    let script = "trap 'echo caught; exit 3' HUP; echo ready; while :; do sleep 0.1; done";
    let query: String = script.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let mut terminal = Terminal::open(&daemon, &id, &format!("command={query}")).await?;
    terminal.wait_for("ready").await?;
    terminal.text(json!({"type": "signal", "signal": "HUP"})).await?;
    terminal.wait_for("caught").await?;
    let (last, code) = terminal.end().await?;
    ensure!(last["type"] == "exit" && last["exit_code"] == 3 && code == Some(1000), "{last} {code:?}");
    Ok(())
}

#[tokio::test]
async fn one_comes_back_to_the_same_shell() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let mut terminal = Terminal::open(&daemon, &id, "").await?;
    terminal.keys("kept=va''lue; echo re''ady\n").await?;
    terminal.wait_for("ready").await?;
    let (pid, seq) = (terminal.pid, terminal.seq);
    drop(terminal);

    // The client was cut off: everything after what it saw comes once more, and nothing before.
    let mut terminal = Terminal::open(&daemon, &id, &format!("pid={pid}&from={}", seq + 1)).await?;
    ensure!((terminal.pid, terminal.seq, terminal.generation) == (pid, seq, 1));
    terminal.keys("echo ke''pt=$kept\n").await?;
    terminal.wait_for("kept=value").await?;

    // The sandbox was put to sleep: the last message says where to go on.
    let (suspended, ended) = tokio::join!(client.suspend(&id, true), terminal.end());
    ensure!(suspended?.status.to_string() == "suspended");
    let (last, code) = ended?;
    ensure!(last["type"] == "suspended" && last["pid"] == pid && code == Some(1000), "{last} {code:?}");
    let from = last["seq"].as_u64().context("a number")?;
    let mut terminal = Terminal::open(&daemon, &id, &format!("pid={pid}&from={from}&cols=90&rows=20")).await?;
    ensure!(terminal.generation == 2);
    terminal.keys("echo ke''pt=$kept $(stty size)\n").await?;
    terminal.wait_for("kept=value 20 90").await?;
    let found = answer(get(&daemon, &id, &format!("processes/{pid}"))?).await?;
    ensure!(found["pty"] == true && found["running"] == true, "{found}");
    Ok(())
}

#[tokio::test]
async fn an_open_and_silent_terminal_lets_it_sleep() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"mode": "persistent", "idle_timeout": "3s"})).await?.id.to_string();
    let mut terminal = Terminal::open(&daemon, &id, "").await?;
    terminal.keys("echo re''ady\n").await?;
    terminal.wait_for("ready").await?;
    let sandbox = client.sandbox(&id).await?;
    ensure!(sandbox.awake_because.iter().all(|because| because.reason == "recent_activity"), "{sandbox:?}");
    ensure!(sandbox.sleeps_at.is_some());
    // Longer than the timeout, with a key now and then.
    for _ in 0..5 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        terminal.keys("echo ke''y\n").await?;
        terminal.wait_for("key").await?;
    }
    ensure!(client.sandbox(&id).await?.runtime_generation == 1);
    let (last, code) = terminal.end().await?;
    ensure!(last["type"] == "suspended" && code == Some(1000), "{last} {code:?}");
    wait_for("sleep", SOON, || async { Ok(client.sandbox(&id).await?.status.to_string() == "suspended") }).await
}

#[tokio::test]
async fn nonsense_is_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"timeout": "10m"})).await?.id.to_string();
    let (status, _) = refused(get(&daemon, &id, "pty")?).await?;
    ensure!(status == 426, "{status}");
    let pid = background(&daemon, &id, json!({"command": "sleep 300"})).await?;
    for (query, wanted) in [
        ("pid=4000000".to_owned(), (404, "process_not_found")),
        (format!("pid={pid}"), (400, "invalid_field")),
        ("cols=0".to_owned(), (400, "invalid_field")),
        ("from=3".to_owned(), (400, "invalid_combination")),
    ] {
        let (status, code) = Socket::refused(&daemon, &id, &format!("pty?{query}")).await?;
        ensure!((status, code.as_str()) == wanted, "{query}: {status} {code}");
    }
    let (status, code) = Socket::refused(&daemon, "sbx_aaaaaaaaaaaaaaaaaaaa", "pty").await?;
    ensure!((status, code.as_str()) == (404, "sandbox_not_found"));
    let mut terminal = Terminal::open(&daemon, &id, "").await?;
    terminal.text(json!({"type": "quit"})).await?;
    let (last, code) = terminal.end().await?;
    ensure!(last["type"] == "error" && last["code"] == "invalid_json" && code == Some(1008), "{last} {code:?}");
    Ok(())
}
