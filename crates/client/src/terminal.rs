//! A terminal in a sandbox.

use bytes::Bytes;
use tokio_tungstenite::tungstenite::Message;
use wakeful_api_types::{Frame, PtySize, TerminalRequest};

use crate::socket::{Incoming, Outgoing};
use crate::{Client, Error};

/// Which process a terminal shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// A new one: the user's shell.
    #[default]
    Shell,
    /// A new one: this line by a shell.
    Command(String),
    /// One that runs in a terminal already, from this frame of its output on.
    Attach {
        /// The process.
        pid: u32,
        /// Where to go on.
        from: u64,
    },
}

/// What a terminal tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalEvent {
    /// The process runs, or was found again.
    Start {
        /// The process.
        pid: u32,
        /// What follows is numbered from the one after this.
        seq: u64,
    },
    /// It wrote this: one number.
    Output(Bytes),
    /// What it wrote up to this number is lost.
    Gap {
        /// The last one that is.
        seq: u64,
    },
    /// It ended.
    Exit {
        /// 128 and the signal, if it was killed.
        exit_code: i32,
    },
    /// The sandbox sleeps, the process with it.
    Suspended {
        /// The process.
        pid: u32,
        /// Where to go on.
        seq: u64,
    },
    /// The server cannot go on.
    Error {
        /// Why, as in problems.
        code: String,
        /// Why, for people.
        detail: String,
    },
    /// The server lives, and says nothing else.
    Alive,
    /// The server closed it without a word.
    Closed,
}

/// An open terminal: what goes in, what comes out.
pub struct Terminal {
    /// To it.
    pub input: TerminalInput,
    /// From it.
    pub output: TerminalOutput,
}

/// What goes into a terminal.
pub struct TerminalInput(Outgoing);

/// What comes out of a terminal.
pub struct TerminalOutput {
    incoming: Incoming,
    client: Client,
}

impl Client {
    /// `GET …/pty`: a WebSocket. The process goes on when this is dropped.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn terminal(&self, id: &str, size: PtySize, which: &Which) -> Result<Terminal, Error> {
        let url = self.address.join(&["v1", "sandboxes", id, "pty"])?;
        let mut query = vec![("cols", size.cols.to_string()), ("rows", size.rows.to_string())];
        match which {
            Which::Shell => {}
            Which::Command(line) => query.push(("command", line.clone())),
            Which::Attach { pid, from } => query.extend([("pid", pid.to_string()), ("from", from.to_string())]),
        }
        let (outgoing, incoming) = self.websocket(url, &query).await?;
        Ok(Terminal { input: TerminalInput(outgoing), output: TerminalOutput { incoming, client: self.clone() } })
    }
}

impl TerminalInput {
    /// Keys.
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn keys(&mut self, keys: Bytes) -> Result<(), Error> {
        self.0.send(Message::Binary(keys)).await
    }

    /// Another size.
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn resize(&mut self, size: PtySize) -> Result<(), Error> {
        self.0.say(&TerminalRequest::Resize { cols: size.cols, rows: size.rows }).await
    }

    /// Asks whether the server is there; it answers with [`TerminalEvent::Alive`].
    ///
    /// # Errors
    /// If the connection is lost.
    pub async fn ping(&mut self) -> Result<(), Error> {
        self.0.send(Message::Ping(Bytes::new())).await
    }
}

impl TerminalOutput {
    /// The next thing that happens.
    ///
    /// # Errors
    /// If the connection is lost, or what comes is no terminal's.
    ///
    /// # Cancel safety
    /// It can be dropped and asked again.
    pub async fn next(&mut self) -> Result<TerminalEvent, Error> {
        let Some(message) = self.incoming.next().await? else { return Ok(TerminalEvent::Closed) };
        match message {
            Message::Binary(bytes) => Ok(TerminalEvent::Output(bytes)),
            Message::Text(text) => {
                let frame = serde_json::from_str(&text).map_err(|e| self.client.garbled(e.to_string()))?;
                Ok(match frame {
                    Frame::Start { seq, pid, .. } => TerminalEvent::Start { pid, seq },
                    Frame::Exit { exit_code, .. } => TerminalEvent::Exit { exit_code },
                    Frame::Suspended { pid, seq } => TerminalEvent::Suspended { pid, seq },
                    Frame::Error { code, detail } => TerminalEvent::Error { code, detail },
                    Frame::Gap { seq, .. } => TerminalEvent::Gap { seq },
                    Frame::Stdout { .. } | Frame::Stderr { .. } | Frame::Keepalive | Frame::Unknown => {
                        TerminalEvent::Alive
                    }
                })
            }
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => Ok(TerminalEvent::Alive),
        }
    }
}
