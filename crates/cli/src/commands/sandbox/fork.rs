//! `wakeful sandbox fork`.

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::ForkRequest;

use crate::failure::{Failure, REFUSED};
use crate::output;
use crate::values::Span;

/// Make children of a sandbox and print their ids
#[derive(Args, Debug)]
#[command(after_help = "\
Each child has the files, memory and processes that the sandbox has at one instant, and goes on
from there as itself: with an id, a host name, random numbers and a network of its own. The
sandbox may be awake or asleep, and is what it was afterwards; one that is awake stands still
for a moment. If some children cannot be made, the others are, and it ends with 1.

Examples:
  wakeful sandbox fork sbx_k3v7q2m5x6a4b2c7d5ef
  wakeful sandbox fork sbx_k3v7q2m5x6a4b2c7d5ef --count 5 --mode ephemeral --timeout 10m
  for id in $(wakeful sandbox fork ID -n 3); do wakeful sandbox exec $id -- ./try.sh; done")]
pub(crate) struct Fork {
    /// The sandbox
    id: String,
    /// How many children, at most 100
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// How they end: ephemeral or persistent [default: as the sandbox]
    #[arg(long)]
    mode: Option<String>,
    /// Destroyed after this time (ephemeral) [default: as the sandbox]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse, conflicts_with = "idle_timeout")]
    timeout: Option<Span>,
    /// Sleep after so much idleness (persistent) [default: as the sandbox]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    idle_timeout: Option<Span>,
}

impl Fork {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let request = ForkRequest {
            count: Some(self.count),
            mode: self.mode,
            timeout: self.timeout.map(Into::into),
            idle_timeout: self.idle_timeout.map(Into::into),
        };
        let forked = client.fork(&self.id, &request).await?;
        if json {
            output::json(&forked)?;
        } else {
            for child in &forked.sandboxes {
                output::line(child.id.as_str())?;
            }
        }
        for error in &forked.errors {
            output::warning(&format!("a child was not made: {}", error.detail));
        }
        Ok(if forked.errors.is_empty() { 0 } else { REFUSED })
    }
}
