//! E2B's `process.Process`, from which the native exec is served too.
//!
//! ```text
//!   Start ─ launch ─► child ──pipes──► run ──► journal (bounded, numbered, kept an hour after the exit)
//!                       │               └────► subscribers: Start's own stream and any Connect (back-pressure; a native one
//!                       │                      that stands still is left behind and goes on from the journal)
//!                       └─ in a tree of its own (cgroup), ended as a whole by timeout or SIGKILL
//! ```
//!
//! **Invariant:** a client that goes away never stops a process; without subscribers its output goes on into the journal.

mod accounts;
mod events;
mod input;
mod journal;
mod launch;
mod record;
pub(crate) mod rpc;
mod run;
mod source;
mod table;
mod tree;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use rustix::process::{Pid, kill_process_group};
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode, end_frame, json_frame};
use wakeful_guest_proto::process::{
    ConnectRequest, Empty, ProcessInfo, SelectRequest, Selector, SendInputRequest, SendSignalRequest, Signal,
    StreamInputRequest, UpdateRequest,
};

pub(crate) use self::accounts::{Accounts, User};
pub(crate) use self::launch::unknown_user;
use self::record::{Process, Wish};
use self::rpc::{Call, Dialect, Messages};
pub(crate) use self::table::Table;
pub(crate) use self::tree::alive;
use crate::body::{self, Body};
use crate::context::Context;

/// A listener that takes nothing for so long does not hold the process up any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// A call of the process service.
pub(crate) async fn handle(context: Arc<Context>, request: Request<Incoming>) -> Response<Body> {
    if request.method() != Method::POST {
        return body::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
    }
    let (head, body) = request.into_parts();
    let call = Call::of(&head.headers);
    let dialect = call.dialect;
    match head.uri.path().strip_prefix("/process.Process/").unwrap_or_default() {
        "List" if dialect == Dialect::Native => rpc::unary(dialect, Ok(context.processes.list_all())),
        "List" => rpc::unary(dialect, Ok(context.processes.list())),
        "Describe" if dialect == Dialect::Native => rpc::unary(dialect, describe(&context, body).await),
        "Start" => run::start(&context, call, body).await.unwrap_or_else(|error| rpc::refused(dialect, error)),
        "Connect" => connect(&context, &call, body).await.unwrap_or_else(|error| rpc::refused(dialect, error)),
        "StreamInput" => match stream_input(&context, body).await {
            Ok(()) => {
                let mut frames = json_frame(&Empty {}).unwrap_or_default();
                frames.extend(end_frame(None));
                rpc::streaming(body::full(frames))
            }
            Err(error) => rpc::refused(dialect, error),
        },
        "Update" => rpc::unary(dialect, update(&context, body).await),
        "SendInput" => rpc::unary(dialect, send_input(&context, &call, body).await),
        "SendSignal" => rpc::unary(dialect, send_signal(&context, body).await),
        "CloseStdin" => rpc::unary(dialect, close_stdin(&context, body).await),
        other => rpc::unary::<Empty>(dialect, Err(ErrorBody::new(Code::Unimplemented, format!("no method {other}")))),
    }
}

async fn connect(context: &Context, call: &Call, body: Incoming) -> Result<Response<Body>, ErrorBody> {
    let request: ConnectRequest = rpc::read_single(body).await?;
    let process = find(context, &request.process)?;
    // Only who knows gaps can be left behind.
    let patience = (call.dialect == Dialect::Native).then_some(PATIENCE);
    let past_only = request.follow == Some(false);
    let wish = Wish { from: request.from_seq, limit: None, patience, past_only };
    Ok(events::answer(&process, wish, process.subscribe(wish), call))
}

async fn describe(context: &Context, body: Incoming) -> Result<ProcessInfo, ErrorBody> {
    let request: SelectRequest = rpc::read_unary(body).await?;
    Ok(find(context, &request.process)?.described())
}

async fn update(context: &Context, body: Incoming) -> Result<Empty, ErrorBody> {
    let request: UpdateRequest = rpc::read_unary(body).await?;
    let process = find_running(context, &request.process)?;
    if let Some(pty) = request.pty {
        process.resize(pty.size)?;
    }
    Ok(Empty {})
}

async fn send_input(context: &Context, call: &Call, body: Incoming) -> Result<Empty, ErrorBody> {
    let request: SendInputRequest = rpc::read_unary(body).await?;
    let process = find_running(context, &request.process)?;
    process.write(&request.input, call.timeout).await?;
    Ok(Empty {})
}

async fn stream_input(context: &Context, body: Incoming) -> Result<(), ErrorBody> {
    let mut messages = Messages::new(body);
    let mut process = None;
    while let Some(message) = messages.next().await? {
        match message {
            StreamInputRequest::Start(start) => process = Some(find_running(context, &start.process)?),
            StreamInputRequest::Data(data) => {
                let process = process.as_ref();
                let process = process.ok_or_else(|| ErrorBody::new(Code::InvalidArgument, "no process selected"))?;
                process.write(&data.input, None).await?;
            }
            StreamInputRequest::Keepalive(_) => {}
        }
    }
    Ok(())
}

async fn close_stdin(context: &Context, body: Incoming) -> Result<Empty, ErrorBody> {
    let request: SelectRequest = rpc::read_unary(body).await?;
    find_running(context, &request.process)?.close_stdin().await?;
    Ok(Empty {})
}

async fn send_signal(context: &Context, body: Incoming) -> Result<Empty, ErrorBody> {
    let request: SendSignalRequest = rpc::read_unary(body).await?;
    let process = find_running(context, &request.process)?;
    signal(&process, request.signal).await?;
    Ok(Empty {})
}

/// SIGKILL takes the whole tree, since nobody would be left to pass it on; any other signal goes to the process group,
/// as a terminal would send it.
async fn signal(process: &Arc<Process>, signal: Signal) -> Result<(), ErrorBody> {
    if signal == Signal::KILL {
        process.kill_tree().await;
        return Ok(());
    }
    let failed = |what: &str| ErrorBody::new(Code::Internal, format!("could not signal {}: {what}", process.pid));
    let group = i32::try_from(process.pid).ok().and_then(Pid::from_raw).ok_or_else(|| failed("bad pid"))?;
    let named = rustix::process::Signal::from_named_raw(i32::from(signal.number()));
    let named = named.ok_or_else(|| ErrorBody::new(Code::InvalidArgument, "real-time signals are not supported"))?;
    match kill_process_group(group, named) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(failed(&errno.to_string())),
    }
}

fn find(context: &Context, selector: &Selector) -> Result<Arc<Process>, ErrorBody> {
    context.processes.find(selector).ok_or_else(|| {
        let which = match selector {
            Selector::Pid(pid) => format!("process with pid {pid} not found"),
            Selector::Tag(tag) => format!("process with tag '{tag}' not found"),
        };
        ErrorBody::new(Code::NotFound, which).because(WakefulCode::ProcessNotFound)
    })
}

fn find_running(context: &Context, selector: &Selector) -> Result<Arc<Process>, ErrorBody> {
    let process = find(context, selector)?;
    if process.ended() {
        let message = format!("process with pid {} not found", process.pid);
        return Err(ErrorBody::new(Code::NotFound, message).because(WakefulCode::ProcessNotFound));
    }
    Ok(process)
}
