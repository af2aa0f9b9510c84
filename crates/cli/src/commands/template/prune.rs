//! `wakeful template prune`.

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::PruneRequest;

use crate::failure::Failure;
use crate::values::Span;
use crate::{output, table};

/// Remove what builds keep for the next, and all that nobody needs
#[derive(Args, Debug)]
#[command(after_help = "\
Steps of Dockerfiles, layers of images, bases and golden snapshots that no template, sandbox or
snapshot stands on, old uploads. Templates and sandboxes stay; the next build has more to do. It is
for admins, and while nothing is being built. `wakeful df` shows what there is to gain.

Examples:
  wakeful template prune
  wakeful template prune --unused 7d
  wakeful template prune -f --json")]
pub(crate) struct Prune {
    /// Of what builds keep, only what nobody used for so long [default: all of it]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    unused: Option<Span>,
    /// Do not ask
    #[arg(short, long)]
    force: bool,
}

impl Prune {
    /// Before signals are taken over: ^C at the question must end us.
    pub(crate) fn confirm(&self) -> Result<(), Failure> {
        if self.force || output::confirm("Remove what builds keep and nobody needs?")? {
            Ok(())
        } else {
            Err(Failure::refused("nothing was removed"))
        }
    }

    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let pruned = client.prune(&PruneRequest { unused: self.unused.map(Into::into) }).await?;
        if json {
            output::json(&pruned)?;
        } else if pruned.count == 0 {
            output::say("there was nothing to remove");
        } else {
            output::say(&format!("{} removed, {} freed", pruned.count, table::bytes(pruned.bytes)));
        }
        Ok(0)
    }
}
