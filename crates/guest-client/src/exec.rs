//! Running commands through the agent.
//!
//! The guest decides what arrives here, so everything is bounded: a frame by the protocol, the output of a command by its
//! limit, silence by a health request, and a command with a timeout by that timeout and some more.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use wakeful_guest_proto::connect_rpc::{Code, Decoder, NATIVE_HEADER, STREAM_TYPE, TIMEOUT_HEADER, message_frame};
use wakeful_guest_proto::process::{
    Base64, ConnectRequest, DataEvent, Empty, EndEvent, ProcessConfig, ProcessEvent, ProcessInput, Pty, PtySize,
    SelectRequest, Selector, SendInputRequest, SendSignalRequest, Signal, StartRequest, StartResponse, UpdateRequest,
};

use crate::connect::{full, json_request, request};
use crate::{Body, Error, Guest};

/// After so much silence the agent is asked whether it is there.
const SILENCE: Duration = Duration::from_secs(10);
/// And has so long to answer.
const HEALTH: Duration = Duration::from_secs(5);
/// What a command may take beyond its own timeout: a start under emulation, the kill, the last output.
const SLACK: Duration = Duration::from_secs(30);
/// Short calls about a process.
pub(crate) const SHORT: Duration = Duration::from_secs(30);
/// Input waits for the process that reads it.
const INPUT: Duration = Duration::from_secs(300);
pub(crate) const ANSWER_LIMIT: usize = 4 << 20;
/// Output that is kept per stream unless asked otherwise.
const OUTPUT_LIMIT: usize = 8 << 20;
/// Input per frame.
pub(crate) const INPUT_CHUNK: usize = 64 << 10;
/// Room that is made for output before any has come.
const FIRST_ROOM: usize = 64 << 10;

/// A command to run to its end.
#[derive(Debug, Clone)]
pub struct Exec {
    /// The program: a path, or a name to look up in the guest's `PATH`.
    pub cmd: String,
    /// Its arguments, without the program itself.
    pub args: Vec<String>,
    /// Environment over the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// Working directory; `None`: the sandbox's default.
    pub cwd: Option<String>,
    /// User; `None`: the sandbox's default.
    pub user: Option<String>,
    /// Standard input; `None`: none at all.
    pub stdin: Option<Bytes>,
    /// When to kill it with all its offspring; `None`: never.
    pub timeout: Option<Duration>,
    /// Bytes to keep of each stream; the rest is read and dropped.
    pub output_limit: usize,
}

impl Exec {
    /// A program with arguments, everything else by default.
    pub fn new<A: Into<String>>(cmd: impl Into<String>, args: impl IntoIterator<Item = A>) -> Self {
        Self {
            cmd: cmd.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            stdin: None,
            timeout: None,
            output_limit: OUTPUT_LIMIT,
        }
    }

    /// A line for `/bin/sh -c`.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new("/bin/sh", ["-c".to_owned(), line.into()])
    }
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// Process id inside the sandbox.
    pub pid: u32,
    /// Exit code; 128 + n if signal n ended it.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// As measured in the guest.
    pub duration: Duration,
    /// Standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// There was more standard output.
    pub stdout_truncated: bool,
    /// There was more standard error.
    pub stderr_truncated: bool,
}

/// What a process does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// It runs; always the first.
    Started {
        /// Process id inside the sandbox.
        pid: u32,
    },
    /// It wrote something.
    Output {
        /// Where to.
        stream: OutputStream,
        /// What.
        data: Bytes,
        /// Place in its journal.
        seq: Option<u64>,
    },
    /// A part of its output is lost; only in replays.
    Gap {
        /// How much.
        dropped_bytes: u64,
        /// The last place in the journal that is lost.
        seq: Option<u64>,
    },
    /// It ended; always the last.
    Ended {
        /// How.
        end: EndEvent,
        /// Place in its journal.
        seq: Option<u64>,
    },
    /// Nothing, for a while.
    Keepalive,
}

/// Where a process writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Its terminal.
    Pty,
}

/// Who may know another channel to the same guest, when one is lost. `()` knows none.
pub trait Again: Send {
    /// One on which the processes of the lost one can be found.
    fn channel(&mut self) -> impl Future<Output = Option<Guest>> + Send;
}

impl Again for () {
    async fn channel(&mut self) -> Option<Guest> {
        None
    }
}

/// Events of one process as they come. Dropping it does not stop the process.
#[derive(Debug)]
pub struct ExecStream {
    guest: Guest,
    body: Incoming,
    decoder: Decoder,
    ended: bool,
    /// It ends with what is there, whether the process has ended or not.
    past_only: bool,
}

