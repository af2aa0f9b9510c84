//! Clones of one golden snapshot share nothing that should differ.

use std::collections::HashSet;

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use serde_json::json;
use wakeful_testkit::Daemon;

use crate::support::{create, sh};

#[tokio::test]
async fn twenty_clones_have_twenty_identities() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let microvm = wakeful_testkit::microvm();
    // A kernel's own uuids and the state of its cards are told by microVMs only.
    let kernel = if microvm { "cat /proc/sys/kernel/random/uuid" } else { "echo" };
    let card = if microvm {
        "cat /sys/class/net/eth0/carrier 2>/dev/null || echo unplugged; ls /sys/class/net | tr '\\n' ' '"
    } else {
        "cat /proc/net/dev"
    };
    let script = format!(
        "python3 -c 'import os, random, uuid; print(os.getrandom(16).hex(), uuid.uuid4(), random.random())'; {kernel}; hostname; {card}"
    );
    let script = script.as_str();
    let made = futures_util::stream::iter(0..20).map(|_| {
        let client = client.clone();
        async move {
            let id = create(&client, json!({"template": "python"})).await?.id.to_string();
            let seen = sh(&client, &id, script).await?;
            client.destroy_sandbox(&id).await?;
            Ok::<_, anyhow::Error>((id, seen))
        }
    });
    let all: Vec<(String, String)> = made.buffered(4).collect::<Vec<_>>().await.into_iter().collect::<Result<_>>()?;
    for column in 0..if microvm { 5 } else { 4 } {
        let values: HashSet<&str> = all.iter().filter_map(|(_, seen)| seen.split_whitespace().nth(column)).collect();
        ensure!(values.len() == 20, "column {column} has {} values: {values:?}", values.len());
    }
    for (_, seen) in &all {
        ensure!(
            seen.contains("eth0") && (!microvm || seen.lines().any(|line| line.trim() == "1")),
            "the network card is there, plugged in: {seen}"
        );
    }
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}
