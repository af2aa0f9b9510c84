//! A process's events on their way to a client, whatever form they take there.
//!
//! Nothing is buffered here: a client that does not read stops the stream as far as the agent, which after a moment lets
//! the process go on without it and replays its journal when the client is back. The sandbox stays awake by the bytes
//! that go through, not by the stream's being open.

use std::time::Duration;

use bytes::Bytes;
use wakeful_api_types::{Frame, FrameBytes};
use wakeful_guest_client::{Error as GuestError, ExecEvent, ExecStream, OutputStream};
use wakeful_lifecycle::{Access, Error};

use crate::problem::Problem;

/// What there is to tell.
#[derive(Debug)]
pub(crate) enum Told {
    /// It wrote something.
    Output { stream: OutputStream, data: Bytes, seq: u64 },
    /// Everything else.
    Frame(Frame),
}

impl Told {
    pub(crate) fn into_frame(self) -> Frame {
        match self {
            Self::Output { stream: OutputStream::Stderr, data, seq } => {
                Frame::Stderr { seq, bytes: FrameBytes::of(&data) }
            }
            Self::Output { stream: OutputStream::Stdout | OutputStream::Pty, data, seq } => {
                Frame::Stdout { seq, bytes: FrameBytes::of(&data) }
            }
            Self::Frame(frame) => frame,
        }
    }
}

/// The events of one process.
pub(crate) struct Follow {
    access: Access,
    events: ExecStream,
    pid: u32,
    /// Where to go on if it is cut off.
    next_seq: u64,
    /// Until the process ends.
    live: bool,
    silence: Duration,
    over: bool,
}

/// Events from the start of a process on; it is told apart.
async fn begun(events: Result<ExecStream, GuestError>) -> Result<ExecStream, GuestError> {
    let mut events = events?;
    match events.next().await? {
        Some(ExecEvent::Started { .. }) => Ok(events),
        _ => Err(GuestError::Protocol { detail: "a process did not begin with its start".to_owned() }),
    }
}

impl Follow {
    /// From a place in the journal on; with `live` until the process ends, else as far as it has come.
    ///
    /// # Errors
    /// If there is no such process, or something came between.
    pub(crate) async fn open(
        access: Access,
        pid: u32,
        from: u64,
        live: bool,
        silence: Duration,
    ) -> Result<Self, Problem> {
        let events = if live { access.attach(pid, Some(from)).await } else { access.replay(pid, from).await };
        match begun(events).await {
            Ok(events) => Ok(Self { access, events, pid, next_seq: from.max(1), live, silence, over: false }),
            Err(error) => Err(access.explain(error).await.into()),
        }
    }

    /// The start as it is told to a client that gets everything after it.
    pub(crate) fn start(&self) -> Frame {
        Frame::Start { seq: self.next_seq - 1, pid: self.pid, runtime_generation: self.access.row().runtime_generation }
    }

    /// The next thing to tell; after some silence a keepalive; `None` when all is told.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        if self.over {
            return None;
        }
        let event = tokio::select! {
            biased;
            event = tokio::time::timeout(self.silence, self.events.next()) => event,
            () = self.access.draining() => {
                self.over = true;
                return Some(Told::Frame(Problem::from(Error::ShuttingDown).into_frame()));
            }
        };
        Some(match event {
            Err(_) | Ok(Ok(Some(ExecEvent::Keepalive | ExecEvent::Started { .. }))) => Told::Frame(Frame::Keepalive),
            Ok(Ok(Some(ExecEvent::Output { stream, data, seq }))) => {
                self.access.touch();
                let seq = seq.unwrap_or(self.next_seq);
                self.next_seq = seq.saturating_add(1);
                Told::Output { stream, data, seq }
            }
            Ok(Ok(Some(ExecEvent::Gap { dropped_bytes, seq }))) => {
                let seq = seq.unwrap_or(self.next_seq);
                self.next_seq = seq.saturating_add(1);
                Told::Frame(Frame::Gap { seq, dropped_bytes })
            }
            Ok(Ok(Some(ExecEvent::Ended { end, seq }))) => {
                self.over = true;
                self.access.touch();
                Told::Frame(Frame::Exit {
                    seq: seq.unwrap_or(self.next_seq),
                    exit_code: end.signal.map_or(end.exit_code, |signal| 128_i32.saturating_add(signal)),
                    signal: end.signal,
                    timed_out: end.timed_out,
                    duration_ms: end.duration_ms.unwrap_or(0),
                })
            }
            Ok(Ok(None)) => {
                self.over = true;
                return None;
            }
            Ok(Err(GuestError::Lost)) if self.live && self.goes_on().await => Told::Frame(Frame::Keepalive),
            Ok(Err(error)) => {
                self.over = true;
                Told::Frame(match self.access.explain(error).await {
                    Error::SuspendedDuringExec { .. } => Frame::Suspended { pid: self.pid, seq: self.next_seq },
                    other => Problem::from(other).into_frame(),
                })
            }
        })
    }
    /// The channel was lost: listens by another one, if the guest only stood still.
    async fn goes_on(&mut self) -> bool {
        let Some(access) = self.access.again().await else { return false };
        let Ok(events) = begun(access.attach(self.pid, Some(self.next_seq)).await).await else { return false };
        (self.access, self.events) = (access, events);
        true
    }
}
