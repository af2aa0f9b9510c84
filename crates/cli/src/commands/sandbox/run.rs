//! `wakeful sandbox run`: create, exec, destroy.

use std::time::Duration;

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::{Command, CreateSandbox, Sandbox};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use crate::values::{EgressArgs, IoArgs, Span};

use super::create::Machine;
use super::exec::{How, Task};

/// What a sandbox lives longer than everything that we mean to do with it. Should we be killed, the server still ends it.
const MARGIN: Duration = Duration::from_secs(60);
const EXEC: Duration = Duration::from_secs(30);
/// How long a server lets an ephemeral sandbox live.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
const DESTROY: Duration = Duration::from_secs(60);

/// Run a command in a new sandbox and destroy that at the end
#[derive(Args, Debug)]
#[command(after_help = "\
Output and standard input pass through as with `exec`, and so does the exit code. ^C interrupts the
command, a second ^C stops waiting for it; the sandbox is destroyed whatever happens.

Examples:
  wakeful sandbox run -t python -- python3 -c 'print(6 * 7)'
  wakeful sandbox run -t base -e NAME=value --exec-timeout 2m -- sh -c 'echo $NAME'
  wakeful sandbox run -t python -- python3 - < script.py")]
pub(crate) struct Run {
    #[command(flatten)]
    machine: Machine,
    /// The command is killed after this time, at most 5m; 0 for no limit
    #[arg(long, value_name = "DURATION", value_parser = Span::parse, default_value = "30s")]
    exec_timeout: Span,
    /// How long the sandbox may take to start
    #[arg(long, value_name = "DURATION", value_parser = Span::parse, default_value = "2m")]
    wait_timeout: Span,
    #[command(flatten)]
    how: How,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    io: IoArgs,
    #[command(flatten)]
    egress: EgressArgs,
}

impl Run {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let mut interrupt = Interrupt::listen()?;
        let (wait, limit) = (self.wait_timeout.0, self.exec_timeout.0);
        // without a limit: as long as a sandbox may live
        let limit = if limit.is_zero() { LONGEST } else { limit.max(EXEC) };
        let lease = wait.saturating_add(limit).saturating_add(MARGIN).min(LONGEST);
        let create = CreateSandbox { timeout: Some(lease.into()), ..self.machine.request(&self.io, &self.egress) };
        let task = Task::new(Command::Argv(self.command), Some(self.exec_timeout), Vec::new(), self.how);

        let sandbox = start(client, &create, wait, &mut interrupt).await?;
        let id = sandbox.id.as_str();
        let ended = task.attended(client, id, json, &mut interrupt).await;
        destroy(client, id).await;
        ended
    }
}

/// Creates the sandbox. A create goes on in the server when we hang up, so after a ^C its id is still waited for, to
/// destroy it.
async fn start(
    client: &Client,
    create: &CreateSandbox,
    wait: Duration,
    interrupt: &mut Interrupt,
) -> Result<Sandbox, Failure> {
    let mut creating = std::pin::pin!(tokio::time::timeout(wait, client.create_sandbox(create)));
    let (created, stopped) = tokio::select! {
        created = &mut creating => (created, None),
        code = interrupt.came() => (creating.await, Some(code)),
    };
    match (created, stopped) {
        (Ok(Ok(sandbox)), None) => Ok(sandbox),
        (Ok(Ok(sandbox)), Some(code)) => {
            destroy(client, sandbox.id.as_str()).await;
            Err(Failure::interrupted(code))
        }
        (_, Some(code)) => Err(Failure::interrupted(code)),
        (Ok(Err(error)), None) => Err(Failure::from(error).never_ran()),
        (Err(_), None) => Err(Failure::refused(format!("the sandbox did not start within {wait:?}"))
            .hint("if it does start, the server destroys it when its lease is over")
            .never_ran()),
    }
}

/// What became of the command is known by now, so trouble here is only told.
async fn destroy(client: &Client, id: &str) {
    let trouble = match tokio::time::timeout(DESTROY, client.destroy_sandbox(id)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => Failure::chain(&error),
        Err(_) => format!("no answer within {DESTROY:?}"),
    };
    output::warning(&format!("{id} could not be destroyed ({trouble}); the server does it when its lease is over"));
}
