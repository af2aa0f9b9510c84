//! What comes through the channel from a hostile guest.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wakeful_guest_client::{Exec, Guest, TunnelId};
use wakeful_guest_proto::control::{ENTROPY, Restore};
use wakeful_guest_proto::hello::{self, Hello, LENGTH, MAGIC, Scanner, Side};
use wakeful_guest_proto::{connect_rpc, filesystem, process};

const SECRET: [u8; 32] = [7; 32];
/// Everything below is in memory: what takes longer hangs.
const PROMPT: Duration = Duration::from_secs(20);

/// Garbage and hellos in one stream: however it is cut into reads, the same hellos are found, and little is kept.
pub(crate) fn hello(bytes: &[u8]) {
    let whole = scan(bytes, bytes.len().max(1));
    // The first byte says how the stream is cut.
    let piece = usize::from(bytes.first().copied().unwrap_or(0)) % 80 + 1;
    assert_eq!(whole, scan(bytes, piece), "in pieces of {piece}");
}

fn scan(bytes: &[u8], piece: usize) -> Vec<Hello> {
    let mut scanner = Scanner::new(Side::Agent);
    let (mut found, mut used) = (Vec::new(), 0);
    for chunk in bytes.chunks(piece) {
        let mut rest = chunk;
        while let Some(next) = scanner.feed(&SECRET, rest) {
            rest = &rest[next.consumed..];
            found.push(next.hello);
        }
        used += chunk.len();
        assert!(scanner.dropped() <= used as u64, "more was dropped than came");
    }
    found
}

/// A valid hello, for seeds.
pub(crate) fn signed(nonce: u8) -> [u8; LENGTH] {
    let bytes = hello::encode(Side::Agent, &SECRET, &Hello { nonce: [nonce; 16], protocol: hello::PROTOCOL });
    debug_assert_eq!(bytes[..16], MAGIC);
    bytes
}

/// The frames of a streamed answer, and every message that may be in one.
pub(crate) fn stream_frames(bytes: &[u8]) {
    let mut decoder = connect_rpc::Decoder::default();
    for chunk in bytes.chunks(usize::from(bytes.first().copied().unwrap_or(0)) + 1) {
        decoder.feed(chunk);
        while let Ok(Some(frame)) = decoder.frame() {
            let _ = serde_json::from_slice::<process::StartResponse>(&frame.payload);
            let _ = serde_json::from_slice::<process::StartRequest>(&frame.payload);
            let _ = serde_json::from_slice::<process::ListResponse>(&frame.payload);
            let _ = serde_json::from_slice::<filesystem::ListDirResponse>(&frame.payload);
        }
    }
}

/// An agent that answers every call with something else: the bytes are cut into answers, each with a status, a few
/// headers that matter to readers, and a body.
pub(crate) fn agent_answers(bytes: &[u8]) {
    let answers: Arc<[Answer]> = bytes.split(|byte| *byte == 0x1e).map(Answer::read).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let talk = async {
        let (ours, mut guests) = tokio::io::duplex(64 << 10);
        let agent = async {
            let mut hello = [0; LENGTH];
            guests.read_exact(&mut hello).await.ok()?;
            let asked = hello::decode(Side::Host, &SECRET, &hello)?;
            let answer = Hello { nonce: asked.nonce, protocol: hello::PROTOCOL };
            guests.write_all(&hello::encode(Side::Agent, &SECRET, &answer)).await.ok()?;
            let next = AtomicUsize::new(0);
            let serve = service_fn(|_: Request<Incoming>| {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                let answer = answers[nth % answers.len()].response();
                async move { Ok::<_, Infallible>(answer) }
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.serve_connection(TokioIo::new(guests), serve).await.ok()
        };
        let host = async {
            let Ok(guest) = Guest::connect(ours, &SECRET, PROMPT).await else { return };
            every_call(&guest).await;
            guest.close().await;
        };
        tokio::select! {
            _ = agent => {}
            () = host => {}
        }
    };
    runtime.block_on(async { tokio::time::timeout(3 * PROMPT, talk).await }).expect("every call ends");
}

async fn every_call(guest: &Guest) {
    let mut exec = Exec::shell("true");
    (exec.timeout, exec.output_limit) = (Some(Duration::from_secs(1)), 1000);
    if let Ok(output) = guest.exec(&exec).await {
        assert!(output.stdout.len() <= 1000 && output.stderr.len() <= 1000, "more than was asked for");
    }
    let _ = guest.restore(&Restore::new(1, &[0; ENTROPY])).await;
    let _ = guest.version().await;
    let _ = guest.metrics().await;
    let _ = guest.envs().await;
    let _ = guest.processes().await;
    let _ = guest.quiesce(PROMPT).await;
    if let Ok(entries) = guest.list("/").await {
        assert!(entries.iter().all(|entry| !entry.name.contains('\0')), "a name with NUL");
    }
    let (target, id) = (SocketAddr::from(([127, 0, 0, 1], 80)), TunnelId([7; 16]));
    let _ = guest.open_tunnel(target, id, PROMPT).await;
    let _ = guest.resume_tunnel(target, id, 12, PROMPT).await;
    let _ = guest.stat("/etc").await;
    let _ = guest.head("/etc/passwd").await;
    if let Ok((_, mut file)) = guest.read("/etc/passwd", Some("bytes=0-9")).await {
        while let Some(Ok(_)) = file.next().await {}
    }
}

struct Answer {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl Answer {
    /// `status 0x1f name 0x1f value 0x1f … body`.
    fn read(bytes: &[u8]) -> Self {
        let mut parts: Vec<&[u8]> = bytes.split(|byte| *byte == 0x1f).collect();
        let body = Bytes::copy_from_slice(parts.pop().unwrap_or_default());
        let mut parts = parts.into_iter();
        let status = parts.next().and_then(|text| StatusCode::from_bytes(text).ok()).unwrap_or(StatusCode::OK);
        let mut headers = Vec::new();
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                headers.push((name, value));
            }
        }
        Self { status, headers, body }
    }

    fn response(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body.clone()));
        // Anything below is no answer but an interim one, which a server of this kind cannot send by itself.
        *response.status_mut() = if self.status.is_informational() { StatusCode::OK } else { self.status };
        response.headers_mut().extend(self.headers.iter().cloned());
        response
    }
}
