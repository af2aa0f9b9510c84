//! `wakeful snapshot create`.

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::CreateSnapshot;

use crate::failure::Failure;
use crate::output;

/// Keep a copy of a sandbox and print the snapshot's id
#[derive(Args, Debug)]
#[command(after_help = "\
It has the files, memory and processes that the sandbox has at one instant; of one that sleeps
without its memory, the files. The sandbox may be awake or asleep, and is what it was
afterwards; one that is awake stands still for a moment.

Examples:
  wakeful snapshot create sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful snapshot create sbx_k3v7q2m5x6a4b2c7d5ef before-upgrade
  wakeful sandbox create -t $(wakeful snapshot create ID)")]
pub(crate) struct Create {
    /// The sandbox
    id: String,
    /// What to call it [default: its id]
    name: Option<String>,
}

impl Create {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let snapshot = client.create_snapshot(&self.id, &CreateSnapshot { name: self.name }).await?;
        if json {
            output::json(&snapshot)?;
        } else {
            output::line(snapshot.id.as_str())?;
        }
        Ok(0)
    }
}
