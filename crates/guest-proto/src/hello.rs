//! The hello that opens every channel: who speaks, and proof that both know the sandbox's secret.
//!
//! A restored guest finds bytes of dead connections in its port, and its new host finds megabytes of old output, so
//! each side throws away everything before the other's valid hello:
//!
//! ```text
//!   host  -> agent   magic(16) nonce(16) protocol(1) HMAC-SHA-256(secret, "h" + these)(32)
//!   agent -> host    magic(16) nonce(16) protocol(1) HMAC-SHA-256(secret, "a" + these)(32)     the host's nonce
//! ```
//!
//! The label gives the code a direction: a port that echoes the host's own hello never passes for an agent.
//! A hello that is cut off, forged or signed with another secret is garbage like any other; the wait for a valid one
//! needs a deadline, which is the caller's.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// First bytes of every hello.
pub const MAGIC: [u8; 16] = *b"wakeful-channel\n";
/// The protocol that this build speaks. The lower number of the two sides holds.
pub const PROTOCOL: u8 = 2;
/// Bytes of a hello.
pub const LENGTH: usize = HEAD + 32;
/// Bytes of a channel's secret.
pub const SECRET: usize = 32;

const HEAD: usize = 16 + 16 + 1;

/// Who sends a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The machine outside, which connects.
    Host,
    /// The agent inside, which answers.
    Agent,
}

/// What an authentic hello says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Chosen by the host for this connection; the agent's answer repeats it.
    pub nonce: [u8; 16],
    /// The highest protocol that the sender speaks.
    pub protocol: u8,
}

fn code(side: Side, secret: &[u8; SECRET], head: &[u8]) -> Hmac<Sha256> {
    let mut code = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
    code.update(match side {
        Side::Host => b"h",
        Side::Agent => b"a",
    });
    code.update(head);
    code
}

/// The bytes that `side` sends.
#[must_use]
pub fn encode(side: Side, secret: &[u8; SECRET], hello: &Hello) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..16].copy_from_slice(&MAGIC);
    bytes[16..32].copy_from_slice(&hello.nonce);
    bytes[32] = hello.protocol;
    let code = code(side, secret, &bytes[..HEAD]).finalize().into_bytes();
    bytes[HEAD..].copy_from_slice(&code);
    bytes
}

/// What `bytes` say, if `side` wrote them with this secret. The comparison takes the same time for every code.
#[must_use]
pub fn decode(side: Side, secret: &[u8; SECRET], bytes: &[u8; LENGTH]) -> Option<Hello> {
    if bytes[..16] != MAGIC {
        return None;
    }
    code(side, secret, &bytes[..HEAD]).verify_slice(&bytes[HEAD..]).ok()?;
    let mut nonce = [0; 16];
    nonce.copy_from_slice(&bytes[16..32]);
    Some(Hello { nonce, protocol: bytes[32] })
}

/// Finds the other side's hello in a stream that may begin with anything.
///
/// Holds at most [`LENGTH`] - 1 bytes between two calls, however long the garbage is.
#[derive(Debug)]
pub struct Scanner {
    side: Side,
    /// The bytes from the first place on where a hello may still begin.
    kept: Vec<u8>,
    dropped: u64,
}

/// A hello, and how much of the bytes just fed belongs to it or to the garbage before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it says.
    pub hello: Hello,
    /// The rest of the fed bytes begins here.
    pub consumed: usize,
}

