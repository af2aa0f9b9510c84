//! `/run/wakeful.sock`: HTTP/1.1 for every program inside, whoever runs it.
//!
//! ```text
//!   PUT    /lease {"ttl":"60s","name":"build"}     204   taken or renewed; "while_running":true binds it to the caller
//!                                                      ("pid":12 says who that is where the kernel does not: gVisor)
//!   DELETE /lease/build                            204   given back, also if there is none
//!   GET    /lease                                  200   {"leases":[{"name","ttl_ms","since_ms"}]}
//! ```

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::Pid;
use serde::Deserialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::{Refused, parse_duration};
use crate::body::{self, Body};
use crate::context::Context;

/// Where programs find it.
pub(crate) const PATH: &str = "/run/wakeful.sock";
/// Connections at one time.
const CONNECTIONS: usize = 32;
/// A request is a line of JSON.
const REQUEST_LIMIT: usize = 4096;
/// A connection that takes longer than this with a request is not coming.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a failed accept, which mostly means that descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves the socket.
///
/// # Errors
/// When it cannot be made.
pub(crate) async fn serve(context: Arc<Context>, path: &Path) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    // Whoever runs in the sandbox may say that it works; that is all one can do here.
    std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let context = Arc::clone(&context);
                context.tasks.clone().spawn(async move {
                    program(context, stream).await;
                    drop(place);
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn program(context: Arc<Context>, stream: UnixStream) {
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()).and_then(Pid::from_raw);
    // gVisor says that everybody is whoever asks.
    let pid = pid.filter(|pid| *pid != rustix::process::getpid());
    let service = service_fn(move |request| {
        let context = Arc::clone(&context);
        async move { Ok::<_, io::Error>(answer(&context, pid, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    // It broke off or spoke nonsense; it knows that itself.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(context: &Context, pid: Option<Pid>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/lease") => body::json(StatusCode::OK, &serde_json::json!({"leases": context.leases.list()})),
        (&Method::PUT, "/lease") => match read(request).await {
            Ok(ask) => take(context, pid, &ask),
            Err(refusal) => refusal,
        },
        (&Method::DELETE, path) if path.starts_with("/lease/") => {
            context.leases.drop(&path["/lease/".len()..]);
            body::status(StatusCode::NO_CONTENT)
        }
        (_, path) if path == "/lease" || path.starts_with("/lease/") => {
            body::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed")
        }
        _ => body::error(StatusCode::NOT_FOUND, "no such route"),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    ttl: Ttl,
    #[serde(default = "default_name")]
    name: String,
    #[serde(default)]
    while_running: bool,
    #[serde(default)]
    pid: Option<i32>,
}

/// As durations are in the contract.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ttl {
    Seconds(u64),
    Text(String),
}

fn default_name() -> String {
    "default".to_owned()
}

async fn read(request: Request<Incoming>) -> Result<Ask, Response<Body>> {
    let refuse = |why: String| body::error(StatusCode::BAD_REQUEST, &why);
    let collected = timeout(PATIENCE, Limited::new(request.into_body(), REQUEST_LIMIT).collect()).await;
    let collected = collected.map_err(|_| refuse("the request did not arrive".to_owned()))?;
    let bytes = collected.map_err(|error| refuse(format!("body: {error}")))?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| refuse(format!("body: {error}")))
}

fn take(context: &Context, pid: Option<Pid>, ask: &Ask) -> Response<Body> {
    let ttl = match &ask.ttl {
        Ttl::Seconds(seconds) => Some(Duration::from_secs(*seconds)),
        Ttl::Text(text) => parse_duration(text),
    };
    let Some(ttl) = ttl else { return body::error(StatusCode::BAD_REQUEST, &Refused::Ttl.to_string()) };
    let process = match (ask.while_running, pid.or_else(|| ask.pid.filter(|pid| *pid > 0).and_then(Pid::from_raw))) {
        (false, _) => None,
        (true, Some(pid)) => Some(pid),
        (true, None) => {
            return body::error(StatusCode::BAD_REQUEST, "who asks is not known here: say which process by \"pid\"");
        }
    };
    match context.leases.take(&ask.name, ttl, process) {
        Ok(()) => body::status(StatusCode::NO_CONTENT),
        Err(error @ Refused::TooMany) => body::error(StatusCode::TOO_MANY_REQUESTS, &error.to_string()),
        Err(error) => body::error(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}
