//! gRPC and trailers through previews.
//!
//! The service is hyper, in this process; where it is reached is inside. A relay there joins whoever comes to its port to a
//! connection that the service has brought in by `port-forward`:
//!
//! ```text
//!   client ── gateway ══ 127.0.0.1:4000 ─ relay ─ 127.0.0.1:4001 ══ port-forward ── service
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::port_forward::Forward;
use crate::previews::Place;
use crate::support::wait_for;
use crate::wire::{SOON, background};

const RELAY: &str = "
import socket, threading
def copy(one, other):
    try:
        while data := one.recv(65536): other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        for end in one, other:
            try: end.shutdown(socket.SHUT_RDWR)
            except OSError: pass
front, back = socket.create_server(('127.0.0.1', 4000)), socket.create_server(('127.0.0.1', 4001))
print('listening', flush=True)
while True:
    one, other = front.accept()[0], back.accept()[0]
    for pair in (one, other), (other, one): threading.Thread(target=copy, args=pair, daemon=True).start()
";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body of what is sent.
fn body(mut pieces: mpsc::Receiver<Frame<Bytes>>) -> Body {
    let pieces = futures_util::stream::poll_fn(move |context| pieces.poll_recv(context).map(|piece| piece.map(Ok)));
    StreamBody::new(pieces).boxed_unsync()
}

/// A body of these pieces.
fn whole(pieces: Vec<Frame<Bytes>>) -> Body {
    StreamBody::new(futures_util::stream::iter(pieces.into_iter().map(Ok))).boxed_unsync()
}

fn trailers(pairs: &[(&'static str, &str)]) -> Result<Frame<Bytes>> {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.insert(*name, HeaderValue::try_from(*value)?);
    }
    Ok(Frame::trailers(map))
}

/// A message as gRPC has it: not compressed, its length, itself.
fn message(text: &str) -> Frame<Bytes> {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(text.as_bytes());
    Frame::data(bytes.into())
}

/// The messages of a body, and what comes at its end.
struct Messages {
    body: Incoming,
    buffer: Vec<u8>,
    trailers: HeaderMap,
}

impl Messages {
    fn of(body: Incoming) -> Self {
        Self { body, buffer: Vec::new(), trailers: HeaderMap::new() }
    }

    async fn next(&mut self) -> Result<Option<String>> {
        loop {
            if let [0, a, b, c, d, rest @ ..] = self.buffer.as_slice()
                && let Some(text) = rest.get(..u32::from_be_bytes([*a, *b, *c, *d]) as usize)
            {
                let text = String::from_utf8(text.to_vec())?;
                self.buffer.drain(..5 + text.len());
                return Ok(Some(text));
            }
            let Some(frame) = timeout(SOON, self.body.frame()).await.context("the body is silent")? else {
                ensure!(self.buffer.is_empty(), "it ends in the middle of a message");
                return Ok(None);
            };
            match frame?.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => self.trailers.extend(frame.into_trailers().ok().into_iter().flatten()),
            }
        }
    }

    fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.get(name).and_then(|value| value.to_str().ok())
    }
}

fn told(headers: &HeaderMap) -> Value {
    headers.iter().map(|(name, value)| (name.to_string(), json!(value.to_str().unwrap_or("?")))).collect()
}

/// What it was sent, in the answer; and trailers, some of which are none of its business.
async fn unary(request: Request<Incoming>) -> Result<Response<Body>> {
    let (parts, asked) = request.into_parts();
    let mut asked = Messages::of(asked);
    let mut heard = Vec::new();
    while let Some(text) = asked.next().await? {
        heard.push(text);
    }
    let told = json!({
        "version": format!("{:?}", parts.version),
        "target": parts.uri.to_string(),
        "headers": told(&parts.headers),
        "trailers": told(&asked.trailers),
        "heard": heard,
    });
    let end = trailers(&[
        ("grpc-status", "0"),
        ("grpc-message", "fine"),
        ("set-cookie", "wakeful_preview=evil"),
        ("x-wakeful-x", "1"),
    ])?;
    let answer = Response::builder().header("content-type", "application/grpc");
    Ok(answer.body(whole(vec![message(&told.to_string()), end]))?)
}

/// Answers each message as it comes.
async fn chat(request: Request<Incoming>, say: mpsc::Sender<Frame<Bytes>>) -> Result<()> {
    let mut asked = Messages::of(request.into_body());
    let mut count = 0;
    while let Some(text) = asked.next().await? {
        count += 1;
        say.send(message(&format!("{count}:{text}"))).await?;
    }
    say.send(trailers(&[("grpc-status", "0"), ("x-count", &count.to_string())])?).await?;
    Ok(())
}

async fn serve(request: Request<Incoming>, chats: TaskTracker) -> Result<Response<Body>> {
    match request.uri().path() {
        "/test.Service/Unary" => unary(request).await,
        "/test.Service/Chat" => {
            let (say, said) = mpsc::channel(1);
            let answer = Response::builder().header("content-type", "application/grpc").body(body(said))?;
            // It ends with its request.
            chats.spawn(chat(request, say));
            Ok(answer)
        }
        "/chunks" => {
            let pieces = vec![Frame::data("one, ".into()), Frame::data("two".into())];
            let end = trailers(&[("x-sum", "2"), ("x-unnamed", "1")])?;
            let answer = Response::builder().header("trailer", "x-sum");
            Ok(answer.body(whole(pieces.into_iter().chain([end]).collect()))?)
        }
        // The answer is its end, as where there is no such method.
        _ => {
            let answer = Response::builder().header("content-type", "application/grpc");
            let answer = answer.header("grpc-status", "12").header("grpc-message", "no such method");
            Ok(answer.body(whole(Vec::new()))?)
        }
    }
}

