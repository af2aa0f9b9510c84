//! Running a command: waiting for its end, or telling what it does as it does it.
//!
//! The command runs in a task of its own: a caller that hangs up does not stop it, and the sandbox stays awake until it
//! ends. The task ends by itself, since every command has a timeout or somebody who asked for none, and a guest that does
//! not answer is found out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri};
use serde_json::Value;
use tokio::sync::oneshot;
use tracing::Instrument;
use wakeful_api_types::ExecuteResponse;
use wakeful_guest_client::proto::process::{ProcessConfig, StartRequest};
use wakeful_guest_client::{Error as GuestError, Exec, ExecOutput};
use wakeful_lifecycle::{Access, Defaults, Use};
use wakeful_model::{Code, SandboxId};

use crate::App;
use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::follow::Follow;
use crate::frames::{self, Form};
use crate::path::Target;
use crate::problem::Problem;
use crate::query::Query;

/// Output that is kept per stream.
pub(crate) const OUTPUT: usize = 8 << 20;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    program: String,
    arguments: Vec<String>,
    /// `None`: never.
    timeout: Option<Duration>,
    workdir: Option<String>,
    env: BTreeMap<String, String>,
    user: Option<String>,
    pub(crate) stdin: Option<String>,
}

/// What every kind of command takes.
pub(crate) const FIELDS: [&str; 6] = ["command", "timeout", "workdir", "env", "user", "stdin"];

/// Which timeouts make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeouts {
    /// Somebody waits: the default one, and not too long.
    Waiting,
    /// Somebody listens: also none.
    Listening,
    /// Nobody does: any, and none by default.
    Background,
}

pub(crate) async fn execute(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    headers: HeaderMap,
    body: Object,
) -> Result<Response, Problem> {
    let stream = Query::of(&uri, &["stream"])?.flag("stream")?.unwrap_or(false);
    let timeouts = if stream { Timeouts::Listening } else { Timeouts::Waiting };
    let asked = Asked::read(&mut Fields::of(body.0, &FIELDS)?, app.lifecycle.defaults(), timeouts)?;
    if stream {
        let (access, pid) = begin(&app, &caller.tenant, id, asked).await?;
        let follow = Follow::open(access, pid, 0, true, frames::SILENCE).await?;
        return Ok(frames::response(Form::asked(&headers), follow, true));
    }
    let lifecycle = app.lifecycle.clone();
    let task = app.config.tasks.spawn(
        async move {
            let access = lifecycle.access(&caller.tenant, &id, Use::Exec).await?;
            let exec = asked.for_guest(access.row());
            access.exec(&exec).await
        }
        .in_current_span(),
    );
    let output = task.await.map_err(|error| Problem::internal(format!("a command's task: {error}")))??;
    Ok(json(StatusCode::OK, &response(&output)))
}

/// Starts a command in a task that keeps the sandbox awake until its end; its output is for whoever attaches to it.
async fn begin(app: &App, tenant: &Arc<str>, id: SandboxId, asked: Asked) -> Result<(Access, u32), Problem> {
    let (told, begun) = oneshot::channel();
    let (lifecycle, tenant) = (app.lifecycle.clone(), Arc::clone(tenant));
    let task = async move {
        let started = async {
            let access = lifecycle.access(&tenant, &id, Use::Exec).await?;
            let Launch { start, timeout, stdin } = asked.for_start(access.row());
            match access.launch(start, timeout).await {
                Ok(job) => Ok((access, job, stdin)),
                Err(error) => Err(Problem::from(access.explain(error).await)),
            }
        };
        let (access, mut job, stdin) = match started.await {
            Ok(started) => started,
            Err(problem) => return drop(told.send(Err(problem))),
        };
        let pid = job.pid();
        access.detail(format!("pid {pid}"));
        let _ = told.send(Ok((access.stream(), pid)));
        // Beside its life: it may write before it has read everything. Whether it wants the input is its own affair.
        let feed = async {
            if let Some(stdin) = stdin {
                let _ = access.feed(pid, stdin).await;
            }
            std::future::pending::<()>().await;
        };
        // However it ended, those who listen are told by their own stream. A standstill is not its end.
        let ended = async {
            let mut held = None;
            while let Err(GuestError::Cut { pid, .. }) = job.ended().await {
                let Some(again) = access.again().await else { return };
                let Ok(attached) = again.follow(pid).await else { return };
                (job, held) = (attached, Some(again));
            }
            drop(held);
        };
        tokio::select! {
            () = ended => {}
            () = feed => {}
            () = access.draining() => {}
        }
    };
    app.config.tasks.spawn(task.in_current_span());
    begun.await.map_err(|_| Problem::internal("the task of a command panicked"))?
}

