//! A TCP connection to a port inside, over WebSocket: binary messages are its bytes.
//!
//! A WebSocket has one close for both directions, TCP one for each: the end of one direction is a text message, and the
//! socket is closed when both have ended. The tunnel comes out of the agent, so services on loopback only are reached.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::extract::ws::close_code;
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use bytes::BytesMut;
use http::Uri;
use http::request::Parts;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;
use wakeful_api_types::{Frame, TunnelMessage};
use wakeful_guest_client::{Error as GuestError, Tunnel};
use wakeful_lifecycle::{Access, Error, Use};
use wakeful_model::{Code, SandboxId};

use crate::App;
use crate::caller::Caller;
use crate::path::Target;
use crate::problem::Problem;
use crate::query::Query;
use crate::socket::{self, Gone, Incoming, Outgoing, PING, Said, Upgrade};

/// The agent connects within five seconds or says why not; under emulation it may be slow to begin.
const CONNECT: Duration = Duration::from_secs(20);
const BUFFER: usize = 32 << 10;

/// The port that the path names: `/v1/sandboxes/{id}/ports/{port}/tcp`.
pub(crate) struct Port(pub(crate) u16);

impl<S: Send + Sync> FromRequestParts<S> for Port {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let text = parts.uri.path().split('/').nth(5).unwrap_or("");
        let port = text.parse().ok().filter(|port| *port != 0);
        port.map(Self).ok_or_else(|| Problem::field(Code::InvalidField, "port", "a port is between 1 and 65535"))
    }
}

pub(crate) async fn open(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Port(port): Port,
    uri: Uri,
    asked: Upgrade,
) -> Result<Response, Problem> {
    let upgrade = socket::upgrade(asked)?;
    Query::of(&uri, &[])?;
    let access = app.lifecycle.access(&caller.tenant, &id, Use::Stream).await?;
    let tunnel = connect(&access, &id, port).await?;
    Ok(socket::accept(&app, upgrade, move |outgoing, incoming| serve(outgoing, incoming, access, tunnel)))
}

/// To whichever loopback address the service listens on.
async fn connect(access: &Access, id: &SandboxId, port: u16) -> Result<Tunnel, Problem> {
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))] {
        match access.tunnel(address, CONNECT).await {
            Ok(tunnel) => return Ok(tunnel),
            Err(GuestError::Refused { errno: Some(_), .. }) => {}
            Err(error) => return Err(access.explain(error).await.into()),
        }
    }
    let detail = format!("nothing in {id} listens on port {port}");
    Err(Problem::new(Code::PortNotOpen, detail)
        .hint("start the service first; 127.0.0.1 and ::1 inside are both tried"))
}

/// Why a tunnel ended.
enum End {
    /// Both directions have.
    Both,
    Gone,
    Cut(TunnelMessage),
}

async fn serve(mut outgoing: Outgoing, mut incoming: Incoming, access: Access, tunnel: Tunnel) {
    let (from_guest, to_guest) = tokio::io::split(tunnel);
    let client_done = CancellationToken::new();
    let end = tokio::select! {
        end = down(&mut outgoing, from_guest, &access, &client_done) => end,
        end = up(&mut incoming, to_guest, &access, &client_done) => end,
        () = access.draining() => End::Cut(told(Error::ShuttingDown)),
    };
    match end {
        End::Gone => {}
        End::Both => outgoing.close(incoming, close_code::NORMAL, "").await,
        End::Cut(message) => {
            if outgoing.text(&message).await.is_ok() {
                outgoing.close(incoming, close_code::NORMAL, "").await;
            }
        }
    }
}

fn told(error: Error) -> TunnelMessage {
    match error {
        Error::SuspendedDuringExec { .. } => TunnelMessage::Suspended,
        other => match Problem::from(other).into_frame() {
            Frame::Error { code, detail } => TunnelMessage::Error { code, detail },
            _ => TunnelMessage::Suspended,
        },
    }
}

async fn down(
    outgoing: &mut Outgoing,
    mut from_guest: impl AsyncRead + Unpin,
    access: &Access,
    client_done: &CancellationToken,
) -> End {
    let mut ping = interval_at(Instant::now() + PING, PING);
    let mut buffer = BytesMut::new();
    let mut ended = false;
    loop {
        buffer.reserve(BUFFER);
        let sent = tokio::select! {
            read = from_guest.read_buf(&mut buffer), if !ended => match read {
                Ok(length) if length > 0 => {
                    access.touch();
                    outgoing.bytes(buffer.split().freeze()).await
                }
                // The service has ended its side, or the channel has under both.
                Ok(_) | Err(_) => match access.interrupted().await {
                    Some(error) => return End::Cut(told(error)),
                    None => {
                        ended = true;
                        outgoing.text(&TunnelMessage::Eof).await
                    }
                },
            },
            () = client_done.cancelled(), if ended => return End::Both,
            _ = ping.tick() => outgoing.ping().await,
        };
        if let Err(Gone) = sent {
            return End::Gone;
        }
    }
}

async fn up(
    incoming: &mut Incoming,
    mut to_guest: impl AsyncWrite + Unpin,
    access: &Access,
    client_done: &CancellationToken,
) -> End {
    // A service that reads no more is no reason to stop: it may still write.
    let mut taken = true;
    loop {
        match incoming.next().await {
            Ok(Said::Bytes(bytes)) => {
                access.touch();
                taken = taken && !client_done.is_cancelled() && to_guest.write_all(&bytes).await.is_ok();
            }
            Ok(Said::Text(text)) => match serde_json::from_str(&text) {
                Ok(TunnelMessage::Eof) => {
                    let _ = to_guest.shutdown().await;
                    client_done.cancel();
                }
                Ok(_) | Err(_) => {
                    let detail = "the only text message to a tunnel is {\"type\":\"eof\"}".to_owned();
                    return End::Cut(TunnelMessage::Error { code: Code::InvalidJson.as_str().to_owned(), detail });
                }
            },
            Err(Gone) => return End::Gone,
        }
    }
}
