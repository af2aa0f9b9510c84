//! The life of a process: from its start to its last byte.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody};
use wakeful_guest_proto::process::{EndEvent, StartRequest};

use super::events;
use super::input::{self, Input, Terminal};
use super::journal::Stream;
use super::launch::{Ends, Launched, launch};
use super::record::{Process, Subscription, Wish};
use super::rpc::{self, Call};
use super::source::{End, Grace, Source};
use crate::awake;
use crate::body::Body;
use crate::context::{Context, Powers};
use crate::reaper::Exit;

/// How long after the exit of the main process its offspring may still add to the output.
const GRACE: Duration = Duration::from_millis(100);

/// `Start`: the answer begins when the process runs.
pub(crate) async fn start(context: &Arc<Context>, call: Call, body: Incoming) -> Result<Response<Body>, ErrorBody> {
    let request: StartRequest = rpc::read_single(body).await?;
    let (timeout, user) = (call.timeout, call.user.clone());
    // In a task of its own: a client that goes away while the child is being made must not leave it without anybody who
    // reads it and records its end.
    let begun = context.tasks.spawn(begin(Arc::clone(context), request, user, timeout));
    let stopped = |_| ErrorBody::new(Code::Internal, "starting the process failed");
    let (process, wish, subscription) = begun.await.map_err(stopped)??;
    Ok(events::answer(&process, wish, subscription, &call))
}

async fn begin(
    context: Arc<Context>,
    request: StartRequest,
    user: Option<String>,
    timeout: Option<Duration>,
) -> Result<(Arc<Process>, Wish, Subscription), ErrorBody> {
    let (launching, begun) = (Arc::clone(&context), Instant::now());
    let launched = tokio::task::spawn_blocking(move || {
        launching.processes.sweep();
        launch(&launching, &request, user).map(|launched| (launched, request.output_limit))
    });
    let stopped = |_| ErrorBody::new(Code::Internal, "starting the process failed");
    let (Launched { pid, exit, tree, ends, origin }, limit) = launched.await.map_err(stopped)??;
    let no_streams = |error: std::io::Error| {
        tree.kill(pid);
        ErrorBody::new(Code::Internal, format!("could not read from process {pid}: {error}"))
    };
    let (input, sources) = open(ends, context.powers).map_err(no_streams)?;
    let process = Arc::new(Process::new(pid, origin, tree, input));
    let wish = Wish { limit, ..Wish::default() };
    let subscription = process.subscribe(wish);
    context.processes.insert(&process);
    let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
    let clock = if context.powers == Powers::Container { Clock::RunsOn } else { Clock::Stops };
    let left = left.map(|left| (left, clock));
    context.tasks.spawn(live(Arc::clone(&context), Arc::clone(&process), sources, exit, left));
    Ok((process, wish, subscription))
}

fn open(ends: Ends, powers: Powers) -> std::io::Result<(Input, [Source; 2])> {
    Ok(match ends {
        Ends::Pipes { stdin, stdout, stderr } => {
            let input = match stdin {
                Some(stdin) => Input::Pipe(pipe::Sender::from_owned_fd(stdin)?),
                None => Input::Absent,
            };
            let stdout = Source::new(Stream::Stdout, End::Pipe(pipe::Receiver::from_owned_fd(stdout)?));
            (input, [stdout, Source::new(Stream::Stderr, End::Pipe(pipe::Receiver::from_owned_fd(stderr)?))])
        }
        Ends::Terminal(terminal) => {
            let terminal: Terminal = Arc::new(input::Ends::new(terminal, powers == Powers::Container)?);
            let source = Source::new(Stream::Pty, End::Terminal(Arc::clone(&terminal)));
            (Input::Terminal(terminal), [source, Source::new(Stream::Stderr, End::Closed)])
        }
    })
}

/// Reads, publishes, watches the deadline, records the end; then reads on to nowhere for as long as some offspring holds
/// a pipe, so that it never blocks.
async fn live(
    context: Arc<Context>,
    process: Arc<Process>,
    mut sources: [Source; 2],
    exit: Exit,
    left: Option<(Duration, Clock)>,
) {
    let (told, exited) = oneshot::channel();
    // Beside each other, because reading waits for slow subscribers and a deadline does not.
    let watch = watch(&process, exit, left, told);
    let ((), exited) = tokio::join!(watch, read(&context, &process, &mut sources, exited));
    if let Ok(mut input) = process.input.try_lock() {
        *input = Input::Closed;
    }
    process.terminal.lock().unwrap_or_else(PoisonError::into_inner).take();
    tokio::join!(process.finish(end_event(exited)), drain(&mut sources));
    // Whoever is left in the tree holds none of our pipes; the table tries again later.
    process.tree.try_remove();
}

