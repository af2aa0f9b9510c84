//! `wakeful pool …`.

mod list;
mod set;

use clap::{Args, Subcommand};

use crate::args::Global;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::server::connect;

/// Keep sandboxes ready that are made before they are asked for
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Without a command it lists the pools. A create that fits takes a member and does not wait; another
is made in the background.

Examples:
  wakeful pool
  wakeful pool set python 3
  wakeful pool set python 1 --size performance-1x")]
pub(crate) struct Pool {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(visible_alias = "ls")]
    List(list::List),
    Set(set::Set),
}

impl Pool {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let (client, json) = (connect(global)?, global.json);
        match self.command {
            None => or_interrupt(list::List {}.run(&client, json)).await,
            Some(Command::List(args)) => or_interrupt(args.run(&client, json)).await,
            Some(Command::Set(args)) => or_interrupt(args.run(&client, json)).await,
        }
    }
}
