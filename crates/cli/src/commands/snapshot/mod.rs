//! `wakeful snapshot …`.

mod create;
mod delete;
mod list;
mod show;

use clap::Subcommand;

use crate::args::Global;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::server::connect;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Create(create::Create),
    #[command(visible_alias = "ls")]
    List(list::List),
    Show(show::Show),
    #[command(visible_alias = "rm")]
    Delete(delete::Delete),
}

impl Command {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let client = connect(global)?;
        match self {
            Self::Create(args) => or_interrupt(args.run(&client, global.json)).await,
            Self::List(args) => or_interrupt(args.run(&client, global.json)).await,
            Self::Show(args) => or_interrupt(args.run(&client, global.json)).await,
            Self::Delete(args) => {
                args.confirm()?;
                or_interrupt(args.run(&client)).await
            }
        }
    }
}
