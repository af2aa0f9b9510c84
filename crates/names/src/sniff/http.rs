//! HTTP/1.x requests, as far as their host and their length go (RFC 9112).
//!
//! Servers differ in what they make of odd requests, and the differences are what smuggling lives on. So whatever has
//! two readings is refused: two hosts, two lengths, a length beside chunks, lone line feeds, folded lines.

use super::clean_name;

const MOST_HEADERS: usize = 128;
const LONGEST_EXTENSION: u32 = 256;
const LONGEST_TRAILERS: u32 = 8 * 1024;

/// What a request head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The host, lower case, without port and last dot.
    pub host: String,
    /// How many bytes the head has.
    pub length: usize,
    /// What follows it.
    pub body: Body,
    /// Whether it asks to go on as a WebSocket.
    pub websocket: bool,
}

/// What is still to come of a request's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks, until the last.
    Chunked(Chunks),
}

/// Where in a chunked body we are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunks(At);

#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Size {
        digits: u32,
        size: u64,
    },
    Extension {
        size: u64,
        length: u32,
    },
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// Before, in, and at the end of a trailer's line; `length` counts all of them together.
    Trailer {
        length: u32,
        empty: bool,
    },
    TrailerEnd {
        length: u32,
        empty: bool,
    },
    Done,
}

impl Default for At {
    fn default() -> Self {
        Self::Size { digits: 0, size: 0 }
    }
}

impl Body {
    /// Whether nothing is to come any more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunks(At::Done)))
    }

    /// How many of these bytes belong to the body; goes forward by as many.
    ///
    /// # Errors
    /// If the chunks are not written as the standard has them.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        match self {
            Self::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                Ok(taken)
            }
            Self::Chunked(chunks) => {
                let mut taken = 0;
                while taken < bytes.len() && chunks.0 != At::Done {
                    if let At::Data { left } = &mut chunks.0 {
                        let skipped = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - taken);
                        *left -= skipped as u64;
                        taken += skipped;
                        if *left == 0 {
                            chunks.0 = At::DataCr;
                        }
                    } else {
                        chunks.0 = chunks.0.step(bytes[taken])?;
                        taken += 1;
                    }
                }
                Ok(taken)
            }
        }
    }
}

impl At {
    fn step(&self, byte: u8) -> Result<Self, &'static str> {
        Ok(match (self, byte) {
            (Self::Size { digits: 1.., size }, b'\r') => Self::SizeEnd { size: *size },
            (Self::Size { digits: 1.., size }, b';') => Self::Extension { size: *size, length: 0 },
            (Self::Size { digits, size }, byte) => {
                let digit = char::from(byte).to_digit(16).ok_or("a chunk has no length")?;
                // Fifteen digits never overflow, and are more than anyone sends.
                if *digits >= 15 {
                    return Err("a chunk's length is too long");
                }
                Self::Size { digits: digits + 1, size: size * 16 + u64::from(digit) }
            }
            (Self::Extension { size, .. }, b'\r') => Self::SizeEnd { size: *size },
            (Self::Extension { size, length }, b'\t' | 0x20..=0x7e) if *length < LONGEST_EXTENSION => {
                Self::Extension { size: *size, length: length + 1 }
            }
            (Self::SizeEnd { size: 0 }, b'\n') => Self::Trailer { length: 0, empty: true },
            (Self::SizeEnd { size }, b'\n') => Self::Data { left: *size },
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::default(),
            (Self::Trailer { length, empty }, b'\r') => Self::TrailerEnd { length: *length, empty: *empty },
            (Self::Trailer { length, .. }, b'\t' | 0x20..=0x7e | 0x80..) if *length < LONGEST_TRAILERS => {
                Self::Trailer { length: length + 1, empty: false }
            }
            (Self::TrailerEnd { empty: true, .. }, b'\n') => Self::Done,
            (Self::TrailerEnd { length, .. }, b'\n') => Self::Trailer { length: length + 1, empty: true },
            _ => return Err("the chunks are not sound"),
        })
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether a server could take this for HTTP; `None` if there is too little to tell.
pub(crate) fn looks_like(bytes: &[u8]) -> Option<bool> {
    let first = bytes.iter().position(|b| !matches!(b, b'\r' | b'\n'));
    let line = &bytes[first?..];
    if !is_token(line[0]) {
        return Some(false);
    }
    let control = |b: &u8| (*b < 0x20 && !matches!(b, b'\t' | b'\r')) || *b == 0x7f;
    match line.iter().position(control) {
        Some(end) if line[end] == b'\n' => {
            let version = line[..end]
                .windows(6)
                .any(|w| matches!(w[0], b' ' | b'\t' | b'\r') && w[1..5].eq_ignore_ascii_case(b"HTTP") && w[5] == b'/');
            Some(version)
        }
        Some(_) => Some(false),
        None => None,
    }
}

/// Reads a request head; `None` if there are too few bytes yet.
pub(crate) fn head(bytes: &[u8]) -> Result<Option<Head>, &'static str> {
    for (at, byte) in bytes.iter().enumerate() {
        // Lines end with both. The last byte is looked at when its successor is there.
        match byte {
            b'\n' if at == 0 || bytes[at - 1] != b'\r' => return Err("a line feed stands alone"),
            b'\r' if bytes.get(at + 1).is_some_and(|next| *next != b'\n') => {
                return Err("a carriage return stands alone");
            }
            b'\n' if bytes[..at].ends_with(b"\r\n\r") || at == 1 => break,
            _ => {}
        }
    }
    if bytes.first().is_some_and(|first| !is_token(*first)) {
        return Err("no request begins like this");
    }
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() >= super::LONGEST => return Err("the head is too long"),
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::Version) => return Err("only HTTP/1.0 and HTTP/1.1 can be checked"),
        Err(_) => return Err("the head is not sound"),
    };
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err("the head is not sound");
    };
    let only = |name: &str| {
        let mut found = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        match (found.next(), found.next()) {
            (one, None) => Ok(one.map(|header| header.value)),
            _ => Err("a header that may come once came twice"),
        }
    };
    let host = authority(only("host")?.ok_or("there is no Host")?)?;
    if target_host(method, target)?.is_some_and(|named| named != host) {
        return Err("the target and the Host name different hosts");
    }
    let body = match (only("transfer-encoding")?, only("content-length")?) {
        (Some(_), Some(_)) => return Err("there is a length beside chunks"),
        (Some(coding), None) if minor == 1 && coding.eq_ignore_ascii_case(b"chunked") => {
            Body::Chunked(Chunks::default())
        }
        (Some(_), None) => return Err("only chunks are a transfer coding that can be followed"),
        (None, Some(digits)) => Body::Length(content_length(digits)?),
        (None, None) => Body::Length(0),
    };
    let websocket = only("upgrade")?.is_some_and(|to| to.eq_ignore_ascii_case(b"websocket"));
    Ok(Some(Head { host, length, body, websocket }))
}

