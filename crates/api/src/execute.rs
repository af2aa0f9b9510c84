//! Running a command and waiting for its end.
//!
//! The command runs in a task of its own: a caller that hangs up does not stop it. The task ends by itself, since every
//! command has a timeout and a guest that does not answer is found out.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{StatusCode, Uri};
use serde_json::{Map, Value};
use tracing::Instrument;
use wakeful_api_types::ExecuteResponse;
use wakeful_guest_client::{Exec, ExecOutput};
use wakeful_lifecycle::{Defaults, Use};
use wakeful_model::Code;

use crate::App;
use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::path::Target;
use crate::problem::Problem;
use crate::query::Query;

/// Output that is kept per stream.
pub(crate) const OUTPUT: usize = 8 << 20;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    program: String,
    arguments: Vec<String>,
    timeout: Duration,
    workdir: Option<String>,
    env: BTreeMap<String, String>,
    user: Option<String>,
    stdin: Option<String>,
}

pub(crate) async fn execute(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    if Query::of(&uri, &["stream"])?.flag("stream")?.unwrap_or(false) {
        let detail = "this server does not stream the output of commands; leave stream away and wait for their end";
        return Err(Problem::field(Code::InvalidField, "stream", detail));
    }
    let asked = read(body.0, app.lifecycle.defaults())?;
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

fn read(body: Map<String, Value>, defaults: &Defaults) -> Result<Asked, Problem> {
    let mut fields = Fields::of(body, &["command", "timeout", "workdir", "env", "user", "stdin"])?;
    let (program, arguments) = command(fields.take("command"))?;
    let timeout = fields.duration("timeout")?.unwrap_or(defaults.exec_timeout);
    if timeout > defaults.max_exec_timeout {
        let most = defaults.max_exec_timeout.as_secs();
        let detail = format!("a command can take {most} seconds at most");
        return Err(Problem::field(Code::InvalidDuration, "timeout", detail));
    }
    let stdin = match fields.take("stdin") {
        None => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => return Err(Problem::field(Code::InvalidField, "stdin", "stdin must be a string")),
    };
    Ok(Asked {
        program,
        arguments,
        timeout,
        workdir: fields.string("workdir", Code::InvalidField)?.filter(|text| !text.is_empty()),
        env: fields.env()?,
        user: fields.string("user", Code::InvalidField)?.filter(|text| !text.is_empty()),
        stdin,
    })
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

impl Asked {
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
            timeout: Some(self.timeout),
            output_limit: OUTPUT,
        }
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
            upload_bytes: 104_857_600,
            limit_sandboxes: None,
            limit_memory_mb: None,
        }
    }

    fn asked(body: Value) -> Result<Asked, Problem> {
        let Value::Object(map) = body else { panic!("an object") };
        read(map, &defaults())
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
        assert_eq!((asked.timeout, asked.workdir.as_deref()), (Duration::from_secs(30), Some("/home/user")));
    }

    #[test]
    fn arrays_need_no_shell() {
        let asked = asked(json!({"command": ["echo", "a b", ""]})).unwrap();
        assert_eq!((asked.program.as_str(), asked.arguments), ("echo", vec!["a b".to_owned(), String::new()]));
        assert_eq!(asked.timeout, Duration::from_secs(30));
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
