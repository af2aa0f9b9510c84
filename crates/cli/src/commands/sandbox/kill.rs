//! `wakeful sandbox kill`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;

/// Send a signal to processes in a sandbox
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful sandbox kill sbx_k3v7q2m5x6a4b2c7d5ef 214
  wakeful sandbox kill sbx_k3v7q2m5x6a4b2c7d5ef 214 215 --signal KILL")]
pub(crate) struct Kill {
    /// The sandbox
    id: String,
    /// The processes
    #[arg(value_name = "PID", required = true)]
    pids: Vec<u32>,
    /// Which signal, by name
    #[arg(short, long, value_name = "NAME", default_value = "TERM")]
    signal: String,
}

impl Kill {
    pub(crate) async fn run(self, client: &Client) -> Result<u8, Failure> {
        for pid in &self.pids {
            client.signal_process(&self.id, *pid, &self.signal).await?;
            output::say(&format!("{} was sent to {pid}", self.signal));
        }
        Ok(0)
    }
}
