//! `wakeful pool set`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::{output, table};

/// Set how many sandboxes of a template are kept ready
#[derive(Args, Debug)]
#[command(after_help = "\
It holds until it is set again, also over restarts of the daemon.

Examples:
  wakeful pool set python 3
  wakeful pool set python 1 --size performance-1x
  wakeful pool set python 0                               none any more")]
pub(crate) struct Set {
    /// The template
    template: String,
    /// How many; 0 for none
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    target: u32,
    /// Their size [default: the template's]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
}

impl Set {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let size = match self.size {
            Some(size) => size,
            None => client.template(&self.template).await?.default_size,
        };
        let pool = client.put_pool(&self.template, &size, self.target).await?;
        if json {
            output::json(&pool)?;
        } else {
            output::line(&table::pools(&[pool]))?;
        }
        Ok(0)
    }
}
