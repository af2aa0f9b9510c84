//! `CONNECT 127.0.0.1:<port>`: a byte stream to a port inside, also one that is bound to loopback only.
//!
//! The agent connects first and answers then, so that "nothing listens there" is an answer and not a stream that dies.
//! Either end may finish sending before the other: half-close passes through both ways.
//!
//! A tunnel with a name is kept: its socket belongs to a task of the agent's own, which hands it from session to session
//! (see `guest_proto::tunnel`). Parked, it waits for a minute of the time that the guest is awake; hosts come back at once
//! after a wake, or never.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use wakeful_guest_proto::tunnel::{KEPT, RECEIVED, TUNNEL, TunnelId};
use wakeful_tunnel::{End, Line};

use crate::awake;
use crate::body::{self, Body};
use crate::context::Context;
use crate::session::Session;

/// To loopback: only a listener whose backlog is full takes this long.
const CONNECT: Duration = Duration::from_secs(5);
const BUFFER: usize = 32 * 1024;
/// How long one waits for its host, not counting sleeps.
const PARKED: Duration = Duration::from_secs(60);
/// Most that are kept.
const MOST: usize = 256;

/// Those that outlive their session, and how their tasks are reached.
#[derive(Default)]
pub(crate) struct Kept(Mutex<HashMap<TunnelId, mpsc::Sender<Attach>>>);

impl Kept {
    /// `None` if there are too many, or one of this name.
    fn add(&self, id: TunnelId) -> Option<mpsc::Receiver<Attach>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST || all.contains_key(&id) {
            return None;
        }
        let (sender, inbox) = mpsc::channel(1);
        all.insert(id, sender);
        Some(inbox)
    }

    fn find(&self, id: TunnelId) -> Option<mpsc::Sender<Attach>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn remove(&self, id: TunnelId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

/// Another session takes a tunnel up.
pub(crate) struct Attach {
    session: Arc<Session>,
    upgrade: OnUpgrade,
    host_has: u64,
    /// Told how much the service got.
    answer: oneshot::Sender<u64>,
}

/// The name and the count of a tunnel that is to be kept.
fn named(headers: &HeaderMap) -> Option<(TunnelId, Option<u64>)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let id = TunnelId::parse(text(TUNNEL)?)?;
    Some((id, text(RECEIVED).and_then(|count| count.parse().ok())))
}

/// Connects, answers, and copies until both ends are done.
pub(crate) async fn handle(
    context: &Arc<Context>,
    session: &Arc<Session>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let named = named(request.headers());
    if let Some((id, Some(host_has))) = named {
        return take_up(context, session, &mut request, id, host_has).await;
    }
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
    if let Some((id, _)) = named
        && let Some(inbox) = context.tunnels.add(id)
    {
        context.tasks.spawn(keep(Arc::clone(context), id, inner, inbox, Arc::clone(session), upgrade));
        let mut response = body::status(StatusCode::OK);
        response.headers_mut().insert(TUNNEL, HeaderValue::from_static(KEPT));
        return response;
    }
    session.spawn(async move {
        if let Ok(outer) = upgrade.await {
            // An end that breaks takes the other one with it: both are dropped here.
            let _ = copy_bidirectional_with_sizes(&mut TokioIo::new(outer), &mut inner, BUFFER, BUFFER).await;
        }
    });
    body::status(StatusCode::OK)
}

async fn take_up(
    context: &Context,
    session: &Arc<Session>,
    request: &mut Request<Incoming>,
    id: TunnelId,
    host_has: u64,
) -> Response<Body> {
    let none = || body::error(StatusCode::NOT_FOUND, "there is no such tunnel");
    let Some(keeper) = context.tunnels.find(id) else { return none() };
    let (answer, answered) = oneshot::channel();
    let attach = Attach { session: Arc::clone(session), upgrade: hyper::upgrade::on(request), host_has, answer };
    if timeout(CONNECT, keeper.send(attach)).await.is_err() {
        return none();
    }
    let Ok(Ok(has)) = timeout(CONNECT, answered).await else { return none() };
    let mut response = body::status(StatusCode::OK);
    response.headers_mut().insert(RECEIVED, HeaderValue::from(has));
    response
}

/// Hands a socket from session to session until one of its ends is done.
async fn keep(
    context: Arc<Context>,
    id: TunnelId,
    mut inner: TcpStream,
    mut inbox: mpsc::Receiver<Attach>,
    mut session: Arc<Session>,
    mut upgrade: OnUpgrade,
) {
    let (mut from, mut to) = inner.split();
    let mut line = Line::default();
    let mut host_has = 0;
    loop {
        let end = {
            let _carried = session.carries();
            let carried = async {
                let Ok(outer) = upgrade.await else { return End::Lost };
                line.carry(&mut from, &mut to, TokioIo::new(outer), host_has, session.parking(), &|| {}).await
            };
            tokio::select! {
                end = carried => end,
                () = session.ended() => End::Lost,
            }
        };
        // A host that is gone without a word does not come back for its tunnels.
        match end {
            End::Stopped => {}
            End::Lost if session.is_parking() => {}
            End::Lost | End::Done | End::Broken => break,
        }
        let attach = tokio::select! {
            attach = inbox.recv() => attach,
            () = awake::pass(PARKED) => None,
        };
        let Some(attach) = attach else { break };
        if attach.answer.send(line.received()).is_err() {
            break;
        }
        (session, upgrade, host_has) = (attach.session, attach.upgrade, attach.host_has);
    }
    context.tunnels.remove(id);
}

fn refused(target: SocketAddr, error: &io::Error) -> Response<Body> {
    let document = serde_json::json!({
        "code": StatusCode::BAD_GATEWAY.as_u16(),
        "message": format!("connect to {target}: {error}"),
        "errno": error.raw_os_error(),
    });
    body::json(StatusCode::BAD_GATEWAY, &document)
}
