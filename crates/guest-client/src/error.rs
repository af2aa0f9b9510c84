//! What can go wrong between host and agent.

use std::error::Error as _;
use std::io;
use std::time::Duration;

/// Narrow enough to act upon: reconnect on [`Lost`](Error::Lost), tell the caller on [`Refused`](Error::Refused),
/// give the guest up on the others.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stream itself failed before the channel was up.
    #[error("could not {attempted}")]
    Io {
        /// What was under way.
        attempted: &'static str,
        /// What the stream said.
        source: io::Error,
    },
    /// No agent with this secret answered: nobody is there yet, or it is somebody else.
    #[error("no valid hello came from the agent ({dropped} other bytes did)")]
    Hello {
        /// What came instead and was thrown away.
        dropped: u64,
    },
    /// The deadline of a call passed.
    #[error("the agent did not {attempted} within {after:?}")]
    Late {
        /// What was asked for.
        attempted: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The channel has ended: the guest is gone, stopped, or somebody closed it.
    #[error("the channel to the agent was lost")]
    Lost,
    /// The channel has ended while a command ran; the command itself may go on.
    #[error("the channel to the agent was lost while process {pid} ran")]
    Cut {
        /// The process.
        pid: u32,
        /// The last of its output that came, to go on from.
        seq: u64,
    },
    /// The agent neither goes on nor answers a health request.
    #[error("the agent does not respond")]
    Unresponsive,
    /// An answer that no agent of ours gives.
    #[error("the agent broke the protocol: {detail}")]
    Protocol {
        /// In which way.
        detail: String,
    },
    /// An answer longer than it may be.
    #[error("the agent's answer is longer than {limit} bytes")]
    TooLong {
        /// What was allowed.
        limit: usize,
    },
    /// The agent said no.
    #[error("the agent refused: {message} ({code})")]
    Refused {
        /// Connect's code (`not_found`), or the HTTP status as text where the route has no other.
        code: String,
        /// For people; bounded and without control characters.
        message: String,
        /// Our own code, where the agent gave one.
        wakeful_code: Option<String>,
        /// The system's error number, where there is one: why a tunnel could not connect.
        errno: Option<i32>,
    },
}

impl Error {
    /// What an error of the HTTP/2 connection means.
    pub(crate) fn from_hyper(error: &hyper::Error) -> Self {
        let mut source = error.source();
        while let Some(cause) = source {
            if cause.is::<io::Error>() {
                return Self::Lost;
            }
            source = cause.source();
        }
        if error.is_closed() || error.is_canceled() || error.is_incomplete_message() {
            return Self::Lost;
        }
        Self::Protocol { detail: chain(error) }
    }

    /// A refusal of the first contact, which has no status.
    pub(crate) fn refused_because(why: &str) -> Self {
        Self::Refused { code: "restore".to_owned(), message: printable(why), wakeful_code: None, errno: None }
    }

    /// A refusal from a body that is not trusted to be one.
    pub(crate) fn refused(status: http::StatusCode, body: &[u8]) -> Self {
        let document: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |key: &str| document.get(key).and_then(serde_json::Value::as_str).map(printable);
        Self::Refused {
            code: text("code").unwrap_or_else(|| status.as_u16().to_string()),
            message: text("message").unwrap_or_else(|| status.to_string()),
            wakeful_code: text("wakefulCode"),
            errno: document.get("errno").and_then(serde_json::Value::as_i64).and_then(|n| i32::try_from(n).ok()),
        }
    }
}

/// The guest's words may end up in a terminal or a log.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(1000).collect()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_from_anything() {
        let plain = Error::refused(http::StatusCode::NOT_FOUND, b"<html>");
        assert!(matches!(plain, Error::Refused { code, wakeful_code: None, .. } if code == "404"));
        let body = br#"{"code":"not_found","message":"gone\u001b[2J","wakefulCode":"path_not_found","errno":2}"#;
        let Error::Refused { code, message, wakeful_code, errno } = Error::refused(http::StatusCode::NOT_FOUND, body)
        else {
            panic!("a refusal");
        };
        assert_eq!((code.as_str(), message.as_str()), ("not_found", "gone[2J"));
        assert_eq!((wakeful_code.as_deref(), errno), (Some("path_not_found"), Some(2)));
        let number = Error::refused(http::StatusCode::BAD_GATEWAY, br#"{"code":502,"message":"m"}"#);
        assert!(matches!(number, Error::Refused { code, .. } if code == "502"));
    }
}
