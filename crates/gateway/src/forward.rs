//! One request, from the client to the service and its answer back.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Empty, combinators::UnsyncBoxBody};
use hyper::client::conn::{http1, http2};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;
use wakeful_lifecycle::{Access, Lifecycle, Use};
use wakeful_model::SandboxId;

use crate::line::{self, Open};
use crate::{Error, headers, join};

/// How long a service that has not answered counts as at work; longer where a sandbox may be idle for longer.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long a connection whose client is gone may take to tell the service.
const LINGER: Duration = Duration::from_secs(10);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An answer's body.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A port of a sandbox that the caller may use.
#[derive(Clone, Debug)]
pub struct Place {
    /// Whose sandbox it is.
    pub tenant: String,
    /// The sandbox.
    pub id: SandboxId,
    /// The port.
    pub port: u16,
}

/// How a preview is addressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// By a host name of its own.
    Host,
    /// Below a path of the API.
    Path {
        /// The path that the service does not see.
        prefix: String,
    },
}

/// Who sends a request, as far as the connection tells.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sender {
    /// From where.
    pub address: Option<IpAddr>,
    /// By TLS.
    pub secure: bool,
}

/// Passes requests on. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) lifecycle: Lifecycle,
    /// Connections that are open.
    pub(crate) tasks: TaskTracker,
}

/// What a client wants its connection to become.
struct Upgrade {
    client: OnUpgrade,
    protocol: HeaderValue,
    /// By HTTP/2's extended CONNECT, which is answered in another way.
    extended: bool,
}

impl Upgrade {
    fn is_websocket(&self) -> bool {
        self.protocol.as_bytes().eq_ignore_ascii_case(b"websocket")
    }
}

impl Gateway {
    /// Open connections are tasks of `tasks`; they end when `lifecycle` drains.
    #[must_use]
    pub fn new(lifecycle: Lifecycle, tasks: TaskTracker) -> Self {
        Self { lifecycle, tasks }
    }

    /// Passes a request on and streams the answer back. Wakes the sandbox; a service that has not answered yet keeps it awake
    /// for ten minutes, or its idle timeout if that is longer; an open answer does by its bytes.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Cancel safety
    /// Dropped, the connection to the service is closed.
    pub async fn forward<B>(
        &self,
        place: &Place,
        request: Request<B>,
        sender: &Sender,
        form: &Form,
    ) -> Result<Response<Body>, Error>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let (request, upgrade) = outgoing(request, sender, form)?;
        let grpc = is_grpc(request.headers());
        let mut request = request.map(|body| Passing { body, _line: None });
        let access = self.lifecycle.access(&place.tenant, &place.id, Use::Transfer).await?;
        let Open { stream, attached, pulse, needed, over } = line::open(self, place, &access).await?;
        let io = TokioIo::new(stream);
        let answer = async {
            if grpc {
                *request.version_mut() = Version::HTTP_2;
                let (mut service, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                self.tasks.spawn(connection);
                service.send_request(request).await
            } else {
                let (mut service, connection) = http1::handshake(io).await?;
                self.tasks.spawn(connection.with_upgrades());
                service.send_request(request).await
            }
        };
        let stream = access.stream();
        let mut response = match held(access, answer).await {
            Ok(response) => response,
            Err(error) => {
                return Err(match stream.interrupted().await {
                    Some(came_between) => came_between.into(),
                    None => bad_answer(place, &error, grpc),
                });
            }
        };
        pulse.touch();
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (mut parts, body) = response.into_parts();
            headers::to_client(&mut parts.headers, form);
            parts.version = Version::default();
            parts.extensions.clear();
            return Ok(Response::from_parts(
                parts,
                Passing { body, _line: Some(needed) }.map_err(Into::into).boxed_unsync(),
            ));
        }
        let Some(upgrade) = upgrade else {
            let detail = "it changed the protocol, and nobody had asked for that".to_owned();
            return Err(Error::BadAnswer { id: place.id.clone(), port: place.port, detail });
        };
        let service = hyper::upgrade::on(&mut response);
        let answer = switched(response.headers().clone(), &upgrade, form);
        self.tasks.spawn(async move {
            let _needed = needed;
            let websocket = upgrade.is_websocket();
            let (Ok(client), Ok(service)) = tokio::join!(upgrade.client, service) else { return };
            let (client, service) = (TokioIo::new(client), TokioIo::new(service));
            if websocket {
                join::websocket(client, service, attached, pulse).await;
            } else {
                join::bytes(client, service).await;
            }
            // What the client said last may still be on its way to a service that does not answer to it.
            let _ = tokio::time::timeout(LINGER, over.cancelled()).await;
        });
        Ok(answer)
    }
}

