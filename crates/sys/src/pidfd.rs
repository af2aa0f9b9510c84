//! Processes held by descriptor.
//!
//! A pid is a number that the kernel gives away again; a pidfd is the process. Start times tell two processes with the
//! same number apart where only the number was written down.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

/// Opens the process that has this pid now.
///
/// # Errors
/// `NotFound` if there is none.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).map_err(|errno| match errno {
        rustix::io::Errno::SRCH => io::ErrorKind::NotFound.into(),
        other => other.into(),
    })
}

/// Sends SIGKILL. A process that has ended already is no error.
///
/// # Errors
/// If the kernel does not allow it.
pub fn kill(pidfd: impl AsFd) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Blocks until the process has ended, at most for `timeout`; says whether it has.
///
/// # Errors
/// If the descriptor cannot be polled.
pub fn wait_ended(pidfd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
    let fd = pidfd.as_fd();
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes the status of an ended child from the kernel, so that no zombie stays. `None` if it has not ended, is not a
/// child of this process, or was taken already.
#[must_use]
pub fn reap(pidfd: impl AsFd) -> Option<String> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options).ok()??;
    if let Some(code) = status.exit_status() {
        return Some(format!("exit code {code}"));
    }
    status.terminating_signal().map(|signal| format!("signal {signal}"))
}

/// When the process with this pid was started, in clock ticks since the host's boot.
///
/// # Errors
/// `NotFound` if there is none; `InvalidData` if the kernel's words cannot be read.
pub fn start_time(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Field 22. The second one is the program's name in brackets, and it may hold brackets and spaces itself.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn start_time_survives_hostile_names() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 200";
        assert_eq!(parse_start_time(stat), Some(4242));
        assert_eq!(parse_start_time(""), None);
        assert_eq!(parse_start_time("7 (a) S 1"), None);
    }

    #[test]
    fn a_killed_child_ends_and_is_reaped_once() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        let pidfd = open(child.id()).expect("the child is there");
        assert!(start_time(child.id()).expect("it has a start time") > 0);
        assert!(!wait_ended(&pidfd, Duration::ZERO).expect("it can be polled"));
        kill(&pidfd).expect("it can be killed");
        assert!(wait_ended(&pidfd, Duration::from_secs(10)).expect("it can be polled"));
        assert_eq!(reap(&pidfd).as_deref(), Some("signal 9"));
        assert_eq!(reap(&pidfd), None);
        kill(&pidfd).expect("killing the dead is fine");
        assert!(child.wait().is_err(), "its status was taken");
    }
}
