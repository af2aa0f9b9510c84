//! From a byte stream to a [`Guest`], and its end.
//!
//! All tasks of a connection belong to one tracker with one token: cancelling it drops the stream, and waiting for the
//! tracker means that the stream *is* dropped. An engine serves one connection at a time, so whoever wants to connect
//! again, or to stop the engine, must know that.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wakeful_guest_proto::hello::{self, Hello, Scanner, Side};

use crate::Error;

const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;
const FRAME: u32 = 64 * 1024;
/// What an error may say about itself.
const REFUSAL_LIMIT: usize = 64 * 1024;

/// The body of a request: whole or streamed, and of no particular type.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body without bytes.
#[must_use]
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that is there as a whole.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A live channel to an agent. Clones share it; the last one to go closes it.
#[derive(Clone)]
pub struct Guest {
    sender: http2::SendRequest<Body>,
    tasks: Tasks,
    protocol: u8,
    heard: Arc<Heard>,
    _last: Arc<DropGuard>,
}

/// When the other side was last heard.
#[derive(Debug)]
struct Heard {
    since: Instant,
    /// Milliseconds after that.
    last: AtomicU64,
}

impl Heard {
    fn now() -> Arc<Self> {
        Arc::new(Self { since: Instant::now(), last: AtomicU64::new(0) })
    }

    fn note(&self) {
        let after = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(after, Ordering::Relaxed);
    }

    fn ago(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest")
            .field("protocol", &self.protocol)
            .field("over", &self.tasks.over.is_cancelled())
            .finish()
    }
}

/// Where hyper runs what belongs to one connection.
#[derive(Clone, Default)]
struct Tasks {
    tracker: TaskTracker,
    over: CancellationToken,
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        let over = self.over.clone();
        self.tracker.spawn(async move {
            over.run_until_cancelled_owned(work).await;
        });
    }
}

impl Guest {
    /// Says hello on a fresh stream, throws away everything before the agent's valid answer, and starts HTTP/2.
    ///
    /// # Errors
    /// [`Error::Hello`] if no valid answer came before the deadline or the end of the stream; [`Error::Io`]. Before the
    /// next try close this stream, see it closed, and leave a running guest some 50 ms to see it too: if the last
    /// session was cut off in the middle of a frame, a hello that follows at once is taken for the rest of it.
    ///
    /// # Cancel safety
    /// Dropping the future closes the stream.
    pub async fn connect<S>(mut stream: S, secret: &[u8; 32], deadline: Duration) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (protocol, early) = say_hello(&mut stream, secret, deadline).await?;
        Self::begin(stream, early, protocol).await
    }

    /// Starts HTTP/2 on a stream on which hello was said.
    pub(crate) async fn begin<S>(stream: S, early: Bytes, protocol: u8) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let heard = Heard::now();
        let io = TokioIo::new(Rewound { early, stream, heard: Arc::clone(&heard) });
        let tasks = Tasks::default();
        let last = tasks.over.clone().drop_guard();
        let (sender, connection) = http2::Builder::new(tasks.clone())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .handshake(io)
            .await
            .map_err(|error| Error::from_hyper(&error))?;
        let over = tasks.over.clone();
        tasks.tracker.spawn(async move {
            // However it ends, the calls on it learn it from their own streams.
            over.run_until_cancelled(connection).await;
            over.cancel();
        });
        Ok(Self { sender, tasks, protocol, heard, _last: Arc::new(last) })
    }

    /// The protocol that both sides speak.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// How long nothing at all has come from the guest.
    pub(crate) fn silent_for(&self) -> Duration {
        self.heard.ago()
    }

    /// Resolves when the channel has ended, for whatever reason.
    pub async fn closed(&self) {
        self.tasks.over.cancelled().await;
    }

    /// Whether the channel has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.tasks.over.is_cancelled()
    }

    /// Ends the channel, for all clones, and waits until its stream is dropped.
    pub async fn close(self) {
        self.tasks.over.cancel();
        self.tasks.tracker.close();
        self.tasks.tracker.wait().await;
    }

    /// One request, with whatever its answer streams. The caller bounds the wait and the body.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Protocol`].
    pub async fn request(&self, request: Request<Body>) -> Result<Response<Incoming>, Error> {
        let mut sender = self.sender.clone();
        // Cancelled as well by the end of the channel: a request in the sender's queue would only notice later.
        let sent = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        match self.tasks.over.run_until_cancelled(sent).await {
            Some(answer) => answer.map_err(|error| Error::from_hyper(&error)),
            None => Err(Error::Lost),
        }
    }

    /// A request with a JSON body (or none), and its JSON answer of at most `limit` bytes.
    pub(crate) async fn call<A: DeserializeOwned>(
        &self,
        attempted: &'static str,
        request: Request<Body>,
        deadline: Duration,
        limit: usize,
    ) -> Result<A, Error> {
        let exchange = async {
            let bytes = collect(self.accepted(request).await?.into_body(), limit).await?;
            serde_json::from_slice(&bytes).map_err(|error| Error::Protocol { detail: error.to_string() })
        };
        timeout(deadline, exchange).await.map_err(|_| Error::Late { attempted, after: deadline })?
    }

    /// Sends a request and turns every status but a success into [`Error::Refused`].
    pub(crate) async fn accepted(&self, request: Request<Body>) -> Result<Response<Incoming>, Error> {
        let response = self.request(request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = collect(response.into_body(), REFUSAL_LIMIT).await?;
        Err(Error::refused(status, &body))
    }
}