/// The request as the service gets it, and what the client wants its connection to become.
fn outgoing<B>(request: Request<B>, sender: &Sender, form: &Form) -> Result<(Request<B>, Option<Upgrade>), Error> {
    let (mut parts, body) = request.into_parts();
    let host = match (parts.uri.authority(), parts.headers.get(header::HOST)) {
        (Some(authority), _) => HeaderValue::from_str(authority.as_str()).ok(),
        (None, host) => host.cloned(),
    };
    let host = host.ok_or(Error::BadRequest("the request names no host"))?;
    let extended = parts.extensions.remove::<Protocol>();
    if parts.method == Method::CONNECT && extended.is_none() {
        return Err(Error::BadRequest("a preview is no proxy"));
    }
    let asked = match &extended {
        Some(protocol) => HeaderValue::from_str(protocol.as_str()).ok(),
        None => wants_upgrade(&parts.headers),
    };
    let upgrade = asked.and_then(|protocol| {
        let client = parts.extensions.remove::<OnUpgrade>()?;
        Some(Upgrade { client, protocol, extended: extended.is_some() })
    });
    headers::to_service(&mut parts.headers, &host, sender, form);
    if let Some(upgrade) = &upgrade {
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        parts.headers.insert(header::UPGRADE, upgrade.protocol.clone());
        if upgrade.extended {
            parts.method = Method::GET;
            let mut nonce = [0; 16];
            // It proves nothing here: both ends are ours, or have agreed already.
            let _ = getrandom::fill(&mut nonce);
            let key = base64::engine::general_purpose::STANDARD.encode(nonce);
            parts.headers.extend(HeaderValue::try_from(key).ok().map(|key| (header::SEC_WEBSOCKET_KEY, key)));
        }
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = match form {
        Form::Host => path,
        Form::Path { prefix } => path.strip_prefix(prefix.as_str()).filter(|rest| rest.starts_with('/')).unwrap_or("/"),
    };
    let uri = if is_grpc(&parts.headers) {
        // HTTP/2 has it in the target, and a second one could differ.
        parts.headers.remove(header::HOST);
        format!("http://{}{path}", host.to_str().unwrap_or("localhost"))
    } else {
        path.to_owned()
    };
    parts.uri = Uri::try_from(uri).map_err(|_| Error::BadRequest("the path cannot be passed on"))?;
    parts.version = Version::HTTP_11;
    Ok((Request::from_parts(parts, body), upgrade))
}

/// What `Connection: upgrade` asks for.
fn wants_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get_all(header::CONNECTION).iter().any(|value| {
        value.to_str().is_ok_and(|text| text.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")))
    });
    headers.get(header::UPGRADE).filter(|value| asked && !value.as_bytes().eq_ignore_ascii_case(b"h2c")).cloned()
}

/// gRPC is HTTP/2 all the way, and its services speak nothing else: they are met with it in the clear, unasked. Its kin for
/// browsers (`application/grpc-web`) is made for HTTP/1.1.
fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let (kind, rest) = value.as_bytes().split_at(value.len().min(GRPC.len()));
        kind.eq_ignore_ascii_case(GRPC) && matches!(rest, [] | [b'+' | b';' | b' ', ..])
    })
}

/// Waits for an answer and keeps the sandbox awake meanwhile, but not for ever: who only waits for news looks the same.
async fn held<T>(access: Access, answer: impl Future<Output = T>) -> T {
    let idle = access.row().policy.idle_timeout.and_then(|idle| Duration::try_from(idle).ok());
    let mut answer = std::pin::pin!(answer);
    if let Ok(answer) = tokio::time::timeout(idle.unwrap_or_default().max(PATIENCE), &mut answer).await {
        return answer;
    }
    drop(access);
    answer.await
}

/// The answer to an upgrade that the service agrees to.
fn switched(mut theirs: HeaderMap, upgrade: &Upgrade, form: &Form) -> Response<Body> {
    let protocol = theirs.get(header::UPGRADE).cloned().unwrap_or_else(|| upgrade.protocol.clone());
    headers::to_client(&mut theirs, form);
    let mut answer = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    if upgrade.extended {
        theirs.remove(header::SEC_WEBSOCKET_ACCEPT);
    } else {
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        theirs.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        theirs.insert(header::UPGRADE, protocol);
    }
    *answer.headers_mut() = theirs;
    answer
}

fn bad_answer(place: &Place, error: &hyper::Error, grpc: bool) -> Error {
    let mut detail = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        detail = format!("{detail}: {source}");
    }
    if grpc {
        detail = format!("to gRPC, which is HTTP/2 in the clear: {detail}");
    }
    let detail = detail.chars().filter(|c| !c.is_control()).take(300).collect();
    Error::BadAnswer { id: place.id.clone(), port: place.port, detail }
}

/// A body on its way through, either way; of an answer's, the connection is needed for as long as it is.
struct Passing<B> {
    body: B,
    _line: Option<DropGuard>,
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Passing<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map(tame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Trailers are no way around what was decided about headers.
fn tame(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            headers::at_the_end(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_from_its_kin() {
        let is = |kind: &'static str| {
            is_grpc(&HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]))
        };
        for kind in ["application/grpc", "application/grpc+proto", "Application/gRPC; x=1"] {
            assert!(is(kind), "{kind}");
        }
        for kind in ["application/grpc-web", "application/grpc-web+proto", "application/grpcx", "application/json", ""]
        {
            assert!(!is(kind), "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn requests_for_grpc_name_their_host_once() {
        let ask = |kind: &str| {
            let request = Request::post("/a.B/C?x=1").header("host", "h:1").header("content-type", kind);
            let request = request.header("te", "trailers").body(()).unwrap();
            outgoing(request, &Sender::default(), &Form::Host).ok().unwrap().0
        };
        let grpc = ask("application/grpc");
        assert_eq!((grpc.uri().to_string().as_str(), grpc.headers().get("host")), ("http://h:1/a.B/C?x=1", None));
        assert_eq!(grpc.headers()["te"], "trailers");
        let plain = ask("application/grpc-web");
        assert!(plain.uri() == "/a.B/C?x=1" && plain.headers()["host"] == "h:1", "{plain:?}");
    }
}
