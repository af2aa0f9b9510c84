//! The one body type of every answer, and the few ways to make one.

use std::io;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use serde::Serialize;

/// Boxed, so that routes may stream or not; not `Sync`, because nothing shares a body.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// No bytes.
pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// All bytes at once.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A status and nothing else.
pub(crate) fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = status;
    response
}

/// A JSON document.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // Our own types only: serialising them to memory fails for no input.
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// The plain error shape of envd's HTTP endpoints: `{"code":404,"message":"…"}`.
pub(crate) fn error(status: StatusCode, message: &str) -> Response<Body> {
    json(status, &serde_json::json!({"code": status.as_u16(), "message": message}))
}
