//! `wakeful sandbox wake`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;

/// Wake a sandbox where it left off
#[derive(Args, Debug)]
#[command(after_help = "\
Every other use of a sandbox wakes it too. This one also boots a failed sandbox from its disk.

Examples:
  wakeful sandbox wake sbx_k3v7q2m5x6a4b2c7d5ef")]
pub(crate) struct Wake {
    /// The sandbox
    id: String,
}

impl Wake {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let sandbox = client.wake(&self.id, true).await?;
        if json {
            output::json(&sandbox)?;
        } else {
            let how = match sandbox.restored_memory {
                Some(false) => ", booted from its disk",
                _ => "",
            };
            output::say(&format!("{} is {}{how}", sandbox.id, sandbox.status));
        }
        Ok(0)
    }
}
