//! `wakeful key …`.

mod create;
mod delete;
mod list;

use clap::Subcommand;

use crate::args::Global;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Create(create::Create),
    #[command(visible_alias = "ls")]
    List(list::List),
    #[command(visible_alias = "rm")]
    Delete(delete::Delete),
}

impl Command {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        match self {
            Self::Create(args) => or_interrupt(args.run(global)).await,
            Self::List(args) => or_interrupt(args.run(global)).await,
            Self::Delete(args) => {
                args.confirm()?;
                or_interrupt(args.run(global)).await
            }
        }
    }
}
