//! Processes that nobody waits for: started, listed, listened to, fed, signalled, resized.

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use jiff::Timestamp;
use serde_json::Value;
use tracing::Instrument;
use wakeful_api_types::{Command, Instant, Process, ProcessList};
use wakeful_guest_client::Error as GuestError;
use wakeful_guest_client::proto::process::{ProcessInfo, Pty, PtySize, Signal};
use wakeful_lifecycle::{Access, Use};
use wakeful_model::Code;

use crate::App;
use crate::body::{Object, json};
use crate::caller::Caller;
use crate::execute::{self, Asked, Timeouts};
use crate::fields::Fields;
use crate::follow::Follow;
use crate::frames::{self, Form};
use crate::path::Target;
use crate::problem::Problem;
use crate::query::Query;

/// What a terminal's variables say unless somebody else does.
const TERM: &str = "xterm-256color";

/// The process that the path names: `/v1/sandboxes/{id}/processes/{pid}`.
pub(crate) struct Pid(pub(crate) u32);

impl<S: Send + Sync> FromRequestParts<S> for Pid {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let text = parts.uri.path().split('/').nth(5).unwrap_or("");
        text.parse().map(Self).map_err(|_| {
            let text: String = text.chars().take(20).collect();
            Problem::new(Code::ProcessNotFound, format!("there is no process {text:?}"))
        })
    }
}

/// A guest's answer about a process, with its refusal put into the contract's words.
pub(crate) async fn explained<T>(access: &Access, result: Result<T, GuestError>) -> Result<T, Problem> {
    match result {
        Ok(value) => Ok(value),
        Err(GuestError::Refused { code, message, wakeful_code: None, .. })
            if matches!(code.as_str(), "invalid_argument" | "failed_precondition") =>
        {
            Err(Problem::new(Code::InvalidField, message))
        }
        Err(GuestError::Refused { code, message, .. }) if code == "deadline_exceeded" => {
            Err(Problem::new(Code::Busy, message))
        }
        Err(error) => Err(access.explain(error).await.into()),
    }
}

fn process(info: ProcessInfo) -> Process {
    let details = info.details.unwrap_or_default();
    let mut argv = vec![info.config.cmd];
    argv.extend(info.config.args);
    let command = match argv.as_slice() {
        [shell, flag, line] if shell == "/bin/sh" && flag == "-c" => Command::Shell(line.clone()),
        _ => Command::Argv(argv),
    };
    let exit_code = |end: &wakeful_guest_client::proto::process::EndEvent| {
        end.signal.map_or(end.exit_code, |signal| 128_i32.saturating_add(signal))
    };
    Process {
        pid: info.pid,
        command,
        user: details.user,
        workdir: details.workdir,
        // The guest can set its clock to any date, also to one that no calendar has.
        started_at: Instant(Timestamp::from_millisecond(details.started_at_ms).unwrap_or(Timestamp::UNIX_EPOCH)),
        running: details.end.is_none(),
        exit_code: details.end.as_ref().map(exit_code),
        pty: details.pty,
        last_seq: details.last_seq,
        keep_awake: details.keep_awake,
    }
}

/// Width and height, both needed.
fn size(fields: &mut Fields) -> Result<PtySize, Problem> {
    let mut side = |name: &str| match fields.number(name, Code::InvalidField)? {
        Some(cells) => cells_of(name, cells),
        None => Err(Problem::field(Code::MissingField, name, format!("{name} is required"))),
    };
    Ok(PtySize { cols: side("cols")?, rows: side("rows")? })
}

/// A side that a terminal can have.
pub(crate) fn cells_of(name: &str, cells: u32) -> Result<u32, Problem> {
    if (1..=u32::from(u16::MAX)).contains(&cells) {
        return Ok(cells);
    }
    Err(Problem::field(Code::InvalidField, name, format!("{name} must be between 1 and 65535")))
}

