//! `wakeful snapshot list`.

use clap::Args;
use jiff::Timestamp;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::{output, table};

/// List snapshots, newest first
#[derive(Args, Debug)]
#[command(after_help = "\
OWN is what goes when it is deleted; SHARED stays as long as others need it.

Examples:
  wakeful snapshot list
  wakeful snapshot list --json
  wakeful snapshot delete $(wakeful snapshot list -q)     delete all of them")]
pub(crate) struct List {
    /// Print the ids only
    #[arg(short, long)]
    quiet: bool,
}

impl List {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let snapshots = client.snapshots().await?.snapshots;
        if json {
            output::json(&snapshots)?;
        } else if self.quiet {
            for snapshot in &snapshots {
                output::line(snapshot.id.as_str())?;
            }
        } else {
            output::line(&table::snapshots(&snapshots, Timestamp::now()))?;
        }
        Ok(0)
    }
}
