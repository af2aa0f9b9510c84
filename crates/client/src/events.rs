//! What happened to a sandbox.

use std::io;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use reqwest::Method;
use reqwest::header::ACCEPT;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;
use wakeful_api_types::{EgressReport, Event, EventList};

use crate::{Client, Error};

/// Longest line of an event.
const LINE: usize = 1 << 20;

/// Events as they come.
pub type Events = BoxStream<'static, Result<Event, Error>>;

impl Client {
    /// `GET …/egress`: what left, and what was kept from leaving.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn egress(&self, id: &str) -> Result<EgressReport, Error> {
        self.json(self.get(&["v1", "sandboxes", id, "egress"])?).await
    }

    /// `GET …/events`: one page of those above `after`, oldest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn events(&self, id: &str, after: u64, limit: u32) -> Result<EventList, Error> {
        let request = self.get(&["v1", "sandboxes", id, "events"])?;
        self.json(request.query(&[("after", after), ("limit", limit.into())])).await
    }

    /// `GET …/events` as a stream of those above `after`. It ends after the sandbox has, and when the server does.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn follow_events(&self, id: &str, after: u64) -> Result<Events, Error> {
        let url = self.address.join(&["v1", "sandboxes", id, "events"])?;
        let request = self.request(Method::GET, url).header(ACCEPT, "text/event-stream").query(&[("after", after)]);
        let response = self.send(request).await?;
        let client = self.clone();
        let reader = StreamReader::new(response.bytes_stream().map_err(io::Error::other).boxed());
        let lines = FramedRead::new(reader, LinesCodec::new_with_max_length(LINE));
        // Ours have their data on one line; their number and type are in it too.
        let events = lines.filter_map(move |line| {
            let event = match line {
                Err(error) => Some(Err(client.garbled(format!("the events broke off: {error}")))),
                Ok(line) => line.strip_prefix("data:").map(|data| {
                    serde_json::from_str(data.trim_start()).map_err(|error| client.garbled(error.to_string()))
                }),
            };
            std::future::ready(event)
        });
        Ok(events.boxed())
    }
}
