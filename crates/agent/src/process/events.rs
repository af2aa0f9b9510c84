//! The answer stream of `Start` and `Connect`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, end_frame, json_frame};
use wakeful_guest_proto::process::{Base64, DataEvent, Empty, GapEvent, ProcessEvent, StartEvent, StartResponse};

use super::journal::{Chunk, Stream};
use super::record::{Item, Process, Rest, Subscription, Wish};
use super::rpc::{self, Call, Dialect};
use crate::body::Body;

struct Events {
    process: Arc<Process>,
    wish: Wish,
    first: Option<Vec<u8>>,
    backlog: VecDeque<Item>,
    rest: Rest,
    /// Where to go on in the journal, should the process have gone on without us.
    next_seq: u64,
    call: Call,
    over: bool,
}

/// Start event, then what the subscription brings, keepalives in between, the end, and the end frame.
pub(crate) fn answer(process: &Arc<Process>, wish: Wish, subscription: Subscription, call: &Call) -> Response<Body> {
    let start = ProcessEvent::Start(StartEvent { pid: process.pid });
    let events = Events {
        process: Arc::clone(process),
        wish,
        first: Some(frame(call.dialect, start, Some(0))),
        backlog: subscription.backlog,
        rest: subscription.rest,
        next_seq: subscription.next_seq,
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
        loop {
            if let Some(item) = self.backlog.pop_front() {
                return Some(self.told(item));
            }
            match &mut self.rest {
                Rest::Live(live) => match tokio::time::timeout(self.call.keepalive, live.recv()).await {
                    Ok(Some(item)) => return Some(self.told(item)),
                    Ok(None) if self.wish.patience.is_some() => self.go_on(),
                    Ok(None) => {
                        self.over = true;
                        return Some(end_frame(Some(ErrorBody::new(Code::Unavailable, "the agent is stopping"))));
                    }
                    Err(_) => return Some(frame(self.call.dialect, ProcessEvent::Keepalive(Empty {}), None)),
                },
                Rest::More => self.go_on(),
                Rest::Over => {
                    self.over = true;
                    return Some(end_frame(None));
                }
            }
        }
    }

    /// From the journal, where the last part of it or of the live output ended.
    fn go_on(&mut self) {
        let again = self.process.subscribe(Wish { from: Some(self.next_seq), ..self.wish });
        (self.backlog, self.rest, self.next_seq) = (again.backlog, again.rest, again.next_seq);
    }

    fn told(&mut self, item: Item) -> Vec<u8> {
        let dialect = self.call.dialect;
        match item {
            Item::Output(chunk) => {
                self.next_seq = chunk.seq + 1;
                output(dialect, &chunk)
            }
            // An E2B client cannot ask for a replay, so it never meets a gap.
            Item::Gap(gap) => {
                self.next_seq = gap.seq + 1;
                frame(dialect, ProcessEvent::Gap(GapEvent { dropped_bytes: gap.dropped_bytes }), Some(gap.seq))
            }
            Item::End { event, seq } => {
                self.over = true;
                let event = if dialect == Dialect::Native { event } else { event.plain() };
                let mut bytes = frame(dialect, ProcessEvent::End(event), Some(seq));
                bytes.extend(end_frame(None));
                bytes
            }
        }
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
