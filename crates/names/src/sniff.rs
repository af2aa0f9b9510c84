//! What a client's first bytes are, and which host they name.
//!
//! Pure functions over bytes that a hostile guest chose: they allocate no more than they were given, and never panic.
//! Telling that something *is* HTTP or TLS is lenient, reading it is strict: what a lax server could take for another
//! host than we do must not pass.

pub(crate) mod http;
pub(crate) mod tls;

pub use http::{Body, Head};
pub use tls::Hello;

/// How many first bytes are looked at.
pub(crate) const LONGEST: usize = 16 * 1024;

/// Which protocol was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TLS records.
    Tls,
    /// HTTP in clear text.
    Http,
}

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// Not enough to tell.
    NeedMore,
    /// A whole TLS ClientHello.
    Tls(Hello),
    /// A whole HTTP/1.x request head.
    Http(Head),
    /// Something else.
    Other,
    /// TLS or HTTP that is broken, ambiguous, or of a version that cannot be checked.
    Bad(Protocol, &'static str),
}

/// Tells what the first bytes of a connection are. An answer other than `NeedMore` stays the same with more bytes
/// (but for the words of a `Bad`).
#[must_use]
pub fn sniff(bytes: &[u8]) -> Sniffed {
    match bytes {
        [] | [22] => Sniffed::NeedMore,
        [22, 3, ..] => match tls::hello(bytes) {
            Ok(Some(hello)) => Sniffed::Tls(hello),
            Ok(None) => Sniffed::NeedMore,
            Err(why) => Sniffed::Bad(Protocol::Tls, why),
        },
        _ => match http::looks_like(bytes) {
            Some(false) => Sniffed::Other,
            None => Sniffed::NeedMore,
            Some(true) => match http::head(bytes) {
                Ok(Some(head)) => Sniffed::Http(head),
                Ok(None) => Sniffed::NeedMore,
                Err(why) => Sniffed::Bad(Protocol::Http, why),
            },
        },
    }
}

/// A host's name in lower case without a last dot, if it is one (or an IPv4 address, which looks alike).
#[must_use]
pub fn clean_name(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.strip_suffix(b".").unwrap_or(bytes);
    let label = |label: &[u8]| {
        (1..=63).contains(&label.len()) && label.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-' || *b == b'_')
    };
    if bytes.len() > 253 || !bytes.split(|b| *b == b'.').all(label) {
        return None;
    }
    std::str::from_utf8(bytes).ok().map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn protocols_without_a_name_are_told_apart() {
        for other in [
            &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
            b"EHLO me\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
            b"AMQP\x00\x00\x09\x01",
            b"003egit-upload-pack /x\0host=y\0",
            b"{\"a\":1}\n",
            b"\x16\x02",
            b"OPTIONS rtsp://x RTSP/1.0\r\n\r\n",
        ] {
            assert_eq!(sniff(other), Sniffed::Other, "{:?}", other.escape_ascii().to_string());
        }
        assert!(matches!(sniff(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Sniffed::Bad(Protocol::Http, _)));
        assert!(matches!(sniff(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), Sniffed::Bad(Protocol::Http, _)));
    }

    #[test]
    fn names_are_cleaned() {
        assert_eq!(clean_name(b"A.Example.org."), Some("a.example.org".into()));
        for bad in [&b""[..], b".", b"a..b", b"a b", b"\xc3\xa9.org", b"[::1]", b"a/b", b"a.org..", b"a\0b"] {
            assert_eq!(clean_name(bad), None, "{}", bad.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived_and_the_answer_stays(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut settled: Option<Sniffed> = None;
            for end in 0..=bytes.len() {
                let now = match sniff(&bytes[..end]) {
                    Sniffed::Bad(protocol, _) => Sniffed::Bad(protocol, ""),
                    other => other,
                };
                if let Some(before) = &settled {
                    prop_assert_eq!(before, &now);
                } else if now != Sniffed::NeedMore {
                    settled = Some(now);
                }
            }
        }
    }
}