/// A signal by name or number.
pub(crate) fn signal_of(value: &Value) -> Result<Signal, Problem> {
    let found = match value {
        Value::String(text) => text.parse().ok().and_then(Signal::from_number).or_else(|| Signal::from_name(text)),
        Value::Number(number) => number.as_i64().and_then(Signal::from_number),
        _ => None,
    };
    found.ok_or_else(|| {
        Problem::field(Code::InvalidField, "signal", "there is no such signal")
            .hint("a name such as TERM, INT, KILL or HUP, or its number")
    })
}

pub(crate) async fn start(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let mut fields = Fields::of(body.0, &[&execute::FIELDS[..], &["pty", "keep_awake"]].concat())?;
    let asked = Asked::read(&mut fields, app.lifecycle.defaults(), Timeouts::Background)?;
    let pty = fields.object("pty", Code::InvalidField, &["cols", "rows"])?.map(|mut pty| size(&mut pty)).transpose()?;
    let keep_awake = fields.boolean("keep_awake")?.unwrap_or(false);
    if pty.is_some() && asked.stdin.is_some() {
        let detail = "a terminal's input has no end, so it cannot be given at the start";
        return Err(Problem::field(Code::InvalidCombination, "stdin", detail));
    }
    let access = app.lifecycle.access(&caller.tenant, &id, Use::List).await?;
    let mut launch = asked.for_start(access.row());
    launch.start.stdin = Some(true);
    launch.start.keep_awake = keep_awake;
    launch.start.pty = pty.map(|size| Pty { size });
    if pty.is_some() {
        name_terminal(&mut launch.start.process.envs, access.row());
    }
    let job = explained(&access, access.launch(launch.start, launch.timeout).await).await?;
    let pid = job.pid();
    if let Some(stdin) = launch.stdin {
        let feeder = access.stream();
        let feed = async move {
            tokio::select! {
                // Whether it wants all of it is its own affair.
                _ = feeder.feed(pid, stdin) => {}
                () = feeder.draining() => {}
            }
        };
        app.config.tasks.spawn(feed.in_current_span());
    }
    let started = process(explained(&access, access.process(pid).await).await?);
    let mut response = json(StatusCode::CREATED, &started);
    let location = HeaderValue::try_from(format!("/v1/sandboxes/{id}/processes/{pid}")).ok();
    response.headers_mut().extend(location.map(|value| (header::LOCATION, value)));
    Ok(response)
}

/// Programs need to know what they draw on.
pub(crate) fn name_terminal(env: &mut std::collections::BTreeMap<String, String>, row: &wakeful_model::Sandbox) {
    if !row.env.contains_key("TERM") {
        env.entry("TERM".to_owned()).or_insert_with(|| TERM.to_owned());
    }
}

pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let access = app.lifecycle.access(&caller.tenant, &id, Use::List).await?;
    let found = explained(&access, access.processes().await).await?;
    Ok(json(StatusCode::OK, &ProcessList { processes: found.into_iter().map(process).collect() }))
}

pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Pid(pid): Pid,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let access = app.lifecycle.access(&caller.tenant, &id, Use::List).await?;
    let found = explained(&access, access.process(pid).await).await?;
    Ok(json(StatusCode::OK, &process(found)))
}

pub(crate) async fn output(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Pid(pid): Pid,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let mut query = Query::of(&uri, &["from", "follow"])?;
    let from = query.take("from").map(|text| frames::number("from", &text)).transpose()?;
    let from = from.or_else(|| frames::after_last_event(&headers)).unwrap_or(0);
    let follow = query.flag("follow")?.unwrap_or(false);
    let access = app.lifecycle.access(&caller.tenant, &id, Use::Stream).await?;
    let follow = Follow::open(access, pid, from, follow, frames::SILENCE).await?;
    Ok(frames::response(Form::asked(&headers), follow, from == 0))
}

