//! Where a command's output goes: to our own, as it comes, or kept for one document at the end.
//!
//! Our own output may block for as long as its reader likes. A thread of its own does the writing, so that ^C is still
//! heard; few pieces are under way, so that a slow reader slows the command's stream and not our memory.

use std::io::{self, Write};

use tokio::sync::{mpsc, oneshot};
use wakeful_client::types::ExecuteResponse;

use crate::failure::Failure;
use crate::follow::Ended;

/// Pieces between the stream and the thread.
const UNDER_WAY: usize = 16;
/// What is kept of each stream, as `execute` keeps it.
const KEPT: usize = 8 << 20;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    Stdout,
    Stderr,
}

/// Where output goes.
pub(crate) enum Sink {
    Through(Through),
    Kept(Kept),
}

/// As it comes.
pub(crate) struct Through {
    sender: mpsc::Sender<(To, Vec<u8>)>,
    ended: oneshot::Receiver<io::Result<()>>,
}

/// All of it, within bounds.
#[derive(Default)]
pub(crate) struct Kept {
    stdout: Stream,
    stderr: Stream,
}

#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    cut: bool,
}

impl Sink {
    pub(crate) fn through() -> Self {
        Self::Through(Through::open())
    }

    pub(crate) fn kept() -> Self {
        Self::Kept(Kept::default())
    }

    /// Takes a piece of output.
    pub(crate) async fn write(&mut self, to: To, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Through(through) => through.write(to, bytes).await,
            Self::Kept(kept) => {
                kept.stream(to).add(bytes);
                Ok(())
            }
        }
    }

    /// A part of it is lost.
    pub(crate) fn gap(&mut self, dropped: u64) {
        match self {
            Self::Through(_) => crate::output::warning(&format!(
                "{dropped} bytes of output came too fast to be kept and are missing here"
            )),
            Self::Kept(kept) => (kept.stdout.cut, kept.stderr.cut) = (true, true),
        }
    }
}

impl Through {
    pub(crate) fn open() -> Self {
        let (sender, mut receiver) = mpsc::channel::<(To, Vec<u8>)>(UNDER_WAY);
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            let mut write = || -> io::Result<()> {
                while let Some((to, bytes)) = receiver.blocking_recv() {
                    match to {
                        To::Stdout => {
                            let mut out = io::stdout().lock();
                            out.write_all(&bytes)?;
                            out.flush()?;
                        }
                        To::Stderr => io::stderr().lock().write_all(&bytes)?,
                    }
                }
                Ok(())
            };
            let wrote = write();
            // first closed, then told: whoever finds it closed finds the reason too
            drop(receiver);
            let _ = end.send(wrote);
        });
        Self { sender, ended }
    }

    pub(crate) async fn write(&mut self, to: To, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.is_empty() || self.sender.send((to, bytes.to_vec())).await.is_ok() {
            return Ok(());
        }
        Err(match (&mut self.ended).await {
            Ok(Err(error)) => error.into(),
            Ok(Ok(())) | Err(_) => Failure::bug(),
        })
    }

    /// Waits until all of it is written.
    pub(crate) async fn finish(self) -> Result<(), Failure> {
        let Self { sender, ended } = self;
        drop(sender);
        match ended.await {
            Ok(wrote) => Ok(wrote?),
            Err(_) => Err(Failure::bug()),
        }
    }
}

impl Kept {
    fn stream(&mut self, to: To) -> &mut Stream {
        match to {
            To::Stdout => &mut self.stdout,
            To::Stderr => &mut self.stderr,
        }
    }

    /// As `execute` answers it.
    pub(crate) fn document(self, ended: &Ended) -> ExecuteResponse {
        ExecuteResponse {
            exit_code: ended.exit_code,
            stdout: String::from_utf8_lossy(&self.stdout.bytes).into_owned(),
            stderr: String::from_utf8_lossy(&self.stderr.bytes).into_owned(),
            duration_ms: ended.duration_ms,
            timed_out: ended.timed_out,
            signal: ended.signal,
            stdout_truncated: self.stdout.cut,
            stderr_truncated: self.stderr.cut,
            pid: ended.pid,
        }
    }
}

impl Stream {
    fn add(&mut self, bytes: &[u8]) {
        let room = (KEPT - self.bytes.len()).min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..room]);
        self.cut |= room < bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_bounds() {
        let mut kept = Kept::default();
        kept.stream(To::Stdout).add(b"a\xff");
        kept.stream(To::Stderr).add(&vec![b'x'; KEPT - 1]);
        kept.stream(To::Stderr).add(b"yz");
        let ended = Ended { pid: 7, exit_code: 3, signal: None, timed_out: false, duration_ms: 5 };
        let document = kept.document(&ended);
        assert_eq!((document.stdout.as_str(), document.stdout_truncated), ("a\u{fffd}", false));
        assert_eq!((document.stderr.len(), document.stderr_truncated), (KEPT, true));
        assert!(document.stderr.ends_with('y'));
        assert_eq!((document.exit_code, document.pid, document.duration_ms), (3, 7, 5));
    }
}