/// What the agent is asked for.
pub(crate) struct Launch {
    pub(crate) start: StartRequest,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stdin: Option<Bytes>,
}

impl Asked {
    /// Reads [`FIELDS`].
    pub(crate) fn read(fields: &mut Fields, defaults: &Defaults, timeouts: Timeouts) -> Result<Self, Problem> {
        let (program, arguments) = command(fields.take("command"))?;
        let asked = match timeouts {
            Timeouts::Waiting => fields.duration("timeout")?.map(Some),
            Timeouts::Listening | Timeouts::Background => fields.duration_or_endless("timeout")?,
        };
        let default = (timeouts != Timeouts::Background).then_some(defaults.exec_timeout);
        let timeout = asked.unwrap_or(default);
        if timeouts != Timeouts::Background && timeout.is_some_and(|timeout| timeout > defaults.max_exec_timeout) {
            let most = defaults.max_exec_timeout.as_secs();
            let detail = format!("a command can take {most} seconds at most");
            let problem = Problem::field(Code::InvalidDuration, "timeout", detail);
            return Err(problem.hint("POST …/processes runs it for as long as it takes"));
        }
        let stdin = match fields.take("stdin") {
            None => None,
            Some(Value::String(text)) => Some(text),
            Some(_) => return Err(Problem::field(Code::InvalidField, "stdin", "stdin must be a string")),
        };
        Ok(Self {
            program,
            arguments,
            timeout,
            workdir: fields.string("workdir", Code::InvalidField)?.filter(|text| !text.is_empty()),
            env: fields.env()?,
            user: fields.string("user", Code::InvalidField)?.filter(|text| !text.is_empty()),
            stdin,
        })
    }

    /// The template's user and workdir stand for those that the request does not name; the sandbox's variables are the
    /// agent's to add.
    fn for_guest(self, row: &wakeful_model::Sandbox) -> Exec {
        Exec {
            cmd: self.program,
            args: self.arguments,
            env: self.env,
            cwd: Some(self.workdir.unwrap_or_else(|| row.workdir.clone())),
            user: Some(self.user.unwrap_or_else(|| row.user.clone())),
            stdin: self.stdin.map(Bytes::from),
            timeout: self.timeout,
            output_limit: OUTPUT,
        }
    }

    /// The same for one that is not waited for; without input it has none to wait for either.
    pub(crate) fn for_start(self, row: &wakeful_model::Sandbox) -> Launch {
        let Exec { cmd, args, env, cwd, user, stdin, timeout, .. } = self.for_guest(row);
        let process = ProcessConfig { cmd, args, envs: env, cwd };
        let start = StartRequest { process, stdin: Some(stdin.is_some()), user, ..StartRequest::default() };
        Launch { start, timeout, stdin }
    }
}

/// A string is for the shell, an array is a program and its arguments.
fn command(value: Option<Value>) -> Result<(String, Vec<String>), Problem> {
    let wrong = |detail: &str| Problem::field(Code::InvalidField, "command", detail);
    let missing = || {
        Problem::field(Code::MissingCommand, "command", "there is no command to run")
            .hint("command is a string for the shell, or an array of a program and its arguments")
    };
    let argv = match value {
        None => return Err(missing()),
        Some(Value::String(text)) if text.trim().is_empty() => return Err(missing()),
        Some(Value::String(text)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text],
        Some(list @ Value::Array(_)) => serde_json::from_value::<Vec<String>>(list)
            .map_err(|_| wrong("command must be a string or an array of strings"))?,
        Some(_) => return Err(wrong("command must be a string or an array of strings")),
    };
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(wrong("command contains NUL"));
    }
    let mut argv = argv.into_iter();
    match argv.next() {
        Some(program) if !program.is_empty() => Ok((program, argv.collect())),
        _ => Err(missing()),
    }
}

