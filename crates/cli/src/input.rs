//! Standard input, as it comes.

use std::io::{self, Read};

use tokio::sync::mpsc;

/// A piece of it.
const PIECE: usize = 64 << 10;
/// Pieces between the thread and the stream.
const UNDER_WAY: usize = 4;

/// Reads standard input until its end. A read cannot be called off, so it has a thread of its own, which ends with the
/// process.
pub(crate) struct Input {
    receiver: mpsc::Receiver<io::Result<Vec<u8>>>,
}

impl Input {
    pub(crate) fn open() -> Self {
        let (sender, receiver) = mpsc::channel(UNDER_WAY);
        std::thread::spawn(move || {
            let mut buffer = vec![0; PIECE];
            loop {
                let piece = match io::stdin().lock().read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => Ok(buffer[..length].to_vec()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error),
                };
                let ended = piece.is_err();
                if sender.blocking_send(piece).is_err() || ended {
                    break;
                }
            }
        });
        Self { receiver }
    }

    /// The next piece; `None` at the end.
    ///
    /// # Cancel safety
    /// It can be dropped and asked again.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        self.receiver.recv().await
    }

    /// What is there already.
    pub(crate) fn ready(&mut self) -> Option<io::Result<Vec<u8>>> {
        self.receiver.try_recv().ok()
    }
}
