//! Connect's wire format, JSON codec only: what E2B clients speak to the agent and what the host speaks to it too.
//!
//! A unary call is plain HTTP with a JSON body. A stream is a row of frames:
//!
//! ```text
//! | flag u8 | length u32 big-endian | JSON |   flag 0: a message, flag 2: the end, with or without an error
//! ```
//!
//! The other side may be hostile, so a frame's length is checked against [`MAX_MESSAGE`] before anything is kept for it.

use serde::{Deserialize, Serialize};

/// The longest message that either side accepts, in a frame or as a unary body.
pub const MAX_MESSAGE: usize = 4 << 20;
/// The flag bit of the last frame of a stream.
pub const FLAG_END: u8 = 0x02;
/// Flag byte and length.
pub const FRAME_HEADER: usize = 5;
/// `Content-Type` of streams.
pub const STREAM_TYPE: &str = "application/connect+json";
/// `Content-Type` of unary calls.
pub const UNARY_TYPE: &str = "application/json";
/// A request that carries this header (any value) gets our optional fields in the answers. Strict protobuf parsers
/// refuse fields that they do not know, so E2B clients must not see them.
pub const NATIVE_HEADER: &str = "x-wakeful-native";
/// How long the call may take; on `Start` also how long the process may live.
pub const TIMEOUT_HEADER: &str = "connect-timeout-ms";
/// After how many seconds of silence a stream says that it is alive.
pub const KEEPALIVE_HEADER: &str = "keepalive-ping-interval";

/// Why a stream cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length above [`MAX_MESSAGE`].
    #[error("frame of {length} bytes is longer than {MAX_MESSAGE}")]
    TooLong {
        /// What the header says.
        length: u64,
    },
    /// A flag that we did not offer: compression or an unknown bit.
    #[error("frame has unsupported flags {0:#04x}")]
    Flags(u8),
    /// Bytes after the end frame.
    #[error("bytes after the end of the stream")]
    AfterEnd,
    /// The stream stopped inside a frame.
    #[error("stream ended in the middle of a frame")]
    Truncated,
}

/// One frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The last frame: its payload is an [`EndOfStream`].
    pub end: bool,
    /// The JSON text.
    pub payload: Vec<u8>,
}

/// Turns pieces of any size into frames. Feed, then call [`Decoder::frame`] until it has none.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    ended: bool,
}

impl Decoder {
    /// Takes the next piece of the stream.
    pub fn feed(&mut self, piece: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// A length, a flag or an order that the protocol forbids; the stream cannot be read on after that.
    pub fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.buffer[self.start..];
        if rest.is_empty() {
            return Ok(None);
        }
        if self.ended {
            return Err(FrameError::AfterEnd);
        }
        if rest[0] & !FLAG_END != 0 {
            return Err(FrameError::Flags(rest[0]));
        }
        let Some(header) = rest.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
        let [flag, length @ ..] = *header;
        let length = u32::from_be_bytes(length);
        if u64::from(length) > MAX_MESSAGE as u64 {
            return Err(FrameError::TooLong { length: u64::from(length) });
        }
        let Some(payload) = rest[FRAME_HEADER..].get(..length as usize) else { return Ok(None) };
        let frame = Frame { end: flag & FLAG_END != 0, payload: payload.to_vec() };
        self.start += FRAME_HEADER + length as usize;
        self.ended = frame.end;
        Ok(Some(frame))
    }

    /// Whether the end frame has been handed out.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// To be called when the bytes are over.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] if a part of a frame is left.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.start == self.buffer.len() { Ok(()) } else { Err(FrameError::Truncated) }
    }
}

/// A message frame around JSON text.
///
/// # Panics
/// If the payload is longer than a `u32` can say; what we send is far below [`MAX_MESSAGE`].
pub fn message_frame(payload: &[u8]) -> Vec<u8> {
    frame(0, payload)
}

/// A message frame around a value.
///
/// # Errors
/// If the value cannot be written as JSON.
pub fn json_frame<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    // Written in place behind the header: output chunks are the bulk of what the agent sends.
    let mut out = vec![0; FRAME_HEADER];
    serde_json::to_writer(&mut out, value)?;
    let length = u32::try_from(out.len() - FRAME_HEADER).expect("a message is far below 4 GiB");
    out[1..FRAME_HEADER].copy_from_slice(&length.to_be_bytes());
    Ok(out)
}

/// The last frame of a stream.
pub fn end_frame(error: Option<ErrorBody>) -> Vec<u8> {
    let payload = serde_json::to_vec(&EndOfStream { error }).unwrap_or_else(|_| b"{}".to_vec());
    frame(FLAG_END, &payload)
}

fn frame(flag: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a message is far below 4 GiB");
    let mut out = Vec::with_capacity(FRAME_HEADER + payload.len());
    out.push(flag);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// The payload of the end frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOfStream {
    /// Why the stream ended, unless it ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// Connect's error object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The kind of failure.
    #[serde(default)]
    pub code: Code,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// The exact reason, where the native surface tells it apart.
    #[serde(default, rename = "wakefulCode", skip_serializing_if = "Option::is_none")]
    pub wakeful_code: Option<WakefulCode>,
}

