//! `wakeful sandbox update`.

use std::collections::BTreeMap;

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::PatchSandbox;

use crate::failure::Failure;
use crate::output;
use crate::values::{EgressArgs, Span, key_value};

/// Change a sandbox's labels, egress, timeouts or disk; awake or asleep
#[derive(Args, Debug)]
#[command(after_help = "\
What is not named stays as it is; --metadata and the egress flags replace all that they name.
Nobody is woken. A disk can only grow, and only while the sandbox is suspended.

Examples:
  wakeful sandbox update sbx_k3v7q2m5x6a4b2c7d5ef --idle-timeout 30m
  wakeful sandbox update sbx_k3v7q2m5x6a4b2c7d5ef --metadata team=search
  wakeful sandbox update sbx_k3v7q2m5x6a4b2c7d5ef --egress-allow-cidr 192.0.2.0/24
  wakeful sandbox update sbx_k3v7q2m5x6a4b2c7d5ef --no-hard-ttl --auto-resume false
  wakeful sandbox update sbx_k3v7q2m5x6a4b2c7d5ef --disk-mb 8192")]
pub(crate) struct Update {
    /// The sandbox
    id: String,
    /// All its labels (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value, conflicts_with = "clear_metadata")]
    metadata: Vec<(String, String)>,
    /// Take all labels away
    #[arg(long)]
    clear_metadata: bool,
    /// Idleness before it sleeps; persistent sandboxes only
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    idle_timeout: Option<Span>,
    /// Destroy it this long after now
    #[arg(long, value_name = "DURATION", value_parser = Span::parse, conflicts_with = "no_hard_ttl")]
    hard_ttl: Option<Span>,
    /// Do not destroy it by itself
    #[arg(long)]
    no_hard_ttl: bool,
    /// Whether access wakes it
    #[arg(long, value_name = "BOOL")]
    auto_resume: Option<bool>,
    /// A larger disk from its next start on, in MiB; only while it is suspended
    #[arg(long, value_name = "MIB")]
    disk_mb: Option<u32>,
    #[command(flatten)]
    egress: EgressArgs,
}

impl Update {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let id = self.id.clone();
        let patch = self.patch();
        if patch == PatchSandbox::default() {
            return Err(Failure::usage("nothing to change is named").hint("wakeful sandbox update --help"));
        }
        let sandbox = client.patch_sandbox(&id, &patch).await?;
        if json {
            output::json(&sandbox)?;
        } else {
            output::say(&format!("{} is changed", sandbox.id));
        }
        Ok(0)
    }

    fn patch(self) -> PatchSandbox {
        let metadata: BTreeMap<String, String> = self.metadata.into_iter().collect();
        PatchSandbox {
            metadata: (self.clear_metadata || !metadata.is_empty()).then_some(metadata),
            egress: self.egress.request(),
            idle_timeout: self.idle_timeout.map(Into::into),
            hard_ttl: if self.no_hard_ttl { Some(None) } else { self.hard_ttl.map(|span| Some(span.into())) },
            auto_resume: self.auto_resume,
            disk_mb: self.disk_mb,
        }
    }
}
