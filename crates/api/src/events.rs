//! What happened to a sandbox: a page of it, or as it happens.

use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event as Frame, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderName, StatusCode, Uri, header};
use wakeful_api_types::{Event, EventList};
use wakeful_model::Code;

use crate::App;
use crate::body::json;
use crate::caller::Caller;
use crate::path::Target;
use crate::problem::Problem;
use crate::query::{self, Query};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const MOST: u32 = 1000;
const LISTED: u32 = 100;
/// Proxies close what is silent for longer.
const KEEPALIVE: Duration = Duration::from_secs(15);

pub(crate) async fn events(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let mut query = Query::of(&uri, &["after", "limit"])?;
    let (after, limit) = (after(&mut query)?, limit(&mut query)?);
    if !wants_stream(&headers) {
        let events = app.lifecycle.events(&caller.tenant, &id, after, limit).await?;
        let events: Vec<Event> = events.into_iter().map(|(seq, event)| Event::new(seq, event)).collect();
        let next_after = events.last().map_or(after, |event| event.seq);
        return Ok(json(StatusCode::OK, &EventList { events, next_after }));
    }
    // A browser that comes back says where it was; what the address says is where it began.
    let after = last_seen(&headers)?.unwrap_or(after);
    let events = app.lifecycle.follow_events(&caller.tenant, &id, after).await?;
    let frames = events.map(|event| {
        let (seq, event) = event.map_err(std::io::Error::other)?;
        let event = Event::new(seq, event);
        Frame::default()
            .id(seq.to_string())
            .event(event.kind.to_string())
            .json_data(event)
            .map_err(std::io::Error::other)
    });
    Ok(Sse::new(frames).keep_alive(KeepAlive::new().interval(KEEPALIVE)).into_response())
}

fn after(query: &mut Query) -> Result<u64, Problem> {
    match query.take("after") {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| query::invalid("after", "is the number of an event")),
    }
}

fn limit(query: &mut Query) -> Result<u32, Problem> {
    match query.take("limit") {
        None => Ok(LISTED),
        Some(text) => text
            .parse()
            .ok()
            .filter(|limit| (1..=MOST).contains(limit))
            .ok_or_else(|| query::invalid("limit", "is a number from 1 to 1000")),
    }
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.flat_map(|value| value.split(',')).any(|kind| {
        let (kind, _) = kind.split_once(';').unwrap_or((kind, ""));
        kind.trim().eq_ignore_ascii_case("text/event-stream")
    })
}

fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    match headers.get(LAST_EVENT_ID).map(|value| value.to_str().map(str::parse)) {
        None => Ok(None),
        Some(Ok(Ok(seq))) => Ok(Some(seq)),
        Some(_) => Err(Problem::field(Code::InvalidField, "Last-Event-ID", "Last-Event-ID is the number of an event")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_a_stream() {
        let wants = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            wants_stream(&headers)
        };
        assert!(wants("text/event-stream") && wants("application/json;q=0.1, Text/Event-Stream;q=1"));
        assert!(!wants("*/*") && !wants("application/json") && !wants_stream(&HeaderMap::new()));
    }

    #[test]
    fn where_to_go_on() {
        let seen = |text: &str| {
            let headers = HeaderMap::from_iter([(LAST_EVENT_ID, text.parse().unwrap())]);
            last_seen(&headers).map_err(|problem| problem.code())
        };
        assert_eq!(seen("7"), Ok(Some(7)));
        for bad in ["", "-1", "x", "1.5", "99999999999999999999"] {
            assert_eq!(seen(bad), Err(Code::InvalidField), "{bad}");
        }
    }
}
