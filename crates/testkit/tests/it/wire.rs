//! Streams as they come over the wire: frames of a process, and WebSockets.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_util::{SinkExt, StreamExt};
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};
use tokio_tungstenite::tungstenite::protocol::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use wakeful_api_types::Frame;
use wakeful_testkit::Daemon;

/// How long the next piece may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

fn http() -> Result<reqwest::Client> {
    Ok(reqwest::Client::builder().no_proxy().build()?)
}

/// A call on a sandbox.
pub(crate) fn get(daemon: &Daemon, id: &str, rest: &str) -> Result<RequestBuilder> {
    Ok(http()?.get(format!("{}/v1/sandboxes/{id}/{rest}", daemon.url())))
}

/// The same with something to say.
pub(crate) fn post(daemon: &Daemon, id: &str, rest: &str) -> Result<RequestBuilder> {
    Ok(http()?.post(format!("{}/v1/sandboxes/{id}/{rest}", daemon.url())))
}

/// Sends a request that must be refused: status and code.
pub(crate) async fn refused(request: RequestBuilder) -> Result<(u16, String)> {
    let response = timeout(SOON, request.send()).await??;
    let status = response.status().as_u16();
    let problem: Value = response.json().await?;
    Ok((status, problem["code"].as_str().unwrap_or_default().to_owned()))
}

/// Sends a request that must succeed, and reads its JSON.
pub(crate) async fn answer(request: RequestBuilder) -> Result<Value> {
    let response = timeout(SOON, request.send()).await??;
    let status = response.status();
    let text = response.text().await?;
    ensure!(status.is_success(), "{status}: {text}");
    Ok(if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? })
}

/// Starts a background process.
pub(crate) async fn background(daemon: &Daemon, id: &str, body: Value) -> Result<u32> {
    let started = answer(post(daemon, id, "processes")?.json(&body)).await?;
    ensure!(started["running"] == true, "{started}");
    Ok(u32::try_from(started["pid"].as_u64().context("a pid")?)?)
}

/// The frames of one answer, one by one.
pub(crate) struct Frames {
    response: Response,
    buffer: Vec<u8>,
}

impl Frames {
    /// Of a request that must be answered by a stream.
    pub(crate) async fn open(request: RequestBuilder) -> Result<Self> {
        let response = timeout(SOON, request.send()).await??;
        let status = response.status();
        if !status.is_success() {
            bail!("{status}: {}", response.text().await?);
        }
        Ok(Self { response, buffer: Vec::new() })
    }

    pub(crate) fn content_type(&self) -> &str {
        self.response.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The next line as it came, without its newline; `None` at the end.
    pub(crate) async fn line(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(String::from_utf8(line)?));
            }
            match timeout(SOON, self.response.chunk()).await.context("no piece came")?? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None => {
                    ensure!(self.buffer.is_empty(), "it ended in the middle of a line");
                    return Ok(None);
                }
            }
        }
    }

    /// The next frame but keepalives; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            match self.line().await? {
                None => return Ok(None),
                Some(line) => match serde_json::from_str(&line).with_context(|| line.clone())? {
                    Frame::Keepalive => {}
                    frame => return Ok(Some(frame)),
                },
            }
        }
    }

    /// All that is left.
    pub(crate) async fn rest(mut self) -> Result<Vec<Frame>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await? {
            frames.push(frame);
        }
        Ok(frames)
    }
}

/// What frames carry, standard output and error apart.
pub(crate) fn outputs(frames: &[Frame]) -> (Vec<u8>, Vec<u8>) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    for frame in frames {
        match frame.clone() {
            Frame::Stdout { bytes, .. } => stdout.extend(bytes.into_bytes().expect("base64")),
            Frame::Stderr { bytes, .. } => stderr.extend(bytes.into_bytes().expect("base64")),
            _ => {}
        }
    }
    (stdout, stderr)
}

/// A WebSocket to the daemon.
pub(crate) struct Socket {
    inner: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

/// What a socket says.
#[derive(Debug)]
pub(crate) enum Heard {
    Bytes(Vec<u8>),
    Text(Value),
    /// With its code.
    Closed(Option<u16>),
}

impl Socket {
    pub(crate) async fn open(daemon: &Daemon, id: &str, rest: &str) -> Result<Self> {
        let url = format!("{}/v1/sandboxes/{id}/{rest}", daemon.url().replacen("http", "ws", 1));
        let (inner, _) = timeout(SOON, tokio_tungstenite::connect_async(url)).await??;
        Ok(Self { inner })
    }

