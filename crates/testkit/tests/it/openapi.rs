//! The running server does what its OpenAPI document says, whatever it is sent.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use wakeful_client::Client;
use wakeful_testkit::{Daemon, Options};

use crate::support::{create, persistent, sh};

#[tokio::test]
async fn the_server_does_what_its_document_says() -> Result<()> {
    // Every good create costs an engine: few are let in, the others are refused as the document says.
    let daemon = Daemon::start_with(Options::default().config("[limits]\nsandboxes = 3\n")).await?;
    let token = std::fs::read_to_string(daemon.data().join("admin.token"))?.trim().to_owned();
    let client = Client::new(daemon.url(), Some(&token))?;
    let worker = persistent(&client, "base").await?.id.to_string();
    let victim = create(&client, json!({"timeout": "1h"})).await?.id.to_string();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/schemathesis");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "400"]).arg(script).arg(daemon.url());
    command.env("WAKEFUL_FUZZ_WORKER", &worker).env("WAKEFUL_FUZZ_VICTIM", &victim);
    command.env("WAKEFUL_FUZZ_KEY", &token);
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    let ended = tokio::task::spawn_blocking(move || command.output()).await?.context("scripts/schemathesis")?;
    let (said, told) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    ensure!(ended.status.success(), "{}\n{said}\n{told}", ended.status);
    // It reached guests, and they are none the worse.
    client.wake(&worker, true).await?;
    sh(&client, &worker, "true").await?;
    let log = daemon.log();
    ensure!(!log.contains("request failed") && !log.contains("panicked"), "{log}");
    Ok(())
}
