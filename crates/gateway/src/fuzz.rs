//! The readers of what clients and services send, open to any bytes. For `crates/fuzz` only.

use std::net::{IpAddr, Ipv4Addr};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use wakeful_model::SandboxId;

use crate::frames::{Cutter, Piece, pong};
use crate::{COOKIE, Form, Grant, Host, Sender, Sessions, headers};

/// A host name under a domain, with a line feed between.
///
/// # Panics
/// If a name stands for a port, and what we would call that port is another name.
pub fn host(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (domain, host) = text.split_once('\n').unwrap_or(("localhost", text));
    if let Host::Preview { id, port } = Host::read(host, domain) {
        let ours = format!("{port}-{}.{domain}", id.bare());
        let theirs = host.split_once(':').map_or(host, |(name, _)| name);
        let theirs = theirs.strip_suffix('.').unwrap_or(theirs);
        assert!(port > 0 && ours.eq_ignore_ascii_case(theirs), "{host:?} is not {ours:?}");
        // A last dot is not of the domain.
        assert!(domain.ends_with('.') || Host::read(&ours, domain) == Host::Preview { id, port }, "{ours:?}");
    }
}

/// Lines of headers, as many as there are; the first byte says how they came.
#[must_use]
pub fn read_headers(bytes: &[u8]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').take(200) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(line[..colon].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii())) {
            map.append(name, value);
        }
    }
    map
}

/// The headers of a request, of its answer, and of what ends either.
///
/// # Panics
/// If something passes that must not.
pub fn pass(bytes: &[u8]) {
    let (how, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let form = if how & 1 == 0 { Form::Host } else { Form::Path { prefix: "/p".into() } };
    let address = if how & 2 == 0 { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(192, 0, 2, 1) };
    let sender = Sender { address: Some(IpAddr::V4(address)), secure: how & 4 != 0 };
    let original = read_headers(bytes);

    let mut asked = original.clone();
    headers::to_service(&mut asked, &HeaderValue::from_static("h:1"), &sender, &form);
    no_hops(&asked);
    let all = |headers: &HeaderMap, name: &str| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
    assert_eq!(all(&asked, "host"), ["h:1"]);
    assert!(all(&asked, "te").iter().all(|te| te == "trailers") && !asked.contains_key(header::EXPECT));
    let both = original.contains_key(header::TRANSFER_ENCODING) && asked.contains_key(header::CONTENT_LENGTH);
    assert!(!both, "two lengths");
    assert_eq!(all(&asked, "x-forwarded-for").len(), 1);
    if !address.is_loopback() {
        assert_eq!(all(&asked, "x-forwarded-for"), ["192.0.2.1"]);
        assert_eq!(all(&asked, "x-forwarded-host"), ["h:1"]);
        assert_eq!(all(&asked, "x-forwarded-proto"), [if sender.secure { "https" } else { "http" }]);
    }
    let cookies = all(&asked, "cookie");
    assert!(cookies.len() <= usize::from(form == Form::Host), "{cookies:?}");
    for pair in cookies.iter().flat_map(|cookie| cookie.as_bytes().split(|byte| *byte == b';')) {
        assert_ne!(named(pair), COOKIE.as_bytes());
    }

    let mut answer = original.clone();
    headers::to_client(&mut answer, &form);
    no_hops(&answer);
    let set = all(&answer, "set-cookie");
    assert!(form == Form::Host || set.is_empty(), "a cookie of a shared origin");
    for cookie in &set {
        let mut parts = cookie.as_bytes().split(|byte| *byte == b';').map(named);
        assert_ne!(parts.next(), Some(COOKIE.as_bytes()));
        assert!(!parts.any(|part| part.eq_ignore_ascii_case(b"domain")), "{cookie:?}");
    }
    if form != Form::Host {
        let first = answer.get(header::CONTENT_SECURITY_POLICY);
        assert!(first.is_some_and(|policy| policy.as_bytes().starts_with(b"sandbox")), "{first:?}");
    }

    let mut end = original;
    headers::at_the_end(&mut end);
    no_hops(&end);
    for never in ["authorization", "x-api-key", "cookie", "set-cookie", "host", "content-length", "x-forwarded-for"] {
        assert!(!end.contains_key(never), "{never} at the end");
    }
}

fn named(pair: &[u8]) -> &[u8] {
    pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii()
}

fn no_hops(headers: &HeaderMap) {
    for name in headers.keys().map(HeaderName::as_str) {
        let hop = ["connection", "keep-alive", "transfer-encoding", "upgrade", "proxy-authorization"].contains(&name);
        assert!(!hop && !name.starts_with("x-wakeful-"), "{name}");
    }
}

/// One direction of a WebSocket.
///
/// # Panics
/// If bytes are changed, or other frames are found when they come in other pieces.
pub fn frames(bytes: &[u8]) {
    let piece = usize::from(bytes.first().copied().unwrap_or(0)) % 97 + 1;
    assert_eq!(cut(bytes, bytes.len().max(1)), cut(bytes, piece), "in pieces of {piece}");
}

/// All bytes that came out, the control frames among them, and whether it ends inside a frame.
fn cut(bytes: &[u8], piece: usize) -> (Vec<u8>, Vec<Piece>, bool) {
    let (mut cutter, mut out, mut control) = (Cutter::default(), Vec::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        cutter.buffer().extend_from_slice(piece);
        while let Some(piece) = cutter.next() {
            assert!(!piece.bytes().is_empty(), "a piece of nothing");
            out.extend_from_slice(piece.bytes());
            match piece {
                Piece::Message(_) => {}
                Piece::Ping { ref payload, .. } => {
                    let answer = pong(payload);
                    assert!(payload.len() <= 125 && answer[2..] == payload[..], "not what was asked");
                    control.push(piece);
                }
                Piece::Pong(_) | Piece::Close(_) => control.push(piece),
            }
        }
    }
    assert!(bytes.starts_with(&out), "bytes were changed");
    // At most a control frame's worth, or a header, is waited for.
    assert!(bytes.len() - out.len() < 140, "{} bytes are held back", bytes.len() - out.len());
    (out, control, cutter.is_inside())
}

const SECRET: &[u8] = b"of the fuzz targets";
const ID: &str = "sbx_k3v7q2m5x6a4b2c7d5ef";

fn grant() -> Grant {
    let id: SandboxId = ID.parse().expect("an id");
    Grant { id, port: 3000, by: "key_x".into() }
}

/// A cookie that is good, for seeds.
#[must_use]
pub fn good_cookie() -> Vec<u8> {
    // Until the year 2100.
    Sessions::new(Some(SECRET)).cookie(&grant(), 4_102_444_800).into_bytes()
}

/// What a browser shows to come in.
///
/// # Panics
/// If it is let in for more than was signed, or by a ticket that nobody gave out.
pub fn cookie(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (sessions, signed) = (Sessions::new(Some(SECRET)), grant());
    if let Some(found) = sessions.check(text, &signed.id, signed.port) {
        assert_eq!(found, signed);
    }
    assert_eq!(sessions.check(text, &signed.id, 3001), None, "it is of another port");
    assert_eq!(sessions.redeem(text, &signed.id, signed.port), None);
}
