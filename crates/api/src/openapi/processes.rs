//! Commands and processes in a sandbox.

use serde_json::json;
use wakeful_api_types::{ExecuteRequest, ExecuteResponse};
use wakeful_model::Code;

use super::entry::{Entry, flag, post};
use super::sandboxes::ACCESS;

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

pub(super) fn entries() -> Vec<Entry> {
    vec![
        post("/v1/sandboxes/{id}/execute", "execute", "Run a command and wait for its end")
            .about(
                "A string is run by `/bin/sh -c`, an array without a shell. Always 200 once it has started. \
                 With `stream` its output comes as it is written.",
            )
            .query("stream", flag(), "true: frames as they come, one JSON object a line or as server-sent events")
            .body::<ExecuteRequest>(&json!({"command": "echo hello", "timeout": "10s"}))
            .answers::<ExecuteResponse>(200, "How it ended")
            .refuses(&COMMAND)
            .refuses(&ACCESS),
    ]
}
