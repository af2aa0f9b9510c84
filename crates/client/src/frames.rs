//! What a running command says: one JSON object a line.

use std::io;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use serde::de::DeserializeOwned;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;
use wakeful_api_types::Frame;

use crate::{Client, Error};

/// Longest line: a piece of output, escaped.
const LINE: usize = 8 << 20;
/// A server says at least `keepalive` every 15 s; after three of them it is gone.
const SILENCE: Duration = Duration::from_secs(50);

/// The frames of a command, as they come. The last one is [`Frame::Exit`], [`Frame::Error`] or [`Frame::Suspended`]; if
/// none of them came, the connection was lost. Without `follow` it may also end after what is there.
pub type Frames = BoxStream<'static, Result<Frame, Error>>;

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
