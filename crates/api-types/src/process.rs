//! Processes: what they are, what is asked of them, and the frames that tell what they do.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Command, ExecuteRequest, Instant};

/// Size of a terminal in characters; also the body of `POST …/resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PtySize {
    /// Width.
    #[schema(minimum = 1)]
    pub cols: u16,
    /// Height.
    #[schema(minimum = 1)]
    pub rows: u16,
}

/// `POST …/processes`: as a command, but nobody waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StartProcess {
    /// What to run, and how. Without a timeout it may run for ever.
    #[serde(flatten)]
    pub execute: ExecuteRequest,
    /// In a terminal of this size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<PtySize>,
    /// The sandbox stays awake until it ends.
    pub keep_awake: bool,
}

/// A process that runs, or that ended within the hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    /// Its id in the guest.
    pub pid: u32,
    /// What it runs; a long one is cut.
    pub command: Command,
    /// As whom.
    pub user: String,
    /// Where it was started.
    pub workdir: String,
    /// When.
    pub started_at: Instant,
    /// Whether it still runs.
    pub running: bool,
    /// How it ended: 128 and the signal, if it was killed.
    pub exit_code: Option<i32>,
    /// Whether it has a terminal.
    pub pty: bool,
    /// The last frame of its output.
    pub last_seq: u64,
    /// Whether it keeps the sandbox awake.
    #[serde(default)]
    pub keep_awake: bool,
}

/// `GET …/processes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessList {
    /// By process id.
    pub processes: Vec<Process>,
}

/// `POST …/signal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// `TERM`, `SIGTERM` or its number as text.
    pub signal: String,
}

/// One line of a process's stream, or one text message of its terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Frame {
    /// It runs. Before a terminal's bytes: the first binary message that follows is number `seq` + 1.
    Start {
        /// 0, or the number before the first one that was asked for.
        seq: u64,
        /// Its id in the guest.
        pid: u32,
        /// How often the sandbox has been awake.
        runtime_generation: u64,
    },
    /// It wrote to its standard output or its terminal.
    Stdout {
        /// Its number.
        seq: u64,
        /// What.
        #[serde(flatten)]
        bytes: FrameBytes,
    },
    /// It wrote to its standard error.
    Stderr {
        /// Its number.
        seq: u64,
        /// What.
        #[serde(flatten)]
        bytes: FrameBytes,
    },
    /// Output that is lost.
    Gap {
        /// The last number that is lost.
        seq: u64,
        /// How much.
        dropped_bytes: u64,
    },
    /// Nothing, for a while.
    Keepalive,
    /// It ended; the last one.
    Exit {
        /// Its number.
        seq: u64,
        /// 128 and the signal, if it was killed.
        exit_code: i32,
        /// The signal that killed it.
        signal: Option<i32>,
        /// It was killed because its time was up.
        timed_out: bool,
        /// Measured in the guest.
        duration_ms: u64,
    },
    /// The stream cannot go on; the last one.
    Error {
        /// The code of the problem.
        code: String,
        /// What was wrong.
        detail: String,
    },
    /// The sandbox was put to sleep, and the process with it; the last one.
    Suspended {
        /// The process to come back to.
        pid: u32,
        /// Ask for its output from here on.
        seq: u64,
    },
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Frame {
    /// Its number, if it has a place in the journal.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        match self {
            Self::Start { seq, .. }
            | Self::Stdout { seq, .. }
            | Self::Stderr { seq, .. }
            | Self::Gap { seq, .. }
            | Self::Exit { seq, .. } => Some(*seq),
            Self::Keepalive | Self::Error { .. } | Self::Suspended { .. } | Self::Unknown => None,
        }
    }

    /// Whether nothing follows.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Exit { .. } | Self::Error { .. } | Self::Suspended { .. })
    }
}

/// Bytes in a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FrameBytes {
    /// UTF-8.
    Text {
        /// As they are.
        data: String,
    },
    /// Anything else.
    Base64 {
        /// In base64.
        data_base64: String,
    },
}

impl FrameBytes {
    /// As text if they are, else in base64.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text { data: text.to_owned() },
            Err(_) => Self::Base64 { data_base64: STANDARD.encode(bytes) },
        }
    }

    /// The bytes themselves; `None` if they are said to be base64 and are not.
    #[must_use]
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Text { data } => Some(data.into_bytes()),
            Self::Base64 { data_base64 } => STANDARD.decode(data_base64).ok(),
        }
    }
}

/// A text message from the client of a terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum TerminalRequest {
    /// It has another size now.
    Resize {
        /// Width.
        cols: u16,
        /// Height.
        rows: u16,
    },
    /// A signal for the process and its group.
    Signal {
        /// `INT`, `SIGINT`.
        signal: String,
    },
}

/// A text message of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TunnelMessage {
    /// No more bytes from this side; the other may go on.
    Eof,
    /// The sandbox was put to sleep; the connection inside is gone.
    Suspended,
    /// The tunnel broke.
    Error {
        /// The code of the problem.
        code: String,
        /// What was wrong.
        detail: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_as_the_contract_has_them() {
        for (frame, text) in [
            (
                Frame::Start { seq: 0, pid: 214, runtime_generation: 3 },
                r#"{"type":"start","seq":0,"pid":214,"runtime_generation":3}"#,
            ),
            (Frame::Stdout { seq: 1, bytes: FrameBytes::of(b"hel") }, r#"{"type":"stdout","seq":1,"data":"hel"}"#),
            (
                Frame::Stderr { seq: 2, bytes: FrameBytes::of(b"\xff") },
                r#"{"type":"stderr","seq":2,"data_base64":"/w=="}"#,
            ),
            (Frame::Keepalive, r#"{"type":"keepalive"}"#),
            (
                Frame::Exit { seq: 3, exit_code: 0, signal: None, timed_out: false, duration_ms: 142 },
                r#"{"type":"exit","seq":3,"exit_code":0,"signal":null,"timed_out":false,"duration_ms":142}"#,
            ),
            (Frame::Gap { seq: 7, dropped_bytes: 9 }, r#"{"type":"gap","seq":7,"dropped_bytes":9}"#),
            (Frame::Suspended { pid: 214, seq: 4 }, r#"{"type":"suspended","pid":214,"seq":4}"#),
            (
                Frame::Error { code: "guest_unresponsive".into(), detail: "…".into() },
                r#"{"type":"error","code":"guest_unresponsive","detail":"…"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&frame).unwrap(), text);
            assert_eq!(serde_json::from_str::<Frame>(text).unwrap(), frame);
        }
        assert_eq!(serde_json::from_str::<Frame>(r#"{"type":"news","x":1}"#).unwrap(), Frame::Unknown);
    }

    #[test]
    fn bytes_come_back() {
        for bytes in [&b""[..], "é".as_bytes(), b"\xff\x00"] {
            assert_eq!(FrameBytes::of(bytes).into_bytes().as_deref(), Some(bytes));
        }
        assert_eq!(FrameBytes::Base64 { data_base64: "?".into() }.into_bytes(), None);
    }

    #[test]
    fn messages_of_terminals_and_tunnels() {
        let resize = TerminalRequest::Resize { cols: 80, rows: 24 };
        assert_eq!(serde_json::to_string(&resize).unwrap(), r#"{"type":"resize","cols":80,"rows":24}"#);
        assert!(serde_json::from_str::<TerminalRequest>(r#"{"type":"resize","cols":80,"rows":24,"x":1}"#).is_err());
        assert_eq!(serde_json::to_string(&TunnelMessage::Eof).unwrap(), r#"{"type":"eof"}"#);
    }
}
