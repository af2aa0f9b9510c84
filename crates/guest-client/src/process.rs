//! Processes that nobody waits for in one breath: started, described, listened to and fed by separate calls.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::Method;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use wakeful_guest_proto::connect_rpc::{Decoder, STREAM_TYPE, json_frame};
use wakeful_guest_proto::process::{
    Base64, Empty, EndEvent, InputData, ListResponse, ProcessInfo, ProcessInput, SelectRequest, Selector, StartRequest,
    StreamInputRequest,
};

use crate::connect::{collect, request};
use crate::exec::{ANSWER_LIMIT, INPUT_CHUNK, SHORT, native, refusal};
use crate::{Error, ExecEvent, ExecStream, Guest};

/// A thousand processes with what is told of their command lines.
const LIST_LIMIT: usize = 32 << 20;

/// A process whose end is waited for, and whose output is left to whoever attaches to it. Dropping it does not stop it.
#[derive(Debug)]
pub struct Job {
    events: ExecStream,
    pid: u32,
}

impl Job {
    /// Process id inside the sandbox.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`Error::Cut`] if the channel is lost before; [`Error::Unresponsive`], [`Error::Protocol`].
    pub async fn ended(&mut self) -> Result<EndEvent, Error> {
        loop {
            match self.events.next().await {
                Ok(Some(ExecEvent::Ended { end, .. })) => return Ok(end),
                Ok(Some(_)) => {}
                Ok(None) | Err(Error::Lost) => return Err(Error::Cut { pid: self.pid, seq: 0 }),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Guest {
    /// Starts a process without listening to it: its output goes into its journal.
    ///
    /// # Errors
    /// [`Error::Refused`] with a `wakeful_code` if it could not be started; as [`Guest::start`].
    ///
    /// # Cancel safety
    /// The process may have been started or not; once started, it runs on without us.
    pub async fn launch(&self, start: StartRequest, timeout: Option<Duration>) -> Result<Job, Error> {
        let mut events = self.start(&StartRequest { output_limit: Some(0), ..start }, timeout).await?;
        match events.next().await? {
            Some(ExecEvent::Started { pid }) => Ok(Job { events, pid }),
            _ => Err(Error::Protocol { detail: "the process did not begin with its start".to_owned() }),
        }
    }

    /// Waits for the end of one that was started before, by another channel.
    ///
    /// # Errors
    /// [`Error::Refused`] with `process_not_found`; as [`Guest::start`].
    pub async fn follow(&self, pid: u32) -> Result<Job, Error> {
        Ok(Job { events: self.attach(pid, None).await?, pid })
    }

    /// The processes that run, and those that ended within the hour.
    ///
    /// # Errors
    /// Any.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, Error> {
        let path = "/process.Process/List";
        let list: ListResponse = self.unary_bounded(path, "list processes", &Empty {}, None, SHORT, LIST_LIMIT).await?;
        Ok(list.processes)
    }

    /// One of them.
    ///
    /// # Errors
    /// [`Error::Refused`] with `process_not_found`.
    pub async fn process(&self, pid: u32) -> Result<ProcessInfo, Error> {
        let message = SelectRequest { process: Selector::Pid(pid) };
        self.unary("/process.Process/Describe", "describe a process", &message, None, SHORT).await
    }

    /// Writes a stream of bytes to a process's standard input, or to its terminal, as fast as it reads them.
    ///
    /// # Errors
    /// [`Error::Refused`] if the process is gone or takes no (more) input; what was written until then stays written.
    pub async fn stream_input<S>(&self, pid: u32, terminal: bool, input: S) -> Result<(), Error>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let message = |message: &StreamInputRequest| match json_frame(message) {
            Ok(bytes) => Ok(Frame::data(Bytes::from(bytes))),
            Err(error) => Err(io::Error::other(error)),
        };
        let first = message(&StreamInputRequest::Start(SelectRequest { process: Selector::Pid(pid) }));
        let data = move |piece: Bytes| {
            let bytes = Base64(piece.to_vec());
            let input = if terminal { ProcessInput::Pty(bytes) } else { ProcessInput::Stdin(bytes) };
            message(&StreamInputRequest::Data(InputData { input }))
        };
        let frames = input.flat_map(move |piece| match piece {
            Ok(piece) => {
                let count = piece.len().div_ceil(INPUT_CHUNK);
                // Made one by one as the process reads, not all at once.
                let cut = move |nth: usize| piece.slice(nth * INPUT_CHUNK..piece.len().min((nth + 1) * INPUT_CHUNK));
                stream::iter((0..count).map(cut).map(data)).left_stream()
            }
            Err(error) => stream::iter([Err(error)]).right_stream(),
        });
        let body = StreamBody::new(stream::iter([first]).chain(frames)).boxed_unsync();
        let request = native(request(Method::POST, "/process.Process/StreamInput", body)?, STREAM_TYPE);
        let response = self.patiently(self.accepted(request)).await??;
        let mut decoder = Decoder::default();
        decoder.feed(&collect(response.into_body(), ANSWER_LIMIT).await?);
        let broken = |detail: String| Error::Protocol { detail };
        while let Some(frame) = decoder.frame().map_err(|error| broken(error.to_string()))? {
            if frame.end {
                return refusal(&frame.payload)?.map_or(Ok(()), Err);
            }
        }
        Err(broken("an answer without its end".to_owned()))
    }

    /// Writes all of a process's standard input and closes it.
    ///
    /// # Errors
    /// As [`Guest::stream_input`].
    pub async fn feed(&self, pid: u32, input: Bytes) -> Result<(), Error> {
        if input.is_empty() {
            return self.close_stdin(pid).await;
        }
        self.stream_input(pid, false, stream::iter([Ok(input)])).await?;
        self.end_input(pid).await
    }

    /// Closes the standard input of a process that has just taken some. It may have ended upon what it read.
    ///
    /// # Errors
    /// As [`Guest::close_stdin`], but for a process that is gone.
    pub async fn end_input(&self, pid: u32) -> Result<(), Error> {
        match self.close_stdin(pid).await {
            Err(Error::Refused { wakeful_code: Some(code), .. }) if code == "process_not_found" => Ok(()),
            closed => closed,
        }
    }
}
