//! JSON bodies: read whatever their `Content-Type`, an empty one is `{}`, never more than 1 MiB.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde_json::{Map, Value};
use wakeful_model::Code;

use crate::problem::Problem;

/// Largest JSON body.
pub(crate) const LIMIT: usize = 1 << 20;
/// It is small: whoever takes longer is not sending it.
const DEADLINE: Duration = Duration::from_secs(30);

/// A request's body: an object, not looked into yet.
pub(crate) struct Object(pub(crate) Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Object {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if declared.is_some_and(|length| length > LIMIT as u64) {
            return Err(too_large());
        }
        let body = Limited::new(request.into_body(), LIMIT);
        let bytes = match tokio::time::timeout(DEADLINE, body.collect()).await {
            Err(_) => return Err(Problem::new(Code::InvalidJson, "the body did not arrive within 30 seconds")),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Err(_)) => return Err(Problem::new(Code::InvalidJson, "the body broke off")),
            Ok(Ok(collected)) => collected.to_bytes(),
        };
        parse(&bytes).map(Self)
    }
}

fn too_large() -> Problem {
    Problem::new(Code::BodyTooLarge, format!("the body is larger than {LIMIT} bytes"))
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    if bytes.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Problem::new(Code::InvalidJson, "the body is JSON, but not an object")),
        Err(error) => Err(Problem::new(Code::InvalidJson, format!("the body is not JSON: {error}"))),
    }
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = status;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => Problem::internal(format!("could not write an answer: {error}")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies() {
        assert!(parse(b"").unwrap().is_empty());
        assert!(parse(b" \r\n").unwrap().is_empty());
        assert_eq!(parse(b"{\"a\":1}").unwrap().len(), 1);
        for bad in [&b"[]"[..], b"null", b"1", b"{", b"{}x", b"a=b", b"\xff", b"{\"a\":\"\xff\"}", b"{'a':1}"] {
            assert_eq!(parse(bad).unwrap_err().code(), Code::InvalidJson, "{bad:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(parse(deep.as_bytes()).unwrap_err().code(), Code::InvalidJson);
    }

    #[tokio::test]
    async fn too_long_by_word_or_by_deed() {
        for declared in [true, false] {
            let mut request = Request::new(Body::from(vec![b' '; LIMIT + 1]));
            if declared {
                request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(LIMIT + 1));
            }
            let refused = Object::from_request(request, &()).await.map(|_| ()).unwrap_err();
            assert_eq!(refused.code(), Code::BodyTooLarge);
        }
    }
}
