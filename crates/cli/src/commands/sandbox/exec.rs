//! `wakeful sandbox exec`.

use std::io::IsTerminal;
use std::time::Duration;

use bytes::Bytes;
use clap::{ArgGroup, Args};
use wakeful_client::types::{Command, DurationText, ExecuteRequest, PtySize, StartProcess};
use wakeful_client::{Client, Which};
use wakeful_model::Code;

use crate::failure::{Failure, TIMED_OUT};
use crate::follow::{Ended, Follow, OnSleep};
use crate::input::Input;
use crate::interrupt::Interrupt;
use crate::patience::{Patience, passes};
use crate::sink::Sink;
use crate::values::{Span, key_value};
use crate::{output, session, tty};

/// As `execute` has it; a process that is given input is told so.
const TIMEOUT: Duration = Duration::from_secs(30);
/// An input that ends within this time was none.
const NO_INPUT: Duration = Duration::from_millis(30);
/// The most that goes in one request.
const INPUT: usize = 256 << 10;
/// How long a server may be away while input waits.
const AWAY: Duration = Duration::from_secs(60);

/// How a command runs; `run` takes the same, under another name for the timeout.
#[derive(Args, Clone, Debug)]
pub(crate) struct How {
    /// Where it runs [default: the template's]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// As whom it runs [default: the template's user]
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,
    /// Do not pass standard input on
    #[arg(short = 'n', long)]
    no_stdin: bool,
}

/// Run a command in a sandbox; a sleeping one wakes first
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").required(true).args(["line", "command"])))]
#[command(override_usage = "\
wakeful sandbox exec [OPTIONS] <ID> <LINE>
       wakeful sandbox exec [OPTIONS] <ID> -- <COMMAND>...")]
#[command(after_help = "\
What follows -- is a program and its arguments, run without a shell. A single LINE is run by the
sandbox's /bin/sh. Output comes as it is written, byte for byte; standard input is passed on if it
is not a terminal. ^C interrupts the command, a second ^C leaves it running. If the connection is
lost or the sandbox goes to sleep meanwhile, it is attached to again where it was.

The exit code is the command's: 128+n if signal n killed it, 124 if its time was up; 125 if it
never ran.

Examples:
  wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef -- python3 -c \"print('hello')\"
  wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef 'ls | wc -l'
  wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef --timeout 60s --workdir /app -- make test
  tar c src | wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef -- tar x -C /app
  wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef -t -- top
  wakeful sandbox exec sbx_k3v7q2m5x6a4b2c7d5ef --detach --keep-awake -- ./server")]
pub(crate) struct Exec {
    /// The sandbox
    id: String,
    /// A line for the sandbox's shell
    #[arg(value_name = "LINE")]
    line: Option<String>,
    /// Killed after this time, at most 5m; 0 for no limit [default: 30s; with -t or --detach none]
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    timeout: Option<Span>,
    /// A variable for this command (repeatable)
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = key_value)]
    env: Vec<(String, String)>,
    #[command(flatten)]
    how: How,
    /// In a terminal of its own, shown in this one
    #[arg(short, long, conflicts_with_all = ["no_stdin", "detach"])]
    tty: bool,
    /// Leave it running and print its process id
    #[arg(short, long)]
    detach: bool,
    /// The sandbox stays awake until it ends
    #[arg(long, requires = "detach")]
    keep_awake: bool,
    /// The command
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) async fn run(self, client: &Client, json: bool) -> Result<u8, Failure> {
        let command = match self.line {
            Some(line) => Command::Shell(line),
            None => Command::Argv(self.command),
        };
        let task = Task::new(command, self.timeout, self.env, self.how);
        if self.tty {
            return task.in_terminal(client, &self.id).await;
        }
        let mut interrupt = Interrupt::listen()?;
        if self.detach {
            return tokio::select! {
                ended = task.detached(client, &self.id, self.keep_awake, json) => ended,
                code = interrupt.came() => Err(Failure::interrupted(code)),
            };
        }
        task.attended(client, &self.id, json, &mut interrupt).await
    }
}

