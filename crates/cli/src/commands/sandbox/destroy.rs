//! `wakeful sandbox destroy`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;

/// Destroy sandboxes with their files and memory
#[derive(Args, Debug)]
#[command(after_help = "\
One that is destroyed already is no error. It asks first, if there is a terminal to ask on.

Examples:
  wakeful sandbox destroy sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful sandbox destroy -f sbx_k3v7q2m5x6a4b2c7d5ef sbx_q2m5x6a4b2c7d5efk3v7")]
pub(crate) struct Destroy {
    /// The sandboxes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    force: bool,
}

impl Destroy {
    /// Before signals are taken over: ^C at the question must end us.
    pub(crate) fn confirm(&self) -> Result<(), Failure> {
        if self.force || output::confirm(&format!("Destroy {}?", self.ids.join(", ")))? {
            Ok(())
        } else {
            Err(Failure::refused("nothing was destroyed"))
        }
    }

    pub(crate) async fn run(self, client: &Client) -> Result<u8, Failure> {
        for id in &self.ids {
            client.destroy_sandbox(id).await?;
            output::say(&format!("{id} is destroyed"));
        }
        Ok(0)
    }
}
