//! What keeps a sandbox awake from inside.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use wakeful_api_types::Sandbox;
use wakeful_client::Client;
use wakeful_testkit::{Daemon, Options};

use crate::support::{create, run, sh, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

async fn asleep(client: &Client, id: &str) -> Result<bool> {
    Ok(client.sandbox(id).await?.status.to_string() == "suspended")
}

fn because(sandbox: &Sandbox) -> Vec<(String, Option<String>)> {
    sandbox.awake_because.iter().map(|awake| (awake.reason.clone(), awake.detail.clone())).collect()
}

/// Waits until it says that it is awake because of this.
async fn awake_because(client: &Client, id: &str, reason: &str, detail: &str) -> Result<()> {
    wait_for(reason, PATIENCE, || async {
        let sandbox = client.sandbox(id).await?;
        ensure!(sandbox.status.to_string() == "running", "it sleeps");
        Ok(because(&sandbox).contains(&(reason.to_owned(), Some(detail.to_owned()))) && sandbox.sleeps_at.is_none())
    })
    .await
}

#[tokio::test]
async fn a_lease_keeps_awake_until_it_ends_or_is_given_back() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    // Long enough for an emulated guest to run a program for the first time.
    let id = create(&client, json!({"mode": "persistent", "idle_timeout": "5s"})).await?.id.to_string();
    // By the command, in the background of a shell that ends: nobody outside holds anything.
    let who = sh(&client, &id, "command -v wakeful-agent; stat -c '%a' /run/wakeful.sock").await?;
    ensure!(who == "/usr/local/bin/wakeful-agent\n666", "{who}");
    sh(&client, &id, "setsid wakeful-agent lease 2s --name build -- sh -c 'while [ ! -e stop ]; do sleep 0.2; done' </dev/null >/dev/null 2>&1 &")
        .await?;
    awake_because(&client, &id, "lease", "build").await?;
    let begun = client.sandbox(&id).await?;
    // The guest is the truth: a daemon that knows nothing of it yet does not put it to sleep.
    daemon.kill()?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    let idle = Duration::from_secs(12);
    let began = tokio::time::Instant::now();
    while began.elapsed() < idle {
        let sandbox = client.sandbox(&id).await?;
        ensure!(sandbox.status.to_string() == "running" && sandbox.transition.is_none(), "{sandbox:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    awake_because(&client, &id, "lease", "build").await?;
    let now = client.sandbox(&id).await?;
    ensure!(
        now.last_activity_at.0 <= begun.last_activity_at.0.checked_add(Duration::from_secs(1))?,
        "looking is no use"
    );
    // An explicit suspend is not put off; after the wake the command holds its lease still, and goes to its end.
    client.suspend(&id, true).await?;
    sh(&client, &id, "touch stop").await?;
    wait_for("sleep after the lease", PATIENCE, || asleep(&client, &id)).await?;
    let slept = client.sandbox(&id).await?;
    ensure!(slept.runtime_generation == 2 && slept.awake_because.is_empty(), "{slept:?}");
    Ok(())
}

#[tokio::test]
async fn a_lease_ends_by_the_clock_also_while_the_sandbox_sleeps() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"template": "python", "mode": "persistent", "idle_timeout": "3s"}))
        .await?
        .id
        .to_string();
    let put = r#"python3 -c 'import http.client,socket,sys
class C(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.connect("/run/wakeful.sock")
c = C("sandbox"); c.request(sys.argv[1], sys.argv[2], sys.argv[3]); r = c.getresponse(); print(r.status, r.read().decode())'"#;
    let took = sh(&client, &id, &format!(r#"{put} PUT /lease '{{"ttl":"20s","name":"by-hand"}}'"#)).await?;
    ensure!(took.trim() == "204", "{took}");
    awake_because(&client, &id, "lease", "by-hand").await?;
    let list = sh(&client, &id, &format!("{put} GET /lease ''")).await?;
    let list: Value = serde_json::from_str(list.strip_prefix("200 ").context("a list")?)?;
    ensure!(list["leases"][0]["name"] == "by-hand", "{list}");
    let began = tokio::time::Instant::now();
    wait_for("sleep after the lease", PATIENCE, || asleep(&client, &id)).await?;
    ensure!(began.elapsed() > Duration::from_secs(5), "it slept too early: {:?}", began.elapsed());

    // Taken for an hour and given back at once.
    sh(&client, &id, &format!(r#"{put} PUT /lease '{{"ttl":"1h","name":"long"}}'"#)).await?;
    awake_because(&client, &id, "lease", "long").await?;
    sh(&client, &id, &format!("{put} DELETE /lease/long ''")).await?;
    wait_for("sleep after it was given back", PATIENCE, || asleep(&client, &id)).await?;

    // Runs out while the sandbox is asleep: over after the wake.
    sh(&client, &id, &format!(r#"{put} PUT /lease '{{"ttl":"4s","name":"short"}}'"#)).await?;
    client.suspend(&id, true).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let list = sh(&client, &id, &format!("{put} GET /lease ''")).await?;
    ensure!(list == r#"200 {"leases":[]}"#, "{list}");
    for bad in [r#"{"ttl":"2h"}"#, r#"{"ttl":"60s","name":"a b"}"#, "{}"] {
        let refused = sh(&client, &id, &format!("{put} PUT /lease '{bad}'")).await?;
        ensure!(refused.starts_with("400 "), "{bad}: {refused}");
    }
    Ok(())
}

#[tokio::test]
async fn a_process_that_asked_for_it_keeps_awake_until_its_end() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"mode": "persistent", "idle_timeout": "2s"})).await?.id.to_string();
    let url = format!("{}/v1/sandboxes/{id}/processes", daemon.url());
    let body = json!({"command": "while [ ! -e stop ]; do sleep 0.2; done", "keep_awake": true});
    let started = reqwest::Client::new().post(url).body(body.to_string()).send().await?;
    ensure!(started.status() == 201, "{}", started.text().await?);
    let pid = started.json::<Value>().await?["pid"].as_u64().context("a pid")?;
    awake_because(&client, &id, "keep_awake", &format!("pid {pid}")).await?;
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        ensure!(!asleep(&client, &id).await?, "it sleeps in the middle of its work");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ensure!(client.sandbox(&id).await?.runtime_generation == 1);
    sh(&client, &id, "touch stop").await?;
    wait_for("sleep after the process", PATIENCE, || asleep(&client, &id)).await
}

#[tokio::test]
async fn a_wrapped_command_is_the_command() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let done = run(&client, &id, "echo in | wakeful-agent lease 60s -- sh -c 'cat; id -un; exit 7'").await?;
    ensure!((done.exit_code, done.stdout.as_str(), done.stderr.as_str()) == (7, "in\nuser\n", ""), "{done:?}");
    let done = run(&client, &id, "exec wakeful-agent lease 60s -- sh -c 'kill -TERM $$'").await?;
    ensure!(done.signal == Some(15) && done.exit_code == 143, "{done:?}");
    let done =
        run(&client, &id, "wakeful-agent lease 60s -- no-such-program; echo $?; wakeful-agent lease; echo $?").await?;
    ensure!(done.stdout == "127\n125\n", "{done:?}");
    Ok(())
}