pub(crate) async fn stdin(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Pid(pid): Pid,
    uri: Uri,
    body: Body,
) -> Result<Response, Problem> {
    let eof = Query::of(&uri, &["eof"])?.flag("eof")?.unwrap_or(false);
    let access = app.lifecycle.access(&caller.tenant, &id, Use::Stream).await?;
    let found = process(explained(&access, access.process(pid).await).await?);
    if !found.running {
        return Err(Problem::new(Code::ProcessNotFound, format!("process {pid} has ended")));
    }
    if found.pty && eof {
        return Err(Problem::field(Code::InvalidField, "eof", "a terminal's input has no end; send ^D"));
    }
    let any = !http_body::Body::is_end_stream(&body);
    if any {
        let touched = access.stream();
        let pieces = body.into_data_stream().map(move |piece| {
            touched.touch();
            piece.map_err(std::io::Error::other)
        });
        explained(&access, access.stream_input(pid, found.pty, pieces).await).await?;
    }
    if eof {
        let closed = if any { access.end_input(pid).await } else { access.close_stdin(pid).await };
        explained(&access, closed).await?;
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn signal(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Pid(pid): Pid,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let mut fields = Fields::of(body.0, &["signal"])?;
    let missing = || Problem::field(Code::MissingField, "signal", "signal is required");
    let signal = signal_of(&fields.take("signal").ok_or_else(missing)?)?;
    let access = app.lifecycle.access(&caller.tenant, &id, Use::List).await?;
    explained(&access, access.signal(pid, signal).await).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn resize(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Pid(pid): Pid,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let size = size(&mut Fields::of(body.0, &["cols", "rows"])?)?;
    let access = app.lifecycle.access(&caller.tenant, &id, Use::List).await?;
    explained(&access, access.resize(pid, size).await).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wakeful_guest_client::proto::process::{EndEvent, ProcessConfig, ProcessDetails};

    #[test]
    fn a_process() {
        let config =
            ProcessConfig { cmd: "/bin/sh".into(), args: vec!["-c".into(), "make".into()], ..Default::default() };
        let details = ProcessDetails {
            user: "user".into(),
            workdir: "/home/user".into(),
            started_at_ms: 1_775_399_400_000,
            last_seq: 3,
            ..ProcessDetails::default()
        };
        let mut info = ProcessInfo { config, pid: 214, tag: None, details: Some(details) };
        let body = serde_json::to_string(&process(info.clone())).unwrap();
        insta::assert_snapshot!(body, @r#"{"pid":214,"command":"make","user":"user","workdir":"/home/user","started_at":"2026-04-05T14:30:00.000Z","running":true,"exit_code":null,"pty":false,"last_seq":3,"keep_awake":false}"#);
        info.config = ProcessConfig { cmd: "make".into(), args: vec!["all".into()], ..Default::default() };
        let details = info.details.as_mut().unwrap();
        details.end = Some(EndEvent { exit_code: -1, signal: Some(15), ..EndEvent::default() });
        let ended = process(info);
        assert_eq!((ended.running, ended.exit_code), (false, Some(143)));
        assert_eq!(ended.command, Command::Argv(vec!["make".into(), "all".into()]));
    }

    #[test]
    fn signals() {
        for (value, number) in [(json!("TERM"), 15), (json!("SIGINT"), 2), (json!(9), 9), (json!("1"), 1)] {
            assert_eq!(signal_of(&value).unwrap().number(), number, "{value}");
        }
        for value in [json!("NOSUCH"), json!(0), json!(65), json!(""), json!(true), json!("-1")] {
            assert_eq!(signal_of(&value).unwrap_err().code(), Code::InvalidField, "{value}");
        }
    }

    #[test]
    fn sizes() {
        let read = |value: Value| match value {
            Value::Object(map) => size(&mut Fields::of(map, &["cols", "rows"]).unwrap()),
            _ => panic!("an object"),
        };
        assert_eq!(read(json!({"cols": 80, "rows": 24})).unwrap(), PtySize { cols: 80, rows: 24 });
        assert_eq!(read(json!({"cols": 80})).unwrap_err().code(), Code::MissingField);
        for side in [json!(0), json!(65536), json!("80"), json!(-1)] {
            assert_eq!(read(json!({"cols": side, "rows": 24})).unwrap_err().code(), Code::InvalidField);
        }
    }
}
