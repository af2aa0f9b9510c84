//! The other end of the channel: hello, first contact and the control routes, as the real agent speaks them.

use std::convert::Infallible;
use std::io::{self, Cursor};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard};
use wakeful_driver::Exit;
use wakeful_guest_proto::contact::{self, Reader, Repair};
use wakeful_guest_proto::control::{self, Busy, Grown, Obstacles, QuiesceAnswer, RestoreAnswer};
use wakeful_guest_proto::hello::{self, Hello, Scanner, Side};

use crate::host::{Host, Point};
use crate::process::Process;

/// The host's end of the line; when it goes, the session at the other end is over, also in a guest that stands still.
pub(crate) struct Line {
    stream: DuplexStream,
    _cut: DropGuard,
}

impl Line {
    pub(crate) fn new(stream: DuplexStream, cut: CancellationToken) -> Self {
        Self { stream, _cut: cut.drop_guard() }
    }
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Counts a session for as long as it lasts.
struct Session(Arc<Process>);

impl Session {
    fn begin(process: Arc<Process>) -> Self {
        process.sessions.send_modify(|n| *n += 1);
        Self(process)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.0.sessions.send_modify(|n| *n -= 1);
    }
}

/// Serves one connection until it is cut or the engine ends.
pub(crate) fn serve(
    host: Arc<Host>,
    process: Arc<Process>,
    stream: DuplexStream,
    cut: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    // Counted before this returns: whoever connects next must see it.
    let session = Session::begin(process);
    async move {
        let process = &session.0;
        tokio::select! {
            () = cut.cancelled() => {}
            _ = process.ended() => {}
            // However it ends, the host sees its stream end.
            _ = converse(&host, process, stream) => {}
        }
    }
}

async fn converse(host: &Arc<Host>, process: &Arc<Process>, mut stream: DuplexStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut scanner = Scanner::new(Side::Host);
    let (secret, hello) = loop {
        let n = read(process, &mut stream, &mut buffer).await?;
        let secret = process.secret();
        if let Some(found) = scanner.feed(&secret, &buffer[..n]) {
            break (secret, found.hello);
        }
    };
    let answer = Hello { nonce: hello.nonce, protocol: hello::PROTOCOL };
    stream.write_all(&hello::encode(Side::Agent, &secret, &answer)).await?;

    let (mut reader, mut within) = (Reader::default(), false);
    let first = loop {
        let n = read(process, &mut stream, &mut buffer).await?;
        if !within && buffer[0] != contact::ASK {
            break buffer[..n].to_vec();
        }
        let fed = reader.feed(contact::ASK, &buffer[..n]).map_err(io::Error::other)?;
        within = fed.is_none();
        let Some((body, _)) = fed else { continue };
        let ask = Repair::decode(&body).map_err(io::Error::other)?;
        let outcome = if host.fault(Point::Contact).is_some() {
            Err("as the test wants it".to_owned())
        } else {
            ask.secret.into_iter().for_each(|secret| process.rotate(secret));
            Ok(RestoreAnswer { clock_error_us: 0, failed_hooks: Vec::new() })
        };
        stream.write_all(&contact::encode_outcome(&outcome)).await?;
    };

    let (inward, outward) = tokio::io::split(stream);
    let io = TokioIo::new(tokio::io::join(Cursor::new(first).chain(inward), outward));
    let service = service_fn(|request| {
        let answer = answer_to(host, process, &request);
        async move { Ok::<_, Infallible>(answer) }
    });
    http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await.map_err(io::Error::other)
}

/// What came; nothing as long as the vCPUs stand still.
async fn read(process: &Process, stream: &mut DuplexStream, buffer: &mut [u8]) -> io::Result<usize> {
    let n = stream.read(buffer).await?;
    process.runs().await;
    if n == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(n) }
}

fn json(document: &impl serde::Serialize) -> (StatusCode, String) {
    (StatusCode::OK, serde_json::to_string(document).expect("plain data"))
}

fn answer_to(host: &Host, process: &Arc<Process>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::POST, control::QUIESCE) => json(&QuiesceAnswer { synced: true }),
        (&Method::GET, control::BUSY) => json(&Busy::default()),
        (&Method::GET, control::OBSTACLES) => json(&Obstacles { obstacles: host.held_by(&process.name) }),
        (&Method::POST, control::GROW) => json(&Grown { bytes: u64::from(process.grow()) << 20 }),
        (&Method::POST, control::POWEROFF) => {
            let process = Arc::clone(process);
            // After the answer, as a real one does.
            host.runtime().spawn(async move {
                tokio::task::yield_now().await;
                let status = Some("exit status: 0".into());
                process.end(Exit { status, output: String::new(), out_of_memory: false });
            });
            (StatusCode::OK, "{}".to_owned())
        }
        (&Method::GET, "/health") => (StatusCode::NO_CONTENT, String::new()),
        _ => (StatusCode::NOT_FOUND, "{}".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}