fn content_length(digits: &[u8]) -> Result<u64, &'static str> {
    let plain = (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(digits).ok().filter(|_| plain).and_then(|text| text.parse().ok());
    number.ok_or("the length is no number")
}

/// The host of `host` or `host:port`.
fn authority(text: &[u8]) -> Result<String, &'static str> {
    let host = match text.iter().position(|b| *b == b':') {
        Some(at) if text.len() - at <= 6 && text[at + 1..].iter().all(u8::is_ascii_digit) => &text[..at],
        Some(_) => return Err("the Host is no host name"),
        None => text,
    };
    clean_name(host).ok_or("the Host is no host name")
}

/// The host that a request's target names, if it names one.
fn target_host(method: &str, target: &str) -> Result<Option<String>, &'static str> {
    if method.eq_ignore_ascii_case("CONNECT") {
        return Err("CONNECT is not proxied");
    }
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok(None);
    }
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let rest =
        scheme.map(|scheme| &target[scheme.len()..]).ok_or("the target is neither a path nor an http address")?;
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    authority(&rest.as_bytes()[..end]).map(Some)
}

/// Whether a server's first bytes switch to a WebSocket; `None` if there are too few to tell.
pub(crate) fn switches(mut bytes: &[u8]) -> Option<bool> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        match (response.parse(bytes), response.code) {
            (Ok(httparse::Status::Complete(_)), Some(101)) => return Some(true),
            // Others below 200 only announce that the answer is on its way.
            (Ok(httparse::Status::Complete(length)), Some(100..200)) => bytes = &bytes[length..],
            (Ok(httparse::Status::Partial), _) => return None,
            _ => return Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sniff::{Protocol, Sniffed, sniff};
    use proptest::prelude::*;

    fn of(text: &str) -> Result<Option<Head>, &'static str> {
        head(text.as_bytes())
    }

    fn host(text: &str) -> String {
        of(text).expect("is sound").expect("is whole").host
    }

    #[test]
    fn the_host_is_read() {
        assert_eq!(host("GET / HTTP/1.1\r\nHost: A.org\r\n\r\n"), "a.org");
        assert_eq!(host("GET / HTTP/1.0\r\nx: y\r\nhOsT: a.org.:8080\r\n\r\n"), "a.org");
        assert_eq!(host("GET http://a.org:80/x HTTP/1.1\r\nHost: a.org\r\n\r\n"), "a.org");
        assert_eq!(host("GET HTTP://A.org HTTP/1.1\r\nHost: a.org:\r\n\r\n"), "a.org");
        assert_eq!(host("OPTIONS * HTTP/1.1\r\nHost: a.org\r\n\r\n"), "a.org");
        assert_eq!(host("GET //evil.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n"), "a.org");
    }

    #[test]
    fn what_has_two_readings_is_refused() {
        for bad in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org\r\nhost: a.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org, b.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org@b.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org:80:90\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a.org\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.org\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\nHost: a.org\n\n",
            "GET / HTTP/1.1\r\nHost: a.org\r\n\n",
            "GET / HTTP/1.1\r\nHost: a.org\rHost: b.org\r\n\r\n",
            "GET http://b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
            "GET http://a.org@b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
            "GET http://a.org\\@b.org/ HTTP/1.1\r\nHost: b.org\r\n\r\n",
            "GET https://b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
            "GET b.org HTTP/1.1\r\nHost: a.org\r\n\r\n",
            "CONNECT b.org:443 HTTP/1.1\r\nHost: b.org\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: +3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 3,3\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding:\x0bchunked\r\n\r\n",
            "POST / HTTP/1.0\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.2\r\nHost: a.org\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: a.org\r\n\r\n",
            "GET /\tx HTTP/1.1\r\nHost: a.org\r\n\r\n",
        ] {
            assert!(of(bad).is_err(), "{bad:?} {:?}", of(bad));
            assert!(matches!(sniff(bad.as_bytes()), Sniffed::Bad(Protocol::Http, _)), "{bad:?}");
        }
    }

    #[test]
    fn heads_are_bounded_and_may_come_in_parts() {
        let whole = "POST /x HTTP/1.1\r\nHost: a.org\r\nContent-Length: 5\r\n\r\n";
        for end in 1..whole.len() {
            assert_eq!(sniff(&whole.as_bytes()[..end]), Sniffed::NeedMore, "{end}");
        }
        let expected = Head { host: "a.org".into(), length: whole.len(), body: Body::Length(5), websocket: false };
        assert_eq!(sniff(format!("{whole}hello\rGET").as_bytes()), Sniffed::Http(expected));
        let long = format!("GET / HTTP/1.1\r\nHost: a.org\r\nx: {}", "y".repeat(crate::sniff::LONGEST));
        assert!(of(&long).is_err());
        let many = format!("GET / HTTP/1.1\r\nHost: a.org\r\n{}\r\n", "x: y\r\n".repeat(200));
        assert!(of(&many).is_err());
    }

    fn whole_body(mut body: Body, bytes: &[u8], step: usize) -> Result<usize, &'static str> {
        let mut taken = 0;
        while taken < bytes.len() && !body.is_done() {
            let end = bytes.len().min(taken + step);
            taken += body.advance(&bytes[taken..end])?;
        }
        if body.is_done() { Ok(taken) } else { Err("not done") }
    }

    #[test]
    fn bodies_end_where_they_end() {
        let chunks = b"5\r\nhello\r\n00a;x=\"y\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
        let chunked = || Body::Chunked(Chunks::default());
        for step in 1..chunks.len() + 9 {
            assert_eq!(whole_body(chunked(), &[&chunks[..], b"GET / "].concat(), step), Ok(chunks.len()));
            assert_eq!(whole_body(Body::Length(7), b"0123456789", step), Ok(7));
        }
        for bad in [
            &b"\r\n"[..],
            b"5\nhello\r\n0\r\n\r\n",
            b"5\r\nhello0\r\n\r\n",
            b"5 \r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"-1\r\n",
            b"ffffffffffffffff\r\n",
            b"5;a\nb\r\nhello\r\n0\r\n\r\n",
            b"0\r\nTrailer: x\n\r\n",
            b"0\r\n\n",
        ] {
            assert!(whole_body(chunked(), bad, 3).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn a_switch_is_seen_behind_announcements() {
        assert_eq!(switches(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"), Some(true));
        assert_eq!(switches(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 x\r\n\r\n"), Some(true));
        assert_eq!(switches(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 1"), None);
        assert_eq!(switches(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 x\r\n\r\n"), Some(false));
        assert_eq!(switches(b"220 smtp\r\n"), Some(false));
    }

    proptest! {
        #[test]
        fn changed_heads_are_survived(
            at in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let mut bytes = b"POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n".to_vec();
            for (index, byte) in at {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            let mut settled: Option<Sniffed> = None;
            for end in 0..=bytes.len() {
                let now = match sniff(&bytes[..end]) {
                    Sniffed::Bad(protocol, _) => Sniffed::Bad(protocol, ""),
                    other => other,
                };
                match &settled {
                    Some(before) => prop_assert_eq!(before, &now),
                    None if now != Sniffed::NeedMore => settled = Some(now),
                    None => {}
                }
            }
            let _ = switches(&bytes);
        }

        #[test]
        fn any_chunks_are_survived(bytes in proptest::collection::vec(prop_oneof![
            any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b'0'), Just(b'3'), Just(b';')
        ], 0..200)) {
            let mut body = Body::Chunked(Chunks::default());
            let taken = body.advance(&bytes);
            prop_assert!(taken.is_err() || taken == Ok(bytes.len()) || body.is_done());
        }
    }
}
