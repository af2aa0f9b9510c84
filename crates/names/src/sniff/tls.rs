//! The ClientHello, as far as its names go (RFC 8446, 6066, 9849).

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const LONGEST_RECORD: usize = 1 << 14;

const SERVER_NAME: u16 = 0;
/// Encrypted client hello, and the two numbers that its drafts had.
const HIDING: [u16; 3] = [0xfe0d, 0xff02, 0xffce];

/// SHA-256 of "HelloRetryRequest": the random of a ServerHello that is none, but asks for another ClientHello.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// What a ClientHello says about the host it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The server's name, lower case, without a last dot.
    pub name: Option<String>,
    /// Whether another ClientHello is encrypted inside it.
    pub hides: bool,
    /// How many bytes its records have.
    pub length: usize,
}

/// What a server's first bytes ask of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    NeedMore,
    /// To begin again with another ClientHello.
    Retry,
    /// Anything else.
    Other,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("the ClientHello is cut short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<usize, &'static str> {
        Ok(usize::from(self.take(1)?[0]))
    }

    fn u16(&mut self) -> Result<u16, &'static str> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn vector16(&mut self) -> Result<Reader<'a>, &'static str> {
        let length = usize::from(self.u16()?);
        self.take(length).map(Reader)
    }

    fn vector8(&mut self) -> Result<Reader<'a>, &'static str> {
        let length = self.u8()?;
        self.take(length).map(Reader)
    }
}

/// Reads a ClientHello out of TLS records; `None` if there are too few bytes yet.
pub(crate) fn hello(bytes: &[u8]) -> Result<Option<Hello>, &'static str> {
    let mut message = Vec::new();
    // How long the message would be with the last record whole.
    let mut promised = 0;
    let mut rest = bytes;
    loop {
        if message.len() >= 4 {
            if message[0] != CLIENT_HELLO {
                return Err("the first handshake message is no ClientHello");
            }
            let length = 4 + usize::from(message[1]) * 65536 + usize::from(message[2]) * 256 + usize::from(message[3]);
            if length > super::LONGEST {
                return Err("the ClientHello is too long");
            }
            if promised > length {
                return Err("something follows the ClientHello in its record");
            }
            if message.len() >= length {
                return parse(&message[4..length], bytes.len() - rest.len()).map(Some);
            }
        }
        if promised > message.len() {
            return Ok(None);
        }
        let [kind, major, tail @ ..] = rest else { return Ok(None) };
        if *kind != HANDSHAKE || *major != 3 {
            return Err("the records are no handshake");
        }
        let [_minor, high, low, fragment @ ..] = tail else { return Ok(None) };
        let length = usize::from(*high) * 256 + usize::from(*low);
        if length == 0 || length > LONGEST_RECORD {
            return Err("a record has an impossible length");
        }
        promised += length;
        let here = length.min(fragment.len());
        message.extend_from_slice(&fragment[..here]);
        rest = &fragment[here..];
    }
}

fn parse(body: &[u8], length: usize) -> Result<Hello, &'static str> {
    let mut body = Reader(body);
    let mut hello = Hello { name: None, hides: false, length };
    body.take(2 + 32)?;
    body.vector8()?;
    body.vector16()?;
    body.vector8()?;
    if body.0.is_empty() {
        return Ok(hello);
    }
    let mut extensions = body.vector16()?;
    if !body.0.is_empty() {
        return Err("something follows the extensions");
    }
    let mut named = false;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let content = extensions.vector16()?;
        if kind == SERVER_NAME {
            if std::mem::replace(&mut named, true) {
                return Err("there are two server names");
            }
            hello.name = Some(server_name(content)?);
        } else if HIDING.contains(&kind) {
            // The inner kind is a bare mark, which hides nothing.
            hello.hides |= content.0 != [1];
        }
    }
    Ok(hello)
}

