//! `wakeful snapshot delete`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;

/// Delete snapshots; sandboxes that began with them go on
#[derive(Args, Debug)]
#[command(after_help = "\
It asks first, if there is a terminal to ask on.

Examples:
  wakeful snapshot delete snp_k3v7q2m5x6a4b2c7d5ef
  wakeful snapshot delete -f snp_k3v7q2m5x6a4b2c7d5ef snp_q2m5x6a4b2c7d5efk3v7")]
pub(crate) struct Delete {
    /// Their ids, as `snapshot list` shows them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    force: bool,
}

impl Delete {
    /// Before signals are taken over: ^C at the question must end us.
    pub(crate) fn confirm(&self) -> Result<(), Failure> {
        if self.force || output::confirm(&format!("Delete snapshot {}?", self.ids.join(", ")))? {
            Ok(())
        } else {
            Err(Failure::refused("nothing was deleted"))
        }
    }

    pub(crate) async fn run(self, client: &Client) -> Result<u8, Failure> {
        for id in &self.ids {
            client.delete_snapshot(id).await?;
            output::say(&format!("snapshot {id} is deleted"));
        }
        Ok(0)
    }
}
