//! What goes into a process: bytes for its standard input or terminal.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use rustix::termios::{LocalModes, SpecialCodeIndex, Termios, Winsize, tcgetattr, tcsetwinsize};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::process::{ProcessInput, PtySize};

use super::record::Process;
use super::tree;

/// A process that never reads must not hold a request for ever.
const WRITE_DEADLINE: Duration = Duration::from_secs(300);

/// The agent's end of a terminal, shared by reader and writer.
pub(crate) type Terminal = Arc<Ends>;

/// One terminal, twice: as a pipe's end to read from and one to write to. Whatever may be read and written is a pipe to the
/// runtime, which asks the kernel again after every "not now"; an `AsyncFd` would only ever be told of edges, which the
/// variant of the agent that waits by `poll` (see `agent-bin`) does not have.
pub(crate) struct Ends {
    pub(super) reader: pipe::Receiver,
    writer: pipe::Sender,
    /// gVisor's terminals leave a key in the line that has become a signal, and tell nobody of a new size.
    mended: bool,
}

impl Ends {
    /// Of the terminal that a program was given the other side of.
    pub(super) fn new(terminal: OwnedFd, mended: bool) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&terminal, true)?;
        let writer = pipe::Sender::from_owned_fd_unchecked(terminal.try_clone()?)?;
        Ok(Self { reader: pipe::Receiver::from_owned_fd_unchecked(terminal)?, writer, mended })
    }
}

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
        tcsetwinsize(&terminal.writer, winsize(size))
            .map_err(|errno| ErrorBody::new(Code::Internal, format!("could not resize the terminal: {errno}")))?;
        if terminal.mended {
            let pid = self.pid;
            // To all of the session: who is in the foreground cannot be asked there, and the others do not mind.
            tokio::task::spawn_blocking(move || tree::signal_session(pid, Signal::WINCH));
        }
        Ok(())
    }
}

/// In a terminal that edits lines, a key which is a signal does not become a part of one: it is rubbed out at once.
fn mend<'a>(data: &'a [u8], modes: &Termios) -> Cow<'a, [u8]> {
    let code = |index| modes.special_codes[index];
    let signals = [SpecialCodeIndex::VINTR, SpecialCodeIndex::VQUIT, SpecialCodeIndex::VSUSP].map(code);
    let erase = code(SpecialCodeIndex::VERASE);
    let is_signal = |byte: &u8| *byte != 0 && signals.contains(byte);
    if erase == 0 || !modes.local_modes.contains(LocalModes::ICANON | LocalModes::ISIG) || !data.iter().any(is_signal) {
        return Cow::Borrowed(data);
    }
    let mended = data.iter().flat_map(|byte| [Some(*byte), is_signal(byte).then_some(erase)]);
    Cow::Owned(mended.flatten().collect())
}

/// The kernel's form of a size.
pub(crate) fn winsize(size: PtySize) -> Winsize {
    let cell = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    Winsize { ws_row: cell(size.rows), ws_col: cell(size.cols), ws_xpixel: 0, ws_ypixel: 0 }
}

async fn write_terminal(terminal: &Terminal, data: &[u8]) -> io::Result<()> {
    let modes = if terminal.mended { tcgetattr(&terminal.writer).ok() } else { None };
    let data = modes.map_or(Cow::Borrowed(data), |modes| mend(data, &modes));
    let mut data = &data[..];
    while !data.is_empty() {
        terminal.writer.writable().await?;
        match terminal.writer.try_write(data) {
            Ok(written) => data = &data[written..],
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::pty::{OpenptFlags, openpt};

    use super::*;

    #[test]
    fn keys_that_are_signals_are_rubbed_out_of_lines() {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        let mut modes = tcgetattr(&terminal).expect("modes");
        assert_eq!(&*mend(b"a\x03b\x1a\n", &modes), b"a\x03\x7fb\x1a\x7f\n");
        assert!(matches!(mend(b"plain\n", &modes), Cow::Borrowed(b"plain\n")));
        modes.local_modes.remove(LocalModes::ICANON);
        assert_eq!(&*mend(b"\x03", &modes), b"\x03");
    }
}
