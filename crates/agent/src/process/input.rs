//! What goes into a process: bytes for its standard input or terminal.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::AsyncWriteExt as _;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::process::{ProcessInput, PtySize};

use super::record::Process;

/// A process that never reads must not hold a request for ever.
const WRITE_DEADLINE: Duration = Duration::from_secs(300);

/// The agent's end of a terminal, shared by reader and writer.
pub(crate) type Terminal = Arc<AsyncFd<OwnedFd>>;

/// Where input goes.
pub(crate) enum Input {
    /// It was started without.
    Absent,
    /// Closed since.
    Closed,
    Pipe(pipe::Sender),
    Terminal(Terminal),
}

impl Process {
    /// Writes all of it, within the deadline.
    pub(crate) async fn write(&self, input: &ProcessInput, deadline: Option<Duration>) -> Result<(), ErrorBody> {
        let write = async {
            let mut target = self.input.lock().await;
            let written = match (&mut *target, input) {
                (Input::Pipe(pipe), ProcessInput::Stdin(data)) => pipe.write_all(&data.0).await,
                (Input::Terminal(terminal), ProcessInput::Pty(data)) => write_terminal(terminal, &data.0).await,
                (Input::Absent | Input::Closed, ProcessInput::Stdin(_)) => {
                    let closed = ErrorBody::new(Code::Internal, "stdin is not enabled or is closed");
                    return Err(closed.because(WakefulCode::StdinClosed));
                }
                (_, ProcessInput::Stdin(_)) => {
                    return Err(ErrorBody::new(Code::Internal, "process has a terminal, not a stdin"));
                }
                (_, ProcessInput::Pty(_)) => return Err(ErrorBody::new(Code::Internal, "process has no terminal")),
            };
            written.map_err(|error| {
                // The reading end is gone: the process has closed it or has ended.
                let failed = format!("could not write to process {}: {error}", self.pid);
                if error.kind() == io::ErrorKind::BrokenPipe {
                    *target = Input::Closed;
                    return ErrorBody::new(Code::Internal, failed).because(WakefulCode::StdinClosed);
                }
                ErrorBody::new(Code::Internal, failed)
            })
        };
        match tokio::time::timeout(deadline.unwrap_or(WRITE_DEADLINE), write).await {
            Ok(result) => result,
            Err(_) => Err(ErrorBody::new(Code::DeadlineExceeded, "process did not read its input in time")),
        }
    }

    /// The process reads an end of file; closing twice is fine.
    pub(crate) async fn close_stdin(&self) -> Result<(), ErrorBody> {
        let Ok(mut input) = tokio::time::timeout(WRITE_DEADLINE, self.input.lock()).await else {
            return Err(ErrorBody::new(Code::DeadlineExceeded, "process did not read its input in time"));
        };
        match &*input {
            Input::Terminal(_) => Err(ErrorBody::new(Code::Internal, "a terminal's input cannot be closed; send ^D")),
            Input::Absent | Input::Closed | Input::Pipe(_) => {
                *input = Input::Closed;
                Ok(())
            }
        }
    }

    /// Tells terminal and programs the new size.
    pub(crate) fn resize(&self, size: PtySize) -> Result<(), ErrorBody> {
        let terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(terminal) = terminal else {
            return Err(ErrorBody::new(Code::FailedPrecondition, "process has no terminal"));
        };
        tcsetwinsize(terminal.get_ref(), winsize(size))
            .map_err(|errno| ErrorBody::new(Code::Internal, format!("could not resize the terminal: {errno}")))
    }
}

/// The kernel's form of a size.
pub(crate) fn winsize(size: PtySize) -> Winsize {
    let cell = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    Winsize { ws_row: cell(size.rows), ws_col: cell(size.cols), ws_xpixel: 0, ws_ypixel: 0 }
}

async fn write_terminal(terminal: &Terminal, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let mut ready = terminal.writable().await?;
        if let Ok(written) = ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), data)?)) {
            data = &data[written?..];
        }
    }
    Ok(())
}
