//! `wakeful key list`.

use clap::Args;
use jiff::Timestamp;

use crate::args::Global;
use crate::commands::door::{Door, Make, Place};
use crate::failure::Failure;
use crate::{output, table};

/// List API keys, without their secrets
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful key list
  wakeful key list --tenant acme --json")]
pub(crate) struct List {
    /// Only this tenant's
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    place: Place,
}

impl List {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let door = Door::open(global, &self.place, Make::No).await?;
        let keys = door.keys(self.tenant.as_deref()).await;
        door.close().await;
        let keys = keys?;
        if global.json {
            output::json(&keys)?;
        } else {
            output::line(&table::keys(&keys, Timestamp::now()))?;
        }
        Ok(0)
    }
}
