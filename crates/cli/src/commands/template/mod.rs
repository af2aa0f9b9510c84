//! `wakeful template …`.
//!
//! ```text
//!   source    what is named on the command line        content   what of it is uploaded, and how it gets there
//!   context   a Dockerfile and what it copies from     settings  everything else that is said about a template
//!   follow    a build to its end                       screen    what of it is shown
//! ```

mod cancel;
mod content;
mod context;
mod create;
mod delete;
mod follow;
mod list;
mod logs;
mod prune;
mod rebuild;
mod screen;
mod settings;
mod show;
mod source;

pub(crate) use follow::{build, follow};

use clap::Subcommand;

use crate::args::Global;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::server::connect;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Create(Box<create::Create>),
    #[command(visible_alias = "ls")]
    List(list::List),
    Show(show::Show),
    Rebuild(Box<rebuild::Rebuild>),
    Logs(logs::Logs),
    Cancel(cancel::Cancel),
    #[command(visible_alias = "rm")]
    Delete(delete::Delete),
    Prune(prune::Prune),
}

impl Command {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let client = connect(global)?;
        match self {
            // What ^C means to these depends on how far they are.
            Self::Create(args) => args.run(&client, global.json).await,
            Self::Rebuild(args) => args.run(&client, global.json).await,
            Self::List(args) => or_interrupt(args.run(&client, global.json)).await,
            Self::Show(args) => or_interrupt(args.run(&client, global.json)).await,
            Self::Logs(args) => or_interrupt(args.run(&client, global.json)).await,
            Self::Cancel(args) => or_interrupt(args.run(&client, global.json)).await,
            Self::Delete(args) => {
                args.confirm()?;
                or_interrupt(args.run(&client)).await
            }
            Self::Prune(args) => {
                args.confirm()?;
                or_interrupt(args.run(&client, global.json)).await
            }
        }
    }
}
