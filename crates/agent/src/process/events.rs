//! The answer stream of `Start` and `Connect`.

use std::collections::VecDeque;
use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, end_frame, json_frame};
use wakeful_guest_proto::process::{Base64, DataEvent, Empty, GapEvent, ProcessEvent, StartEvent, StartResponse};

use super::journal::{Chunk, Stream};
use super::record::{Item, Process, Subscription};
use super::rpc::{self, Call, Dialect};
use crate::body::Body;

struct Events {
    first: Option<Vec<u8>>,
    backlog: VecDeque<Item>,
    live: mpsc::Receiver<Item>,
    call: Call,
    over: bool,
}

/// Start event, then what the subscription brings, keepalives in between, the end, and the end frame.
pub(crate) fn answer(process: &Process, subscription: Subscription, call: &Call) -> Response<Body> {
    let start = ProcessEvent::Start(StartEvent { pid: process.pid });
    let events = Events {
        first: Some(frame(call.dialect, start, Some(0))),
        backlog: subscription.backlog.into(),
        live: subscription.live,
        call: call.clone(),
        over: false,
    };
    let frames = stream::unfold(events, |mut events| async move {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(bytes))), events))
    });
    rpc::streaming(StreamBody::new(frames).map_err(|never| match never {}).boxed_unsync())
}

impl Events {
    async fn next(&mut self) -> Option<Vec<u8>> {
        if self.over {
            return None;
        }
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let item = match self.backlog.pop_front() {
            Some(item) => Some(item),
            None => match tokio::time::timeout(self.call.keepalive, self.live.recv()).await {
                Ok(item) => item,
                Err(_) => return Some(frame(self.call.dialect, ProcessEvent::Keepalive(Empty {}), None)),
            },
        };
        let dialect = self.call.dialect;
        Some(match item {
            Some(Item::Output(chunk)) => output(dialect, &chunk),
            // An E2B client cannot ask for a replay, so it never meets a gap.
            Some(Item::Gap(gap)) => {
                frame(dialect, ProcessEvent::Gap(GapEvent { dropped_bytes: gap.dropped_bytes }), Some(gap.seq))
            }
            Some(Item::End { event, seq }) => {
                self.over = true;
                let event = if dialect == Dialect::Native { event } else { event.plain() };
                let mut bytes = frame(dialect, ProcessEvent::End(event), Some(seq));
                bytes.extend(end_frame(None));
                bytes
            }
            None => {
                self.over = true;
                end_frame(Some(ErrorBody::new(Code::Unavailable, "the agent is stopping")))
            }
        })
    }
}

fn output(dialect: Dialect, chunk: &Chunk) -> Vec<u8> {
    let data = Base64(chunk.data.to_vec());
    let data = match chunk.stream {
        Stream::Stdout => DataEvent::Stdout(data),
        Stream::Stderr => DataEvent::Stderr(data),
        Stream::Pty => DataEvent::Pty(data),
    };
    frame(dialect, ProcessEvent::Data(data), Some(chunk.seq))
}

fn frame(dialect: Dialect, event: ProcessEvent, seq: Option<u64>) -> Vec<u8> {
    let seq = seq.filter(|_| dialect == Dialect::Native);
    // Our own shapes: writing them to memory fails for no value.
    json_frame(&StartResponse { event, seq }).unwrap_or_default()
}
