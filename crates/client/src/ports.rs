//! TCP to a port in a sandbox, also one that only listens on its own loopback.

use bytes::{Bytes, BytesMut};
use reqwest::Method;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;
use wakeful_api_types::{Port, PortList, PortSession, PutPort, TunnelMessage};

use crate::send::CALL;
use crate::socket::{Incoming, Outgoing};
use crate::{Client, Error};

/// A piece of a connection.
const PIECE: usize = 64 << 10;

/// A connection to a port in a sandbox.
pub struct Tunnel {
    outgoing: Outgoing,
    incoming: Incoming,
    client: Client,
}

impl Client {
    /// `GET …/ports`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn ports(&self, id: &str) -> Result<PortList, Error> {
        self.json(self.get(&["v1", "sandboxes", id, "ports"])?).await
    }

    /// `GET …/ports/{port}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn sandbox_port(&self, id: &str, port: u16) -> Result<Port, Error> {
        self.json(self.get(&["v1", "sandboxes", id, "ports", &port.to_string()])?).await
    }

    /// `PUT …/ports/{port}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn put_port(&self, id: &str, port: u16, public: bool) -> Result<Port, Error> {
        let url = self.address.join(&["v1", "sandboxes", id, "ports", &port.to_string()])?;
        self.json(self.request(Method::PUT, url).timeout(CALL).json(&PutPort { public })).await
    }

    /// `DELETE …/ports/{port}`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete_port(&self, id: &str, port: u16) -> Result<(), Error> {
        self.nothing(self.delete(&["v1", "sandboxes", id, "ports", &port.to_string()])?).await
    }

    /// `POST …/ports/{port}/session`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn port_session(&self, id: &str, port: u16) -> Result<PortSession, Error> {
        let segments = ["v1", "sandboxes", id, "ports", &port.to_string(), "session"];
        self.json(self.post(&segments, &serde_json::json!({}))?).await
    }

    /// `GET …/ports/{port}/tcp`: a WebSocket that carries one TCP connection. Nothing listens there: `port_not_open`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn tunnel(&self, id: &str, port: u16) -> Result<Tunnel, Error> {
        let url = self.address.join(&["v1", "sandboxes", id, "ports", &port.to_string(), "tcp"])?;
        let (outgoing, incoming) = self.websocket(url, &[]).await?;
        Ok(Tunnel { outgoing, incoming, client: self.clone() })
    }
}

impl Tunnel {
    /// Joins it to a local connection until both directions have ended. Each side's end passes through by itself, so
    /// that a peer can say all and then listen.
    ///
    /// # Errors
    /// If one of the two connections breaks; the other is cut then.
    pub async fn join<S: AsyncRead + AsyncWrite>(self, local: S) -> Result<(), Error> {
        let Self { mut outgoing, mut incoming, client } = self;
        let (mut from, mut to) = tokio::io::split(local);
        let here = |error: std::io::Error| client.broken(format!("the local connection: {error}"));
        let up = async {
            let mut buffer = BytesMut::with_capacity(PIECE);
            while from.read_buf(&mut buffer).await.map_err(here)? > 0 {
                outgoing.send(Message::Binary(buffer.split().freeze())).await?;
                buffer.reserve(PIECE);
            }
            outgoing.say(&TunnelMessage::Eof).await?;
            Ok::<_, Error>(())
        };
        let down = async {
            while let Some(message) = incoming.next().await? {
                match message {
                    Message::Binary(bytes) => to.write_all(&bytes).await.map_err(here)?,
                    Message::Text(text) => match word(&text) {
                        Some(TunnelMessage::Eof) => to.shutdown().await.map_err(here)?,
                        Some(message) => return Err(client.broken(over(message))),
                        None => {}
                    },
                    Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => {}
                }
            }
            // the other side may have gone before we have: it takes no more
            to.shutdown().await.map_err(here)?;
            Ok::<_, Error>(())
        };
        // A closed WebSocket ends both directions, an ended upload only its own.
        tokio::pin!(up, down);
        tokio::select! {
            ended = &mut down => ended,
            sent = &mut up => {
                sent?;
                down.await
            }
        }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn send(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.outgoing.send(Message::Binary(bytes)).await
    }

    /// Says that no more will be sent.
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn finish(&mut self) -> Result<(), Error> {
        self.outgoing.say(&TunnelMessage::Eof).await
    }

    /// The next bytes; `None` when the other side has said all.
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match self.incoming.next().await? {
                Some(Message::Binary(bytes)) => return Ok(Some(bytes)),
                Some(Message::Text(text)) => match word(&text) {
                    Some(TunnelMessage::Eof) => return Ok(None),
                    Some(message) => return Err(self.client.broken(over(message))),
                    None => {}
                },
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

/// What a text message says; `None` if nothing that this version knows.
fn word(text: &str) -> Option<TunnelMessage> {
    serde_json::from_str(text).ok()
}

/// Why a tunnel is over.
fn over(message: TunnelMessage) -> String {
    match message {
        TunnelMessage::Eof => "it has ended".to_owned(),
        TunnelMessage::Suspended => "the sandbox went to sleep".to_owned(),
        TunnelMessage::Error { detail, .. } => detail,
    }
}
