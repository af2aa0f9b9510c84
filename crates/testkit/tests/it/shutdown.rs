//! The end of a host: everything sleeps with its memory, then the daemon goes.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use wakeful_testkit::{Daemon, Options, wakeful_binary};

use crate::support::{create, persistent, sh};

/// Somebody who has asked something and keeps the line, as every client with a pool of connections does.
#[tokio::test]
async fn nobody_waits_for_a_connection_that_is_idle() -> Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut daemon = Daemon::start().await?;
    let address = daemon.url().trim_start_matches("http://").to_owned();
    let mut idle = tokio::net::TcpStream::connect(&address).await?;
    idle.write_all(format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    ensure!(idle.read(&mut [0; 4096]).await? > 0);
    ensure!(daemon.terminate().await? == Some(0));
    ensure!(idle.read(&mut [0; 1]).await? == 0, "it was closed");
    ensure!(!daemon.log().contains("cut off"), "{}", daemon.log());
    Ok(())
}

#[tokio::test]
async fn all_tenants_sandboxes_sleep_with_their_memory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket)?;
    manager.set_read_timeout(Some(Duration::from_secs(30)))?;
    let heard = || -> Result<String> {
        let mut text = [0; 100];
        let length = manager.recv(&mut text)?;
        Ok(String::from_utf8_lossy(&text[..length]).into_owned())
    };
    let options = Options::default().env("NOTIFY_SOCKET", &socket.display().to_string());
    let mut daemon = Daemon::start_with(options).await?;
    ensure!(heard()? == "READY=1");
    let client = daemon.client()?;
    client.create_tenant(&serde_json::from_value(json!({"name": "acme"}))?).await?;
    let kept = persistent(&client, "base").await?.id.to_string();
    let leased = create(&client, json!({"timeout": "1h"})).await?.id.to_string();
    let theirs = client.clone().in_tenant("acme")?;
    let foreign = persistent(&theirs, "base").await?.id.to_string();
    let asleep = persistent(&client, "base").await?.id.to_string();
    client.suspend(&asleep, true).await?;
    let ours = [(&client, &kept), (&client, &leased), (&theirs, &foreign)];
    for (client, id) in ours {
        sh(client, id, "echo memory > /dev/shm/mark").await?;
    }
    let expires = client.sandbox(&leased).await?.expires_at;

    let mut all = daemon.command();
    all.env_remove("WAKEFUL_URL").args(["suspend-all", "--json", "--data-dir"]).arg(daemon.data());
    all.arg("--config").arg(daemon.data().join("config.toml"));
    let ended = all.output()?;
    let talk = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(ended.status.code() == Some(0) && talk.contains("3 suspended, 0 left"), "{talk}");
    let outcome: Value = serde_json::from_slice(&ended.stdout)?;
    ensure!(outcome["suspended"].as_array().is_some_and(|ids| ids.len() == 3), "{outcome}");
    ensure!(daemon.engines().is_empty(), "no engine is left for the shutdown to kill");
    ensure!(daemon.terminate().await? == Some(0));
    ensure!(heard()? == "STOPPING=1");
    // Without a daemon there is nobody to ask.
    let ended = all.output()?;
    ensure!(ended.status.code() == Some(1) && String::from_utf8_lossy(&ended.stderr).contains("no daemon is running"));

    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    let theirs = client.clone().in_tenant("acme")?;
    for (client, id) in [(&client, &kept), (&client, &leased), (&theirs, &foreign)] {
        ensure!(sh(client, id, "cat /dev/shm/mark").await? == "memory", "{id}");
        ensure!(client.sandbox(id).await?.restored_memory == Some(true), "{id}");
    }
    ensure!(client.sandbox(&leased).await?.expires_at == expires, "a lease goes on counting");
    Ok(())
}

#[test]
fn units_are_shown_without_touching_anything() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut setup = Command::new(wakeful_binary());
    setup
        .args(["setup", "--systemd", "--print", "--data-dir"])
        .arg(dir.path().join("data"))
        .env_remove("WAKEFUL_CONFIG");
    let ended = setup.output()?;
    let text = String::from_utf8(ended.stdout)?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let place = format!("--data-dir {}", dir.path().join("data").display());
    for line in [
        format!("ExecStart={} serve {place}", wakeful_binary().display()),
        format!("ExecStop={} suspend-all {place}", wakeful_binary().display()),
        "KillMode=process".to_owned(),
    ] {
        ensure!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    ensure!(!dir.path().join("data").exists());
    Ok(())
}
