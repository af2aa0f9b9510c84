//! `wakeful pool list`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::{output, table};

/// List the pools
#[derive(Args, Debug)]
#[command(after_help = "\
READY can be claimed now, CLAIMED were since the daemon started, MEMORY is what members may take.

Examples:
  wakeful pool list
  wakeful pool list --json")]
pub(crate) struct List {}

impl List {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let pools = client.pools().await?.pools;
        if json {
            output::json(&pools)?;
        } else {
            output::line(&table::pools(&pools))?;
        }
        Ok(0)
    }
}