impl ErrorBody {
    /// An error without an exact reason.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), wakeful_code: None }
    }

    /// The same with its exact reason.
    #[must_use]
    pub fn because(mut self, reason: WakefulCode) -> Self {
        self.wakeful_code = Some(reason);
        self
    }
}

/// Connect's error codes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the Connect protocol and say it all")]
pub enum Code {
    Canceled,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
    #[default]
    #[serde(other)]
    Unknown,
}

impl Code {
    /// The status of a unary answer with this error.
    pub const fn status(self) -> u16 {
        match self {
            Self::Canceled => 499,
            Self::InvalidArgument | Self::FailedPrecondition | Self::OutOfRange => 400,
            Self::DeadlineExceeded => 504,
            Self::NotFound => 404,
            Self::AlreadyExists | Self::Aborted => 409,
            Self::PermissionDenied => 403,
            Self::ResourceExhausted => 429,
            Self::Unimplemented => 501,
            Self::Unavailable => 503,
            Self::Unauthenticated => 401,
            Self::Internal | Self::DataLoss | Self::Unknown => 500,
        }
    }

    /// What a status means when no error object came with it.
    pub const fn from_status(status: u16) -> Self {
        match status {
            400 => Self::InvalidArgument,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::NotFound,
            409 => Self::AlreadyExists,
            413 | 429 | 507 => Self::ResourceExhausted,
            499 => Self::Canceled,
            500 => Self::Internal,
            501 | 505 => Self::Unimplemented,
            502 | 503 => Self::Unavailable,
            504 => Self::DeadlineExceeded,
            _ => Self::Unknown,
        }
    }
}

/// Exact reasons, by the names that the native surface uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the codes of the native surface")]
pub enum WakefulCode {
    WorkdirNotFound,
    UnknownUser,
    NoShell,
    CommandNotFound,
    NotExecutable,
    PathNotFound,
    IsDirectory,
    NotADirectory,
    GuestDiskFull,
    InvalidPath,
    ProcessNotFound,
    StdinClosed,
    /// A reason of a newer agent.
    #[serde(other)]
    Unrecognized,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(decoder: &mut Decoder) -> Result<Vec<Frame>, FrameError> {
        std::iter::from_fn(|| decoder.frame().transpose()).collect()
    }

    #[test]
    fn hostile_lengths_are_refused_by_the_header_alone() {
        for length in [MAX_MESSAGE as u32 + 1, u32::MAX, 1 << 31] {
            let mut decoder = Decoder::default();
            decoder.feed(&[0]);
            assert_eq!(decoder.frame(), Ok(None));
            decoder.feed(&length.to_be_bytes());
            assert_eq!(decoder.frame(), Err(FrameError::TooLong { length: u64::from(length) }));
        }
    }

    #[test]
    fn compression_and_late_bytes_are_refused() {
        let mut decoder = Decoder::default();
        decoder.feed(&[1]);
        assert_eq!(decoder.frame(), Err(FrameError::Flags(1)));
        let mut decoder = Decoder::default();
        decoder.feed(&end_frame(None));
        decoder.feed(&[0]);
        assert!(decoder.frame().unwrap().unwrap().end);
        assert_eq!(decoder.frame(), Err(FrameError::AfterEnd));
    }

    #[test]
    fn errors_travel_with_their_reason() {
        let error = ErrorBody::new(Code::InvalidArgument, "x").because(WakefulCode::WorkdirNotFound);
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(text, r#"{"code":"invalid_argument","message":"x","wakefulCode":"workdir_not_found"}"#);
        let back: ErrorBody = serde_json::from_str(r#"{"code":"new_code","wakefulCode":"newer"}"#).unwrap();
        assert_eq!((back.code, back.wakeful_code), (Code::Unknown, Some(WakefulCode::Unrecognized)));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..8),
            cuts in prop::collection::vec(1usize..97, 1..40),
        ) {
            let mut wire: Vec<u8> = payloads.iter().flat_map(|p| message_frame(p)).collect();
            wire.extend(end_frame(None));
            let (mut decoder, mut got, mut at) = (Decoder::default(), Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                if at == wire.len() { break }
                let end = wire.len().min(at + cut);
                decoder.feed(&wire[at..end]);
                at = end;
                got.extend(all(&mut decoder).unwrap());
            }
            prop_assert!(decoder.ended());
            prop_assert_eq!(decoder.finish(), Ok(()));
            prop_assert!(got.pop().unwrap().end);
            let got: Vec<_> = got.into_iter().map(|f| f.payload).collect();
            prop_assert_eq!(got, payloads);
        }

        #[test]
        fn garbage_never_panics_nor_grows(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
            let mut decoder = Decoder::default();
            let mut fed = 0;
            for piece in &pieces {
                decoder.feed(piece);
                fed += piece.len();
                if all(&mut decoder).is_err() { break }
                prop_assert!(decoder.buffer.len() <= fed);
            }
        }

        #[test]
        fn a_cut_off_stream_is_noticed(payload in prop::collection::vec(any::<u8>(), 0..100), keep in 1usize..104) {
            let wire = message_frame(&payload);
            prop_assume!(keep < wire.len());
            let mut decoder = Decoder::default();
            decoder.feed(&wire[..keep]);
            prop_assert_eq!(decoder.frame(), Ok(None));
            prop_assert_eq!(decoder.finish(), Err(FrameError::Truncated));
        }
    }
}