/// A command that is about to run.
pub(crate) struct Task {
    request: ExecuteRequest,
    timeout: Option<Span>,
    no_stdin: bool,
}

impl Task {
    pub(crate) fn new(command: Command, timeout: Option<Span>, env: Vec<(String, String)>, how: How) -> Self {
        let request = ExecuteRequest {
            workdir: how.workdir,
            env: env.into_iter().collect(),
            user: how.user,
            ..ExecuteRequest::new(command)
        };
        Self { request, timeout, no_stdin: how.no_stdin }
    }

    /// Runs it to its end, with our input and output as its own.
    pub(crate) async fn attended(
        self,
        client: &Client,
        id: &str,
        json: bool,
        interrupt: &mut Interrupt,
    ) -> Result<u8, Failure> {
        let mut sink = if json { Sink::kept() } else { Sink::through() };
        let ended = tokio::select! {
            begun = self.begin(client, id) => begun?.follow(client, id, &mut sink, interrupt).await?,
            code = interrupt.came() => return Err(Failure::interrupted(code)),
        };
        match sink {
            Sink::Through(through) => tokio::select! {
                written = through.finish() => written?,
                code = interrupt.came() => return Err(Failure::interrupted(code)),
            },
            Sink::Kept(kept) => output::json(&kept.document(&ended))?,
        }
        if ended.timed_out {
            output::warning("the command was killed because its time was up");
            return Ok(TIMED_OUT);
        }
        Ok(u8::try_from(ended.exit_code & 0xff).unwrap_or(1))
    }

    /// With input it is a process that is fed, without it is one call.
    async fn begin(self, client: &Client, id: &str) -> Result<Begun, Failure> {
        match if self.no_stdin { None } else { input().await? } {
            None => Ok(Begun::Call(ExecuteRequest { timeout: self.timeout.map(limit), ..self.request })),
            Some((first, input)) => {
                let timeout = self.timeout.map_or(TIMEOUT, |span| span.0);
                let timeout = (!timeout.is_zero()).then(|| timeout.into());
                let new = process(self.request, timeout, None, true);
                let pid = client.start_process(id, &new).await.map_err(|error| Failure::from(error).never_ran())?.pid;
                Ok(Begun::Fed { pid, first, input })
            }
        }
    }

    async fn in_terminal(self, client: &Client, id: &str) -> Result<u8, Failure> {
        if !tty::attended() {
            return Err(Failure::usage("-t needs a terminal, and this is none").hint("leave -t out"));
        }
        let timeout = self.timeout.filter(|span| !span.0.is_zero()).map(Into::into);
        let new = process(self.request, timeout, Some(tty::size()), false);
        let process = client.start_process(id, &new).await.map_err(|error| Failure::from(error).never_ran())?;
        session::show(client, id, Which::Attach { pid: process.pid, from: 0 }).await
    }

    async fn detached(self, client: &Client, id: &str, keep_awake: bool, json: bool) -> Result<u8, Failure> {
        let timeout = self.timeout.filter(|span| !span.0.is_zero()).map(Into::into);
        let new = process(self.request, timeout, None, keep_awake);
        let process = client.start_process(id, &new).await.map_err(|error| Failure::from(error).never_ran())?;
        // nobody will ever write to it
        match client.send_input(id, process.pid, Bytes::new(), true).await {
            Ok(()) => {}
            Err(error) if error.problem().is_some_and(|problem| problem.status < 500) => {}
            Err(error) => return Err(error.into()),
        }
        if json {
            output::json(&process)?;
        } else {
            output::line(&process.pid.to_string())?;
        }
        Ok(0)
    }
}

