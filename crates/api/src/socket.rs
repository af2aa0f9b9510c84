//! WebSockets: their bounds, whether anybody is at the other end, and how they are closed.
//!
//! Both directions wait for whoever is slower: a message is taken from the client when the guest has taken the one before,
//! and sent when the client has. A client that is silent is asked by a ping whether it is there; one that does not answer,
//! or that takes nothing, is given up.

use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use tokio::time::{Instant, timeout};
use wakeful_model::Code;

use crate::App;
use crate::problem::Problem;

/// Longest message from a client.
const LONGEST: usize = 1 << 20;
/// How often a client is asked whether it is there.
pub(crate) const PING: Duration = Duration::from_secs(20);
/// Without any sign for this long it is not.
const DEAD: Duration = Duration::from_secs(60);
/// How long a client may take to answer our goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// What is in the handshake, or nothing of the kind.
pub(crate) type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// The client is not there any more.
#[derive(Debug)]
pub(crate) struct Gone;

/// Refuses a plain request.
pub(crate) fn upgrade(asked: Upgrade) -> Result<WebSocketUpgrade, Problem> {
    match asked {
        Ok(upgrade) => Ok(upgrade.max_message_size(LONGEST).max_frame_size(LONGEST).max_write_buffer_size(LONGEST * 2)),
        Err(rejection) => {
            let problem = Problem::new(Code::InvalidField, format!("this is a WebSocket: {rejection}"));
            let value = HeaderValue::from_static("websocket");
            Err(problem.with_status(StatusCode::UPGRADE_REQUIRED, header::UPGRADE, value))
        }
    }
}

/// Answers the handshake; `serve` runs as one of the daemon's calls.
pub(crate) fn accept<F, S>(app: &App, upgrade: WebSocketUpgrade, serve: S) -> Response
where
    S: FnOnce(Outgoing, Incoming) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let tasks = app.config.tasks.clone();
    upgrade.on_upgrade(move |socket| {
        let (sink, stream) = socket.split();
        tasks.track_future(serve(Outgoing { sink, pinged: Instant::now() }, Incoming { stream }))
    })
}

/// To the client.
pub(crate) struct Outgoing {
    sink: SplitSink<WebSocket, Message>,
    pinged: Instant,
}

impl Outgoing {
    async fn send(&mut self, message: Message) -> Result<(), Gone> {
        match timeout(DEAD, self.sink.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }

    /// Bytes of the guest; a ping as well if one is due.
    pub(crate) async fn bytes(&mut self, bytes: Bytes) -> Result<(), Gone> {
        self.send(Message::Binary(bytes)).await?;
        if self.pinged.elapsed() >= PING { self.ping().await } else { Ok(()) }
    }

    /// A message of ours.
    pub(crate) async fn text(&mut self, message: &impl Serialize) -> Result<(), Gone> {
        // Our own shapes: writing them to memory fails for no value.
        let text = serde_json::to_string(message).unwrap_or_default();
        self.send(Message::Text(text.into())).await
    }

    pub(crate) async fn ping(&mut self) -> Result<(), Gone> {
        self.pinged = Instant::now();
        self.send(Message::Ping(Bytes::new())).await
    }

    /// Says goodbye, and waits a moment for the answer: a connection that is closed over unread bytes is reset, and the
    /// client could lose what it was told last.
    pub(crate) async fn close(mut self, mut incoming: Incoming, code: u16, reason: &'static str) {
        let frame = CloseFrame { code, reason: reason.into() };
        if self.send(Message::Close(Some(frame))).await.is_ok() {
            let rest = async { while let Some(Ok(_)) = incoming.stream.next().await {} };
            let _ = timeout(GOODBYE, rest).await;
        }
    }
}

/// From the client.
pub(crate) struct Incoming {
    stream: SplitStream<WebSocket>,
}

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Bytes(Bytes),
    Text(String),
}

impl Incoming {
    /// The next message that means something.
    pub(crate) async fn next(&mut self) -> Result<Said, Gone> {
        loop {
            match timeout(DEAD, self.stream.next()).await {
                Ok(Some(Ok(Message::Binary(bytes)))) => return Ok(Said::Bytes(bytes)),
                Ok(Some(Ok(Message::Text(text)))) => return Ok(Said::Text(text.as_str().to_owned())),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return Err(Gone),
            }
        }
    }
}
