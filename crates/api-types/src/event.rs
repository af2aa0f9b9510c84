//! What happened to a sandbox.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use wakeful_model::{Cause, EventType};

use crate::{Instant, schema};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number; they begin at 1 for each sandbox and have no gaps.
    pub seq: u64,
    /// When.
    pub at: Instant,
    /// What happened.
    #[serde(rename = "type")]
    #[schema(value_type = schema::EventType)]
    pub kind: EventType,
    /// Why.
    #[schema(value_type = schema::Cause)]
    pub cause: Cause,
    /// The key of whoever asked for it.
    pub actor: Option<String>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// The generation after it.
    pub runtime_generation: u64,
    /// More; `message` is for people.
    #[schema(value_type = Object)]
    pub detail: Map<String, Value>,
}

impl Event {
    /// As the contract writes it.
    #[must_use]
    pub fn new(seq: u64, event: wakeful_model::Event) -> Self {
        let detail = event.detail.map(|message| ("message".to_owned(), Value::String(message)));
        Self {
            seq,
            at: event.at.into(),
            kind: event.kind,
            cause: event.cause,
            actor: None,
            duration_ms: event.duration_ms,
            runtime_generation: event.runtime_generation,
            detail: detail.into_iter().collect(),
        }
    }
}

/// `GET …/events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Oldest first.
    pub events: Vec<Event>,
    /// Where the next page begins.
    pub next_after: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body() {
        let event = |detail: Option<&str>| {
            let event = wakeful_model::Event {
                at: "2026-04-05T14:30:00.0314Z".parse().unwrap(),
                kind: EventType::Suspended,
                cause: Cause::Idle,
                duration_ms: Some(31),
                runtime_generation: 2,
                detail: detail.map(str::to_owned),
            };
            serde_json::to_string(&Event::new(7, event)).unwrap()
        };
        insta::assert_snapshot!(event(None), @r#"{"seq":7,"at":"2026-04-05T14:30:00.031Z","type":"suspended","cause":"idle","actor":null,"duration_ms":31,"runtime_generation":2,"detail":{}}"#);
        insta::assert_snapshot!(event(Some("why")), @r#"{"seq":7,"at":"2026-04-05T14:30:00.031Z","type":"suspended","cause":"idle","actor":null,"duration_ms":31,"runtime_generation":2,"detail":{"message":"why"}}"#);
        let read: Event = serde_json::from_str(&event(None)).unwrap();
        assert_eq!(read.seq, 7);
    }
}
