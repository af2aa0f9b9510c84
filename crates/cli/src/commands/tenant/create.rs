//! `wakeful tenant create`.

use clap::Args;

use super::LimitArgs;
use crate::args::Global;
use crate::commands::door::{Door, Make, Place};
use crate::failure::Failure;
use crate::output;

/// Make a tenant: sandboxes, templates and keys of its own, and limits
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful tenant create acme
  wakeful tenant create acme --sandboxes 50 --memory-mb 8192 --disk-mb 102400
  wakeful key create --name acme-prod --tenant acme")]
pub(crate) struct Create {
    /// Its name
    name: String,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    place: Place,
}

impl Create {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let door = Door::open(global, &self.place, Make::Yes).await?;
        let made = door.create_tenant(&self.name, self.limits.into()).await;
        door.close().await;
        let made = made?;
        if global.json {
            output::json(&made)?;
        } else {
            output::line(&made.name)?;
        }
        Ok(0)
    }
}
