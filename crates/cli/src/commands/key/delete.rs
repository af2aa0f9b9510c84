//! `wakeful key delete`.

use clap::Args;

use crate::args::Global;
use crate::commands::door::{Door, Make, Place};
use crate::failure::Failure;
use crate::output;

/// Delete an API key; the next call that shows it is refused
#[derive(Args, Debug)]
#[command(after_help = "\
The last key of a daemon that others than this machine can reach cannot be deleted.

Examples:
  wakeful key delete key_k3v7q2m5x6a4b2c7d5ef
  wakeful key delete -f key_k3v7q2m5x6a4b2c7d5ef")]
pub(crate) struct Delete {
    /// Its id, as `key list` shows it
    id: String,
    /// Do not ask
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    place: Place,
}

impl Delete {
    /// Before signals are taken over: ^C at the question must end us.
    pub(crate) fn confirm(&self) -> Result<(), Failure> {
        if self.force || output::confirm(&format!("Delete key {}?", self.id))? {
            Ok(())
        } else {
            Err(Failure::refused("nothing was deleted"))
        }
    }

    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let door = Door::open(global, &self.place, Make::No).await?;
        let deleted = door.delete_key(&self.id).await;
        door.close().await;
        deleted?;
        output::say(&format!("key {} is deleted", self.id));
        Ok(0)
    }
}
