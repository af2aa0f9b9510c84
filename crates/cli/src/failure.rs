//! How a command ends badly: what is said, what is advised, which code the process ends with.

use std::fmt::Display;
use std::path::Path;

use wakeful_client::Error;
use wakeful_client::types::Problem;
use wakeful_model::Code;

use crate::output;

/// The server or this machine said no.
pub(crate) const REFUSED: u8 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: u8 = 2;
/// No server.
pub(crate) const UNREACHABLE: u8 = 69;
/// Our own fault.
pub(crate) const BUG: u8 = 70;
/// A command was killed because its time was up.
pub(crate) const TIMED_OUT: u8 = 124;
/// A command did not run at all.
pub(crate) const NEVER_RAN: u8 = 125;
/// Nobody reads what we write; what a shell shows for a program that dies of it.
const BROKEN_PIPE: u8 = 141;

const ABSENT: &str = "is the daemon running? start it with `wakeful serve`, or name another with --api-url";

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// `None`: nothing is left to say.
    message: Option<String>,
    hint: Option<String>,
    problem: Option<Box<Problem>>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()), hint: None, problem: None }
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(REFUSED, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// A file on this machine could not be used.
    pub(crate) fn file(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::refused(format!("could not {doing} {}: {error}", path.display()))
    }

    pub(crate) fn bug() -> Self {
        Self::new(BUG, "wakeful itself failed").hint("this is a bug; please report it with the lines above")
    }

    /// A signal asked us to stop. Nobody needs to be told so.
    pub(crate) fn interrupted(code: u8) -> Self {
        Self { code, message: None, hint: None, problem: None }
    }

    /// All errors of a chain, from the outermost in.
    pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            let more = source.to_string();
            // some errors repeat their source
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            next = source.source();
        }
        text
    }

    /// Of an error that someone else keeps.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Problem(problem) => Error::Problem(problem.clone()).into(),
            Error::Unreachable { .. } | Error::Broken { .. } => Self::unreachable(error),
            Error::Protocol { .. } | Error::Invalid { .. } => Self::refused(Self::chain(error)),
        }
    }

    /// What the HTTP library says in between only repeats it.
    fn unreachable(error: &Error) -> Self {
        let mut innermost: &(dyn std::error::Error + 'static) = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        let message = match error {
            Error::Unreachable { .. } => format!("{error}: {innermost}"),
            _ => error.to_string(),
        };
        Self::new(UNREACHABLE, message).hint(ABSENT)
    }

    /// Of an error in the middle of a stream.
    pub(crate) fn from_frame(code: &str, detail: &str) -> Self {
        let hint = code.parse().ok().and_then(advice);
        Self { hint, ..Self::refused(detail) }
    }

    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The command in the sandbox never ran, because of this. An absent server or a ^C is told apart still.
    pub(crate) fn never_ran(mut self) -> Self {
        let ran = self.problem.as_ref().and_then(|problem| problem.known_code()) == Some(Code::SuspendedDuringExec);
        if matches!(self.code, REFUSED | BUG) && !ran {
            self.code = NEVER_RAN;
        }
        self
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// `error: …`, a blank line, `hint: …`; with `--json` the problem on stdout too.
    pub(crate) fn report(&self, json: bool) {
        if let (true, Some(problem)) = (json, &self.problem) {
            // stdout may be closed: the text below is said in any case
            let _ = output::json(problem);
        }
        if let Some(message) = &self.message {
            output::error(message, self.hint.as_deref());
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Problem(problem) => Self {
                code: REFUSED,
                message: Some(problem.detail.clone()),
                hint: problem.known_code().and_then(advice).or_else(|| problem.hint.clone()),
                problem: Some(problem),
            },
            Error::Unreachable { .. } | Error::Broken { .. } => Self::unreachable(&error),
            Error::Protocol { .. } => {
                Self::refused(Self::chain(&error)).hint("does a Wakeful daemon of this version listen there?")
            }
            Error::Invalid { detail } => Self::usage(detail),
        }
    }
}

impl From<std::io::Error> for Failure {
    /// Of our own output.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::interrupted(BROKEN_PIPE)
        } else {
            Self::refused(format!("could not write the output: {error}"))
        }
    }
}

/// What to type next: the server's own hints speak HTTP.
fn advice(code: Code) -> Option<String> {
    Some(match code {
        Code::TemplateNotFound => "`wakeful template list` shows the templates; `wakeful setup` builds the first ones".into(),
        Code::TemplateNotReady => "`wakeful template list` shows how far it is".into(),
        Code::BuildInProgress => {
            "`wakeful template logs -f NAME` shows the build, `wakeful template cancel NAME` ends it".into()
        }
        Code::NoBuild => "`wakeful template show NAME` tells how its last build ended".into(),
        Code::SnapshotNotFound => "`wakeful snapshot list` shows the snapshots".into(),
        Code::SandboxNotFound => "`wakeful sandbox list` shows the sandboxes".into(),
        Code::SandboxSuspended => "`wakeful sandbox wake ID` wakes it".into(),
        Code::SandboxFailed => "`wakeful sandbox status ID` tells why; `wakeful sandbox wake ID` boots it from its disk if that is possible".into(),
        Code::SuspendedDuringExec => "the command is frozen with the sandbox and goes on after the next wake".into(),
        Code::NotEphemeral => "a persistent sandbox has no timeout: it sleeps when it is idle".into(),
        Code::NotSuspended => "`wakeful sandbox suspend ID` first".into(),
        Code::NotSuspendable => "close it, or `wakeful sandbox suspend ID --no-memory` keeps the files only".into(),
        Code::ProcessNotFound => "`wakeful sandbox ps ID` shows the processes".into(),
        Code::PortNotOpen => "does the program listen yet? `wakeful sandbox ps ID` shows what runs".into(),
        Code::PathNotFound => "`wakeful sandbox ls ID DIRECTORY` shows what is there".into(),
        Code::CommandNotFound => "for a line with shell syntax: -- sh -c '…'".into(),
        Code::RuntimeUnavailable => "`wakeful doctor` shows what is missing".into(),
        Code::Unauthenticated => {
            "give a key with --api-key or WAKEFUL_API_KEY; `wakeful key create` on the server's machine, as root, makes one".into()
        }
        Code::TenantNotFound => "`wakeful tenant list` shows the tenants".into(),
        Code::KeyNotFound => "`wakeful key list` shows the keys".into(),
        Code::InvalidSize => {
            format!("sizes: {}", wakeful_model::SIZES.map(|size| size.name).join(", "))
        }
        _ => return None,
    })
}
