//! Every bad request gets its problem; the daemon and the other sandboxes go on.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wakeful_testkit::{Daemon, Options};

use crate::support::{create, sh};

/// A request byte for byte: clients tidy paths up before they send them. Status and body.
async fn raw(daemon: &Daemon, head: &[u8], body: &str) -> Result<(u16, Value)> {
    let address = daemon.url().strip_prefix("http://").context("a plain address")?;
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(head).await?;
    stream
        .write_all(
            format!(
                " HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        )
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).with_context(|| answer.clone())?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, serde_json::from_str(body).unwrap_or_default()))
}

#[tokio::test]
async fn creates_that_make_no_sense() -> Result<()> {
    let daemon = Daemon::start().await?;
    let cases = [
        (r#"{"template":"no-such"}"#, 404, "template_not_found", Value::Null),
        (r#"{"template":"base","size":"gigantic"}"#, 400, "invalid_size", json!("size")),
        (r#"{"template":"base","cpu":0}"#, 400, "invalid_size", json!("cpu")),
        (r#"{"template":"base","mode":"eternal"}"#, 400, "invalid_mode", json!("mode")),
        (r#"{"template":"base","colour":"blue"}"#, 400, "unknown_field", json!("colour")),
        (r#"{"template":"base","timeout":"soon"}"#, 400, "invalid_duration", json!("timeout")),
        (r#"{"template":"base","timeout":"0s"}"#, 400, "invalid_duration", json!("timeout")),
        (r#"{"template":"base","timeout":-5}"#, 400, "invalid_duration", json!("timeout")),
        (r#"{"template":"base","idle_timeout":"5m"}"#, 400, "invalid_combination", json!("idle_timeout")),
        (r#"{"template":"base","mode":"persistent","timeout":"5m"}"#, 400, "invalid_combination", json!("timeout")),
        (r#"{"template":"base","size":"shared-cpu-1x","cpu":2}"#, 400, "invalid_combination", json!("size")),
        (r#"{"template":"base","egress":{"mode":"sometimes"}}"#, 400, "invalid_egress", json!("egress.mode")),
        (
            r#"{"template":"base","egress":{"mode":"allow_all","allow_cidrs":["10.0.0.0/8"]}}"#,
            400,
            "invalid_egress",
            json!("egress.allow_cidrs"),
        ),
        (
            r#"{"template":"base","egress":{"allow_cidrs":["10.0.0.0/33"]}}"#,
            400,
            "invalid_egress",
            json!("egress.allow_cidrs"),
        ),
        (
            r#"{"template":"base","egress":{"deny_cidrs":["169.254.1.0/24"]}}"#,
            400,
            "invalid_egress",
            json!("egress.deny_cidrs"),
        ),
        (
            r#"{"template":"base","egress":{"mode":"deny_all","allow_ports":[443]}}"#,
            400,
            "invalid_egress",
            json!("egress.allow_ports"),
        ),
        (
            r#"{"template":"base","egress":{"allow_cidrs":["1.1.1.1/32"],"allow_ports":[70000]}}"#,
            400,
            "invalid_egress",
            json!("egress.allow_ports"),
        ),
        (r"{}", 400, "missing_field", json!("template")),
        ("", 400, "missing_field", json!("template")),
        ("{", 400, "invalid_json", Value::Null),
        ("[1]", 400, "invalid_json", Value::Null),
        ("template=base", 400, "invalid_json", Value::Null),
    ];
    for (body, status, code, field) in cases {
        let (found, problem) = raw(&daemon, b"POST /v1/sandboxes", body).await?;
        ensure!(found == status && problem["code"] == code, "{body}: {found} {problem}");
        ensure!(problem["field"] == field, "{body}: {problem}");
        ensure!(
            problem["status"] == status && problem["type"] == "about:blank" && problem["request_id"].is_string(),
            "{problem}"
        );
    }
    let huge = format!(r#"{{"template":"base","metadata":{{"k":"{}"}}}}"#, "x".repeat(1 << 20));
    let (status, problem) = raw(&daemon, b"POST /v1/sandboxes", &huge).await?;
    ensure!(status == 413 && problem["code"] == "body_too_large", "{status} {problem}");
    // None of them left anything.
    let list: Value = reqwest::get(format!("{}/v1/sandboxes", daemon.url())).await?.json().await?;
    ensure!(list == json!({"sandboxes": [], "next_cursor": null}), "{list}");
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

#[tokio::test]
async fn calls_that_make_no_sense() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let at = |rest: &str| format!("/v1/sandboxes/{id}{rest}");
    let unknown = "/v1/sandboxes/sbx_aaaaaaaaaaaaaaaaaaaa";
    let files = at("/files");
    let long = format!("GET {files}/{}", "x".repeat(5000));
    let cases: Vec<(Vec<u8>, &str, u16, &str)> = vec![
        (format!("GET {files}/etc/../etc/passwd").into(), "", 400, "invalid_path"),
        (format!("GET {files}/%2e%2e/etc/passwd").into(), "", 400, "invalid_path"),
        (format!("PUT {files}/home/user/../../x").into(), "x", 400, "invalid_path"),
        (format!("GET {files}/etc/%00passwd").into(), "", 400, "invalid_path"),
        (long.into(), "", 400, "invalid_path"),
        (format!("GET {unknown}").into(), "", 404, "sandbox_not_found"),
        (format!("DELETE {unknown}").into(), "", 404, "sandbox_not_found"),
        (format!("POST {unknown}/execute").into(), r#"{"command":"true"}"#, 404, "sandbox_not_found"),
        (b"GET /v1/sandboxes/what".to_vec(), "", 404, "sandbox_not_found"),
        (b"GET /v1/nothing".to_vec(), "", 404, "route_not_found"),
        (b"PUT /v1/sandboxes".to_vec(), "", 405, "method_not_allowed"),
        (format!("POST {}", at("/execute")).into(), "{}", 400, "missing_command"),
        (format!("POST {}", at("/execute")).into(), r#"{"command":"  "}"#, 400, "missing_command"),
        (format!("POST {}", at("/execute")).into(), "nonsense", 400, "invalid_json"),
        (format!("POST {}", at("/execute")).into(), r#"{"command":"true","cwd":"/"}"#, 400, "unknown_field"),
        (format!("POST {}", at("/execute")).into(), r#"{"command":"true","timeout":"1y"}"#, 400, "invalid_duration"),
        (format!("POST {}", at("/keepalive")).into(), r#"{"timeout":"x"}"#, 400, "invalid_duration"),
        (b"GET /v1/sandboxes?status=odd".to_vec(), "", 400, "invalid_field"),
        (b"GET /v1/sandboxes?limit=0".to_vec(), "", 400, "invalid_field"),
        (b"GET /v1/sandboxes?cursor=%ff".to_vec(), "", 400, "invalid_field"),
    ];
    for (head, body, status, code) in cases {
        let (found, problem) = raw(&daemon, &head, body).await?;
        let shown = String::from_utf8_lossy(&head[..head.len().min(100)]).into_owned();
        ensure!(found == status && problem["code"] == code, "{shown} {body}: {found} {problem}");
    }
    // A page in somebody's browser must not drive a local daemon.
    let http = reqwest::Client::new();
    for (name, value) in [("origin", "http://evil.example"), ("origin", "null"), ("host", "evil.example")] {
        let answer = http.get(format!("{}/v1/sandboxes", daemon.url())).header(name, value).send().await?;
        ensure!(answer.status() == 403, "{name}: {value}");
        ensure!(answer.json::<Value>().await?["code"] == "foreign_origin");
    }
    // Ids work with and without their prefix, and the request id is taken over.
    let bare = id.strip_prefix("sbx_").expect("a prefix");
    let answer =
        http.get(format!("{}/v1/sandboxes/{bare}", daemon.url())).header("x-request-id", "mine-1").send().await?;
    ensure!(answer.headers()["x-request-id"] == "mine-1");
    ensure!(answer.json::<Value>().await?["id"] == id);
    ensure!(sh(&client, &id, "echo fine").await? == "fine", "and the sandbox goes on");
    Ok(())
}

#[tokio::test]
async fn a_destroyed_one_stays_destroyed() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    // Several at once are one destroy, and again is no error.
    for gone in futures_util::future::join_all((0..8).map(|_| client.destroy_sandbox(&id))).await {
        gone?;
    }
    client.destroy_sandbox(&id).await?;
    for (call, status, code) in [
        ("POST /execute", 409, "sandbox_destroyed"),
        ("POST /suspend", 409, "sandbox_destroyed"),
        ("POST /wake", 409, "not_wakeable"),
        ("GET /files/etc/hostname", 409, "sandbox_destroyed"),
    ] {
        let (method, path) = call.split_once(' ').expect("two words");
        let body = if path == "/execute" { r#"{"command":"true"}"# } else { "" };
        let (found, problem) = raw(&daemon, format!("{method} /v1/sandboxes/{id}{path}").as_bytes(), body).await?;
        ensure!(found == status && problem["code"] == code, "{call}: {found} {problem}");
    }
    let list: Value = reqwest::get(format!("{}/v1/sandboxes?status=destroyed", daemon.url())).await?.json().await?;
    ensure!(list["sandboxes"][0]["id"] == id, "{list}");
    Ok(())
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_what_would() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().config("[limits]\nmemory_mb = 600\nsandboxes = 2\n")).await?;
    let client = daemon.client()?;
    create(&client, json!({})).await?;
    let (status, problem) =
        raw(&daemon, b"POST /v1/sandboxes", r#"{"template":"base","size":"shared-cpu-2x"}"#).await?;
    ensure!(
        status == 507 && problem["code"] == "insufficient_capacity" && problem["fits"] == "shared-cpu-1x",
        "{status} {problem}"
    );
    create(&client, json!({})).await?;
    let (status, problem) = raw(&daemon, b"POST /v1/sandboxes", r#"{"template":"base","memory_mb":128}"#).await?;
    ensure!(
        status == 507 && problem["code"] == "insufficient_capacity" && problem["fits"].is_null(),
        "{status} {problem}"
    );
    Ok(())
}
