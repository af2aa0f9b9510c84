//! The one place that waits for children.
//!
//! As pid 1 the agent inherits every orphan of the guest and must reap them all, while the process service wants the
//! status of its own children. Two callers of `waitpid` would steal from each other, so there is one thread:
//!
//! ```text
//!   waitid(P_ALL, WNOWAIT)  blocks, reaps nothing       ── some child has ended
//!   lock                    held by `spawn` while a child is made, so no status is taken before its pid is known
//!   waitpid(-1, WNOHANG)    until none is left          ── registered pid: its waiter; anybody else: forgotten
//! ```
//!
//! No signal is involved: SIGCHLD keeps its default, and children inherit no blocked mask from here.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, wait, waitid};
use tokio::sync::oneshot;

/// Resolves to the child's status; an error only if the reaper thread is gone.
pub(crate) type Exit = oneshot::Receiver<ExitStatus>;

/// Cheap to clone; all clones speak to the same thread.
#[derive(Clone)]
pub(crate) struct Reaper {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    waiters: Mutex<HashMap<u32, oneshot::Sender<ExitStatus>>>,
    /// Signalled after every spawn: without any child there is nothing to block on.
    spawned: Condvar,
}

impl Reaper {
    /// Starts the thread. It runs until the process ends.
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let reaper = Self { shared: Arc::clone(&shared) };
        thread::Builder::new().name("reaper".to_owned()).stack_size(64 * 1024).spawn(move || shared.run())?;
        Ok(reaper)
    }

    /// Starts a child whose status will be delivered. Never call `wait` on the returned `Child`: the status is not
    /// there any more.
    ///
    /// Blocks until the child has executed its program or failed to (then `spawn`'s own error says why), so call it
    /// from a blocking thread.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<(Child, Exit)> {
        let (sender, exit) = oneshot::channel();
        // Held over the spawn: `Command::spawn` itself waits for a child whose exec failed, and a child that ends at
        // once must find its waiter.
        let mut waiters = self.shared.lock();
        let child = command.spawn()?;
        waiters.insert(child.id(), sender);
        drop(waiters);
        self.shared.spawned.notify_all();
        Ok((child, exit))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<ExitStatus>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(_) => self.reap(),
                Err(Errno::CHILD) => {
                    // No child at all. Orphans only ever come from children, so nothing can appear before a spawn;
                    // one that happened since the failed wait has left its waiter in the map.
                    let waiters = self.lock();
                    drop(self.spawned.wait_while(waiters, |w| w.is_empty()).unwrap_or_else(PoisonError::into_inner));
                }
                Err(_) => {} // interrupted
            }
        }
    }

    fn reap(&self) {
        let mut waiters = self.lock();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(waiter) = waiters.remove(&pid.as_raw_nonzero().get().unsigned_abs()) {
                // Whoever asked may have lost interest; the child is reaped all the same.
                let _ = waiter.send(ExitStatus::from_raw(status.as_raw()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn every_status_reaches_its_own_waiter() {
        let reaper = Reaper::start().expect("a thread");
        let mut waits = tokio::task::JoinSet::new();
        for code in 0..40_i32 {
            let reaper = reaper.clone();
            waits.spawn(async move {
                let mut command = Command::new("/bin/sh");
                // Every third one leaves an orphan behind, which must not confuse anybody.
                command.arg("-c").arg(if code % 3 == 0 {
                    format!("(exit 99) & exit {code}")
                } else {
                    format!("exit {code}")
                });
                let (_child, exit) = tokio::task::spawn_blocking(move || reaper.spawn(&mut command))
                    .await
                    .expect("join")
                    .expect("spawn");
                let status =
                    tokio::time::timeout(Duration::from_secs(20), exit).await.expect("in time").expect("status");
                assert_eq!(status.code(), Some(code));
            });
        }
        while let Some(done) = waits.join_next().await {
            done.expect("no panic");
        }
        let missing = reaper.spawn(&mut Command::new("/nonexistent/program"));
        assert_eq!(missing.expect_err("no such program").kind(), io::ErrorKind::NotFound);
    }
}
