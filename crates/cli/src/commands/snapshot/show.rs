//! `wakeful snapshot show`.

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::Snapshot;

use crate::failure::Failure;
use crate::{output, table};

/// Show one snapshot: what it was taken of, and what it takes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful snapshot show snp_k3v7q2m5x6a4b2c7d5ef
  wakeful snapshot show snp_k3v7q2m5x6a4b2c7d5ef --json")]
pub(crate) struct Show {
    /// Its id, as `snapshot list` shows it
    id: String,
}

impl Show {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let snapshot = client.snapshot(&self.id).await?;
        if json {
            output::json(&snapshot)?;
        } else {
            output::line(&describe(&snapshot))?;
        }
        Ok(0)
    }
}

/// One fact a line.
fn describe(snapshot: &Snapshot) -> String {
    let (own, shared) = (table::bytes(snapshot.own_bytes), table::bytes(snapshot.shared_bytes));
    let lines = [
        ("id", snapshot.id.to_string()),
        ("name", snapshot.name.clone()),
        ("sandbox", snapshot.sandbox_id.to_string()),
        ("template", snapshot.template.clone()),
        ("keeps", if snapshot.memory { "files, memory and processes" } else { "files only" }.to_owned()),
        ("storage", format!("{own} own, {shared} shared")),
        ("created", snapshot.created_at.to_string()),
    ];
    lines.map(|(name, value)| format!("{name:<12}{value}")).join("\n")
}
