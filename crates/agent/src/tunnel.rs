//! `CONNECT 127.0.0.1:<port>`: a byte stream to a port inside, also one that is bound to loopback only.
//!
//! The agent connects first and answers then, so that "nothing listens there" is an answer and not a stream that dies.
//! Either end may finish sending before the other: half-close passes through both ways.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::body::{self, Body};
use crate::session::Session;

/// To loopback: only a listener whose backlog is full takes this long.
const CONNECT: Duration = Duration::from_secs(5);
const BUFFER: usize = 32 * 1024;

/// Connects, answers, and copies until both ends are done.
pub(crate) async fn handle(session: &Session, mut request: Request<Incoming>) -> Response<Body> {
    let authority = request.uri().authority().map_or("", |authority| authority.as_str());
    let target = match authority.parse::<SocketAddr>() {
        Ok(target) if target.ip().is_loopback() && target.port() != 0 => target,
        _ => return body::error(StatusCode::BAD_REQUEST, "a tunnel goes to an address of the loopback interface"),
    };
    let mut inner = match timeout(CONNECT, TcpStream::connect(target)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return refused(target, &error),
        Err(_) => return refused(target, &io::Error::from(rustix::io::Errno::TIMEDOUT)),
    };
    // Previews and terminals are full of small writes; a failure costs some latency only.
    let _ = inner.set_nodelay(true);
    let upgrade = hyper::upgrade::on(&mut request);
    session.spawn(async move {
        if let Ok(outer) = upgrade.await {
            // An end that breaks takes the other one with it: both are dropped here.
            let _ = copy_bidirectional_with_sizes(&mut TokioIo::new(outer), &mut inner, BUFFER, BUFFER).await;
        }
    });
    body::status(StatusCode::OK)
}

fn refused(target: SocketAddr, error: &io::Error) -> Response<Body> {
    let document = serde_json::json!({
        "code": StatusCode::BAD_GATEWAY.as_u16(),
        "message": format!("connect to {target}: {error}"),
        "errno": error.raw_os_error(),
    });
    body::json(StatusCode::BAD_GATEWAY, &document)
}
