//! A create that is sent twice with a key makes one sandbox, also over a crash.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use wakeful_client::ListQuery;
use wakeful_testkit::{Daemon, Options};

use crate::support::sh;

struct Answer {
    status: u16,
    location: Option<String>,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    fn id(&self) -> String {
        self.json()["id"].as_str().unwrap_or_default().to_owned()
    }
}

async fn create(daemon: &Daemon, key: &str, body: &Value) -> Result<Answer> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let request = client.post(format!("{}/v1/sandboxes", daemon.url())).header("Idempotency-Key", key).json(body);
    let response = request.send().await?;
    let location = response.headers().get("location").and_then(|value| value.to_str().ok()).map(str::to_owned);
    Ok(Answer { status: response.status().as_u16(), location, body: response.text().await? })
}

async fn living(daemon: &Daemon) -> Result<Vec<String>> {
    let all = daemon.client()?.all_sandboxes(&ListQuery::default()).await?;
    Ok(all.into_iter().map(|sandbox| sandbox.id.to_string()).collect())
}

#[tokio::test]
async fn one_key_is_one_sandbox() -> Result<()> {
    let daemon = Daemon::start().await?;
    let body = json!({"template": "base", "env": {"TOKEN": "s3cr3t-value"}, "metadata": {"a": "1"}});
    // At the same time, and after each other.
    let (first, second) = tokio::join!(create(&daemon, "k 1", &body), create(&daemon, "k 1", &body));
    let (first, second) = (first?, second?);
    let same_in_another_order = json!({"metadata": {"a": "1"}, "env": {"TOKEN": "s3cr3t-value"}, "template": "base"});
    let third = create(&daemon, "k 1", &same_in_another_order).await?;
    for again in [&second, &third] {
        ensure!(first.status == 201 && again.status == 201, "{} {}", first.body, again.body);
        ensure!(again.body == first.body && again.location == first.location, "{} {}", first.body, again.body);
    }
    ensure!(first.location == Some(format!("/v1/sandboxes/{}", first.id())));
    ensure!(!first.body.contains("s3cr3t"));
    let other = create(&daemon, "k 1", &json!({"template": "base"})).await?;
    ensure!(other.status == 409 && other.json()["code"] == "idempotency_mismatch", "{}", other.body);
    ensure!(living(&daemon).await? == [first.id()]);
    // What was refused may be sent again, with or without its mistake.
    let refused = create(&daemon, "k 2", &json!({"template": "nowhere"})).await?;
    ensure!(refused.status == 404, "{}", refused.body);
    let mended = create(&daemon, "k 2", &json!({"template": "base"})).await?;
    ensure!(mended.status == 201 && mended.id() != first.id(), "{}", mended.body);
    // The answer is kept although its sandbox is gone: it is what was answered.
    daemon.client()?.destroy_sandbox(&first.id()).await?;
    ensure!(create(&daemon, "k 1", &body).await?.body == first.body);
    ensure!(living(&daemon).await? == [mended.id()]);
    Ok(())
}

#[tokio::test]
async fn a_crash_in_between_makes_no_second_one() -> Result<()> {
    let body = json!({"template": "base", "timeout": "1h"});
    for (point, survives) in [("create.restored", false), ("idempotency.keep", true)] {
        let mut daemon = Daemon::start_with(Options::default().env("WAKEFUL_CRASH_AT", point)).await?;
        ensure!(create(&daemon, "k", &body).await.is_err(), "{point}: it must have died");
        daemon.wait_for_death().await?;
        daemon.start_again(Options::default()).await?;
        let left = if survives { living(&daemon).await? } else { Vec::new() };
        let again = create(&daemon, "k", &body).await?;
        ensure!(again.status == 201, "{point}: {}", again.body);
        let now = living(&daemon).await?;
        ensure!(now == [again.id()], "{point}: {now:?}");
        ensure!(!survives || left == now, "{point}: the first one had come to be: {left:?} {now:?}");
        ensure!(create(&daemon, "k", &body).await?.id() == again.id(), "{point}");
        sh(&daemon.client()?, &again.id(), "true").await?;
    }
    Ok(())
}