/// A request to the agent. `path` is ours: whatever comes from users is percent-encoded in it.
pub(crate) fn request(method: Method, path: &str, body: Body) -> Result<Request<Body>, Error> {
    let request = Request::builder().method(method).uri(format!("http://agent{path}"));
    request.body(body).map_err(|error| Error::Protocol { detail: error.to_string() })
}

/// The same with a JSON document.
pub(crate) fn json_request(method: Method, path: &str, document: &impl Serialize) -> Result<Request<Body>, Error> {
    let bytes = serde_json::to_vec(document).map_err(|error| Error::Protocol { detail: error.to_string() })?;
    let mut request = request(method, path, full(bytes))?;
    request.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Ok(request)
}

/// All of a body, if it is no longer than `limit`.
pub(crate) async fn collect(body: Incoming, limit: usize) -> Result<Bytes, Error> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Error::TooLong { limit }),
        Err(error) => Err(error.downcast_ref::<hyper::Error>().map_or(Error::Lost, Error::from_hyper)),
    }
}

/// An answer without a body worth reading.
pub(crate) fn expect_status(response: &Response<Incoming>, status: StatusCode) -> Result<(), Error> {
    if response.status() == status {
        return Ok(());
    }
    Err(Error::Protocol { detail: format!("answered {} instead of {status}", response.status()) })
}

/// The protocol that both sides speak, and what came behind the agent's hello.
pub(crate) async fn say_hello<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    secret: &[u8; 32],
    deadline: Duration,
) -> Result<(u8, Bytes), Error> {
    let mut scanner = Scanner::new(Side::Agent);
    let greeted = timeout(deadline, greet(stream, secret, &mut scanner)).await;
    let (hello, early) = greeted.unwrap_or_else(|_| Err(Error::Hello { dropped: scanner.dropped() }))?;
    Ok((hello.protocol.min(hello::PROTOCOL), early))
}

/// The agent's hello, and what came behind it: its first frames may be in the same read.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    secret: &[u8; 32],
    scanner: &mut Scanner,
) -> Result<(Hello, Bytes), Error> {
    let attempted = "say hello to the agent";
    let failed = |source| Error::Io { attempted, source };
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|error| failed(io::Error::other(error.to_string())))?;
    let ours = Hello { nonce, protocol: hello::PROTOCOL };
    stream.write_all(&hello::encode(Side::Host, secret, &ours)).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = match stream.read(&mut buffer).await {
            Ok(0) => return Err(Error::Hello { dropped: scanner.dropped() }),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(Error::Hello { dropped: scanner.dropped() });
            }
            Err(error) => return Err(failed(error)),
        };
        let mut rest = &buffer[..n];
        while let Some(found) = scanner.feed(secret, rest) {
            rest = &rest[found.consumed..];
            // Another nonce answers somebody who was here before us.
            if found.hello.nonce == nonce {
                return Ok((found.hello, Bytes::copy_from_slice(rest)));
            }
        }
    }
}

/// A stream of which some bytes were read too early.
struct Rewound<S> {
    early: Bytes,
    stream: S,
    heard: Arc<Heard>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            let read = Pin::new(&mut self.stream).poll_read(cx, buf);
            if read.is_ready() {
                self.heard.note();
            }
            return read;
        }
        let n = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..n]);
        self.early.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
