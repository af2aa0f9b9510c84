//! What happens to files, told as it happens.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use wakeful_testkit::Daemon;

use crate::support::{create, sh, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

/// A watch that is under way.
struct Watch {
    response: reqwest::Response,
    rest: String,
    /// What stands before a JSON object.
    prefix: &'static str,
}

impl Watch {
    async fn open(daemon: &Daemon, id: &str, path_and_query: &str, accept: Option<&str>) -> Result<Self> {
        let url = format!("{}/v1/sandboxes/{id}/files{path_and_query}", daemon.url());
        let request = reqwest::Client::new().get(url);
        let response = accept.into_iter().fold(request, |request, kind| request.header("accept", kind)).send().await?;
        ensure!(response.status() == 200, "{}", response.text().await?);
        let kind = response.headers()["content-type"].to_str()?.to_owned();
        ensure!(kind == accept.unwrap_or("application/x-ndjson"), "{kind}");
        Ok(Self { response, rest: String::new(), prefix: if accept.is_some() { "data: " } else { "" } })
    }

    /// The next object; `None` at the end.
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some((line, rest)) = self.rest.split_once('\n') {
                let (line, rest) = (line.to_owned(), rest.to_owned());
                self.rest = rest;
                if line.is_empty() {
                    continue;
                }
                let text = line.strip_prefix(self.prefix).with_context(|| line.clone())?;
                return Ok(Some(serde_json::from_str(text)?));
            }
            match tokio::time::timeout(PATIENCE, self.response.chunk()).await?? {
                Some(piece) => self.rest.push_str(std::str::from_utf8(&piece)?),
                None => return Ok(None),
            }
        }
    }

    /// The next change that is no keepalive, as `type path`.
    async fn change(&mut self) -> Result<String> {
        loop {
            let event = self.next().await?.context("the watch has ended")?;
            let kind = event["type"].as_str().unwrap_or_default();
            if kind != "keepalive" {
                return Ok(format!("{kind} {}", event["path"].as_str().unwrap_or_default()));
            }
        }
    }

    async fn changes(&mut self, expected: &[&str]) -> Result<()> {
        for wanted in expected {
            let change = self.change().await?;
            ensure!(change == *wanted, "{change:?} instead of {wanted:?}");
        }
        Ok(())
    }
}

#[tokio::test]
async fn changes_are_told_as_they_happen() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    sh(&client, &id, "mkdir -p w/sub").await?;
    let mut flat = Watch::open(&daemon, &id, "/home/user/w?watch=true", None).await?;
    let mut tree =
        Watch::open(&daemon, &id, "/home/user/w?watch=true&recursive=true", Some("text/event-stream")).await?;

    sh(&client, &id, "cd w; echo 1 > a; chmod 600 a; mv a sub/b; rm sub/b; echo 2 > sub/c").await?;
    let w = "/home/user/w";
    flat.changes(&[
        &format!("create {w}/a"),
        &format!("write {w}/a"),
        &format!("chmod {w}/a"),
        &format!("rename {w}/a"),
    ])
    .await?;
    tree.changes(&[
        &format!("create {w}/a"),
        &format!("write {w}/a"),
        &format!("chmod {w}/a"),
        &format!("rename {w}/a"),
        &format!("create {w}/sub/b"),
        &format!("remove {w}/sub/b"),
        &format!("create {w}/sub/c"),
        &format!("write {w}/sub/c"),
    ])
    .await?;

    // A directory that is new, with something in it before anybody can have looked: nothing is missed, nothing doubled.
    sh(&client, &id, "cd w; mkdir -p new/deep; echo 3 > new/deep/file").await?;
    let mut told = Vec::new();
    while !told.contains(&format!("write {w}/new/deep/file")) {
        told.push(tree.change().await?);
    }
    for path in ["new", "new/deep", "new/deep/file"] {
        let count = told.iter().filter(|change| **change == format!("create {w}/{path}")).count();
        ensure!(count == 1, "{path} came {count} times: {told:?}");
    }
    flat.changes(&[&format!("create {w}/new")]).await?;
    // An upload appears when it is whole, under its own name only.
    let upload = format!("{}/v1/sandboxes/{id}/files/home/user/w/up", daemon.url());
    ensure!(reqwest::Client::new().put(upload).body("content").send().await?.status() == 200);
    flat.changes(&[&format!("create {w}/up"), &format!("chmod {w}/up"), &format!("write {w}/up")]).await?;

    // The end of what is watched is the end of the watch.
    sh(&client, &id, "rm -r w").await?;
    let last = loop {
        let event = flat.next().await?.context("the watch ended without a word")?;
        if event["type"] == "error" {
            break event;
        }
    };
    ensure!(last["code"] == "path_not_found" && flat.next().await?.is_none(), "{last}");

    let http = reqwest::Client::new();
    for (query, status, code) in [
        ("/home/user/nothing?watch=true", 404, "path_not_found"),
        ("/etc/passwd?watch=true", 400, "not_a_directory"),
        ("/home/user?watch=true&list=true", 400, "invalid_field"),
        ("/home/user?recursive=true", 400, "invalid_field"),
    ] {
        let answer = http.get(format!("{}/v1/sandboxes/{id}/files{query}", daemon.url())).send().await?;
        let (found, body) = (answer.status().as_u16(), answer.json::<Value>().await?);
        ensure!(found == status && body["code"] == code, "{query}: {body}");
    }
    Ok(())
}

#[tokio::test]
async fn a_silent_watch_lets_the_sandbox_sleep_and_says_so() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({"mode": "persistent", "idle_timeout": "4s"})).await?.id.to_string();
    let mut watch = Watch::open(&daemon, &id, "/home/user?watch=true", None).await?;
    sh(&client, &id, "touch a").await?;
    watch.changes(&["create /home/user/a", "chmod /home/user/a"]).await?;
    // Nobody does anything: it sleeps although the watch is open, and the watch tells.
    let last = watch.next().await?;
    ensure!(last == Some(json!({"type": "suspended"})) && watch.next().await?.is_none(), "{last:?}");
    wait_for("sleep", PATIENCE, || async { Ok(client.sandbox(&id).await?.status.to_string() == "suspended") }).await?;

    // A watch is an access as any other: it wakes. Its events keep awake; explicit suspends end it as well.
    let mut watch = Watch::open(&daemon, &id, "/home/user?watch=true", None).await?;
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);
    client.suspend(&id, true).await?;
    let last = watch.next().await?;
    ensure!(last == Some(json!({"type": "suspended"})), "{last:?}");
    Ok(())
}
