//! What a running command says: one JSON object a line.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

use crate::{Client, Error};

/// Longest line: a piece of output, escaped.
const LINE: usize = 8 << 20;
/// A server says at least `keepalive` every 15 s; after three of them it is gone.
const SILENCE: Duration = Duration::from_secs(50);

/// The frames of a command, as they come. The last one is [`Frame::Exit`], [`Frame::Error`] or [`Frame::Suspended`]; if
/// none of them came, the connection was lost. Without `follow` it may also end after what is there.
pub type Frames = BoxStream<'static, Result<Frame, Error>>;

/// A piece of output: text where it is UTF-8, else base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// As text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// As base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

impl Piece {
    /// The bytes themselves; `None` if the base64 is none.
    #[must_use]
    pub fn bytes(self) -> Option<Bytes> {
        match (self.data, self.data_base64) {
            (_, Some(text)) => STANDARD.decode(text).ok().map(Bytes::from),
            (Some(text), None) => Some(Bytes::from(text)),
            (None, None) => Some(Bytes::new()),
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Frame {
    /// It runs, or it was attached to.
    Start {
        /// Its place.
        seq: u64,
        /// The process.
        pid: u32,
        /// The life of the sandbox in which that was.
        #[serde(default)]
        runtime_generation: u64,
    },
    /// It wrote to its standard output or its terminal.
    Stdout {
        /// Its place.
        seq: u64,
        /// What.
        #[serde(flatten)]
        piece: Piece,
    },
    /// It wrote to its standard error.
    Stderr {
        /// Its place.
        seq: u64,
        /// What.
        #[serde(flatten)]
        piece: Piece,
    },
    /// So much fell out of the journal.
    Gap {
        /// Its place.
        seq: u64,
        /// How much.
        dropped_bytes: u64,
    },
    /// It ended; nothing follows.
    Exit {
        /// Its place.
        seq: u64,
        /// 128 and the signal, if it was killed.
        exit_code: i32,
        /// The signal that killed it.
        signal: Option<i32>,
        /// It was killed because its time was up.
        #[serde(default)]
        timed_out: bool,
        /// Measured in the guest.
        #[serde(default)]
        duration_ms: u64,
    },
    /// The sandbox was put to sleep with it; nothing follows. It can be attached to again.
    Suspended {
        /// The process.
        pid: u32,
        /// Where to go on.
        seq: u64,
    },
    /// The server cannot go on; nothing follows.
    Error {
        /// Why, as in problems.
        code: String,
        /// Why, for people.
        detail: String,
    },
    /// Nothing happened for a while.
    Keepalive,
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Client {
    pub(crate) fn frames(&self, response: reqwest::Response) -> Frames {
        self.lines(response, SILENCE)
    }

    /// The objects of an NDJSON answer, one a line.
    pub(crate) fn lines<T: DeserializeOwned + Send + 'static>(
        &self,
        response: reqwest::Response,
        silence: Duration,
    ) -> BoxStream<'static, Result<T, Error>> {
        let client = self.clone();
        let reader = StreamReader::new(response.bytes_stream().map_err(io::Error::other).boxed());
        let lines = FramedRead::new(reader, LinesCodec::new_with_max_length(LINE));
        let stream = futures_util::stream::unfold(Some(lines), move |lines| {
            let client = client.clone();
            async move {
                let mut lines = lines?;
                let next = match tokio::time::timeout(silence, lines.next()).await {
                    Err(_) => Err(client.broken(format!("nothing came for {silence:?}"))),
                    Ok(None) => return None,
                    Ok(Some(Err(LinesCodecError::Io(error)))) => Err(client.broken(chain(&error))),
                    Ok(Some(Err(error))) => Err(client.garbled(error.to_string())),
                    Ok(Some(Ok(line))) => serde_json::from_str(&line).map_err(|e| client.garbled(e.to_string())),
                };
                // after an error nothing can be relied on
                let rest = next.is_ok().then_some(lines);
                Some((next, rest))
            }
        });
        stream.boxed()
    }

    pub(crate) fn broken(&self, detail: impl Into<String>) -> Error {
        Error::Broken { url: self.url().to_owned(), detail: detail.into() }
    }
}

/// The innermost reason: the outer ones only say that a body could not be read.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_the_contract() {
        let read = |text: &str| serde_json::from_str::<Frame>(text).unwrap();
        assert_eq!(
            read(r#"{"type":"start","seq":0,"pid":214,"runtime_generation":3}"#),
            Frame::Start { seq: 0, pid: 214, runtime_generation: 3 }
        );
        let Frame::Stderr { seq: 2, piece } = read(r#"{"type":"stderr","seq":2,"data_base64":"/w=="}"#) else {
            panic!("not stderr")
        };
        assert_eq!(piece.bytes().unwrap(), Bytes::from_static(b"\xff"));
        assert_eq!(read(r#"{"type":"keepalive"}"#), Frame::Keepalive);
        assert_eq!(read(r#"{"type":"tomorrow","x":1}"#), Frame::Unknown);
        assert_eq!(read(r#"{"type":"suspended","pid":7,"seq":9}"#), Frame::Suspended { pid: 7, seq: 9 });
        let exit = r#"{"type":"exit","seq":3,"exit_code":0,"signal":null,"timed_out":false,"duration_ms":142}"#;
        assert_eq!(serde_json::to_string(&read(exit)).unwrap(), exit);
        let out = r#"{"type":"stdout","seq":1,"data":"hel"}"#;
        assert_eq!(serde_json::to_string(&read(out)).unwrap(), out);
    }

    #[test]
    fn base64_that_is_none() {
        let piece = Piece { data: None, data_base64: Some("*".into()) };
        assert_eq!(piece.bytes(), None);
    }
}
