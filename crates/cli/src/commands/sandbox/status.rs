//! `wakeful sandbox status`.

use clap::Args;
use jiff::Timestamp;
use wakeful_client::Client;
use wakeful_client::types::Sandbox;

use crate::failure::Failure;
use crate::{output, table};

/// Show one sandbox: its state, why it is awake, when it sleeps or ends
#[derive(Args, Debug)]
#[command(after_help = "\
Looking wakes nobody.

Examples:
  wakeful sandbox status sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful sandbox status sbx_k3v7q2m5x6a4b2c7d5ef --json")]
pub(crate) struct Status {
    /// The sandbox
    id: String,
}

impl Status {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let sandbox = client.sandbox(&self.id).await?;
        if json {
            output::json(&sandbox)?;
        } else {
            output::line(&describe(&sandbox, Timestamp::now()))?;
        }
        Ok(0)
    }
}

/// One fact a line; what does not apply is left out.
fn describe(sandbox: &Sandbox, now: Timestamp) -> String {
    let mut lines = Vec::new();
    let mut add = |name: &str, value: String| lines.push(format!("{name:<12}{value}"));
    add("id", sandbox.id.to_string());
    add(
        "status",
        match &sandbox.transition {
            Some(transition) => format!("{} ({:?})", sandbox.status, transition.kind).to_lowercase(),
            None => table::status(&sandbox.status.to_string()),
        },
    );
    if let Some(failure) = &sandbox.failure {
        let next = if failure.bootable { "; its disk can be booted by `wake`" } else { "" };
        add("failure", format!("{}: {}{next}", failure.code, failure.detail));
    }
    add("mode", sandbox.mode.to_string());
    add("next", table::ends(sandbox, now));
    for why in &sandbox.awake_because {
        let detail = why.detail.as_deref().map(|text| format!(", {text}")).unwrap_or_default();
        add("awake", format!("{} (since {}{detail})", why.reason, why.since));
    }
    add("template", sandbox.template.clone());
    if let Some(parent) = &sandbox.parent_id {
        add("parent", parent.to_string());
    }
    add(
        "size",
        format!(
            "{} ({} cpu, {} MiB memory, {} MiB disk)",
            table::size(sandbox),
            sandbox.cpu,
            sandbox.memory_mb,
            sandbox.disk_mb
        ),
    );
    if let Some(limits) = table::io(&sandbox.io) {
        add("io", limits);
    }
    let isolation = sandbox.capabilities.as_ref().map(|found| format!(" ({})", found.isolation)).unwrap_or_default();
    add("runtime", format!("{}/{}{isolation}", sandbox.runtime, sandbox.accel));
    add("generation", sandbox.runtime_generation.to_string());
    if let Some(restored) = sandbox.restored_memory {
        add("last wake", if restored { "memory restored" } else { "booted from disk" }.to_owned());
    }
    add("created", sandbox.created_at.to_string());
    add("last use", sandbox.last_activity_at.to_string());
    let storage = sandbox.storage;
    add(
        "storage",
        format!(
            "{} disk, {} checkpoint, {} shared",
            table::bytes(storage.disk_bytes),
            table::bytes(storage.checkpoint_bytes),
            table::bytes(storage.shared_bytes)
        ),
    );
    if !sandbox.env_keys.is_empty() {
        add("env", sandbox.env_keys.join(", "));
    }
    for (key, value) in &sandbox.metadata {
        add("metadata", format!("{key}={value}"));
    }
    lines.join("\n")
}
