//! What can be said on the command line.

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    bench, completions, df, doctor, fsck, key, pool, sandbox, serve, setup, snapshot, suspend_all, template, tenant,
};
use crate::overview;

/// Sandboxes that sleep when nobody uses them and wake where they left off.
#[derive(Debug, Parser)]
#[command(
    name = "wakeful",
    version,
    propagate_version = false,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = "\
Examples:
  wakeful setup                                     prepare this machine (as root, once)
  wakeful serve                                     run the daemon
  wakeful sandbox run -t python -- python3 -V       one command in a sandbox of its own
  wakeful sandbox create -t python --persistent     a sandbox that sleeps and wakes
  wakeful sandbox shell ID                          a terminal in it
  wakeful help sandbox exec                         all about one command

Data goes to standard output, talk to standard error; --json gives what the REST API answers.
Exit codes: 0 done, 1 refused, 2 wrong usage, 69 no server, 70 a bug of ours, 130 ^C. With exec,
run and shell: the command's own, 124 if its time was up, 125 if it never ran.
Environment: WAKEFUL_URL, WAKEFUL_API_KEY, WAKEFUL_CA_CERT, NO_COLOR")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// All that can be said.
    pub(crate) fn all() -> clap::Command {
        overview::arrange(Self::command())
    }

    /// What was said. Usage errors end with 2 and help with 0 right here.
    pub(crate) fn read() -> Self {
        let mut command = Self::all();
        let matches = command.get_matches_mut();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// What every command understands.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global")]
pub(crate) struct Global {
    /// The server [default: WAKEFUL_URL, then ~/.config/wakeful/config.toml, then http://127.0.0.1:8080]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) api_url: Option<String>,
    /// The key to show it [default: WAKEFUL_API_KEY, then ~/.config/wakeful/config.toml]
    #[arg(long, global = true, value_name = "KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Print JSON, as the REST API answers it
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::Serve),
    Setup(setup::Setup),
    Doctor(doctor::Doctor),
    Df(df::Df),
    Fsck(fsck::Fsck),
    SuspendAll(suspend_all::SuspendAll),
    Bench(bench::Bench),
    /// Create and use sandboxes
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "\
ID is what `create` prints; its sbx_ may be left out. Whatever uses a sandbox wakes it first.

Examples:
  wakeful sandbox create -t python --persistent
  wakeful sandbox exec ID -- python3 -V
  wakeful sandbox shell ID
  wakeful sandbox url ID 3000
  wakeful sandbox port-forward ID 8080:80")]
    Sandbox(sandbox::Command),
    /// Keep copies of sandboxes, and begin others with them
    #[command(subcommand, visible_alias = "snapshots", arg_required_else_help = true)]
    #[command(after_help = "\
A sandbox that is created with a snapshot's id as its template goes on where the copy was taken.

Examples:
  wakeful snapshot create ID before-upgrade
  wakeful snapshot list
  wakeful sandbox create -t snp_k3v7q2m5x6a4b2c7d5ef --persistent")]
    Snapshot(snapshot::Command),
    /// Build and list templates
    #[command(subcommand, visible_alias = "templates", arg_required_else_help = true)]
    #[command(after_help = "\
NAME is a template's name, NAME:TAG one of its tags; an id will do too.

Examples:
  wakeful template list
  wakeful template create py --image python:3.12
  wakeful template create shop --dockerfile .
  wakeful template rebuild shop --context .
  wakeful template logs -f shop")]
    Template(template::Command),
    Pool(pool::Pool),
    /// Make, list and delete API keys
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  wakeful key create --name laptop
  wakeful key list")]
    Key(key::Command),
    /// Make, list, limit and delete tenants
    #[command(subcommand, arg_required_else_help = true)]
    #[command(after_help = "\
Examples:
  wakeful tenant create research --sandboxes 20 --memory-mb 16384
  wakeful tenant list")]
    Tenant(tenant::Command),
    Completions(completions::Completions),
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::all().debug_assert();
    }
}
