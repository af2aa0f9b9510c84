//! Speaking to a sentry: by its control socket, which takes a millisecond, or by runsc's command line, which takes 25.
//!
//! The socket is internal to runsc: one JSON object each way, files as ancillary data. An engine that does not understand
//! it is spoken to by the command line.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;
use serde_json::{Value, json};
use wakeful_confine::files;

use crate::boot::{CONTAINER, Flags};

/// Names of an image's files, as runsc looks for them.
pub const STATE: &str = "checkpoint.img";
/// Where which page is.
pub const INDEX: &str = "pages_meta.img";
/// The pages.
pub const PAGES: &str = "pages.img";

/// The longest answer that is read.
const ANSWER: u64 = 1 << 20;
/// A stop or a start: a millisecond, as a rule.
const SHORT: Duration = Duration::from_secs(20);
/// Writing all of a guest's memory to a slow disk.
const LONG: Duration = Duration::from_secs(600);

/// Why a sentry did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It said no.
    #[error("{0}")]
    Refused(String),
    /// It cannot be spoken to in this way.
    #[error("the control socket is of no use")]
    Unusable(#[source] io::Error),
    /// It did not answer in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
}

/// One engine's ear.
#[derive(Clone, Debug)]
pub struct Control {
    /// The program.
    pub program: PathBuf,
    /// Where its state lies.
    pub state: PathBuf,
    /// Where it says what went wrong.
    pub log: PathBuf,
    /// As it was started.
    pub hardened: bool,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    err: String,
}

impl Control {
    /// Stops all processes inside. To be called once: stops are counted.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn pause(&self) -> Result<(), Failure> {
        self.either("containerManager.Pause", || vec!["pause".into(), CONTAINER.into()])
    }

    /// Lets them go on. Only after [`Control::pause`]: a sentry that was not stopped ends by it.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn resume(&self) -> Result<(), Failure> {
        self.either("containerManager.Resume", || vec!["resume".into(), CONTAINER.into()])
    }

    /// Writes everything but the disk into `into`, as [`STATE`], [`INDEX`] and [`PAGES`]; gives them open. The sandbox stays
    /// as it is, stopped, whatever comes of it.
    ///
    /// # Errors
    /// See [`Failure`]; and a full disk, as it says so.
    pub fn checkpoint(&self, into: &Path) -> Result<[File; 3], Failure> {
        let make = |name: &str| files::create_new(&into.join(name)).map_err(Failure::Unusable);
        let made = [make(STATE)?, make(INDEX)?, make(PAGES)?];
        let argument = json!({"metadata": {"compression": "none"}, "have_pages_file": true, "Resume": true});
        let descriptors = [made[0].as_fd(), made[1].as_fd(), made[2].as_fd()];
        match self.call("containerManager.Checkpoint", &argument, &descriptors, LONG) {
            Err(Failure::Unusable(error)) => {
                tracing::warn!(%error, "saving an engine by the command line");
                for name in [STATE, INDEX, PAGES] {
                    files::remove_any(&into.join(name)).map_err(Failure::Unusable)?;
                }
                let words = ["checkpoint", "-leave-running", "-compression", "none", "-image-path"].map(OsString::from);
                let words = words.into_iter().chain([into.into(), CONTAINER.into()]).collect();
                self.command(words, LONG)?;
                let open = |name: &str| files::open_regular(&into.join(name), false).map_err(Failure::Unusable);
                Ok([open(STATE)?, open(INDEX)?, open(PAGES)?])
            }
            done => done.map(|()| made),
        }
    }

    fn either(&self, method: &str, words: impl FnOnce() -> Vec<OsString>) -> Result<(), Failure> {
        match self.call(method, &Value::Null, &[], SHORT) {
            Err(Failure::Unusable(error)) => {
                tracing::warn!(method, %error, "asking an engine by the command line");
                self.command(words(), SHORT)
            }
            done => done,
        }
    }

    fn call(
        &self,
        method: &str,
        argument: &Value,
        descriptors: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(), Failure> {
        let mut stream = self.connect().map_err(Failure::Unusable)?;
        let limited = stream.set_read_timeout(Some(patience)).and_then(|()| stream.set_write_timeout(Some(SHORT)));
        limited.map_err(Failure::Unusable)?;
        let mut text = serde_json::to_vec(&json!({"method": method, "arg": argument})).expect("plain data");
        text.push(b'\n');
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let sent = sendmsg(&stream, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL);
        match sent {
            Ok(n) if n == text.len() => {}
            Ok(_) => return Err(Failure::Unusable(io::ErrorKind::WriteZero.into())),
            Err(errno) => return Err(Failure::Unusable(errno.into())),
        }
        let answer: Answer = read_answer(&mut stream, patience)?;
        match answer {
            Answer { success: true, .. } => Ok(()),
            // The words of its remote procedure calls for something that it does not have.
            Answer { err, .. } if err.contains("unknown method") => Err(Failure::Unusable(io::Error::other(err))),
            Answer { err, .. } => Err(Failure::Refused(err)),
        }
    }

    /// Through the directory's descriptor: a path of a socket has at most 108 bytes.
    fn connect(&self) -> io::Result<UnixStream> {
        let dir = File::open(&self.state)?;
        UnixStream::connect(format!("/proc/self/fd/{}/runsc-{CONTAINER}.sock", dir.as_raw_fd()))
    }

    fn command(&self, words: Vec<OsString>, patience: Duration) -> Result<(), Failure> {
        let flags = Flags { state: &self.state, log: &self.log, hardened: self.hardened };
        let said = self.log.metadata().map_or(0, |meta| meta.len());
        let mut command = Command::new(&self.program);
        command.args(flags.arguments()).args(words).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(Failure::Unusable)?;
        match wait(&mut child, patience).map_err(Failure::Unusable)? {
            Some(status) if status.success() => Ok(()),
            Some(_) => Err(Failure::Refused(complaint(&self.log, said))),
            None => Err(Failure::Late(patience)),
        }
    }
}

/// One JSON object, which ends when it is complete: nothing follows it.
fn read_answer(stream: &mut UnixStream, patience: Duration) -> Result<Answer, Failure> {
    let mut objects = serde_json::Deserializer::from_reader(stream.take(ANSWER)).into_iter::<Answer>();
    match objects.next() {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(error)) if error.io_error_kind().is_some_and(is_late) => Err(Failure::Late(patience)),
        Some(Err(error)) => Err(Failure::Unusable(error.into())),
        None => Err(Failure::Unusable(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn is_late(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Waits for a child of ours; ends one that is late, and says so by `None`.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + patience;
    let process = wakeful_sys::pidfd::open(child.id())?;
    while !wakeful_sys::pidfd::wait_ended(&process, deadline.saturating_duration_since(Instant::now()))? {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
    }
    child.wait().map(Some)
}

/// What runsc wrote down since then, for people: the last line of it.
pub(crate) fn complaint(log: &Path, from: u64) -> String {
    let text = files::tail(log, from, 4000);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    // JSON, or plain text, as it was configured.
    let said = serde_json::from_str::<Value>(line).ok().and_then(|line| line["msg"].as_str().map(str::to_owned));
    said.unwrap_or_else(|| line.to_owned())
}
