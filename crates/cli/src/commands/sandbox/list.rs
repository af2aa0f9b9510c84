//! `wakeful sandbox list`.

use clap::Args;
use jiff::Timestamp;
use wakeful_client::{Client, ListQuery};

use crate::failure::Failure;
use crate::values::key_value;
use crate::{output, table};

/// List sandboxes, newest first
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful sandbox list
  wakeful sandbox list --status suspended --metadata team=search
  wakeful sandbox list --json")]
pub(crate) struct List {
    /// Only those that are creating, running, suspended, failed or destroyed
    #[arg(long)]
    status: Option<String>,
    /// Only ephemeral or persistent ones
    #[arg(long)]
    mode: Option<String>,
    /// Only those made from this template
    #[arg(short, long, value_name = "NAME")]
    template: Option<String>,
    /// Only those with this label (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    metadata: Vec<(String, String)>,
}

impl List {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let query = ListQuery {
            status: self.status,
            mode: self.mode,
            template: self.template,
            metadata: self.metadata,
            limit: Some(1000),
            cursor: None,
        };
        let all = client.all_sandboxes(&query).await?;
        if json {
            output::json(&all)?;
        } else {
            output::line(&table::sandboxes(&all, Timestamp::now()))?;
        }
        Ok(0)
    }
}
