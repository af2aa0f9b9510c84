//! `wakeful template delete`.

use clap::Args;
use wakeful_client::Client;

use crate::failure::Failure;
use crate::output;

/// Delete a template; its sandboxes go on
#[derive(Args, Debug)]
#[command(after_help = "\
Its files go when the last sandbox made from it does.

Examples:
  wakeful template delete tools
  wakeful template delete -f tools")]
pub(crate) struct Delete {
    /// Its name
    name: String,
    /// Do not ask
    #[arg(short, long)]
    force: bool,
}

impl Delete {
    /// Before signals are taken over: ^C at the question must end us.
    pub(crate) fn confirm(&self) -> Result<(), Failure> {
        if self.force || output::confirm(&format!("Delete template {}?", self.name))? {
            Ok(())
        } else {
            Err(Failure::refused("nothing was deleted"))
        }
    }

    pub(crate) async fn run(self, client: &Client) -> Result<u8, Failure> {
        client.delete_template(&self.name).await?;
        output::say(&format!("template {} is deleted", self.name));
        Ok(0)
    }
}
