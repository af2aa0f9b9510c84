//! Running a command and waiting for its end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::DurationText;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Command {
    /// By the image's shell.
    Shell(String),
    /// A program and its arguments, without a shell.
    Argv(Vec<String>),
}

/// `POST …/execute`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteRequest {
    /// What to run.
    pub command: Command,
    /// When it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<DurationText>,
    /// Where it runs, if not in the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Variables over the sandbox's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// As whom, if not the template's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What it reads from its standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

impl ExecuteRequest {
    /// With nothing but a command.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self { command, timeout: None, workdir: None, env: BTreeMap::new(), user: None, stdin: None }
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecuteResponse {
    /// 128 and the signal, if it was killed.
    pub exit_code: i32,
    /// Its output; bytes that are no UTF-8 are U+FFFD.
    pub stdout: String,
    /// Its error output.
    pub stderr: String,
    /// Measured in the guest, without a wake.
    pub duration_ms: u64,
    /// It was killed because its time was up.
    pub timed_out: bool,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// There was more output than is kept.
    pub stdout_truncated: bool,
    /// There was more error output than is kept.
    pub stderr_truncated: bool,
    /// Its process id in the guest.
    pub pid: u32,
}