impl ExecStream {
    /// The next event; `None` after the last one.
    ///
    /// # Errors
    /// [`Error::Refused`] if the process could not be started or does not exist, [`Error::Unresponsive`] if nothing comes
    /// and the agent does not answer otherwise, [`Error::Lost`], [`Error::Protocol`].
    ///
    /// # Cancel safety
    /// No event is lost by dropping the future.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        loop {
            let broken = |detail: String| Error::Protocol { detail };
            if let Some(frame) = self.decoder.frame().map_err(|error| broken(error.to_string()))? {
                if !frame.end {
                    return self.event(&frame.payload).map(Some);
                }
                return match refusal(&frame.payload)? {
                    Some(error) => Err(error),
                    None if self.ended || self.past_only => Ok(None),
                    None => Err(broken("the stream ended before the process".to_owned())),
                };
            }
            let piece = self.guest.patiently(self.body.frame()).await?;
            match piece {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.decoder.feed(data);
                    }
                }
                // An agent that ends its session resets the streams on it, one way or another.
                Some(Err(_)) => return Err(Error::Lost),
                None if self.ended => return Ok(None),
                None => return Err(Error::Lost),
            }
        }
    }

    fn event(&mut self, payload: &[u8]) -> Result<ExecEvent, Error> {
        let broken = |detail: &str| Error::Protocol { detail: detail.to_owned() };
        if self.ended {
            return Err(broken("an event after the end of the process"));
        }
        let message: StartResponse = serde_json::from_slice(payload).map_err(|error| broken(&error.to_string()))?;
        let seq = message.seq;
        Ok(match message.event {
            ProcessEvent::Start(start) => ExecEvent::Started { pid: start.pid },
            ProcessEvent::Data(data) => {
                let (stream, Base64(data)) = match data {
                    DataEvent::Stdout(data) => (OutputStream::Stdout, data),
                    DataEvent::Stderr(data) => (OutputStream::Stderr, data),
                    DataEvent::Pty(data) => (OutputStream::Pty, data),
                };
                ExecEvent::Output { stream, data: data.into(), seq }
            }
            ProcessEvent::Gap(gap) => ExecEvent::Gap { dropped_bytes: gap.dropped_bytes, seq },
            ProcessEvent::End(end) => {
                self.ended = true;
                ExecEvent::Ended { end, seq }
            }
            ProcessEvent::Keepalive(_) => ExecEvent::Keepalive,
        })
    }
}

/// The error of an end frame.
pub(crate) fn refusal(payload: &[u8]) -> Result<Option<Error>, Error> {
    #[derive(serde::Deserialize)]
    struct End {
        #[serde(default)]
        error: Option<serde_json::Value>,
    }
    #[derive(serde::Deserialize)]
    struct Kind {
        #[serde(default)]
        code: Code,
    }
    let broken = |error: serde_json::Error| Error::Protocol { detail: error.to_string() };
    let end: End = serde_json::from_slice(payload).map_err(broken)?;
    let Some(error) = end.error else { return Ok(None) };
    let text = error.to_string();
    let code = serde_json::from_value::<Kind>(error).map_or(Code::Unknown, |kind| kind.code);
    let status = http::StatusCode::from_u16(code.status()).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    Ok(Some(Error::refused(status, text.as_bytes())))
}

impl Guest {
    /// Starts a process; its first event tells whether that worked. After `timeout` the agent kills it with all its
    /// offspring.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Unresponsive`], [`Error::Protocol`].
    ///
    /// # Cancel safety
    /// The process may have been started or not; once started, it runs on without us.
    pub async fn start(&self, start: &StartRequest, timeout: Option<Duration>) -> Result<ExecStream, Error> {
        let mut request = stream_request("Start", start)?;
        if let Some(timeout) = timeout {
            let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
            request.headers_mut().insert(TIMEOUT_HEADER, HeaderValue::from(milliseconds));
        }
        self.events(request, false).await
    }

    /// Listens to a process that runs already, or that ended within the last hour: from now on, or from a place in its
    /// journal on.
    ///
    /// # Errors
    /// As [`Guest::start`].
    pub async fn attach(&self, pid: u32, from_seq: Option<u64>) -> Result<ExecStream, Error> {
        let connect = ConnectRequest { process: Selector::Pid(pid), from_seq, follow: None };
        self.events(stream_request("Connect", &connect)?, false).await
    }

    /// What a process has written from a place in its journal on, and its end if it has ended; nothing is waited for.
    ///
    /// # Errors
    /// As [`Guest::start`].
    pub async fn replay(&self, pid: u32, from_seq: u64) -> Result<ExecStream, Error> {
        let process = Selector::Pid(pid);
        let connect = ConnectRequest { process, from_seq: Some(from_seq), follow: Some(false) };
        self.events(stream_request("Connect", &connect)?, true).await
    }

