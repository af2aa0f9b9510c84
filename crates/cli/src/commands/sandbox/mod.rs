//! `wakeful sandbox …`.

mod create;
mod destroy;
mod download;
mod events;
mod exec;
mod keepalive;
mod list;
mod run;
mod status;
mod suspend;
mod update;
mod upload;
mod wake;

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
    Status(status::Status),
    Exec(exec::Exec),
    Run(run::Run),
    Upload(upload::Upload),
    Download(download::Download),
    Suspend(suspend::Suspend),
    Wake(wake::Wake),
    Keepalive(keepalive::Keepalive),
    Update(update::Update),
    Events(events::Events),
    #[command(visible_alias = "rm")]
    Destroy(destroy::Destroy),
}

impl Command {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let client = connect(global)?;
        let json = global.json;
        match self {
            // it has a sandbox to destroy before it may end
            Self::Run(args) => args.run(&client, json).await,
            Self::Create(args) => or_interrupt(args.run(&client, json)).await,
            Self::List(args) => or_interrupt(args.run(&client, json)).await,
            Self::Status(args) => or_interrupt(args.run(&client, json)).await,
            Self::Exec(args) => or_interrupt(args.run(&client, json)).await,
            Self::Upload(args) => or_interrupt(args.run(&client, json)).await,
            Self::Download(args) => or_interrupt(args.run(&client, json)).await,
            Self::Suspend(args) => or_interrupt(args.run(&client, json)).await,
            Self::Wake(args) => or_interrupt(args.run(&client, json)).await,
            Self::Keepalive(args) => or_interrupt(args.run(&client, json)).await,
            Self::Update(args) => or_interrupt(args.run(&client, json)).await,
            Self::Events(args) => or_interrupt(args.run(&client, json)).await,
            Self::Destroy(args) => {
                args.confirm()?;
                or_interrupt(args.run(&client)).await
            }
        }
    }
}
