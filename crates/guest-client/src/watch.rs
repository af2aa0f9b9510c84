//! Changes in the guest's directories, as the agent sees them.

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use wakeful_guest_proto::connect_rpc::{Decoder, STREAM_TYPE, message_frame};
use wakeful_guest_proto::filesystem::{EventType, MAX_PATH, WatchMessage, WatchRequest};

use crate::connect::{full, request};
use crate::exec::{native, refusal};
use crate::{Error, Guest};

/// A large tree is walked before the first answer, on an emulated machine.
const BEGIN: Duration = Duration::from_secs(120);
/// A byte that is not UTF-8 becomes three.
const MAX_TEXT: usize = 3 * MAX_PATH;

/// What a watch has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// Something happened to a file.
    Changed {
        /// What.
        kind: EventType,
        /// Relative to the watched directory; empty for the directory itself.
        name: String,
    },
    /// There was more than could be told.
    Overflow,
    /// Nothing, for a while.
    Keepalive,
}

/// The changes of one directory or tree as they come. Dropping it ends the watch.
#[derive(Debug)]
pub struct WatchStream {
    guest: Guest,
    body: Incoming,
    decoder: Decoder,
}

impl Guest {
    /// Watches a directory, or all of a tree; every change after the return is told.
    ///
    /// # Errors
    /// [`Error::Refused`] with `path_not_found` or `not_a_directory`, with code `resource_exhausted` if it is too much,
    /// `unimplemented` by an agent that is too old.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream, Error> {
        let broken = |detail: String| Error::Protocol { detail };
        let ask = WatchRequest { path: path.to_owned(), recursive, ..WatchRequest::default() };
        let payload = serde_json::to_vec(&ask).map_err(|error| broken(error.to_string()))?;
        let body = full(message_frame(&payload));
        let request = native(request(Method::POST, "/filesystem.Filesystem/WatchDir", body)?, STREAM_TYPE);
        let begun = async {
            let body = self.accepted(request).await?.into_body();
            let mut stream = WatchStream { guest: self.clone(), body, decoder: Decoder::default() };
            match stream.message().await? {
                WatchMessage::Start(_) => Ok(stream),
                _ => Err(broken("a watch that did not begin with its start".to_owned())),
            }
        };
        tokio::time::timeout(BEGIN, begun)
            .await
            .map_err(|_| Error::Late { attempted: "begin to watch", after: BEGIN })?
    }
}

impl WatchStream {
    /// The next change. Waits as long as nothing happens and the agent is well.
    ///
    /// # Errors
    /// [`Error::Refused`] with `path_not_found` once the directory is gone; [`Error::Lost`], [`Error::Unresponsive`],
    /// [`Error::Protocol`].
    ///
    /// # Cancel safety
    /// No change is lost by dropping the future.
    pub async fn next(&mut self) -> Result<WatchEvent, Error> {
        let broken = |detail: &str| Error::Protocol { detail: detail.to_owned() };
        match self.message().await? {
            WatchMessage::Start(_) => Err(broken("a watch that began twice")),
            WatchMessage::Keepalive(_) => Ok(WatchEvent::Keepalive),
            WatchMessage::Overflow(_) => Ok(WatchEvent::Overflow),
            WatchMessage::Filesystem(event) => {
                if event.name.is_empty() || event.name.len() > MAX_TEXT || event.name.contains('\0') {
                    return Err(broken("a change with an impossible name"));
                }
                let name = if event.name == "." { String::new() } else { event.name };
                Ok(WatchEvent::Changed { kind: event.kind, name })
            }
        }
    }

    async fn message(&mut self) -> Result<WatchMessage, Error> {
        loop {
            let broken = |detail: String| Error::Protocol { detail };
            if let Some(frame) = self.decoder.frame().map_err(|error| broken(error.to_string()))? {
                if !frame.end {
                    return serde_json::from_slice(&frame.payload).map_err(|error| broken(error.to_string()));
                }
                return Err(refusal(&frame.payload)?.unwrap_or(Error::Lost));
            }
            match self.guest.patiently(self.body.frame()).await? {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.decoder.feed(data);
                    }
                }
                // An agent that ends its session resets the streams on it, one way or another.
                Some(Err(_)) | None => return Err(Error::Lost),
            }
        }
    }
}
