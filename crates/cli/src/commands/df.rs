//! `wakeful df`.

use clap::Args;

use crate::args::Global;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::server::connect;
use crate::{output, table};

/// Show what the server's data directory holds, and what of it could go
#[derive(Args, Debug)]
#[command(after_help = "\
SIZE is what files take on the disk, APPARENT how long they are: disks and memory have holes.
RECLAIMABLE is what `wakeful template prune` would free. It is for admins.

Examples:
  wakeful df
  wakeful df --json | jq '.kinds[] | select(.kind == \"sandboxes\").bytes'")]
pub(crate) struct Df {}

impl Df {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let client = connect(global)?;
        let usage = or_interrupt(async { Ok(client.usage().await?) }).await?;
        if global.json {
            output::json(&usage)?;
        } else {
            output::line(&table::usage(&usage))?;
        }
        Ok(0)
    }
}