    async fn events(&self, request: Request<Body>, past_only: bool) -> Result<ExecStream, Error> {
        let response = self.patiently(self.accepted(request)).await??;
        let (guest, body) = (self.clone(), response.into_body());
        Ok(ExecStream { guest, body, decoder: Decoder::default(), ended: false, past_only })
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`Error::Refused`] with a `wakeful_code` if it could not be started; [`Error::Unresponsive`]; [`Error::Late`] if
    /// the agent does not end it long after its timeout; [`Error::Lost`] before it began, [`Error::Cut`] after;
    /// [`Error::Protocol`].
    ///
    /// # Cancel safety
    /// A command that has been started runs on.
    pub async fn exec(&self, exec: &Exec) -> Result<ExecOutput, Error> {
        self.exec_told(exec, |_| (), ()).await
    }

    /// The same; `started` is told its process id, and whenever the channel is lost `again` is asked for another one to the
    /// same guest.
    ///
    /// # Errors
    /// As [`Guest::exec`].
    pub async fn exec_told(
        &self,
        exec: &Exec,
        started: impl FnOnce(u32),
        again: impl Again,
    ) -> Result<ExecOutput, Error> {
        let Some(timeout) = exec.timeout else { return self.run(exec, started, again).await };
        let after = timeout.saturating_add(SLACK);
        let late = |_| Error::Late { attempted: "end the command", after };
        tokio::time::timeout(after, self.run(exec, started, again)).await.map_err(late)?
    }

    async fn run(&self, exec: &Exec, started: impl FnOnce(u32), mut again: impl Again) -> Result<ExecOutput, Error> {
        let begun = Instant::now();
        let process = ProcessConfig {
            cmd: exec.cmd.clone(),
            args: exec.args.clone(),
            envs: exec.env.clone(),
            cwd: exec.cwd.clone(),
        };
        let start = StartRequest {
            process,
            stdin: Some(exec.stdin.is_some()),
            output_limit: Some(exec.output_limit as u64),
            user: exec.user.clone(),
            ..StartRequest::default()
        };
        let mut events = self.start(&start, exec.timeout).await?;
        let pid = match events.next().await? {
            Some(ExecEvent::Started { pid }) => pid,
            _ => return Err(Error::Protocol { detail: "the process did not begin with its start".to_owned() }),
        };
        started(pid);
        let mut stdout = Kept::new(exec.output_limit);
        let mut stderr = Kept::new(exec.output_limit);
        // Beside the output: a process may write before it has read everything. Whether it wants the input at all is its
        // own affair, and a lost channel shows in the events.
        let mut feeding = exec.stdin.is_some();
        let mut feed = std::pin::pin!(async {
            let _ = self.feed(pid, exec.stdin.clone().unwrap_or_default()).await;
        });
        let mut last_seq = 0;
        let end = loop {
            let event = tokio::select! {
                biased;
                event = events.next() => match event {
                    // Input that was on its way may be lost.
                    Err(Error::Lost) if feeding => return Err(Error::Cut { pid, seq: last_seq }),
                    Err(Error::Lost) => {
                        let Some(guest) = again.channel().await else { return Err(Error::Cut { pid, seq: last_seq }) };
                        events = guest.attach(pid, Some(last_seq + 1)).await?;
                        continue;
                    }
                    other => other?,
                },
                () = &mut feed, if feeding => {
                    feeding = false;
                    continue;
                }
            };
            match event {
                Some(ExecEvent::Output { stream, data, seq }) => {
                    last_seq = seq.unwrap_or(last_seq);
                    match stream {
                        OutputStream::Stderr => stderr.push(&data),
                        OutputStream::Stdout | OutputStream::Pty => stdout.push(&data),
                    }
                }
                Some(ExecEvent::Ended { end, .. }) => break end,
                // Whose it was nobody knows any more.
                Some(ExecEvent::Gap { seq, .. }) => {
                    last_seq = seq.unwrap_or(last_seq);
                    (stdout.truncated, stderr.truncated) = (true, true);
                }
                Some(ExecEvent::Started { .. } | ExecEvent::Keepalive) => {}
                None => return Err(Error::Cut { pid, seq: last_seq }),
            }
        };
        Ok(ExecOutput {
            pid,
            exit_code: end.signal.map_or(end.exit_code, |signal| 128_i32.saturating_add(signal)),
            signal: end.signal,
            timed_out: end.timed_out,
            duration: end.duration_ms.map_or_else(|| begun.elapsed(), Duration::from_millis),
            stdout_truncated: end.stdout_truncated || stdout.truncated,
            stderr_truncated: end.stderr_truncated || stderr.truncated,
            stdout: stdout.bytes,
            stderr: stderr.bytes,
        })
    }