impl Scanner {
    /// Looks for a hello that `side` sends.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, kept: Vec::new(), dropped: 0 }
    }

    /// Bytes thrown away so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes the next bytes of the stream. After a find the scanner is empty again.
    pub fn feed(&mut self, secret: &[u8; SECRET], bytes: &[u8]) -> Option<Found> {
        let before = self.kept.len();
        self.kept.extend_from_slice(bytes);
        let mut at = 0;
        while at < self.kept.len() {
            let rest = &self.kept[at..];
            let head = rest.len().min(MAGIC.len());
            if rest[..head] != MAGIC[..head] {
                at += 1;
            } else if let Some(candidate) = rest.first_chunk::<LENGTH>() {
                if let Some(hello) = decode(self.side, secret, candidate) {
                    self.dropped += at as u64;
                    self.kept.clear();
                    // It ends in the new bytes: had it ended before them, the last call would have found it.
                    return Some(Found { hello, consumed: at + LENGTH - before });
                }
                at += 1;
            } else {
                break;
            }
        }
        self.dropped += at as u64;
        self.kept.drain(..at);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET_A: [u8; SECRET] = [7; SECRET];
    const SECRET_B: [u8; SECRET] = [8; SECRET];

    fn garbage() -> impl Strategy<Value = Vec<u8>> {
        // Plain noise, and noise made of what looks like a hello.
        let piece = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..80),
            (0..=16_usize).prop_map(|n| MAGIC[..n].to_vec()),
            (0..40_usize)
                .prop_map(|n| encode(Side::Host, &SECRET_A, &Hello { nonce: [3; 16], protocol: 1 })[..n].to_vec()),
            Just(encode(Side::Host, &SECRET_B, &Hello { nonce: [4; 16], protocol: 1 }).to_vec()),
            Just(encode(Side::Agent, &SECRET_A, &Hello { nonce: [5; 16], protocol: 1 }).to_vec()),
        ];
        proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    /// Feeds `stream` cut at `cuts`; the find and the offset in the whole stream where it ended.
    fn scan(stream: &[u8], cuts: &[usize]) -> Option<(Hello, usize)> {
        let mut scanner = Scanner::new(Side::Host);
        let mut at = 0;
        let mut ends: Vec<usize> = cuts.iter().map(|c| c % (stream.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(stream.len());
        for end in ends {
            if let Some(found) = scanner.feed(&SECRET_A, &stream[at..end]) {
                assert!(found.consumed <= end - at);
                return Some((found.hello, at + found.consumed));
            }
            assert!(scanner.kept.len() < LENGTH);
            at = end;
        }
        assert_eq!(scanner.dropped() as usize + scanner.kept.len(), stream.len());
        None
    }

    proptest! {
        #[test]
        fn found_behind_any_garbage_and_cut_anywhere(
            before in garbage(), nonce: [u8; 16], protocol: u8, after in garbage(), cuts in proptest::collection::vec(any::<usize>(), 0..12),
        ) {
            let hello = Hello { nonce, protocol };
            let stream = [&before[..], &encode(Side::Host, &SECRET_A, &hello)[..], &after[..]].concat();
            prop_assert_eq!(scan(&stream, &cuts), Some((hello, before.len() + LENGTH)));
        }

        #[test]
        fn nothing_is_found_in_garbage(before in garbage(), cuts in proptest::collection::vec(any::<usize>(), 0..12)) {
            prop_assert_eq!(scan(&before, &cuts), None);
        }

        #[test]
        fn any_flipped_bit_is_refused(nonce: [u8; 16], bit in 0..LENGTH * 8) {
            let mut bytes = encode(Side::Agent, &SECRET_A, &Hello { nonce, protocol: PROTOCOL });
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode(Side::Agent, &SECRET_A, &bytes), None);
        }
    }

    #[test]
    fn an_echo_and_a_wrong_secret_are_refused() {
        let hello = Hello { nonce: [1; 16], protocol: PROTOCOL };
        let bytes = encode(Side::Host, &SECRET_A, &hello);
        assert_eq!(decode(Side::Host, &SECRET_A, &bytes), Some(hello));
        assert_eq!(decode(Side::Agent, &SECRET_A, &bytes), None);
        assert_eq!(decode(Side::Host, &SECRET_B, &bytes), None);
    }

    #[test]
    fn a_hello_that_lost_its_connection_does_not_swallow_the_next() {
        let hello = Hello { nonce: [9; 16], protocol: PROTOCOL };
        let bytes = encode(Side::Host, &SECRET_A, &hello);
        for cut in 0..LENGTH {
            let mut scanner = Scanner::new(Side::Host);
            assert_eq!(scanner.feed(&SECRET_A, &bytes[..cut]), None);
            let found = scanner.feed(&SECRET_A, &bytes);
            assert_eq!(found, Some(Found { hello, consumed: LENGTH }), "cut at {cut}");
        }
    }
}
