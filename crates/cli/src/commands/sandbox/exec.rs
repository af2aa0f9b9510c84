//! `wakeful sandbox exec`.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use clap::Args;
use wakeful_client::Client;
use wakeful_client::types::{Command, ExecuteRequest, ExecuteResponse};

use crate::failure::{Failure, TIMED_OUT};
use crate::output;
use crate::values::{Span, key_value};

/// The largest request body that a server takes.
const BODY: usize = 1 << 20;
/// How long a pipe may take to end, if no timeout is given.
const STDIN: Duration = Duration::from_secs(30);

/// How a command runs; `run` takes the same, under another name for the timeout.
#[derive(Args, Clone, Debug)]
pub(crate) struct How {
    /// Where it runs [default: the template's]
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// As whom it runs [default: the template's user]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Do not pass standard input on
    #[arg(short = 'n', long)]
    no_stdin: bool,
}

/// Run a command in a sandbox; a sleeping one wakes first
#[derive(Args, Debug)]
#[command(after_help = "\
What follows -- is a program and its arguments; for shell syntax say: sh -c '...'
Standard input is passed on if it is not a terminal. Output is shown when the command has ended.
The exit code is the command's: 128+n if signal n killed it, 124 if its time was up; 125 if it
never ran.

Examples:
  wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef -- python3 -c \"print('hello')\"
  wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef --timeout 60s --workdir /app -- make test
  echo 'print(6 * 7)' | wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef -- python3")]
pub(crate) struct Exec {
    /// The sandbox
    id: String,
    /// Killed after this time [default: 30s, at most 5m]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    timeout: Option<Span>,
    /// A variable for this command (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value)]
    env: Vec<(String, String)>,
    #[command(flatten)]
    how: How,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let request = request(self.command, self.timeout, self.env, self.how).await?;
        let response = client.execute(&self.id, &request).await.map_err(|error| Failure::from(error).never_ran())?;
        finish(&response, json)
    }
}

/// What is sent, with all of standard input in it.
pub(crate) async fn request(
    command: Vec<String>,
    timeout: Option<Span>,
    env: Vec<(String, String)>,
    how: How,
) -> Result<ExecuteRequest, Failure> {
    if timeout.is_some_and(|span| span.0.is_zero()) {
        return Err(Failure::usage("a command without a timeout needs streaming, which this version does not have")
            .hint("give a timeout of at most 5m; for longer work start it in the background: -- sh -c 'work > log 2>&1 &'"));
    }
    let stdin = if how.no_stdin { None } else { stdin(timeout.map_or(STDIN, |span| span.0)).await? };
    let request = ExecuteRequest {
        timeout: timeout.map(Into::into),
        workdir: how.workdir,
        env: env.into_iter().collect(),
        user: how.user,
        stdin,
        ..ExecuteRequest::new(Command::Argv(command))
    };
    let size = serde_json::to_vec(&request).map_or(usize::MAX, |body| body.len());
    if size > BODY {
        return Err(too_large());
    }
    Ok(request)
}

/// Writes what it wrote, and gives its exit code.
pub(crate) fn finish(response: &ExecuteResponse, json: bool) -> Result<u8, Failure> {
    if json {
        output::json(response)?;
    } else {
        output::bytes(response.stdout.as_bytes())?;
        output::error_bytes(response.stderr.as_bytes())?;
        for (cut, name) in [(response.stdout_truncated, "output"), (response.stderr_truncated, "error output")] {
            if cut {
                output::warning(&format!("the command's {name} was longer than is kept; the rest is lost"));
            }
        }
    }
    if response.timed_out {
        output::warning("the command was killed because its time was up");
        return Ok(TIMED_OUT);
    }
    Ok(u8::try_from(response.exit_code & 0xff).unwrap_or(1))
}

/// All of standard input, if it is not a terminal. A pipe that nobody closes must not hold us for ever.
async fn stdin(patience: Duration) -> Result<Option<String>, Failure> {
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    // a thread of its own: a read that never returns cannot be called off, and the runtime would wait for it
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().take(BODY as u64 + 1).read_to_end(&mut bytes);
        // nobody waits any more when the patience was over
        let _ = sender.send(read.map(|_| bytes));
    });
    let bytes = match tokio::time::timeout(patience, receiver).await {
        Ok(Ok(Ok(bytes))) => bytes,
        Ok(Ok(Err(error))) => {
            return Err(Failure::refused(format!("could not read standard input: {error}")).never_ran());
        }
        Ok(Err(_)) => return Err(Failure::bug()),
        Err(_) => {
            return Err(Failure::refused("standard input did not end, so the command was not started")
                .hint("use -n if the command needs no input")
                .never_ran());
        }
    };
    if bytes.len() > BODY {
        return Err(too_large());
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::refused("standard input is not UTF-8").hint("upload it, and let the command read the file").never_ran()
    })?;
    Ok((!text.is_empty()).then_some(text))
}

fn too_large() -> Failure {
    Failure::refused("command and standard input together are larger than 1 MiB")
        .hint("upload the input, and let the command read the file")
        .never_ran()
}
