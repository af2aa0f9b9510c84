//! Just enough of RFC 6455 to tell messages from pings, on a stream that is only passed through.

use bytes::{Bytes, BytesMut};

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// Longest payload of a control frame.
const CONTROL: u64 = 125;

/// A close frame that says: going away.
pub(crate) const GOING_AWAY: &[u8] = &[0x88, 2, 0x03, 0xe9];

/// What came next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Of a message, or of something that we do not understand.
    Message(Bytes),
    /// The whole frame, and its payload in the clear.
    Ping { frame: Bytes, payload: Bytes },
    /// The whole frame.
    Pong(Bytes),
    /// The whole frame.
    Close(Bytes),
}

impl Piece {
    /// As it came.
    pub(crate) fn bytes(&self) -> &Bytes {
        match self {
            Self::Message(bytes) | Self::Pong(bytes) | Self::Close(bytes) | Self::Ping { frame: bytes, .. } => bytes,
        }
    }

    /// Whether it is a sign of somebody, and not of a program that keeps a connection open.
    pub(crate) fn means_something(&self) -> bool {
        matches!(self, Self::Message(_) | Self::Close(_))
    }
}

/// Cuts one direction of a WebSocket into pieces.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    buffer: BytesMut,
    /// What is still to come of a message's frame.
    left: u64,
}

impl Cutter {
    /// Where what comes next is read to.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Whether a frame has begun of which the rest was not seen yet.
    pub(crate) fn is_inside(&self) -> bool {
        self.left > 0
    }

    /// The next piece of what was read; `None` if more must be read first.
    pub(crate) fn next(&mut self) -> Option<Piece> {
        if self.left > 0 {
            let length = self.buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= length as u64;
            return (length > 0).then(|| Piece::Message(self.buffer.split_to(length).freeze()));
        }
        let (head, length, mask) = header(&self.buffer)?;
        let opcode = self.buffer[0] & 0x0f;
        if !matches!(opcode, CLOSE | PING | PONG) || length > CONTROL {
            // Its header is passed on with the first of its payload.
            self.left = length;
            let first = head + self.buffer[head..].len().min(usize::try_from(length).unwrap_or(usize::MAX));
            self.left -= (first - head) as u64;
            return Some(Piece::Message(self.buffer.split_to(first).freeze()));
        }
        let whole = head + usize::try_from(length).unwrap_or(usize::MAX);
        if self.buffer.len() < whole {
            return None;
        }
        let frame = self.buffer.split_to(whole).freeze();
        Some(match opcode {
            PING => {
                let mask = mask.unwrap_or_default();
                let clear = frame[head..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
                Piece::Ping { frame, payload: clear }
            }
            PONG => Piece::Pong(frame),
            _ => Piece::Close(frame),
        })
    }
}

/// How long a header is, how long its payload, and its mask; `None` if it is not all there.
fn header(bytes: &[u8]) -> Option<(usize, u64, Option<[u8; 4]>)> {
    let (&second, masked) = (bytes.get(1)?, bytes.get(1)? & 0x80 != 0);
    let (length, mut head) = match second & 0x7f {
        126 => (u64::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
        127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?), 10),
        short => (u64::from(short), 2),
    };
    let mask = if masked {
        head += 4;
        Some(bytes.get(head - 4..head)?.try_into().ok()?)
    } else {
        None
    };
    Some((head, length, mask))
}

/// A server's answer to a ping.
pub(crate) fn pong(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | PONG, u8::try_from(payload.len().min(125)).unwrap_or(125)];
    frame.extend_from_slice(&payload[..payload.len().min(125)]);
    frame
}

const _: () = assert!(CONTINUATION < BINARY && BINARY < CLOSE, "control frames have the higher numbers");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
        let mut bytes = vec![0x80 | opcode];
        let bit = if mask.is_some() { 0x80 } else { 0 };
        match payload.len() {
            short @ 0..126 => bytes.push(bit | u8::try_from(short).unwrap()),
            long @ 126..65536 => {
                bytes.push(bit | 126);
                bytes.extend(u16::try_from(long).unwrap().to_be_bytes());
            }
            longer => {
                bytes.push(bit | 127);
                bytes.extend((longer as u64).to_be_bytes());
            }
        }
        let mask_bytes = mask.unwrap_or_default();
        bytes.extend(mask.into_iter().flatten());
        bytes.extend(payload.iter().zip(mask_bytes.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    #[test]
    fn pings_are_told_from_messages() {
        let mut cutter = Cutter::default();
        let ping = frame(PING, b"are you there", Some([1, 2, 3, 4]));
        cutter.buffer().extend_from_slice(&ping[..5]);
        assert_eq!(cutter.next(), None);
        cutter.buffer().extend_from_slice(&ping[5..]);
        let Some(Piece::Ping { frame: whole, payload }) = cutter.next() else { panic!("a ping") };
        assert_eq!((&whole[..], &payload[..]), (&ping[..], &b"are you there"[..]));
        assert_eq!(pong(&payload), frame(PONG, b"are you there", None));
        let text = frame(1, &[7; 300], None);
        cutter.buffer().extend_from_slice(&text[..100]);
        assert_eq!(cutter.next().unwrap().bytes(), &text[..100]);
        assert!(cutter.is_inside() && cutter.next().is_none());
        cutter.buffer().extend_from_slice(&text[100..]);
        assert_eq!(cutter.next().unwrap().bytes(), &text[100..]);
        assert!(!cutter.is_inside());
        cutter.buffer().extend_from_slice(GOING_AWAY);
        assert!(matches!(cutter.next(), Some(Piece::Close(_))));
    }

    proptest! {
        /// Whatever comes, in whatever pieces: it is passed on unchanged.
        #[test]
        fn nothing_is_changed(
            frames in prop::collection::vec((0u8..16, prop::collection::vec(any::<u8>(), 0..400), any::<Option<[u8; 4]>>()), 0..8),
            cuts in prop::collection::vec(1usize..97, 1..40),
        ) {
            let all: Vec<u8> = frames.iter().flat_map(|(opcode, payload, mask)| frame(*opcode, payload, *mask)).collect();
            let (mut cutter, mut out, mut rest) = (Cutter::default(), Vec::new(), &all[..]);
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at(rest.len().min(*cut));
                rest = after;
                cutter.buffer().extend_from_slice(piece);
                while let Some(piece) = cutter.next() {
                    out.extend_from_slice(piece.bytes());
                }
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert!(out == all && !cutter.is_inside());
        }

        #[test]
        fn any_bytes_end_somewhere(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut cutter = Cutter::default();
            cutter.buffer().extend_from_slice(&bytes);
            let mut out = Vec::new();
            while let Some(piece) = cutter.next() {
                prop_assert!(!piece.bytes().is_empty());
                out.extend_from_slice(piece.bytes());
            }
            prop_assert!(bytes.starts_with(&out));
        }
    }
}
