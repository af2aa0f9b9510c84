//! One HTTP/2 connection with one host, from the hello's answer to its end.
//!
//! It ends when the stream ends, or by the *last call*: the quiesce answer. From the last call on nothing of the
//! stream belongs to this session any more. The host closes as soon as it has that answer and may freeze the machine
//! before anybody in here has run again, so what is read next may already be the next host's hello. Therefore the
//! pump stops reading (see `channel`), streams get one second to finish, and the connection is dropped without asking
//! the host for anything.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as Wake, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::context::Context;
use crate::routes;

const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;
const STREAMS: u32 = 256;
const FRAME: u32 = 64 * 1024;
/// How long streams may take to finish after the last call.
const DRAIN: Duration = Duration::from_secs(1);

/// Shared by the connection, its streams and the pump below it.
#[derive(Default)]
pub(crate) struct Session {
    last_call: CancellationToken,
    /// Cancelled at the end: every task of the session is dropped then, and with it whatever it had queued.
    over: CancellationToken,
    tasks: TaskTracker,
    /// Tunnels that can wait for another session shall do so.
    park: CancellationToken,
    /// Those that this session carries.
    carried: TaskTracker,
}

/// How long tunnels may take to say how far they are.
const PARK: Duration = Duration::from_millis(300);

impl Session {
    /// Lets go of the tunnels that can go on in another session: what they have to say is on its way when this returns.
    pub(crate) async fn park(&self) {
        self.park.cancel();
        self.carried.close();
        let _ = tokio::time::timeout(PARK, self.carried.wait()).await;
    }

    /// Resolves when tunnels shall let go.
    pub(crate) async fn parking(&self) {
        self.park.cancelled().await;
    }

    /// Whether they have been told to.
    pub(crate) fn is_parking(&self) -> bool {
        self.park.is_cancelled()
    }

    /// To be held by a tunnel for as long as this session carries it.
    pub(crate) fn carries(&self) -> TaskTrackerToken {
        self.carried.token()
    }

    /// No more input for this session. Call it before the answer that tells the host so.
    pub(crate) fn call_last(&self) {
        self.last_call.cancel();
    }

    /// Whether input belongs to somebody else from now on.
    pub(crate) fn last_called(&self) -> bool {
        self.last_call.is_cancelled()
    }

    /// Resolves when nothing of the session is left.
    pub(crate) async fn ended(&self) {
        self.over.cancelled().await;
    }

    /// Runs something that ends with the session at the latest.
    pub(crate) fn spawn<F>(&self, work: F)
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let over = self.over.clone();
        self.tasks.spawn(async move {
            over.run_until_cancelled_owned(work).await;
        });
    }
}

/// Lets hyper run its streams as tasks of the session.
#[derive(Clone)]
struct Streams(Arc<Session>);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        self.0.spawn(work);
    }
}

/// Speaks HTTP/2 on `stream` until it ends or the last call is over.
pub(crate) async fn serve<S>(stream: S, context: Arc<Context>, session: Arc<Session>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _end = session.over.clone().drop_guard();
    let stuck = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Watched { stream, stuck: Arc::clone(&stuck) });
    let service = service_fn({
        let session = Arc::clone(&session);
        move |request| {
            let answer = routes::channel(Arc::clone(&context), Arc::clone(&session), request);
            async move { Ok::<_, io::Error>(answer.await) }
        }
    });
    let mut connection = pin!(
        http2::Builder::new(Streams(Arc::clone(&session)))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS)
            .max_frame_size(FRAME)
            // The host has a clock, and ours may be wrong until it has set it.
            .auto_date_header(false)
            .serve_connection(io, service)
    );
    tokio::select! {
        // A host that breaks the protocol or hangs up in the middle is nothing to report: it is gone.
        _ = &mut connection => return,
        () = session.last_call.cancelled() => {}
    }
    session.tasks.close();
    let drained = async {
        tokio::select! {
            _ = &mut connection => return,
            () = session.tasks.wait() => {}
        }
        // Every stream has handed its last bytes to the connection; polling it once writes them out, unless the pump
        // below is behind.
        poll_fn(|cx| {
            let ended = connection.as_mut().poll(cx).is_ready();
            if ended || !stuck.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    };
    tokio::select! {
        () = drained => {}
        () = sleep(DRAIN) => {}
    }
}

/// A stream that remembers whether its last write had to wait.
struct Watched<S> {
    stream: S,
    stuck: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Wake<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Wake<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.stuck.store(written.is_pending(), Ordering::Relaxed);
        Poll::Ready(ready!(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Wake<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.stuck.store(written.is_pending(), Ordering::Relaxed);
        Poll::Ready(ready!(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Wake<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Wake<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
