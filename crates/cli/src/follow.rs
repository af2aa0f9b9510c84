//! Following a command to its end, whatever happens to the connection or the sandbox meanwhile.
//!
//! ```text
//!   frames ──► output, byte for byte        every frame has a number; after a loss we ask for the next one,
//!      │                                    and drop what we have had: no byte is lost or doubled
//!      ├─ lost       try again from there, with patience
//!      ├─ suspended  attach again, which wakes it (or wait until someone else does)
//!      └─ exit       done
//!   ^C  ──► to the process; the second one leaves it
//! ```

use std::cell::Cell;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::task::JoinSet;
use wakeful_client::types::{Frame, FrameBytes, Status};
use wakeful_client::{Client, Error, Frames};
use wakeful_model::Code;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use crate::patience::{Patience, code_passes, passes};
use crate::sink::{Sink, To};

/// How long a server may be away.
const AWAY: Duration = Duration::from_secs(120);
/// Between two looks at a sandbox that sleeps.
const LOOK: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) pid: u32,
    pub(crate) exit_code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) timed_out: bool,
    pub(crate) duration_ms: u64,
}

/// What to do when the sandbox goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnSleep {
    /// The command is still wanted.
    Wake,
    /// We only look.
    Wait,
}

/// Takes what comes.
pub(crate) trait Taker {
    async fn take(&mut self, frame: &Frame) -> Result<(), Failure>;
}