fn server_name(mut content: Reader<'_>) -> Result<String, &'static str> {
    let mut list = content.vector16()?;
    let kind = list.u8()?;
    let name = list.vector16()?;
    if kind != 0 || !list.0.is_empty() || !content.0.is_empty() {
        return Err("there is not exactly one server name");
    }
    super::clean_name(name.0).ok_or("the server name is no host name")
}

/// Tells whether the server wants another ClientHello.
pub(crate) fn server_reply(bytes: &[u8]) -> Reply {
    // record: type, version(2), length(2); message: type, length(3), version(2), random(32)
    let expected = [(0, HANDSHAKE), (1, 3), (5, SERVER_HELLO)];
    if expected.iter().any(|(at, byte)| bytes.get(*at).is_some_and(|found| found != byte)) {
        return Reply::Other;
    }
    match bytes.get(11..43) {
        None => Reply::NeedMore,
        Some(random) if random == RETRY => Reply::Retry,
        Some(_) => Reply::Other,
    }
}

/// How many bytes the record at the front has that a client may send before its second ClientHello (the compatibility
/// mark, early data); `Ok(0)` if that hello begins here, `None` if there are too few bytes to tell.
pub(crate) fn before_second_hello(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    match bytes {
        [HANDSHAKE, ..] => Ok(Some(0)),
        [20 | 23, _, _, high, low, ..] => Ok(Some(5 + usize::from(*high) * 256 + usize::from(*low))),
        [] | [20 | 23, ..] => Ok(None),
        _ => Err("no second ClientHello came"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sniff::{Protocol, Sniffed, sniff};
    use proptest::prelude::*;

    fn sized16(content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).expect("short");
        [&length.to_be_bytes()[..], content].concat()
    }

    pub(crate) fn sni(name: &[u8]) -> Vec<u8> {
        let entry = [&[0][..], &sized16(name)].concat();
        [&[0, 0][..], &sized16(&sized16(&entry))].concat()
    }

    fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([2, 9, 9]);
        body.extend([0, 4, 0x13, 0x01, 0x13, 0x02]);
        body.extend([1, 0]);
        body.extend(sized16(&extensions.concat()));
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        [&[1][..], &length[1..], &body].concat()
    }

    fn records(message: &[u8], each: usize) -> Vec<u8> {
        message.chunks(each).flat_map(|part| [&[22, 3, 1][..], &sized16(part)].concat()).collect()
    }

    fn said(bytes: &[u8]) -> (Option<String>, bool, usize) {
        match sniff(bytes) {
            Sniffed::Tls(hello) => (hello.name, hello.hides, hello.length),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_name_is_found_however_the_hello_is_cut() {
        let grease = [&[0x0a, 0x0a][..], &sized16(&[0])].concat();
        let message = message(&[grease, sni(b"Api.Example.org"), [&[0, 43][..], &sized16(&[2, 3, 4])].concat()]);
        for each in 1..=message.len() {
            let bytes = records(&message, each);
            for end in 0..bytes.len() {
                assert_eq!(sniff(&bytes[..end]), Sniffed::NeedMore, "records of {each}, {end} bytes");
            }
            let expected = (Some("api.example.org".into()), false, bytes.len());
            assert_eq!(said(&bytes), expected);
            assert_eq!(said(&[&bytes[..], b"\x14\x03\x03\x00\x01\x01"].concat()), expected);
        }
    }

    #[test]
    fn what_hides_or_doubles_a_name_is_seen() {
        let bytes = |extensions: &[Vec<u8>]| records(&message(extensions), 9999);
        let hides = |extensions: &[Vec<u8>]| said(&bytes(extensions)).1;
        let extension = |kind: u16, content: &[u8]| [&kind.to_be_bytes()[..], &sized16(content)].concat();
        assert_eq!(said(&bytes(&[])).0, None);
        assert!(hides(&[sni(b"a.org"), extension(0xfe0d, &[0, 0, 1, 0, 1, 5])]));
        assert!(hides(&[extension(0xffce, &[0]), sni(b"a.org")]));
        assert!(hides(&[extension(0xfe0d, &[]), sni(b"a.org")]));
        assert!(!hides(&[extension(0xfe0d, &[1]), sni(b"a.org")]));
        for bad in [
            vec![sni(b"a.org"), sni(b"b.org")],
            vec![sni(b"")],
            vec![sni(b"a.org\0.b.org")],
            vec![extension(0, &[])],
            vec![extension(0, &[0, 3, 0, 0])],
            vec![extension(0, &[sized16(&[&[0][..], &sized16(b"a"), &[0], &sized16(b"b")].concat())].concat())],
            vec![vec![0, 0, 9]],
        ] {
            assert!(matches!(sniff(&bytes(&bad)), Sniffed::Bad(Protocol::Tls, _)), "{bad:?}");
        }
    }

    #[test]
    fn nothing_may_ride_along() {
        let one = message(&[sni(b"a.org")]);
        let two = records(&[one.clone(), message(&[sni(b"b.org")])].concat(), 9999);
        for end in 0..=two.len() {
            assert!(matches!(sniff(&two[..end]), Sniffed::NeedMore | Sniffed::Bad(..)));
        }
        assert!(matches!(sniff(&two), Sniffed::Bad(..)));
        assert!(matches!(sniff(b"\x16\x03\x01\x00\x00"), Sniffed::Bad(..)));
        assert!(matches!(sniff(b"\x16\x03\x01\x00\x04\x01\xff\xff\xff"), Sniffed::Bad(..)));
        assert!(matches!(sniff(b"\x16\x03\x01\x00\x04\x02\x00\x00\x10"), Sniffed::Bad(..)));
    }

    #[test]
    fn a_request_to_retry_is_seen() {
        let mut reply = vec![22, 3, 3, 0, 60, 2, 0, 0, 56, 3, 3];
        reply.extend(RETRY);
        for end in 0..reply.len() {
            assert_eq!(server_reply(&reply[..end]), Reply::NeedMore);
        }
        assert_eq!(server_reply(&reply), Reply::Retry);
        reply[20] ^= 1;
        assert_eq!(server_reply(&reply), Reply::Other);
        assert_eq!(server_reply(b"\x15"), Reply::Other);
    }

    proptest! {
        #[test]
        fn changed_bytes_are_survived(
            at in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            each in 1usize..200,
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = records(&message(&[sni(b"api.example.org"), vec![0xfe, 0x0d, 0, 1, 0]]), each);
            for (index, byte) in at {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            let _ = sniff(&bytes);
            let _ = sniff(&bytes[..cut.index(bytes.len())]);
        }
    }
}