fn response(output: &ExecOutput) -> ExecuteResponse {
    ExecuteResponse {
        exit_code: output.exit_code,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        duration_ms: u64::try_from(output.duration.as_millis()).unwrap_or(u64::MAX),
        timed_out: output.timed_out,
        signal: output.signal,
        stdout_truncated: output.stdout_truncated,
        stderr_truncated: output.stderr_truncated,
        pid: output.pid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn defaults() -> Defaults {
        Defaults {
            template_size: "shared-cpu-1x".into(),
            timeout: Duration::from_secs(300),
            max_timeout: Duration::from_secs(86400),
            idle_timeout: Duration::from_secs(600),
            exec_timeout: Duration::from_secs(30),
            max_exec_timeout: Duration::from_secs(300),
            disk_mb: 2048,
            tombstone: Duration::from_secs(86400),
            limit_awake: None,
            limit_disk_mb: None,
            upload_bytes: 104_857_600,
            limit_sandboxes: None,
            limit_memory_mb: None,
        }
    }

    fn asked(body: Value) -> Result<Asked, Problem> {
        asked_for(body, Timeouts::Waiting)
    }

    fn asked_for(body: Value, timeouts: Timeouts) -> Result<Asked, Problem> {
        let Value::Object(map) = body else { panic!("an object") };
        Asked::read(&mut Fields::of(map, &FIELDS)?, &defaults(), timeouts)
    }

    #[test]
    fn some_may_run_for_ever() {
        for (timeout, listening, background) in [
            (json!(null), Ok(Some(30)), Ok(None)),
            (json!("0"), Ok(None), Ok(None)),
            (json!(0), Ok(None), Ok(None)),
            (json!("0s"), Ok(None), Ok(None)),
            (json!("5m"), Ok(Some(300)), Ok(Some(300))),
            (json!("6m"), Err(()), Ok(Some(360))),
            (json!("00"), Err(()), Err(())),
            (json!(-1), Err(()), Err(())),
        ] {
            let read = |timeouts| {
                let asked = asked_for(json!({"command": "a", "timeout": timeout}), timeouts);
                asked.map(|asked| asked.timeout.map(|t| t.as_secs())).map_err(|_| ())
            };
            assert_eq!(read(Timeouts::Listening), listening, "{timeout}");
            assert_eq!(read(Timeouts::Background), background, "{timeout}");
        }
    }

    #[test]
    fn the_pages_request() {
        let asked = asked(json!({
            "command": "python3 -c \"import sys; print(sys.version)\"",
            "timeout": "30s", "workdir": "/home/user", "env": {"DEBUG": "1"}
        }))
        .unwrap();
        assert_eq!(asked.program, "/bin/sh");
        assert_eq!(asked.arguments, ["-c", "python3 -c \"import sys; print(sys.version)\""]);
        assert_eq!((asked.timeout, asked.workdir.as_deref()), (Some(Duration::from_secs(30)), Some("/home/user")));
    }

    #[test]
    fn arrays_need_no_shell() {
        let asked = asked(json!({"command": ["echo", "a b", ""]})).unwrap();
        assert_eq!((asked.program.as_str(), asked.arguments), ("echo", vec!["a b".to_owned(), String::new()]));
        assert_eq!(asked.timeout, Some(Duration::from_secs(30)));
    }

    #[test]
    fn refused() {
        for (body, code) in [
            (json!({}), Code::MissingCommand),
            (json!({"command": null}), Code::MissingCommand),
            (json!({"command": ""}), Code::MissingCommand),
            (json!({"command": " \n"}), Code::MissingCommand),
            (json!({"command": []}), Code::MissingCommand),
            (json!({"command": [""]}), Code::MissingCommand),
            (json!({"command": 1}), Code::InvalidField),
            (json!({"command": ["a", 1]}), Code::InvalidField),
            (json!({"command": "a\0"}), Code::InvalidField),
            (json!({"command": "a", "timeout": "0s"}), Code::InvalidDuration),
            (json!({"command": "a", "timeout": "0"}), Code::InvalidDuration),
            (json!({"command": "a", "timeout": "301s"}), Code::InvalidDuration),
            (json!({"command": "a", "workdir": 1}), Code::InvalidField),
            (json!({"command": "a", "env": {"A=": ""}}), Code::InvalidField),
            (json!({"command": "a", "user": []}), Code::InvalidField),
            (json!({"command": "a", "stdin": 1}), Code::InvalidField),
            (json!({"cmd": "a"}), Code::UnknownField),
        ] {
            assert_eq!(asked(body.clone()).unwrap_err().code(), code, "{body}");
        }
        assert!(asked(json!({"command": "a", "timeout": "5m", "stdin": "\0ok"})).is_ok());
    }
}
