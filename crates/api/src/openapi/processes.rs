//! Commands, processes, terminals and ports of a sandbox.

use std::borrow::Cow;

use serde_json::{Value, json};
use utoipa::openapi::schema::ObjectBuilder;
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use wakeful_api_types::{
    EVENT_STREAM, ExecuteRequest, ExecuteResponse, NDJSON, Port, PortList, PortSession, Process, ProcessList, PtySize,
    PutPort, SignalRequest,
};
use wakeful_model::Code;

use super::entry::{Entry, delete, flag, get, number, post, put, text};
use super::sandboxes::ACCESS;

const PROCESSES: &str = "/v1/sandboxes/{id}/processes";
const OUTPUT: &str = "/v1/sandboxes/{id}/processes/{pid}/output";
const STDIN: &str = "/v1/sandboxes/{id}/processes/{pid}/stdin";
const SIGNAL: &str = "/v1/sandboxes/{id}/processes/{pid}/signal";
const RESIZE: &str = "/v1/sandboxes/{id}/processes/{pid}/resize";

const PORTS: &str = "/v1/sandboxes/{id}/ports";
const PORT: &str = "/v1/sandboxes/{id}/ports/{port}";
const GONE: &[Code] = &[Code::SandboxDestroyed, Code::Busy];
const PREVIEWS: &str = "A preview is at its `url`, and at `/v1/sandboxes/{id}/ports/{port}/` without cookies. A private one \
    needs the key of a caller who may write, or a session; of these nothing reaches the service. Nothing listens: 502 \
    `port_not_open`; no HTTP: 502 `bad_gateway`.";

/// Numbers that JSON readers hold exactly.
const LARGEST: u64 = (1 << 53) - 1;

/// What can be wrong with a command.
const COMMAND: [Code; 7] = [
    Code::MissingCommand,
    Code::WorkdirNotFound,
    Code::UnknownUser,
    Code::InvalidDuration,
    Code::NoShell,
    Code::CommandNotFound,
    Code::NotExecutable,
];

/// `POST …/processes`: the fields of a command, and two more.
struct StartProcess;

impl PartialSchema for StartProcess {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(object)) = ExecuteRequest::schema() else { return ExecuteRequest::schema() };
        ObjectBuilder::from(object)
            .description(Some("As a command, but nobody waits for it. Without a timeout it may run for ever."))
            .property("pty", Ref::from_schema_name("PtySize"))
            .property("keep_awake", flag().description(Some("The sandbox stays awake until it ends")))
            .into()
    }
}

impl ToSchema for StartProcess {
    fn name() -> Cow<'static, str> {
        "StartProcess".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((PtySize::name().into_owned(), PtySize::schema()));
        ExecuteRequest::schemas(schemas);
    }
}

/// One line of a stream. By hand: bytes are told in one of two fields.
pub(super) fn frame() -> RefOr<Schema> {
    let word = |word: &str| json!({"type": "string", "enum": [word]});
    let seq = json!({"type": "integer", "minimum": 0});
    let integer = json!({"type": "integer"});
    let kind = |name: &str, about: &str, fields: Value| {
        let mut properties = json!({"type": word(name)});
        if let (Value::Object(properties), Value::Object(fields)) = (&mut properties, fields) {
            properties.extend(fields);
        }
        let required: Vec<&String> = properties
            .as_object()
            .into_iter()
            .flat_map(|fields| fields.keys())
            .filter(|name| !name.starts_with("data"))
            .collect();
        json!({"type": "object", "description": about, "required": required, "properties": properties})
    };
    let bytes = json!({
        "seq": seq,
        "data": {"type": "string", "description": "If they are UTF-8"},
        "data_base64": {"type": "string", "description": "If they are not"},
    });
    let variants = [
        kind("start", "It runs", json!({"seq": seq, "pid": integer, "runtime_generation": integer})),
        kind("stdout", "It wrote to its output or its terminal", bytes.clone()),
        kind("stderr", "It wrote to its error output", bytes),
        kind("gap", "Output that is lost", json!({"seq": seq, "dropped_bytes": integer})),
        kind("keepalive", "Nothing, for a while", json!({})),
        kind(
            "exit",
            "It ended; the last one",
            json!({
                "seq": seq, "exit_code": integer, "signal": {"type": ["integer", "null"]},
                "timed_out": {"type": "boolean"}, "duration_ms": integer
            }),
        ),
        kind("suspended", "The sandbox was put to sleep; the last one", json!({"pid": integer, "seq": seq})),
        kind(
            "error",
            "The stream cannot go on; the last one",
            json!({"code": {"type": "string"}, "detail": {"type": "string"}}),
        ),
    ];
    let schema = json!({
        "oneOf": variants,
        "description": "One line of a process's stream, or one text message of its terminal. Ignore types that you do not know.",
    });
    serde_json::from_value(schema).expect("it is a schema")
}

/// Frames, in one of two forms.
fn streams(entry: Entry) -> Entry {
    entry.sends(200, NDJSON, "Frames as they come, one JSON object a line: see the schema `Frame`").sends(
        200,
        EVENT_STREAM,
        "",
    )
}