/// How the main process ended.
#[derive(Clone, Copy, Default)]
struct Exited {
    /// Unknown only if the reaper is gone.
    status: Option<ExitStatus>,
    timed_out: bool,
    duration: Duration,
}

/// What the clock does while the sandbox sleeps.
#[derive(Clone, Copy)]
enum Clock {
    Stops,
    RunsOn,
}

/// Waits for the exit and kills the tree when its time is over.
async fn watch(process: &Process, mut exit: Exit, left: Option<(Duration, Clock)>, told: oneshot::Sender<Exited>) {
    let mut timed_out = false;
    let status = loop {
        let expiry = async {
            match left {
                Some((left, Clock::Stops)) if !timed_out => sleep(left).await,
                Some((left, Clock::RunsOn)) if !timed_out => awake::pass(left).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            status = &mut exit => break status.ok(),
            () = expiry => {
                timed_out = true;
                process.kill_tree().await;
            }
        }
    };
    // It may have ended by itself at the very last moment.
    timed_out &= status.is_none_or(|status: ExitStatus| status.signal() == Some(9));
    let _ = told.send(Exited { status, timed_out, duration: process.started.elapsed() });
}

/// Publishes everything until the main process has ended and its pipes are closed, or [`GRACE`] has passed and what it
/// left in them is read.
async fn read(
    context: &Context,
    process: &Process,
    [first, second]: &mut [Source; 2],
    mut exit: oneshot::Receiver<Exited>,
) -> Exited {
    let mut exited = None;
    let mut grace = Grace::NotYet;
    loop {
        if let Some(exited) = exited
            && first.done(grace)
            && second.done(grace)
        {
            return exited;
        }
        let expiry = async {
            match grace {
                Grace::Until(end) => sleep_until(end).await,
                Grace::NotYet | Grace::Over => std::future::pending().await,
            }
        };
        tokio::select! {
            data = first.next() => {
                if let Some(data) = data { process.publish(&context.processes, first.stream, data).await; }
                others_turn().await;
            }
            data = second.next() => {
                if let Some(data) = data { process.publish(&context.processes, second.stream, data).await; }
                others_turn().await;
            }
            end = &mut exit, if exited.is_none() => {
                exited = Some(end.unwrap_or_default());
                grace = Grace::Until(Instant::now() + GRACE);
                first.note_owed();
                second.note_owed();
            }
            () = expiry => grace = Grace::Over,
        }
    }
}

async fn drain([first, second]: &mut [Source; 2]) {
    while first.open() || second.open() {
        tokio::select! {
            _ = first.next() => {}
            _ = second.next() => {}
        }
        others_turn().await;
    }
}

/// After each piece, because a program that writes without end always has another one: the runtime would read for as long
/// as a task's share lasts, dozens of times, before it looks at connections and clocks again. In an emulated guest that is
/// many seconds, in which the agent seems dead and deadlines pass.
async fn others_turn() {
    tokio::task::yield_now().await;
}

fn end_event(exited: Exited) -> EndEvent {
    let signal = exited.status.and_then(|status| status.signal());
    let (exit_code, text) = match (exited.status.and_then(|status| status.code()), signal) {
        (Some(code), _) => (code, format!("exit status {code}")),
        (None, Some(signal)) => (-1, format!("signal: {}", signal_text(signal))),
        (None, None) => (-1, "status unknown".to_owned()),
    };
    EndEvent {
        exit_code,
        exited: exit_code >= 0,
        error: (exit_code != 0).then(|| text.clone()),
        status: text,
        signal,
        timed_out: exited.timed_out,
        duration_ms: Some(u64::try_from(exited.duration.as_millis()).unwrap_or(u64::MAX)),
        ..EndEvent::default()
    }
}

/// As E2B's server words them.
fn signal_text(signal: i32) -> String {
    match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    }
    .to_owned()
}