    /// One that must be refused: its status and code.
    pub(crate) async fn refused(daemon: &Daemon, id: &str, rest: &str) -> Result<(u16, String)> {
        use tokio_tungstenite::tungstenite::Error;
        let url = format!("{}/v1/sandboxes/{id}/{rest}", daemon.url().replacen("http", "ws", 1));
        match timeout(SOON, tokio_tungstenite::connect_async(url)).await? {
            Err(Error::Http(response)) => {
                let problem: Value = serde_json::from_slice(response.body().as_deref().unwrap_or_default())?;
                Ok((response.status().as_u16(), problem["code"].as_str().unwrap_or_default().to_owned()))
            }
            Err(other) => bail!("not refused but {other}"),
            Ok(_) => bail!("{rest} was accepted"),
        }
    }

    pub(crate) async fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(timeout(SOON, self.inner.send(Message::binary(bytes.to_vec()))).await??)
    }

    pub(crate) async fn text(&mut self, value: &Value) -> Result<()> {
        Ok(timeout(SOON, self.inner.send(Message::text(value.to_string()))).await??)
    }

    pub(crate) async fn hear(&mut self) -> Result<Heard> {
        // Pings are no news.
        let deadline = tokio::time::Instant::now() + SOON;
        loop {
            return Ok(match timeout_at(deadline, self.inner.next()).await.context("the socket is silent")? {
                Some(Ok(Message::Binary(bytes))) => Heard::Bytes(bytes.to_vec()),
                Some(Ok(Message::Text(text))) => Heard::Text(serde_json::from_str(text.as_str())?),
                Some(Ok(Message::Close(frame))) => Heard::Closed(frame.map(|frame| frame.code.into())),
                Some(Ok(_)) => continue,
                Some(Err(error)) => bail!("the socket broke: {error}"),
                None => Heard::Closed(None),
            });
        }
    }

    /// The next text message; bytes before it are an error.
    pub(crate) async fn hear_text(&mut self) -> Result<Value> {
        match self.hear().await? {
            Heard::Text(text) => Ok(text),
            other => bail!("not a text but {other:?}"),
        }
    }
}

/// A terminal that remembers what it was shown.
pub(crate) struct Terminal {
    socket: Socket,
    pub(crate) pid: u64,
    /// The number of the last thing that came.
    pub(crate) seq: u64,
    pub(crate) generation: u64,
    screen: String,
}

impl Terminal {
    pub(crate) async fn open(daemon: &Daemon, id: &str, query: &str) -> Result<Self> {
        let mut socket = Socket::open(daemon, id, &format!("pty?{query}")).await?;
        let start = socket.hear_text().await?;
        ensure!(start["type"] == "start", "{start}");
        let number = |name: &str| start[name].as_u64().context("a number");
        let (pid, seq, generation) = (number("pid")?, number("seq")?, number("runtime_generation")?);
        Ok(Self { socket, pid, seq, generation, screen: String::new() })
    }

    pub(crate) async fn keys(&mut self, keys: &str) -> Result<()> {
        self.socket.bytes(keys.as_bytes()).await
    }

    pub(crate) async fn text(&mut self, value: Value) -> Result<()> {
        self.socket.text(&value).await
    }

    pub(crate) async fn resize(&mut self, cols: u16, rows: u16) -> Result<()> {
        self.text(json!({"type": "resize", "cols": cols, "rows": rows})).await
    }

    /// Reads on until the screen has shown `wanted` after what was waited for before.
    pub(crate) async fn wait_for(&mut self, wanted: &str) -> Result<()> {
        loop {
            if let Some(at) = self.screen.find(wanted) {
                self.screen.drain(..at + wanted.len());
                return Ok(());
            }
            match self.socket.hear().await.with_context(|| format!("{wanted:?} in {:?}", self.screen))? {
                Heard::Bytes(bytes) => {
                    self.seq += 1;
                    self.screen.push_str(&String::from_utf8_lossy(&bytes));
                }
                other => bail!("{other:?} before {wanted:?}; the screen was {:?}", self.screen),
            }
        }
    }

    /// Reads on to the last message and the close code.
    pub(crate) async fn end(mut self) -> Result<(Value, Option<u16>)> {
        let mut last = Value::Null;
        loop {
            match self.socket.hear().await? {
                Heard::Bytes(_) => ensure!(last.is_null(), "bytes after {last}"),
                Heard::Text(text) => last = text,
                Heard::Closed(code) => return Ok((last, code)),
            }
        }
    }
}
