//! WebSockets, on the same connections, addresses and credentials as every other call.

use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use reqwest::header::{CONNECTION, HeaderValue, UPGRADE};
use reqwest::{Method, StatusCode, Upgraded, Url};
use serde::Serialize;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as Wrong, Message, Utf8Bytes};

use crate::frames::chain;
use crate::send::CALL;
use crate::{Client, Error};

/// The largest message: servers send pieces of some 64 KiB.
const MESSAGE: usize = 4 << 20;
/// A peer that has not taken a message after so long is gone.
const SEND: Duration = Duration::from_secs(60);

type Stream = WebSocketStream<Upgraded>;

/// What comes.
pub(crate) struct Incoming {
    stream: SplitStream<Stream>,
    client: Client,
}

/// What goes.
pub(crate) struct Outgoing {
    sink: SplitSink<Stream, Message>,
    client: Client,
}

impl Client {
    /// Opens one. What the server refuses is its problem, as with every call.
    pub(crate) async fn websocket(&self, url: Url, query: &[(&str, String)]) -> Result<(Outgoing, Incoming), Error> {
        let key = generate_key();
        let request = self
            .request(Method::GET, url)
            .query(query)
            .header(CONNECTION, HeaderValue::from_static("Upgrade"))
            .header(UPGRADE, HeaderValue::from_static("websocket"))
            .header("Sec-WebSocket-Version", HeaderValue::from_static("13"))
            .header("Sec-WebSocket-Key", &key);
        let open = async {
            let response = self.send(request).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(self.garbled(format!("status {} where a WebSocket should open", response.status())));
            }
            let accepted = response.headers().get("Sec-WebSocket-Accept").map(HeaderValue::as_bytes);
            if accepted != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
                return Err(self.garbled("it opened another WebSocket than was asked for"));
            }
            response.upgrade().await.map_err(|e| self.lost(e))
        };
        let upgraded = match tokio::time::timeout(CALL, open).await {
            Ok(upgraded) => upgraded?,
            Err(_) => return Err(self.broken(format!("no answer within {CALL:?}"))),
        };
        let limits = WebSocketConfig::default().max_message_size(Some(MESSAGE)).max_frame_size(Some(MESSAGE));
        let stream = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(limits)).await;
        let (sink, stream) = stream.split();
        Ok((Outgoing { sink, client: self.clone() }, Incoming { stream, client: self.clone() }))
    }

    fn wrong(&self, error: &Wrong) -> Error {
        match error {
            Wrong::ConnectionClosed | Wrong::AlreadyClosed => self.broken("it was closed"),
            Wrong::Capacity(_) | Wrong::Protocol(_) | Wrong::Utf8(_) => self.garbled(error.to_string()),
            other => self.broken(chain(other)),
        }
    }
}

impl Incoming {
    /// The next message, pings and pongs included; `None` after a close.
    ///
    /// # Cancel safety
    /// It can be dropped and asked again.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Error> {
        match self.stream.next().await {
            None | Some(Ok(Message::Close(_))) => Ok(None),
            Some(Ok(message)) => Ok(Some(message)),
            Some(Err(error)) => match self.client.wrong(&error) {
                // cut off without a farewell
                Error::Protocol { detail, .. } if detail.contains("without closing handshake") => {
                    Err(self.client.broken(detail))
                }
                error => Err(error),
            },
        }
    }
}

impl Outgoing {
    pub(crate) async fn send(&mut self, message: Message) -> Result<(), Error> {
        match tokio::time::timeout(SEND, self.sink.send(message)).await {
            Ok(sent) => sent.map_err(|error| self.client.wrong(&error)),
            Err(_) => Err(self.client.broken(format!("it took nothing for {SEND:?}"))),
        }
    }

    pub(crate) async fn say(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(message).map_err(|e| Error::Invalid { detail: e.to_string() })?;
        self.send(Message::Text(Utf8Bytes::from(text))).await
    }
}