/// A WebSocket; other calls are told so.
fn upgrades(entry: Entry) -> Entry {
    entry
        .empty(101, "The connection is a WebSocket now")
        .problem(426, "This is a WebSocket: `invalid_field`")
        .refuses(&ACCESS)
}

pub(super) fn entries() -> Vec<Entry> {
    let size = |about: &'static str| (number(1, 65535), about);
    let (cols, rows) = (size("Width; 80 if absent"), size("Height; 24 if absent"));
    let lost = [Code::ProcessNotFound];
    vec![
        streams(
            post("/v1/sandboxes/{id}/execute", "execute", "Run a command and wait for its end")
                .about(
                    "A string is run by `/bin/sh -c`, an array without a shell. Always 200 once it has started. \
                     With `stream` its output comes as it is written.",
                )
                .query("stream", flag(), "true: frames as they come; server-sent events if those are accepted")
                .body::<ExecuteRequest>(&json!({"command": "echo hello", "timeout": "10s"}))
                .answers::<ExecuteResponse>(200, "How it ended"),
        )
        .refuses(&COMMAND)
        .refuses(&ACCESS),
        post(PROCESSES, "startProcess", "Start a process that nobody waits for")
            .body::<StartProcess>(&json!({"command": "sleep 1"}))
            .answers::<Process>(201, "It runs")
            .located()
            .refuses(&[Code::MissingField, Code::InvalidCombination])
            .refuses(&COMMAND)
            .refuses(&ACCESS),
        get(PROCESSES, "listProcesses", "List processes")
            .about("Those that run, and those that ended within the hour.")
            .answers::<ProcessList>(200, "By process id")
            .refuses(&ACCESS),
        get("/v1/sandboxes/{id}/processes/{pid}", "getProcess", "Look at a process")
            .answers::<Process>(200, "The process")
            .refuses(&lost)
            .refuses(&ACCESS),
        streams(
            get(OUTPUT, "readOutput", "The output of a process, from any point on")
                .about("The journal outlives clients, daemon restarts and sleep; what fell out of it is a `gap`.")
                .query("from", number(0, LARGEST), "The first frame that is wanted")
                .query("follow", flag(), "Stay until it ends"),
        )
        .refuses(&lost)
        .refuses(&ACCESS),
        post(STDIN, "writeStdin", "Write to the input of a process")
            .query("eof", flag(), "Then close it")
            .bytes("What it reads")
            .empty(204, "It has taken it")
            .refuses(&lost)
            .refuses(&[Code::StdinClosed])
            .refuses(&ACCESS),
        post(SIGNAL, "signalProcess", "Send a signal to a process")
            .body::<SignalRequest>(&json!({"signal": "TERM"}))
            .empty(204, "It was sent")
            .refuses(&[Code::MissingField])
            .refuses(&lost)
            .refuses(&ACCESS),
        post(RESIZE, "resizeTerminal", "Change the size of a process's terminal")
            .body::<PtySize>(&json!({"cols": 120, "rows": 40}))
            .empty(204, "It has that size")
            .refuses(&[Code::MissingField])
            .refuses(&lost)
            .refuses(&ACCESS),
        upgrades(
            get("/v1/sandboxes/{id}/pty", "openTerminal", "A terminal over WebSocket")
                .about(
                    "Binary messages are its bytes, text messages JSON: `resize` and `signal` from the client, frames from \
                     the server.",
                )
                .query("cols", cols.0, cols.1)
                .query("rows", rows.0, rows.1)
                .query("command", text(), "Run by the shell; the user's own shell if absent")
                .query("pid", number(1, u64::from(u32::MAX)), "Come back to this process")
                .query("from", number(0, LARGEST), "With pid: the first frame that is wanted"),
        )
        .refuses(&COMMAND)
        .refuses(&lost)
        .refuses(&[Code::InvalidCombination]),
        upgrades(
            get("/v1/sandboxes/{id}/ports/{port}/tcp", "openTunnel", "A TCP connection over WebSocket")
                .about("Binary messages are its bytes; the text message `{\"type\":\"eof\"}` ends one direction."),
        )
        .refuses(&[Code::PortNotOpen]),
        get(PORTS, "listPorts", "Ports that something was said about").answers::<PortList>(200, "By number").refuses(GONE),
        get(PORT, "getPort", "Who may reach a port, and where its preview is")
            .about(PREVIEWS)
            .answers::<Port>(200, "The port")
            .refuses(GONE),
        put(PORT, "putPort", "Make a port public, or private again")
            .body::<PutPort>(&json!({"public": true}))
            .answers::<Port>(200, "The port")
            .refuses(&[Code::MissingField])
            .refuses(GONE),
        delete(PORT, "deletePort", "Forget what was said about a port: it is private").empty(204, "It is").refuses(GONE),
        post("/v1/sandboxes/{id}/ports/{port}/session", "openPortSession", "Let a browser in to a private port")
            .about("The address is good once, for five minutes; whoever opens it gets a cookie for this port.")
            .answers::<PortSession>(200, "Where to go")
            .refuses(&[Code::InvalidJson, Code::BodyTooLarge])
            .refuses(GONE),
    ]
}
