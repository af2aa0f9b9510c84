//! `wakeful sandbox …`.

mod create;
mod destroy;
mod download;
mod egress;
mod events;
mod exec;
mod files;
mod fork;
mod keepalive;
mod kill;
mod list;
mod logs;
mod port_forward;
mod ports;
mod ps;
mod run;
mod shell;
mod status;
mod suspend;
mod update;
mod upload;
mod wake;
mod watch;

use clap::Subcommand;

use crate::args::Global;
use crate::failure::Failure;
use crate::interrupt::or_interrupt;
use crate::server::connect;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Create(Box<create::Create>),
    List(list::List),
    Status(status::Status),
    Suspend(suspend::Suspend),
    Wake(wake::Wake),
    Keepalive(keepalive::Keepalive),
    Update(Box<update::Update>),
    Events(events::Events),
    Egress(egress::Egress),
    Fork(fork::Fork),
    Destroy(destroy::Destroy),
    Exec(exec::Exec),
    Run(Box<run::Run>),
    Shell(shell::Shell),
    Ps(ps::Ps),
    Logs(logs::Logs),
    Kill(kill::Kill),
    Upload(upload::Upload),
    Download(download::Download),
    Ls(files::Ls),
    Stat(files::Stat),
    Mkdir(files::Mkdir),
    Mv(files::Mv),
    Rm(files::Rm),
    Watch(watch::Watch),
    Port(ports::One),
    Ports(ports::All),
    Url(ports::Address),
    PortForward(port_forward::PortForward),
    /// The same as `wakeful pool`
    #[command(hide = true)]
    Pool(crate::commands::pool::Pool),
}

impl Command {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let client = connect(global)?;
        let json = global.json;
        match self {
            Self::Pool(command) => command.run(global).await,
            // these know themselves what ^C means
            Self::Exec(args) => args.run(&client, json).await,
            Self::Run(args) => args.run(&client, json).await,
            Self::Shell(args) => args.run(&client).await,
            Self::Create(args) => or_interrupt(args.run(&client, json)).await,
            Self::List(args) => or_interrupt(args.run(&client, json)).await,
            Self::Status(args) => or_interrupt(args.run(&client, json)).await,
            Self::Suspend(args) => or_interrupt(args.run(&client, json)).await,
            Self::Wake(args) => or_interrupt(args.run(&client, json)).await,
            Self::Keepalive(args) => or_interrupt(args.run(&client, json)).await,
            Self::Update(args) => or_interrupt(args.run(&client, json)).await,
            Self::Egress(args) => or_interrupt(args.run(&client, json)).await,
            Self::Fork(args) => or_interrupt(args.run(&client, json)).await,
            Self::Events(args) => or_interrupt(args.run(&client, json)).await,
            Self::Destroy(args) => {
                args.confirm()?;
                or_interrupt(args.run(&client)).await
            }
            Self::Ps(args) => or_interrupt(args.run(&client, json)).await,
            Self::Logs(args) => or_interrupt(args.run(&client, json)).await,
            Self::Kill(args) => or_interrupt(args.run(&client)).await,
            Self::Upload(args) => or_interrupt(args.run(&client, json)).await,
            Self::Download(args) => or_interrupt(args.run(&client, json)).await,
            Self::Ls(args) => or_interrupt(args.run(&client, json)).await,
            Self::Stat(args) => or_interrupt(args.run(&client, json)).await,
            Self::Mkdir(args) => or_interrupt(args.run(&client, json)).await,
            Self::Mv(args) => or_interrupt(args.run(&client, json)).await,
            Self::Rm(args) => or_interrupt(args.run(&client)).await,
            Self::Watch(args) => or_interrupt(args.run(&client, json)).await,
            Self::Port(args) => or_interrupt(args.run(&client, json)).await,
            Self::Ports(args) => or_interrupt(args.run(&client, json)).await,
            Self::Url(args) => or_interrupt(args.run(&client, json)).await,
            Self::PortForward(args) => or_interrupt(args.run(&client, json)).await,
        }
    }
}
