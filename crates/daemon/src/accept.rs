//! Connections: taken, told apart, and served until the daemon stops.
//!
//! With a certificate a port speaks TLS. The first byte of a TLS connection is 0x16 and that of no HTTP request is, so this
//! machine's own programs may also speak in the clear on the same port; others who do are sent to https.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use tracing::{debug, warn};
use wakeful_api::Peer;

/// How long a client may take to begin, and to agree on keys.
const BEGIN: Duration = Duration::from_secs(30);
/// After an error that is not the client's, such as too many open files.
const PAUSE: Duration = Duration::from_secs(1);
/// The first byte of a TLS connection.
const HANDSHAKE: u8 = 0x16;
/// How soon a silent connection is asked whether its other end is there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Serves one listener until `stop`, and then until its calls have ended.
pub(crate) async fn serve(listener: TcpListener, router: Router, tls: Option<TlsAcceptor>, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                tasks.spawn(connection(stream, address, router.clone(), tls.clone(), stop.clone()));
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                warn!(%error, "could not accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

fn is_the_clients(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    router: Router,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) {
    // Costs some latency, or some memory for clients that are gone, if they fail.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE);
    let Some(tls) = tls else {
        return speak(stream, Peer { address, secure: false }, router, stop).await;
    };
    let mut first = [0];
    match timeout(BEGIN, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] == HANDSHAKE => {}
        Ok(Ok(1)) => {
            let near = address.ip().to_canonical().is_loopback();
            let router = if near { router } else { Router::new().fallback(to_https) };
            return speak(stream, Peer { address, secure: false }, router, stop).await;
        }
        Ok(Ok(_) | Err(_)) | Err(_) => return,
    }
    match timeout(BEGIN, tls.accept(stream)).await {
        Ok(Ok(stream)) => speak(stream, Peer { address, secure: true }, router, stop).await,
        Ok(Err(error)) => debug!(%address, %error, "a client did not agree on TLS"),
        Err(_) => {}
    }
}

async fn speak<S>(stream: S, peer: Peer, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.clone().oneshot(request.map(Body::new))
    });
    let mut builder = Builder::new(TokioExecutor::new());
    // WebSockets over HTTP/2.
    builder.http2().enable_connect_protocol();
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let graceful = GracefulShutdown::new();
    let mut serving = std::pin::pin!(graceful.watch(connection));
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stop.cancelled() => tokio::select! {
            ended = &mut serving => ended,
            // Tells it to end, and then waits until it is dropped, which is after this.
            () = graceful.shutdown() => Ok(()),
        },
    };
    if let Err(error) = ended {
        debug!(%error, "a connection broke");
    }
}

/// For strangers in the clear.
async fn to_https(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(http::uri::Authority::as_str).or(named);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let target = host.and_then(|host| HeaderValue::try_from(format!("https://{host}{path}")).ok());
    let mut response = Response::new(Body::from("this port speaks https\n"));
    *response.status_mut() = if target.is_some() { StatusCode::PERMANENT_REDIRECT } else { StatusCode::BAD_REQUEST };
    response.headers_mut().extend(target.map(|target| (header::LOCATION, target)));
    Ok(response)
}
