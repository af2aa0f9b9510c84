//! PATCH, and the story that a sandbox's events tell.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use serde_json::{Value, json};
use wakeful_api_types::PatchSandbox;
use wakeful_testkit::Daemon;

use crate::support::{code_of, create, persistent, sh, wait_for};

fn patch(body: Value) -> Result<PatchSandbox> {
    Ok(serde_json::from_value(body)?)
}

#[tokio::test]
async fn a_sleeper_is_changed_in_its_sleep() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let asleep = client.suspend(&id, true).await?;
    let change = json!({
        "metadata": {"team": "search"}, "auto_resume": false, "idle_timeout": "2h", "hard_ttl": "1d",
        "egress": {"allow_cidrs": ["192.0.2.0/24"]}
    });
    let changed = client.patch_sandbox(&id, &patch(change)?).await?;
    ensure!(changed.status.to_string() == "suspended" && daemon.engines().is_empty(), "{changed:?}");
    ensure!(changed.metadata.get("team").is_some_and(|team| team == "search") && !changed.auto_resume);
    ensure!(changed.idle_timeout_seconds == Some(7200) && changed.hard_expires_at.is_some());
    ensure!(changed.last_activity_at == asleep.last_activity_at, "a change is no use");
    let kinds: Vec<String> =
        client.events(&id, 0, 100).await?.events.iter().map(|event| event.kind.to_string()).collect();
    ensure!(kinds == ["created", "suspend_started", "suspended", "egress_changed"], "{kinds:?}");
    ensure!(
        code_of(client.execute(&id, &serde_json::from_value(json!({"command": "true"}))?).await) == "sandbox_suspended"
    );
    let open = client.patch_sandbox(&id, &patch(json!({"auto_resume": true, "hard_ttl": null}))?).await?;
    ensure!(open.hard_expires_at.is_none() && open.metadata.len() == 1 && open.egress == changed.egress, "{open:?}");
    sh(&client, &id, "true").await?;
    // A short idleness counts at once, and is what it then sleeps by.
    client.patch_sandbox(&id, &patch(json!({"idle_timeout": "1s"}))?).await?;
    wait_for("sleep by the new idleness", Duration::from_secs(60), || async {
        Ok(client.sandbox(&id).await?.status.to_string() == "suspended")
    })
    .await?;
    client.patch_sandbox(&id, &patch(json!({"hard_ttl": "1s"}))?).await?;
    wait_for("its end by the new deadline", Duration::from_secs(60), || async {
        Ok(client.sandbox(&id).await?.status.to_string() == "destroyed")
    })
    .await?;
    ensure!(code_of(client.patch_sandbox(&id, &patch(json!({"auto_resume": false}))?).await) == "sandbox_destroyed");
    let leased = create(&client, json!({})).await?.id.to_string();
    ensure!(
        code_of(client.patch_sandbox(&leased, &patch(json!({"idle_timeout": "1m"}))?).await) == "invalid_combination"
    );
    Ok(())
}

#[tokio::test]
async fn a_follower_hears_everything_in_order() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let follow = client.follow_events(&id, 0).await?;
    let mut command = daemon.command();
    command.args(["sandbox", "events", &id, "-f", "--json"]).stdout(Stdio::piped());
    let mut followed = command.spawn()?;
    let lines = BufReader::new(followed.stdout.take().context("piped")?).lines();
    client.suspend(&id, true).await?;
    sh(&client, &id, "true").await?;
    client.destroy_sandbox(&id).await?;
    let heard = tokio::time::timeout(Duration::from_secs(60), follow.collect::<Vec<_>>()).await?;
    let heard: Vec<_> = heard.into_iter().collect::<Result<_, _>>()?;
    let kinds: Vec<String> = heard.iter().map(|event| event.kind.to_string()).collect();
    ensure!(
        kinds == ["created", "suspend_started", "suspended", "wake_started", "woken", "destroyed"],
        "each once, in order: {kinds:?}"
    );
    ensure!(heard.iter().map(|event| event.seq).eq(1..=6), "{heard:?}");
    ensure!(heard[3].cause.to_string() == "access" && heard[4].duration_ms.is_some(), "{heard:?}");
    ensure!(client.events(&id, 0, 1000).await?.events == heard, "the page tells the same");
    // The same by the command line, one object a line, which ends with the sandbox.
    let told: Vec<Value> =
        tokio::task::spawn_blocking(move || lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect::<Result<_>>())
            .await??;
    ensure!(followed.wait()?.success() && told.len() == 6 && told[5]["type"] == "destroyed", "{told:?}");
    // One that was cut off goes on behind what it has seen.
    let http = reqwest::Client::builder().no_proxy().build()?;
    let rest = http.get(format!("{}/v1/sandboxes/{id}/events", daemon.url()));
    let rest = rest.header("Accept", "text/event-stream").header("Last-Event-ID", "4").send().await?.text().await?;
    let ids: Vec<&str> = rest.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    ensure!(ids == ["5", "6"] && rest.contains("event: woken\n"), "{rest}");
    // All of it was counted.
    let metrics = http.get(format!("{}/metrics", daemon.url())).send().await?.text().await?;
    for line in [
        "wakeful_operations_total{op=\"suspend\"} 1",
        "wakeful_operation_seconds_count{op=\"wake\"} 1",
        "wakeful_state_changes_total{from=\"suspended\",to=\"running\"} 1",
        "wakeful_sandboxes{state=\"running\"} 0",
    ] {
        ensure!(metrics.contains(line), "{line} is not in {metrics}");
    }
    Ok(())
}
