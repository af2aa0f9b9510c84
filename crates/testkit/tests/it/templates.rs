//! Templates over HTTP.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use wakeful_testkit::Daemon;

use crate::support::{code_of, create, sh, wait_for};

#[tokio::test]
async fn a_template_is_built_used_and_deleted() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let new = serde_json::from_value(
        json!({"name": "small", "source": {"kind": "debian", "suite": "bookworm", "packages": ["tree"]}}),
    )?;
    let template = client.create_template(&new).await?;
    ensure!(["pending", "building"].contains(&template.status.to_string().as_str()), "{template:?}");
    ensure!(code_of(client.create_template(&new).await) == "name_taken");
    let early = client.create_sandbox(&serde_json::from_value(json!({"template": "small"}))?).await;
    ensure!(code_of(early) == "template_not_ready");
    wait_for("the build", Duration::from_secs(240), || async {
        let status = client.template("small").await?.status.to_string();
        ensure!(status != "failed", "{:?}", client.template("small").await?.build_error);
        Ok(status == "ready")
    })
    .await?;
    let id = create(&client, json!({"template": "small"})).await?.id.to_string();
    ensure!(sh(&client, &id, "tree --version").await?.contains("tree"));
    // Deleted while a sandbox stands on it: the sandbox lives on, sleeps and wakes; the files go with it.
    client.delete_template("small").await?;
    ensure!(code_of(client.template("small").await) == "template_not_found");
    let golden = daemon.data().join("golden").join(template.id.to_string());
    ensure!(golden.exists());
    client.suspend(&id, true).await?;
    sh(&client, &id, "tree --version").await?;
    client.destroy_sandbox(&id).await?;
    ensure!(!golden.exists(), "its golden snapshots are left");
    Ok(())
}

#[tokio::test]
async fn a_build_that_fails_says_why() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let new = serde_json::from_value(
        json!({"name": "broken", "source": {"kind": "debian", "suite": "bookworm", "packages": ["no-such-package-here"]}}),
    )?;
    client.create_template(&new).await?;
    wait_for("the failure", Duration::from_secs(120), || async {
        Ok(client.template("broken").await?.status.to_string() == "failed")
    })
    .await?;
    let error = client.template("broken").await?.build_error.expect("a reason");
    ensure!(error.detail.contains("no-such-package-here"), "{error:?}");
    let unusable = client.create_sandbox(&serde_json::from_value(json!({"template": "broken"}))?).await;
    ensure!(code_of(unusable) == "template_not_ready");
    client.delete_template("broken").await?;
    for body in [
        json!({"name": "Bad Name", "source": {"kind": "debian", "suite": "bookworm", "packages": []}}),
        json!({"name": "ok", "source": {"kind": "debian", "suite": "book worm", "packages": []}}),
        json!({"name": "ok", "source": {"kind": "debian", "suite": "bookworm", "packages": ["; rm -rf /"]}}),
        json!({"name": "ok", "source": {"kind": "debian", "suite": "bookworm", "packages": []}, "default_size": "huge"}),
    ] {
        let refused = code_of(client.create_template(&serde_json::from_value(body.clone())?).await);
        ensure!(["invalid_name", "invalid_field", "invalid_size"].contains(&refused.as_str()), "{body}: {refused}");
    }
    Ok(())
}
