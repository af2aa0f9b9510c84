//! `wakeful sandbox keepalive`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;
use crate::values::Span;

/// Give an ephemeral sandbox a new timeout, counted from now
#[derive(Args, Debug)]
#[command(after_help = "\
It may be shorter than what is left; more than 24h become 24h.

Examples:
  wakeful sandbox keepalive sbx_k3v7q2m5x6a4b2c7d5ef --timeout 30m")]
pub(crate) struct Keepalive {
    /// The sandbox
    id: String,
    /// Until it is destroyed [default: as it was created]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    timeout: Option<Span>,
}

impl Keepalive {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let sandbox = client.keepalive(&self.id, self.timeout.map(Into::into)).await?;
        if json {
            output::json(&sandbox)?;
        } else {
            let end = sandbox.expires_at.map_or_else(|| "never".to_owned(), |at| at.to_string());
            output::say(&format!("{} expires {end}", sandbox.id));
        }
        Ok(0)
    }
}
