//! `wakeful tenant list`.

use clap::Args;

use crate::args::Global;
use crate::commands::door::{Door, Make, Place};
use crate::failure::Failure;
use crate::{output, table};

/// List tenants, what they have and what they may have
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful tenant list
  wakeful tenant list --json")]
pub(crate) struct List {
    #[command(flatten)]
    place: Place,
}

impl List {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let door = Door::open(global, &self.place, Make::No).await?;
        let tenants = door.tenants().await;
        door.close().await;
        let tenants = tenants?;
        if global.json {
            output::json(&tenants)?;
        } else {
            output::line(&table::tenants(&tenants))?;
        }
        Ok(0)
    }
}
