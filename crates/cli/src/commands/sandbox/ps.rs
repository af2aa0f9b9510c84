//! `wakeful sandbox ps`.

use clap::Args;
use jiff::Timestamp;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::{output, table};

/// List the processes that were started from outside
#[derive(Args, Debug)]
#[command(after_help = "\
Those of `exec`, `shell` and the API, running or ended within the hour; not what they started
themselves.

Examples:
  wakeful sandbox ps sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful sandbox ps sbx_k3v7q2m5x6a4b2c7d5ef --json | jq '.[] | select(.running) | .pid'")]
pub(crate) struct Ps {
    /// The sandbox
    id: String,
}

impl Ps {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let processes = client.processes(&self.id).await?.processes;
        if json {
            output::json(&processes)?;
        } else {
            output::line(&table::processes(&processes, Timestamp::now()))?;
        }
        Ok(0)
    }
}