impl Taker for Sink {
    async fn take(&mut self, frame: &Frame) -> Result<(), Failure> {
        match frame {
            Frame::Stdout { bytes, .. } => self.write(To::Stdout, &decoded(bytes)?).await,
            Frame::Stderr { bytes, .. } => self.write(To::Stderr, &decoded(bytes)?).await,
            Frame::Gap { dropped_bytes, .. } => {
                self.gap(*dropped_bytes);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn decoded(bytes: &FrameBytes) -> Result<Vec<u8>, Failure> {
    bytes.clone().into_bytes().ok_or_else(|| Failure::refused("the server sent output that is no base64"))
}

/// One command in one sandbox.
pub(crate) struct Follow<'a> {
    client: &'a Client,
    id: &'a str,
    /// Unknown until it has started.
    pid: Cell<Option<u32>>,
    /// The first frame that we have not had.
    next: Cell<u64>,
    on_sleep: OnSleep,
}

enum Step {
    On,
    End(Ended),
    /// Attach again.
    Again,
    /// Attach again, a little later.
    Later,
}

impl<'a> Follow<'a> {
    /// One that is about to be started by a stream.
    pub(crate) fn new(client: &'a Client, id: &'a str) -> Self {
        Self { client, id, pid: Cell::new(None), next: Cell::new(0), on_sleep: OnSleep::Wake }
    }

    /// One that has been started.
    pub(crate) fn attach(client: &'a Client, id: &'a str, pid: u32, from: u64, on_sleep: OnSleep) -> Self {
        Self { client, id, pid: Cell::new(Some(pid)), next: Cell::new(from), on_sleep }
    }

    /// To its end, with ^C passed on, while `feed` gives it its input. If that fails, so does all.
    pub(crate) async fn attended<T: Taker>(
        &self,
        frames: Option<Frames>,
        taker: &mut T,
        interrupt: &mut Interrupt,
        feed: impl Future<Output = Result<(), Failure>>,
    ) -> Result<Ended, Failure> {
        let mut work = std::pin::pin!(self.to_end(frames, taker));
        let mut feed = std::pin::pin!(feed);
        let (mut fed, mut told) = (false, false);
        let mut signals = JoinSet::new();
        let ended = loop {
            tokio::select! {
                ended = &mut work => break ended,
                given = &mut feed, if !fed => match given {
                    Ok(()) => fed = true,
                    Err(failure) => break Err(failure),
                },
                code = interrupt.came() => match self.pid.get() {
                    Some(pid) if !told => {
                        told = true;
                        let (client, id) = (self.client.clone(), self.id.to_owned());
                        let signal = if code == 130 { "INT" } else { "TERM" };
                        signals.spawn(async move { client.signal_process(&id, pid, signal).await });
                    }
                    Some(pid) => {
                        output::say(&format!("the command goes on; `wakeful sandbox kill {} {pid}` ends it", self.id));
                        return Err(Failure::interrupted(code));
                    }
                    None => return Err(Failure::interrupted(code)),
                },
                Some(sent) = signals.join_next(), if !signals.is_empty() => {
                    if let Ok(Err(error)) = sent && error.code() != Some(Code::ProcessNotFound.as_str()) {
                        output::warning(&format!("the signal could not be passed on: {}", Failure::chain(&error)));
                    }
                }
            }
        };
        if ended.is_err()
            && let Some(pid) = self.pid.get()
        {
            // nobody reads it, or its input is incomplete: it must not run on as if all were well
            let ending = self.client.signal_process(self.id, pid, "TERM");
            let _ = tokio::time::timeout(Duration::from_secs(5), ending).await;
        }
        ended
    }

    /// To its end.
    pub(crate) async fn to_end<T: Taker>(&self, mut frames: Option<Frames>, taker: &mut T) -> Result<Ended, Failure> {
        let mut patience = Patience::new(AWAY);
        let mut told = false;
        loop {
            let opened = match (frames.take(), self.pid.get()) {
                (Some(frames), _) => Ok(frames),
                (None, Some(pid)) => self.client.process_output(self.id, pid, self.next.get(), true).await,
                (None, None) => {
                    return Err(Failure::refused("the server ended the stream before the command began").never_ran());
                }
            };
            let error = match opened {
                Ok(mut frames) => loop {
                    match frames.next().await {
                        Some(Ok(frame)) => {
                            patience.reset();
                            match self.step(frame, taker).await? {
                                Step::On => {}
                                Step::End(ended) => return Ok(ended),
                                Step::Again => break None,
                                Step::Later => break Some(None),
                            }
                        }
                        Some(Err(error)) => break Some(Some(error)),
                        None => break Some(None),
                    }
                },
                Err(error) => Some(Some(error)),
            };
            let Some(error) = error else { continue };
            if self.pid.get().is_none() {
                return Err(error
                    .map_or_else(
                        || Failure::refused("the server ended the stream before the command began"),
                        Failure::from,
                    )
                    .never_ran());
            }
            if let Some(error) = &error
                && !passes(error)
            {
                return Err(self.out_of_sight(error));
            }
            let Some(delay) = patience.next() else {
                return Err(match error {
                    Some(error) => error.into(),
                    None => Failure::refused("the server ends the stream again and again before the command has ended"),
                });
            };
            if !told && output::watched() && error.is_some() {
                told = true;
                output::warning("the connection was lost; trying again");
            }
            tokio::time::sleep(delay).await;
        }
    }

    async fn step<T: Taker>(&self, frame: Frame, taker: &mut T) -> Result<Step, Failure> {
        if let Some(seq) = place(&frame) {
            // a replay may begin with what we have had; only a start is news again
            if seq < self.next.get() && !matches!(frame, Frame::Exit { .. }) {
                return Ok(Step::On);
            }
            self.next.set(seq + 1);
        }
        taker.take(&frame).await?;
        Ok(match frame {
            Frame::Start { pid, .. } => {
                self.pid.set(Some(pid));
                Step::On
            }
            Frame::Exit { exit_code, signal, timed_out, duration_ms, .. } => {
                Step::End(Ended { pid: self.pid.get().unwrap_or_default(), exit_code, signal, timed_out, duration_ms })
            }
            Frame::Suspended { pid, .. } => {
                self.pid.set(Some(pid));
                if self.on_sleep == OnSleep::Wait {
                    self.awake().await?;
                }
                Step::Again
            }
            Frame::Error { code, .. } if code.parse().is_ok_and(code_passes) => Step::Later,
            Frame::Error { code, detail } => return Err(Failure::from_frame(&code, &detail)),
            _ => Step::On,
        })
    }

    /// Until someone else has woken it.
    async fn awake(&self) -> Result<(), Failure> {
        let mut patience = Patience::new(AWAY);
        loop {
            match self.client.sandbox(self.id).await {
                Ok(sandbox) if sandbox.status == Status::Running && sandbox.transition.is_none() => return Ok(()),
                Ok(sandbox) if matches!(sandbox.status, Status::Destroyed | Status::Failed) => {
                    return Err(Failure::refused(format!("{} is {}", self.id, sandbox.status)));
                }
                Ok(_) => patience.reset(),
                Err(error) if passes(&error) && patience.next().is_some() => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// It ran, and how it ended will never be known.
    fn out_of_sight(&self, error: &Error) -> Failure {
        match error.problem().and_then(|problem| problem.known_code()) {
            Some(Code::ProcessNotFound) => Failure::refused(format!(
                "{} does not know process {} any more",
                self.id,
                self.pid.get().unwrap_or_default()
            ))
            .hint("it is lost when a sandbox boots from its disk, and forgotten an hour after its end"),
            _ => Failure::of(error),
        }
    }
}

/// The place of a frame in the journal.
fn place(frame: &Frame) -> Option<u64> {
    match frame {
        Frame::Stdout { seq, .. } | Frame::Stderr { seq, .. } | Frame::Gap { seq, .. } | Frame::Exit { seq, .. } => {
            Some(*seq)
        }
        Frame::Start { .. } | Frame::Suspended { .. } | Frame::Error { .. } | Frame::Keepalive | Frame::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(seq: u64, text: &str) -> Result<Frame, Error> {
        Ok(Frame::Stdout { seq, bytes: FrameBytes::of(text.as_bytes()) })
    }

    struct Text(String);

    impl Taker for Text {
        async fn take(&mut self, frame: &Frame) -> Result<(), Failure> {
            if let Frame::Stdout { bytes, .. } = frame {
                self.0.push_str(&String::from_utf8(decoded(bytes)?).unwrap());
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn what_comes_twice_is_written_once() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let follow = Follow::new(&client, "sbx_x");
        let frames = [
            Ok(Frame::Start { seq: 0, pid: 7, runtime_generation: 1 }),
            out(1, "a"),
            Ok(Frame::Keepalive),
            out(2, "b"),
            Ok(Frame::Start { seq: 0, pid: 7, runtime_generation: 2 }),
            out(1, "a"),
            out(2, "b"),
            Ok(Frame::Unknown),
            out(3, "c"),
            Ok(Frame::Exit { seq: 4, exit_code: 5, signal: None, timed_out: false, duration_ms: 9 }),
        ];
        let mut text = Text(String::new());
        let ended = follow.to_end(Some(futures_util::stream::iter(frames).boxed()), &mut text).await.unwrap();
        assert_eq!(text.0, "abc");
        assert_eq!(ended, Ended { pid: 7, exit_code: 5, signal: None, timed_out: false, duration_ms: 9 });
        assert_eq!(follow.next.get(), 5);
    }

    #[tokio::test]
    async fn what_ends_before_it_began_never_ran() {
        let client = Client::new("http://127.0.0.1:1", None).unwrap();
        let follow = Follow::new(&client, "sbx_x");
        let frames = futures_util::stream::iter([]).boxed();
        let failure = follow.to_end(Some(frames), &mut Text(String::new())).await.unwrap_err();
        assert_eq!(failure.code(), crate::failure::NEVER_RAN);
        let error = Frame::Error { code: "guest_unresponsive".into(), detail: "the guest is silent".into() };
        let frames =
            futures_util::stream::iter([Ok(Frame::Start { seq: 0, pid: 7, runtime_generation: 1 }), Ok(error)]);
        let failure = follow.to_end(Some(frames.boxed()), &mut Text(String::new())).await.unwrap_err();
        assert_eq!(failure.code(), crate::failure::REFUSED);
    }
}
