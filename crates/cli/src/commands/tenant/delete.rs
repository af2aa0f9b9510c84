//! `wakeful tenant delete`.

use clap::Args;

use crate::args::Global;
use crate::commands::door::{Door, Make, Place};
use crate::failure::Failure;
use crate::output;

/// Delete a tenant that has no sandboxes, templates and keys
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  wakeful tenant delete acme
  wakeful tenant delete -f acme")]
pub(crate) struct Delete {
    /// Its name
    name: String,
    /// Do not ask
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    place: Place,
}

impl Delete {
    /// Before signals are taken over: ^C at the question must end us.
    pub(crate) fn confirm(&self) -> Result<(), Failure> {
        if self.force || output::confirm(&format!("Delete tenant {}?", self.name))? {
            Ok(())
        } else {
            Err(Failure::refused("nothing was deleted"))
        }
    }

    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let door = Door::open(global, &self.place, Make::No).await?;
        let deleted = door.delete_tenant(&self.name).await;
        door.close().await;
        deleted?;
        output::say(&format!("tenant {} is deleted", self.name));
        Ok(0)
    }
}
