//! `wakeful sandbox suspend`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;

/// Put a sandbox to sleep, memory and processes included
#[derive(Args, Debug)]
#[command(after_help = "\
It takes no processor and no memory until the next use, and goes on where it left off then.

Examples:
  wakeful sandbox suspend sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful sandbox suspend sbx_k3v7q2m5x6a4b2c7d5ef --no-memory     keep the files only")]
pub(crate) struct Suspend {
    /// The sandbox
    id: String,
    /// Keep the files but not memory and processes
    #[arg(long)]
    no_memory: bool,
}

impl Suspend {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let sandbox = client.suspend(&self.id, !self.no_memory).await?;
        if json {
            output::json(&sandbox)?;
        } else {
            output::say(&format!("{} is {}", sandbox.id, sandbox.status));
        }
        Ok(0)
    }
}
