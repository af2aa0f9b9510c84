//! `wakeful tenant set`.

use clap::{ArgGroup, Args};

use super::LimitArgs;
use crate::args::Global;
use crate::commands::door::{Door, Make, Place};
use crate::failure::Failure;
use crate::{output, table};

/// Change a tenant's limits
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("limit").args(["sandboxes", "memory_mb", "disk_mb"]).required(true).multiple(true))]
#[command(after_help = "\
What it has already stays, also beyond the new limits.

Examples:
  wakeful tenant set acme --sandboxes 100
  wakeful tenant set acme --memory-mb none")]
pub(crate) struct Set {
    /// Its name
    name: String,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    place: Place,
}

impl Set {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let door = Door::open(global, &self.place, Make::No).await?;
        let changed = door.limit_tenant(&self.name, self.limits.into()).await;
        door.close().await;
        let changed = changed?;
        if global.json {
            output::json(&changed)?;
        } else {
            output::line(&table::tenants(&[changed]))?;
        }
        Ok(0)
    }
}
