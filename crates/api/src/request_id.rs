//! The request id: on every answer, in every problem, in every log line of the request.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderName, HeaderValue};
use tracing::{Instrument, debug, info_span};

use crate::problem;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The caller's, if it is one: `[A-Za-z0-9_-]{1,64}`.
fn taken_over(value: Option<&HeaderValue>) -> Option<String> {
    let text = value?.to_str().ok()?;
    let fits =
        (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    fits.then(|| text.to_owned())
}

fn new_id() -> String {
    // Made like all ids: random, never from a clock.
    format!("req_{}", wakeful_model::OperationId::random().bare())
}

/// The outermost layer.
pub(crate) async fn give_id(request: Request, next: Next) -> Response {
    let id = taken_over(request.headers().get(X_REQUEST_ID)).unwrap_or_else(new_id);
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let span = info_span!("request", request_id = %id, method = %request.method(), route);
    let value = HeaderValue::try_from(&id).expect("letters and digits are a header value");
    async move {
        let mut response = problem::write(next.run(request).await, &id);
        debug!(status = response.status().as_u16(), "answered");
        response.headers_mut().insert(X_REQUEST_ID, value);
        response
    }
    .instrument(span)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tame_ids_are_taken_over() {
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
        assert_eq!(taken_over(Some(&value("aZ_-09"))).as_deref(), Some("aZ_-09"));
        for bad in ["", "a b", "a\tb", "a/b", "é", &"x".repeat(65)] {
            assert_eq!(taken_over(Some(&value(bad))), None, "{bad}");
        }
        assert_eq!(taken_over(None), None);
        assert!(taken_over(Some(&value(&new_id()))).is_some());
    }
}
