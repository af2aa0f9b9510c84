//! Connect's calls over hyper: reading a request within its bounds, answering, and telling errors.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wakeful_guest_proto::connect_rpc::{
    Code, Decoder, ErrorBody, Frame, KEEPALIVE_HEADER, MAX_MESSAGE, NATIVE_HEADER, STREAM_TYPE, TIMEOUT_HEADER,
    UNARY_TYPE, end_frame,
};

use crate::body::{self, Body};

/// How long a request may take to arrive.
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
const KEEPALIVE: Duration = Duration::from_secs(90);

/// Whether the caller understands our fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    E2b,
    Native,
}

/// What the headers of a call say.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) dialect: Dialect,
    pub(crate) timeout: Option<Duration>,
    pub(crate) keepalive: Duration,
    /// The user of the `Authorization` header.
    pub(crate) user: Option<String>,
}

impl Call {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
        Self {
            dialect: if headers.contains_key(NATIVE_HEADER) { Dialect::Native } else { Dialect::E2b },
            timeout: number(TIMEOUT_HEADER).filter(|ms| *ms > 0).map(Duration::from_millis),
            keepalive: number(KEEPALIVE_HEADER).map_or(KEEPALIVE, |s| Duration::from_secs(s.clamp(1, 3600))),
            user: basic_user(headers),
        }
    }
}

fn basic_user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    // The password is always empty, and `user:group` is a user of ours, so only the last colon separates.
    let user = decoded.rsplit_once(':').map_or(decoded.as_str(), |(user, _)| user);
    (!user.is_empty()).then(|| user.to_owned())
}

/// The message of a unary call; an empty body counts as `{}`.
pub(crate) async fn read_unary<T: DeserializeOwned>(body: Incoming) -> Result<T, ErrorBody> {
    let collected = tokio::time::timeout(REQUEST_DEADLINE, Limited::new(body, MAX_MESSAGE).collect());
    let bytes = match collected.await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            return Err(ErrorBody::new(Code::ResourceExhausted, "message is too long"));
        }
        Ok(Err(_)) => return Err(ErrorBody::new(Code::Canceled, "request was cut off")),
        Err(_) => return Err(ErrorBody::new(Code::DeadlineExceeded, "request did not arrive in time")),
    };
    parse(if bytes.is_empty() { b"{}" } else { &bytes })
}

/// Messages of a request stream, one by one.
pub(crate) struct Messages {
    body: Incoming,
    decoder: Decoder,
}

impl Messages {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, decoder: Decoder::default() }
    }

    /// The next message; `None` at the end. Waits as long as the caller keeps the stream open.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ErrorBody> {
        loop {
            let invalid = |error| ErrorBody::new(Code::InvalidArgument, format!("request stream: {error}"));
            match self.decoder.frame().map_err(invalid)? {
                Some(Frame { end: true, .. }) => return Ok(None),
                Some(frame) => return parse(&frame.payload).map(Some),
                None => {}
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.decoder.feed(data);
                    }
                }
                Some(Err(_)) => return Err(ErrorBody::new(Code::Canceled, "request was cut off")),
                None => {
                    self.decoder.finish().map_err(invalid)?;
                    return Ok(None);
                }
            }
        }
    }
}

/// The one message of a call that is answered by a stream.
pub(crate) async fn read_single<T: DeserializeOwned>(body: Incoming) -> Result<T, ErrorBody> {
    let mut messages = Messages::new(body);
    match tokio::time::timeout(REQUEST_DEADLINE, messages.next()).await {
        Ok(message) => message?.ok_or_else(|| ErrorBody::new(Code::InvalidArgument, "request has no message")),
        Err(_) => Err(ErrorBody::new(Code::DeadlineExceeded, "request did not arrive in time")),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ErrorBody> {
    serde_json::from_slice(bytes)
        .map_err(|error| ErrorBody::new(Code::InvalidArgument, format!("bad message: {error}")))
}

/// The answer of a unary call.
pub(crate) fn unary<T: Serialize>(dialect: Dialect, result: Result<T, ErrorBody>) -> Response<Body> {
    match result {
        Ok(message) => body::json(StatusCode::OK, &message),
        Err(error) => {
            let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            debug_assert_eq!(UNARY_TYPE, "application/json");
            body::json(status, &spoken(dialect, error))
        }
    }
}

/// The answer of a stream that never began: still 200, with the error in the end frame.
pub(crate) fn refused(dialect: Dialect, error: ErrorBody) -> Response<Body> {
    streaming(body::full(end_frame(Some(spoken(dialect, error)))))
}

/// A stream of frames as an answer.
pub(crate) fn streaming(frames: Body) -> Response<Body> {
    let mut response = Response::new(frames);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(STREAM_TYPE));
    response
}

/// An error in the words that the caller knows.
pub(crate) fn spoken(dialect: Dialect, mut error: ErrorBody) -> ErrorBody {
    if dialect == Dialect::E2b {
        error.wakeful_code = None;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_leniently() {
        let mut headers = HeaderMap::new();
        let call = Call::of(&headers);
        assert_eq!((call.dialect, call.timeout, call.keepalive, call.user), (Dialect::E2b, None, KEEPALIVE, None));
        headers.insert(TIMEOUT_HEADER, HeaderValue::from_static("1500"));
        headers.insert(KEEPALIVE_HEADER, HeaderValue::from_static("0"));
        headers.insert(NATIVE_HEADER, HeaderValue::from_static("1"));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Basic dXNlcjo="));
        let call = Call::of(&headers);
        assert_eq!((call.dialect, call.timeout), (Dialect::Native, Some(Duration::from_millis(1500))));
        assert_eq!((call.keepalive, call.user.as_deref()), (Duration::from_secs(1), Some("user")));
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        assert_eq!(Call::of(&headers).user, None);
    }
}
