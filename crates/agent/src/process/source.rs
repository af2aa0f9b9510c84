//! Our end of one of a process's streams: what it writes, in pieces that do not cut a character in two.
//!
//! Pieces get their numbers in the journal, so whoever goes on from a number must find whole characters there too; a
//! reader on the host could not mend that. A character whose rest does not come is passed on as the bytes it is, after a
//! moment that nobody notices: the process may speak something else than UTF-8, and its reader may wait for that byte.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::ioctl_fionread;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until};
use wakeful_guest_proto::process::MAX_CHUNK;

use super::input::Terminal;
use super::journal::Stream;

/// How long the rest of a character is waited for.
const REST: Duration = Duration::from_millis(30);

/// The time between exit and end in which offspring may still add output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grace {
    NotYet,
    Until(Instant),
    Over,
}

pub(crate) struct Source {
    pub(crate) stream: Stream,
    end: End,
    buffer: Vec<u8>,
    /// So many bytes at the buffer's front are the beginning of a character.
    begun: usize,
    /// When they are passed on without its rest.
    due: Option<Instant>,
    /// What was in the pipe when the main process had ended: its own last words, to be read whatever the clock says.
    owed: u64,
}

pub(crate) enum End {
    Pipe(pipe::Receiver),
    Terminal(Terminal),
    Closed,
}

impl Source {
    pub(crate) fn new(stream: Stream, end: End) -> Self {
        let size = if matches!(end, End::Closed) { 0 } else { MAX_CHUNK };
        Self { stream, end, buffer: vec![0; size], begun: 0, due: None, owed: 0 }
    }

    pub(crate) fn open(&self) -> bool {
        !matches!(self.end, End::Closed)
    }

    /// Whether everything that counts has been read.
    pub(crate) fn done(&self, grace: Grace) -> bool {
        !self.open() || (grace == Grace::Over && self.owed == 0 && self.begun == 0)
    }

    pub(crate) fn note_owed(&mut self) {
        self.owed = match &self.end {
            End::Pipe(pipe) => ioctl_fionread(pipe).unwrap_or(0),
            End::Terminal(terminal) => ioctl_fionread(&terminal.reader).unwrap_or(0),
            End::Closed => 0,
        };
    }

    /// The next piece, or `None` once it is closed; after that it never resolves again.
    ///
    /// # Cancel safety
    /// Nothing is taken from the pipe before the future is ready, and what is held back is held by the source.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            let more = read(&self.end, &mut self.buffer[self.begun..]);
            let read = match self.due {
                None => more.await,
                Some(due) => tokio::select! {
                    biased;
                    read = more => read,
                    () = sleep_until(due) => return Some(self.take(self.begun, self.begun)),
                },
            };
            let Some(read) = read else {
                self.end = End::Closed;
                let last = (self.begun > 0).then(|| self.take(self.begun, self.begun));
                self.buffer = Vec::new();
                return last;
            };
            self.owed = self.owed.saturating_sub(read as u64);
            let length = self.begun + read;
            let whole = length - unfinished(&self.buffer[..length]);
            if whole > 0 {
                return Some(self.take(whole, length));
            }
            self.begun = length;
            self.due = self.due.or_else(|| Some(Instant::now() + REST));
        }
    }

    /// The first `whole` bytes of `length`; the others are the beginning of a character.
    fn take(&mut self, whole: usize, length: usize) -> Bytes {
        let piece = Bytes::copy_from_slice(&self.buffer[..whole]);
        self.buffer.copy_within(whole..length, 0);
        self.begun = length - whole;
        self.due = (self.begun > 0).then(|| Instant::now() + REST);
        piece
    }
}

/// How many bytes came; `None` when it is closed.
async fn read(end: &End, buffer: &mut [u8]) -> Option<usize> {
    loop {
        let read = match end {
            End::Pipe(pipe) => match pipe.readable().await {
                Ok(()) => pipe.try_read(buffer),
                Err(error) => Err(error),
            },
            End::Terminal(terminal) => match terminal.reader.readable().await {
                Ok(()) => terminal.reader.try_read(buffer),
                Err(error) => Err(error),
            },
            End::Closed => std::future::pending().await,
        };
        match read {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // A terminal says EIO when nobody has it open any more.
            Ok(0) | Err(_) => return None,
            Ok(read) => return Some(read),
        }
    }
}

/// How many bytes at the end are the beginning of a character that goes on.
fn unfinished(data: &[u8]) -> usize {
    let longest = data.len().min(3);
    let lead = (1..=longest).find(|back| data[data.len() - back] & 0xc0 != 0x80);
    lead.filter(|back| std::str::from_utf8(&data[data.len() - back..]).is_err_and(|e| e.error_len().is_none()))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[test]
    fn beginnings_of_characters() {
        for (data, held) in [
            (&b""[..], 0),
            (b"abc", 0),
            ("aé€😀".as_bytes(), 0),
            (b"a\xc3", 1),
            (b"a\xe2\x82", 2),
            (b"\xf0\x9f\x98", 3),
            (b"\xff", 0),
            (b"\x80\x80\x80\x80", 0),
            (b"\xc0", 0),
            (b"\xe0\x80", 0),
        ] {
            assert_eq!(unfinished(data), held, "{data:?}");
        }
    }

    fn source() -> (pipe::Sender, Source) {
        let (sender, receiver) = pipe::pipe().expect("a pipe");
        (sender, Source::new(Stream::Stdout, End::Pipe(receiver)))
    }

    #[tokio::test]
    async fn a_character_in_two_writes_comes_as_one() {
        let (mut sender, mut source) = source();
        sender.write_all(b"a\xe2").await.unwrap();
        assert_eq!(source.next().await.unwrap(), "a");
        sender.write_all(b"\x82").await.unwrap();
        sender.write_all(b"\xac!").await.unwrap();
        assert_eq!(source.next().await.unwrap(), "€!");
    }

    #[tokio::test]
    async fn one_without_its_rest_comes_all_the_same() {
        let (mut sender, mut source) = source();
        sender.write_all(b"\xe2").await.unwrap();
        assert_eq!(source.next().await.unwrap(), &b"\xe2"[..]);
        sender.write_all(b"\xf0\x9f").await.unwrap();
        drop(sender);
        assert_eq!(source.next().await.unwrap(), &b"\xf0\x9f"[..]);
        assert!(source.done(Grace::NotYet) || source.next().await.is_none());
    }
}