fn process(
    request: ExecuteRequest,
    timeout: Option<DurationText>,
    pty: Option<PtySize>,
    keep_awake: bool,
) -> StartProcess {
    StartProcess { execute: ExecuteRequest { timeout, ..request }, pty, keep_awake }
}

/// `0` is no limit.
fn limit(span: Span) -> DurationText {
    if span.0.is_zero() { DurationText::Text("0".into()) } else { span.into() }
}

/// A command that may begin or has begun.
enum Begun {
    Call(ExecuteRequest),
    Fed { pid: u32, first: Option<Vec<u8>>, input: Input },
}

impl Begun {
    async fn follow(
        self,
        client: &Client,
        id: &str,
        sink: &mut Sink,
        interrupt: &mut Interrupt,
    ) -> Result<Ended, Failure> {
        match self {
            Self::Call(request) => {
                let frames = tokio::select! {
                    frames = client.execute_stream(id, &request) => frames.map_err(|error| Failure::from(error).never_ran())?,
                    code = interrupt.came() => return Err(Failure::interrupted(code)),
                };
                Follow::new(client, id).attended(Some(frames), sink, interrupt, std::future::pending()).await
            }
            Self::Fed { pid, first, input } => {
                let follow = Follow::attach(client, id, pid, 0, OnSleep::Wake);
                follow.attended(None, sink, interrupt, feed(client, id, pid, first, input)).await
            }
        }
    }
}

/// Standard input, with what came first of it; `None` if there is none.
async fn input() -> Result<Option<(Option<Vec<u8>>, Input)>, Failure> {
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut input = Input::open();
    // /dev/null and empty files end at once; whoever writes late is waited for by the command, not by us
    match tokio::time::timeout(NO_INPUT, input.next()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(first))) => Ok(Some((Some(first), input))),
        Ok(Some(Err(error))) => Err(unreadable(&error).never_ran()),
        Err(_) => Ok(Some((None, input))),
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::refused(format!("could not read standard input: {error}"))
}

/// Gives a process our input, as fast as it reads.
async fn feed(client: &Client, id: &str, pid: u32, first: Option<Vec<u8>>, mut input: Input) -> Result<(), Failure> {
    let mut next = match first {
        Some(first) => Some(Ok(first)),
        None => input.next().await,
    };
    while let Some(piece) = next {
        let mut bytes = piece.map_err(|error| unreadable(&error))?;
        // one request for all that is there
        next = None;
        while next.is_none() && bytes.len() < INPUT {
            match input.ready() {
                Some(Ok(more)) => bytes.extend(more),
                Some(Err(error)) => next = Some(Err(error)),
                None => break,
            }
        }
        if !give(client, id, pid, bytes.into(), false).await? {
            return Ok(());
        }
        if next.is_none() {
            next = input.next().await;
        }
    }
    give(client, id, pid, Bytes::new(), true).await?;
    Ok(())
}

/// Whether the process wants more. What may have arrived is not sent twice: then the input is cut off, and the command
/// must not take that for its end.
async fn give(client: &Client, id: &str, pid: u32, bytes: Bytes, eof: bool) -> Result<bool, Failure> {
    let mut patience = Patience::new(AWAY);
    loop {
        let error = match client.send_input(id, pid, bytes.clone(), eof).await {
            Ok(()) => return Ok(true),
            Err(error) => error,
        };
        match error.problem().and_then(|problem| problem.known_code()) {
            // it has ended, or closed its input
            Some(Code::ProcessNotFound | Code::StdinClosed) => return Ok(false),
            // an end can be told twice
            Some(Code::SuspendedDuringExec) if bytes.is_empty() => continue,
            _ if error.never_sent() || bytes.is_empty() => {}
            _ => {
                return Err(Failure::refused(format!("standard input was cut off: {}", Failure::chain(&error)))
                    .hint("upload the input, and let the command read the file"));
            }
        }
        match patience.next() {
            Some(delay) if passes(&error) => tokio::time::sleep(delay).await,
            _ => return Err(error.into()),
        }
    }
}
