//! A reader that ends a stream of strangers: when there is too much of it, and when nobody wants it any more. Whoever reads
//! through it sees only an error of reading, so it remembers which it was.

use std::io::{self, Read};

pub(crate) struct Guard<'a, R> {
    inner: R,
    left: u64,
    exceeded: bool,
    failed: Option<String>,
    stop: &'a dyn Fn() -> bool,
    stopped: bool,
}

impl<'a, R: Read> Guard<'a, R> {
    pub(crate) fn new(inner: R, limit: u64, stop: &'a dyn Fn() -> bool) -> Self {
        Self { inner, left: limit, exceeded: false, failed: None, stop, stopped: false }
    }

    /// There was more than the limit.
    pub(crate) fn exceeded(&self) -> bool {
        self.exceeded
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.stopped
    }

    /// What the inner reader failed with.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }
}

impl<R: Read> Read for Guard<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if (self.stop)() {
            self.stopped = true;
            return Err(io::Error::other("cancelled"));
        }
        let read = match self.inner.read(buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.failed = Some(crate::error::tame(&error.to_string()));
                return Err(error);
            }
        };
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => {
                self.exceeded = true;
                return Err(io::Error::other("too long"));
            }
        }
        Ok(read)
    }
}