    /// Writes to a process's standard input or, if it has one, to its terminal. Waits until it has been taken.
    ///
    /// # Errors
    /// [`Error::Refused`] if the process is gone or takes no such input.
    pub async fn send_input(&self, pid: u32, input: ProcessInput) -> Result<(), Error> {
        let message = SendInputRequest { process: Selector::Pid(pid), input };
        let _: Empty = self.unary("/process.Process/SendInput", "take input", &message, None, INPUT).await?;
        Ok(())
    }

    /// Ends a process's standard input.
    ///
    /// # Errors
    /// [`Error::Refused`] if the process is gone or has a terminal.
    pub async fn close_stdin(&self, pid: u32) -> Result<(), Error> {
        let message = SelectRequest { process: Selector::Pid(pid) };
        let _: Empty = self.unary("/process.Process/CloseStdin", "close an input", &message, None, INPUT).await?;
        Ok(())
    }

    /// Signals a process's group; SIGKILL takes all its offspring with it.
    ///
    /// # Errors
    /// [`Error::Refused`] with `process_not_found` if it is gone.
    pub async fn signal(&self, pid: u32, signal: Signal) -> Result<(), Error> {
        let message = SendSignalRequest { process: Selector::Pid(pid), signal };
        let _: Empty = self.unary("/process.Process/SendSignal", "send a signal", &message, None, SHORT).await?;
        Ok(())
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    /// [`Error::Refused`] if the process is gone or has none.
    pub async fn resize(&self, pid: u32, size: PtySize) -> Result<(), Error> {
        let message = UpdateRequest { process: Selector::Pid(pid), pty: Some(Pty { size }) };
        let _: Empty = self.unary("/process.Process/Update", "resize a terminal", &message, None, SHORT).await?;
        Ok(())
    }

    /// A unary call of one of the agent's services, as a user.
    pub(crate) async fn unary<A: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        attempted: &'static str,
        message: &impl serde::Serialize,
        user: Option<&str>,
        deadline: Duration,
    ) -> Result<A, Error> {
        self.unary_bounded(path, attempted, message, user, deadline, ANSWER_LIMIT).await
    }

    /// The same for an answer of unusual length.
    pub(crate) async fn unary_bounded<A: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        attempted: &'static str,
        message: &impl serde::Serialize,
        user: Option<&str>,
        deadline: Duration,
        limit: usize,
    ) -> Result<A, Error> {
        let mut request = native(json_request(Method::POST, path, message)?, "application/json");
        if let Some(user) = user {
            let value = format!("Basic {}", STANDARD.encode(format!("{user}:")));
            let value = HeaderValue::from_str(&value).map_err(|error| Error::Protocol { detail: error.to_string() })?;
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        // What may take long is not waited for in vain: one that hangs is found out in between.
        self.patiently(self.call(attempted, request, deadline, limit)).await?
    }

    /// Waits for something of the guest; whenever nothing has come for a while, the agent must answer a health request, or
    /// at least be heard: one that has very much to do answers others first.
    pub(crate) async fn patiently<F: Future>(&self, awaited: F) -> Result<F::Output, Error> {
        let mut awaited = std::pin::pin!(awaited);
        loop {
            if let Ok(output) = tokio::time::timeout(SILENCE, &mut awaited).await {
                return Ok(output);
            }
            match self.health(HEALTH).await {
                Ok(()) => {}
                Err(Error::Lost) => return Err(Error::Lost),
                Err(_) if self.silent_for() < SILENCE => {}
                Err(_) => return Err(Error::Unresponsive),
            }
        }
    }
}

/// Marks a request as ours, so that the answer has our fields.
pub(crate) fn native(mut request: Request<Body>, content_type: &'static str) -> Request<Body> {
    request.headers_mut().insert(NATIVE_HEADER, HeaderValue::from_static("1"));
    request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    request
}

fn stream_request(method: &str, message: &impl serde::Serialize) -> Result<Request<Body>, Error> {
    let payload = serde_json::to_vec(message).map_err(|error| Error::Protocol { detail: error.to_string() })?;
    let body = full(message_frame(&payload));
    Ok(native(request(Method::POST, &format!("/process.Process/{method}"), body)?, STREAM_TYPE))
}

/// Output up to a limit, whatever the guest sends.
struct Kept {
    bytes: Vec<u8>,
    limit: usize,
    truncated: bool,
}

impl Kept {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::with_capacity(limit.min(FIRST_ROOM)), limit, truncated: false }
    }

    fn push(&mut self, data: &[u8]) {
        let room = self.limit - self.bytes.len();
        self.truncated |= data.len() > room;
        self.bytes.extend_from_slice(&data[..data.len().min(room)]);
    }
}