/// One connection after the other.
async fn offer(at: SocketAddr) {
    let chats = TaskTracker::new();
    while let Ok(stream) = TcpStream::connect(at).await {
        let service = service_fn(|request| serve(request, chats.clone()));
        let serving = Builder::new(TokioExecutor::new());
        // What breaks a connection shows at its other end.
        let _ = serving.serve_connection(TokioIo::new(stream), service).await;
    }
}

struct Service {
    place: Place,
    _forward: Forward,
    tasks: JoinSet<()>,
}

impl Service {
    async fn start() -> Result<Self> {
        let place = Place::start(json!({})).await?;
        let pid = background(&place.daemon, &place.id, json!({"command": ["python3", "-c", RELAY]})).await?;
        let client = place.daemon.client()?;
        wait_for("the relay", SOON, || async { Ok(client.process(&place.id, pid).await?.last_seq > 0) }).await?;
        let forward = Forward::start(&place.daemon, &[&place.id, ":4001"]).await?;
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            tasks.spawn(offer(*forward.at.first().context("an address")?));
        }
        Ok(Self { place, _forward: forward, tasks })
    }

    fn host(&self) -> String {
        self.place.host().replacen("3000", "4000", 1)
    }

    async fn http2(&mut self) -> Result<http2::SendRequest<Body>> {
        let stream = TcpStream::connect(self.place.address()?).await?;
        let (send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        self.tasks.spawn(async move { drop(connection.await) });
        Ok(send)
    }

    fn call(&self, method: &str, body: Body) -> Result<Request<Body>> {
        let request = Request::post(format!("http://{}/test.Service/{method}", self.host()));
        Ok(request.header("content-type", "application/grpc+proto").header("te", "trailers").body(body)?)
    }
}

#[tokio::test]
async fn calls_of_both_kinds() -> Result<()> {
    let mut service = Service::start().await?;
    let mut send = service.http2().await?;

    let secret = format!("wkf_{}", "a".repeat(40));
    let end = trailers(&[("x-end", "1"), ("x-api-key", &secret), ("authorization", &secret)])?;
    let request = service.call("Unary", whole(vec![message("hello"), end]))?;
    let response = timeout(SOON, send.send_request(request)).await??;
    ensure!((response.version(), response.status().as_u16()) == (Version::HTTP_2, 200), "{response:?}");
    let mut answer = Messages::of(response.into_body());
    let told: Value = serde_json::from_str(&answer.next().await?.context("a message")?)?;
    ensure!(told["version"] == "HTTP/2.0" && told["heard"] == json!(["hello"]), "{told}");
    ensure!(told["target"] == format!("http://{}/test.Service/Unary", service.host()), "{told}");
    ensure!(told["headers"]["te"] == "trailers" && told["headers"]["content-type"] == "application/grpc+proto");
    ensure!(told["trailers"] == json!({"x-end": "1"}) && !told.to_string().contains(&secret), "{told}");
    ensure!(answer.next().await?.is_none());
    ensure!(answer.trailer("grpc-status") == Some("0") && answer.trailer("grpc-message") == Some("fine"));
    ensure!(answer.trailers.len() == 2, "{:?}", answer.trailers);

    // Both talk at once: each answer comes before the next question.
    let (say, said) = mpsc::channel(1);
    let response = timeout(SOON, send.send_request(service.call("Chat", body(said))?)).await??;
    let mut answer = Messages::of(response.into_body());
    for (nth, text) in ["one", "two", &"z".repeat(300_000)].into_iter().enumerate() {
        say.send(message(text)).await?;
        ensure!(answer.next().await?.context("an answer")? == format!("{}:{text}", nth + 1));
    }
    drop(say);
    ensure!(answer.next().await?.is_none());
    ensure!(answer.trailer("grpc-status") == Some("0") && answer.trailer("x-count") == Some("3"));

    let response = timeout(SOON, send.send_request(service.call("Nonsense", whole(vec![message("x")]))?)).await??;
    ensure!(response.headers()["grpc-status"] == "12", "{response:?}");
    ensure!(Messages::of(response.into_body()).next().await?.is_none());
    Ok(())
}

#[tokio::test]
async fn trailers_of_a_service_with_http1() -> Result<()> {
    let mut service = Service::start().await?;
    let (host, address) = (service.host(), service.place.address()?);
    // To HTTP/1.1: what `Trailer` names, for those who want it.
    for wanted in [true, false] {
        let (mut send, connection) = http1::handshake(TokioIo::new(TcpStream::connect(address).await?)).await?;
        service.tasks.spawn(async move { drop(connection.await) });
        let mut request = Request::get("/chunks").header("host", &host);
        if wanted {
            request = request.header("te", "trailers");
        }
        let response = timeout(SOON, send.send_request(request.body(Empty::<Bytes>::new())?)).await??;
        ensure!(response.headers()["trailer"] == "x-sum" && response.version() == Version::HTTP_11, "{response:?}");
        let answer = timeout(SOON, response.into_body().collect()).await??;
        let sum = answer.trailers().cloned().unwrap_or_default();
        ensure!(sum.get("x-sum").is_some() == wanted && !sum.contains_key("x-unnamed"), "{sum:?}");
        ensure!(answer.to_bytes() == "one, two");
    }
    // And to HTTP/2.
    let mut send = service.http2().await?;
    let request = Request::get(format!("http://{host}/chunks")).header("te", "trailers").body(whole(Vec::new()))?;
    let response = timeout(SOON, send.send_request(request)).await??;
    let answer = timeout(SOON, response.into_body().collect()).await??;
    ensure!(answer.trailers().is_some_and(|trailers| trailers["x-sum"] == "2"), "{:?}", answer.trailers());
    ensure!(answer.to_bytes() == "one, two");
    Ok(())
}
