//! Frames as an answer: a JSON object a line, or the same objects as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;
use wakeful_api_types::{EVENT_STREAM, Frame, NDJSON};

use crate::follow::Follow;
use crate::problem::Problem;

/// After so much silence a stream says that it is alive.
pub(crate) const SILENCE: Duration = Duration::from_secs(15);

/// How frames are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Lines,
    Events,
}

impl Form {
    /// The one that the caller accepts.
    pub(crate) fn asked(headers: &HeaderMap) -> Self {
        let accepts = |value: &HeaderValue| value.as_bytes().windows(EVENT_STREAM.len()).any(is_event_stream);
        if headers.get_all(header::ACCEPT).iter().any(accepts) { Self::Events } else { Self::Lines }
    }

    /// One frame; `seq` is its number.
    pub(crate) fn write(self, frame: &impl Serialize, seq: Option<u64>) -> Bytes {
        // Our own shapes: writing them to memory fails for no value.
        let json = serde_json::to_string(frame).unwrap_or_default();
        Bytes::from(match (self, seq) {
            (Self::Lines, _) => json + "\n",
            (Self::Events, Some(seq)) => format!("id: {seq}\ndata: {json}\n\n"),
            (Self::Events, None) => format!("data: {json}\n\n"),
        })
    }
}

fn is_event_stream(bytes: &[u8]) -> bool {
    bytes.eq_ignore_ascii_case(EVENT_STREAM.as_bytes())
}

/// The number after the last event that a browser has seen, when it comes back by itself.
pub(crate) fn after_last_event(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id")?.to_str().ok()?.trim().parse::<u64>().ok()?.checked_add(1)
}

/// Everything that is told of a process, with or without its start.
pub(crate) fn response(form: Form, follow: Follow, with_start: bool) -> Response {
    let first = with_start.then(|| follow.start());
    let rest = stream::unfold(follow, |mut follow| async move {
        let frame = follow.next().await?.into_frame();
        Some((frame, follow))
    });
    streaming(form, stream::iter(first).chain(rest).map(move |frame: Frame| form.write(&frame, frame.seq())))
}

/// An answer of pieces that are sent as they come.
pub(crate) fn streaming(form: Form, pieces: impl stream::Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(pieces.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    let kind = if form == Form::Lines { NDJSON } else { EVENT_STREAM };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that hold answers back until they have enough of them would hold back a prompt.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A number in the query.
pub(crate) fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| crate::query::invalid(name, "is not a number that fits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let mut headers = HeaderMap::new();
        assert_eq!(Form::asked(&headers), Form::Lines);
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        assert_eq!(Form::asked(&headers), Form::Lines);
        headers.append(header::ACCEPT, HeaderValue::from_static("text/html, Text/Event-Stream;q=0.9"));
        assert_eq!(Form::asked(&headers), Form::Events);
        assert_eq!(Form::Lines.write(&Frame::Keepalive, None), "{\"type\":\"keepalive\"}\n");
        let gap = Frame::Gap { seq: 3, dropped_bytes: 1 };
        assert_eq!(
            Form::Events.write(&gap, gap.seq()),
            "id: 3\ndata: {\"type\":\"gap\",\"seq\":3,\"dropped_bytes\":1}\n\n"
        );
        assert_eq!(Form::Events.write(&Frame::Keepalive, None), "data: {\"type\":\"keepalive\"}\n\n");
    }

    #[test]
    fn browsers_come_back() {
        let mut headers = HeaderMap::new();
        assert_eq!(after_last_event(&headers), None);
        headers.insert("last-event-id", HeaderValue::from_static("41"));
        assert_eq!(after_last_event(&headers), Some(42));
        for bad in ["", "x", "-1", "18446744073709551615"] {
            headers.insert("last-event-id", HeaderValue::from_static(bad));
            assert_eq!(after_last_event(&headers), None, "{bad}");
        }
    }
}
