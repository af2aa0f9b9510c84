//! A server of the test's own before a real registry: it sees every request, and may answer, cut or spoil it.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::serve::Listener;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn blob(&self) -> bool {
        self.path.contains("/blobs/")
    }
}

/// What becomes of a request.
pub(crate) enum Act {
    /// The registry answers.
    Forward,
    /// The registry answers, but after so many bytes of the body the connection is cut.
    Cut(usize),
    /// The registry answers as if no range had been asked for.
    Whole,
    /// The registry answers, with the body turned into something else.
    Change(fn(Vec<u8>) -> Vec<u8>),
    /// The front answers.
    Answer(Response),
}

type Rule = dyn Fn(&Seen) -> Act + Send + Sync;

pub(crate) struct Front {
    pub(crate) host: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    _tasks: JoinSet<()>,
}

impl Front {
    pub(crate) async fn start(upstream: &str, rule: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        Self::serve(listener, host, upstream, rule)
    }

    pub(crate) async fn with_tls(
        acceptor: TlsAcceptor,
        upstream: &str,
        rule: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = inner.local_addr().unwrap().to_string();
        Self::serve(Tls { inner, acceptor }, host, upstream, rule)
    }

    fn serve<L>(listener: L, host: String, upstream: &str, rule: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self
    where
        L: Listener,
        L::Addr: std::fmt::Debug,
    {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, upstream, rule): (_, String, Arc<Rule>) = (Arc::clone(&seen), upstream.into(), Arc::new(rule));
        let router = Router::new().fallback(move |request: Request| {
            let (log, upstream, rule) = (Arc::clone(&log), upstream.clone(), Arc::clone(&rule));
            async move { Ok::<_, Infallible>(answer(request, &log, &upstream, &*rule).await) }
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self { host, seen, _tasks: tasks }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn blob_requests(&self) -> usize {
        self.seen().iter().filter(|seen| seen.blob()).count()
    }
}

async fn answer(request: Request, log: &Mutex<Vec<Seen>>, upstream: &str, rule: &Rule) -> Response {
    let seen = Seen {
        path: request.uri().path().into(),
        query: request.uri().query().unwrap_or_default().into(),
        headers: request.headers().clone(),
    };
    log.lock().unwrap().push(seen.clone());
    let act = rule(&seen);
    let act = match act {
        Act::Answer(response) => return response,
        other => other,
    };
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut forward = client.get(format!("http://{upstream}{}?{}", seen.path, seen.query));
    for name in ["accept", "authorization", "range"] {
        if let Some(value) = seen.header(name).filter(|_| !(name == "range" && matches!(act, Act::Whole))) {
            forward = forward.header(name, value);
        }
    }
    let reply = forward.send().await.unwrap();
    let mut response = Response::builder().status(reply.status());
    for name in ["content-type", "content-length", "content-range", "docker-content-digest", "www-authenticate"] {
        if let Some(value) =
            reply.headers().get(name).filter(|_| !(name == "content-length" && matches!(act, Act::Change(_))))
        {
            response = response.header(name, value);
        }
    }
    let body = match act {
        Act::Cut(after) => {
            let all = reply.bytes().await.unwrap();
            let part = all.slice(..after.min(all.len()));
            // The part first, alone, so that some of it is on its way when the connection is cut.
            let pieces: Vec<io::Result<Bytes>> = vec![Ok(part), Err(io::Error::other("cut"))];
            let pieces = futures_util::stream::iter(pieces).then(|piece| async {
                if piece.is_err() {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                piece
            });
            Body::from_stream(pieces)
        }
        Act::Change(change) => Body::from(change(reply.bytes().await.unwrap().to_vec())),
        _ => Body::from_stream(reply.bytes_stream()),
    };
    response.body(body).unwrap()
}

/// Where a range begins.
pub(crate) fn start_of(range: &str) -> usize {
    range.strip_prefix("bytes=").and_then(|rest| rest.strip_suffix('-')).unwrap().parse().unwrap()
}

/// An answer without content.
pub(crate) fn empty(status: u16, headers: &[(&'static str, &str)]) -> Act {
    let mut response = Response::builder().status(StatusCode::from_u16(status).unwrap());
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Act::Answer(response.body(Body::empty()).unwrap())
}

pub(crate) fn text(status: u16, body: impl Into<Body>) -> Act {
    Act::Answer(Response::builder().status(StatusCode::from_u16(status).unwrap()).body(body.into()).unwrap())
}

struct Tls {
    inner: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            if let Ok((stream, address)) = self.inner.accept().await
                && let Ok(stream) = self.acceptor.accept(stream).await
            {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A certificate for loopback, as PEM, and its key; it is its own authority.
pub(crate) fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned(), "localhost".into()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

pub(crate) fn acceptor(certificate: &str, key: &str) -> TlsAcceptor {
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}
