//! ^C and its relatives.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// The signals that ask a command to stop. While this exists they do not end the process by themselves.
pub(crate) struct Interrupt {
    int: Signal,
    term: Signal,
}

impl Interrupt {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let open =
            |kind| signal(kind).map_err(|error| Failure::refused(format!("could not listen to signals: {error}")));
        Ok(Self { int: open(SignalKind::interrupt())?, term: open(SignalKind::terminate())? })
    }

    /// The exit code of the first one that comes: 128 and its number.
    ///
    /// # Cancel safety
    /// It can be dropped and asked again.
    pub(crate) async fn came(&mut self) -> u8 {
        tokio::select! {
            _ = self.int.recv() => 130,
            _ = self.term.recv() => 143,
        }
    }
}

/// Runs `work` until it ends or a signal comes.
pub(crate) async fn or_interrupt<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut interrupt = Interrupt::listen()?;
    tokio::select! {
        ended = work => ended,
        code = interrupt.came() => Err(Failure::interrupted(code)),
    }
}
