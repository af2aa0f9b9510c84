//! What the tests share.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use wakeful_api_types::{Command, ExecuteRequest, ExecuteResponse, Sandbox};
use wakeful_client::{Client, Error};
use wakeful_testkit::Daemon;

/// Makes a sandbox out of a JSON request over `{"template": "base"}`.
pub(crate) async fn create(client: &Client, more: Value) -> Result<Sandbox> {
    let mut request = json!({"template": "base"});
    if let (Value::Object(request), Value::Object(more)) = (&mut request, more) {
        request.extend(more);
    }
    Ok(client.create_sandbox(&serde_json::from_value(request)?).await?)
}

/// A persistent one that stays awake as long as a test needs.
pub(crate) async fn persistent(client: &Client, template: &str) -> Result<Sandbox> {
    create(client, json!({"template": template, "mode": "persistent", "idle_timeout": "1h"})).await
}

/// Runs a shell command; any exit code.
pub(crate) async fn run(client: &Client, id: &str, script: &str) -> Result<ExecuteResponse> {
    Ok(client.execute(id, &ExecuteRequest::new(Command::Shell(script.to_owned()))).await?)
}

/// Runs a shell command that must succeed; its output without the last newline.
pub(crate) async fn sh(client: &Client, id: &str, script: &str) -> Result<String> {
    let done = run(client, id, script).await?;
    ensure!(done.exit_code == 0, "`{script}` ended with {}: {}{}", done.exit_code, done.stdout, done.stderr);
    Ok(done.stdout.trim_end().to_owned())
}

/// The code of the problem that a call must end with.
pub(crate) fn code_of<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.expect_err("this must be refused");
    error.code().map_or_else(|| format!("no problem but: {error}"), str::to_owned)
}

/// Waits until `reached` says yes.
pub(crate) async fn wait_for<F, R>(what: &str, within: Duration, mut reached: F) -> Result<()>
where
    F: FnMut() -> R,
    R: Future<Output = Result<bool>>,
{
    let deadline = tokio::time::Instant::now() + within;
    while !reached().await? {
        ensure!(tokio::time::Instant::now() < deadline, "{what} did not happen within {within:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Waits for the golden snapshot that is made beside the first sandbox of a machine, such as `c1-m512-d2048`.
pub(crate) async fn wait_for_golden(daemon: &Daemon, machine: &str) -> Result<()> {
    let made = format!("machine={machine}");
    wait_for("a golden snapshot", Duration::from_secs(90), async || Ok(daemon.log().contains(&made))).await
}
