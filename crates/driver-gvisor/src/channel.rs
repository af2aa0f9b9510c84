//! The byte stream to the agent: TCP, from the slot's gateway to the guest's own network stack.
//!
//! A caller wants a stream before the guest runs, so that its hello waits there. A sentry that is still loading answers
//! nobody, and what is sent to it is lost and sent again only a second later. So the stream that is handed out connects
//! by itself, with short tries and a fresh socket for each, and its first bytes wait until one has succeeded.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use wakeful_guest_proto::card::GUEST;
use wakeful_sys::net;

use crate::boot::PORT;

/// How long one try may take; on a veth of an idle host it takes a tenth of a millisecond.
const TRY: Duration = Duration::from_millis(25);
const PAUSE: Duration = Duration::from_millis(1);
/// How long an agent may take to hang up on somebody who has nothing to say, if it runs.
const SPEAKS: Duration = Duration::from_secs(8);

type Dialling = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;
type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A stream that connects when it is first used, and breaks when its engine ends: a sentry that is killed says nothing to
/// those who are connected to it.
pub(crate) struct Channel {
    line: Line,
    ending: Option<Ending>,
}

enum Line {
    Dialling(Dialling),
    Open(TcpStream),
}

/// A stream from this namespace to the guest's agent, until that happens.
pub(crate) fn dial(gateway: OwnedFd, ends: impl Future<Output = ()> + Send + 'static) -> Channel {
    Channel { line: Line::Dialling(Box::pin(keep_dialling(gateway))), ending: Some(Box::pin(ends)) }
}

async fn keep_dialling(gateway: OwnedFd) -> io::Result<TcpStream> {
    let gateway = std::sync::Arc::new(gateway);
    loop {
        let entered = std::sync::Arc::clone(&gateway);
        let socket = tokio::task::spawn_blocking(move || socket_in(&entered)).await.map_err(io::Error::other)??;
        let stream = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
        if let Ok(Ok(stream)) = timeout(TRY, stream.connect(SocketAddr::from((GUEST, PORT)))).await {
            stream.set_nodelay(true)?;
            return Ok(stream);
        }
        sleep(PAUSE).await;
    }
}

/// A socket that belongs to this namespace, by a thread that enters it and ends.
fn socket_in(namespace: &OwnedFd) -> io::Result<OwnedFd> {
    std::thread::scope(|scope| {
        let making = scope.spawn(|| {
            net::enter_network(namespace.as_fd())?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?)
        });
        making.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
    })
}

/// Whether anybody inside runs: an agent hangs up on who has hung up, a stopped one does nothing.
pub(crate) async fn speaks(gateway: &Path) -> bool {
    let hung_up = async {
        let gateway = std::fs::File::open(gateway)?;
        let mut stream = keep_dialling(gateway.into()).await?;
        stream.shutdown().await?;
        let mut nothing = [0; 1];
        stream.read(&mut nothing).await
    };
    timeout(SPEAKS, hung_up).await.is_ok_and(|read| read.is_ok())
}

impl Channel {
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TcpStream>>> {
        if self.ending.as_mut().is_none_or(|ending| ending.as_mut().poll(cx).is_ready()) {
            self.ending = None;
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if let Line::Dialling(dialling) = &mut self.line {
            self.line = Line::Open(ready!(dialling.as_mut().poll(cx))?);
        }
        match &mut self.line {
            Line::Open(stream) => Poll::Ready(Ok(Pin::new(stream))),
            Line::Dialling(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for Channel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Channel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.line {
            Line::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            Line::Dialling(_) => Poll::Ready(Ok(())),
        }
    }
}
