//! One engine's process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;
use wakeful_driver::Error;
use wakeful_sys::pidfd;

/// Within which a killed engine must be gone.
const GONE: Duration = Duration::from_secs(10);

/// A process, held by its descriptor. Dropping it leaves the process alone.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    fd: AsyncFd<OwnedFd>,
    status: OnceLock<Option<String>>,
}

impl Process {
    /// The process behind this descriptor.
    ///
    /// # Errors
    /// Outside a runtime.
    pub fn new(pid: u32, pidfd: OwnedFd) -> io::Result<Self> {
        #[expect(deprecated, reason = "the new one is unsafe and asks for what an OwnedFd guarantees")]
        let fd = AsyncFd::with_interest(pidfd, Interest::READABLE)?;
        Ok(Self { pid, fd, status: OnceLock::new() })
    }

    /// Its number, which is taken for as long as it was not reaped.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        pidfd::wait_ended(self.fd(), Duration::ZERO).unwrap_or(true)
    }

    /// Resolves when it has ended; gives the status if it was our child.
    pub async fn ended(&self) -> Option<String> {
        while !self.has_ended() {
            match self.fd.readable().await {
                Ok(mut ready) if !self.has_ended() => ready.clear_ready(),
                Ok(_) => {}
                // The runtime is going down: nobody will be told any more.
                Err(_) => std::future::pending().await,
            }
        }
        self.status()
    }

    /// Takes the status from the kernel, once: afterwards the pid may be given to somebody else.
    fn status(&self) -> Option<String> {
        self.status.get_or_init(|| pidfd::reap(self.fd())).clone()
    }

    /// Ends it and waits until it is gone. Fine twice.
    ///
    /// # Errors
    /// `Late` if it does not go.
    pub async fn kill(&self) -> Result<(), Error> {
        pidfd::kill(self.fd()).map_err(|source| Error::io("kill the engine", source))?;
        let gone = timeout(GONE, self.ended()).await;
        gone.map(drop).map_err(|_| Error::Late { doing: "end after it was killed", after: GONE })
    }

    /// For a destructor, which cannot wait like [`kill`](Self::kill): an engine takes some milliseconds to go.
    pub fn kill_now(&self) {
        if pidfd::kill(self.fd()).is_ok() && pidfd::wait_ended(self.fd(), Duration::from_secs(2)).unwrap_or(false) {
            self.status();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.has_ended() {
            self.status();
        }
    }
}
