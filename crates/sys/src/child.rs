//! What a child does between fork and exec.
//!
//! The standard library has wired up its streams and working directory by then. Here it leaves everything of the parent
//! behind: session, cgroup, signal settings, descriptors, identity. Nothing here allocates or takes a lock: the parent
//! has other threads, and the child is a copy of only one.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Uid};

/// Who and where a child is to be.
#[derive(Debug)]
pub struct Setup {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
    /// The `cgroup.procs` file, open for writing, of the cgroup to join.
    pub cgroup: Option<File>,
    /// Whether standard input is a terminal that shall control the new session.
    pub terminal: bool,
}

/// Makes `command` start its child in a session of its own, with the identity of `setup`, default signals, umask 022, an
/// unprotected OOM score, and no descriptors but the three standard ones.
pub fn prepare(command: &mut Command, setup: Setup) {
    let groups: Vec<Gid> = setup.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Uid::from_raw(setup.uid), Gid::from_raw(setup.gid));
    let (cgroup, terminal) = (setup.cgroup, setup.terminal);
    let enter = move || {
        if let Some(procs) = &cgroup {
            // First, so that nothing of this child is ever outside. "0" is the writer.
            rustix::io::write(procs.as_fd(), b"0")?;
        }
        rustix::process::setsid()?;
        if terminal {
            control_terminal()?;
        }
        reset_oom_score();
        for signal in 1..=64 {
            reset_signal(signal);
        }
        rustix::process::umask(Mode::WGRP | Mode::WOTH);
        close_on_exec();
        // By raw system calls that change this thread only; the child has no other. The user comes last: the calls
        // before it need its rights.
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    };
    // SAFETY: the closure runs in the forked child; it makes only system calls on values that were prepared before the
    // fork, neither allocates nor locks, and panics nowhere.
    unsafe { command.pre_exec(enter) };
}

fn control_terminal() -> io::Result<()> {
    // SAFETY: takes a descriptor and a number; an invalid descriptor is an error, not undefined.
    let done = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The agent protects itself from the OOM killer; its children must not inherit that. Where the kernel has no such file
/// there is nothing to reset.
fn reset_oom_score() {
    if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::io::write(file, b"0");
    }
}

/// Ignored signals stay ignored over exec, so each goes back to its default. Past the C library, which keeps two of them to
/// itself; KILL and STOP answer with an error that does not matter.
fn reset_signal(signal: i32) {
    // The kernel's `struct sigaction`, all zero: default handler, no flags, no restorer, empty mask.
    let action = [0_u64; 4];
    let (new, old) = (action.as_ptr(), std::ptr::null_mut::<u64>());
    // SAFETY: `new` points to a whole structure that outlives the call, `old` may be null, 8 is the size of the mask.
    let _ = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, 8_usize) };
}

/// Everything of ours is close-on-exec anyway; this catches what others (a kernel that starts init, a parent process)
/// have left open. Kernels before 5.11 refuse, which loses nothing else.
fn close_on_exec() {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: only marks descriptors of this process, the forked child, which uses none of them after exec.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, flags) };
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn the_child_leaves_everything_behind() {
        // SAFETY: a query without arguments.
        if unsafe { libc::geteuid() } != 0 {
            return; // changing identity needs root, which the project's tests have
        }
        let leak = File::open("/dev/null").expect("exists");
        rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).expect("is open");
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "umask; id -u; id -G; ls /proc/self/fd | wc -l; grep SigIgn /proc/self/status"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .env("PATH", "/usr/bin:/bin");
        prepare(&mut command, Setup { uid: 1234, gid: 1235, groups: vec![1235, 1236], cgroup: None, terminal: false });
        let output = command.output().expect("starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = text.lines().collect();
        // Four descriptors: three standard ones and the directory that `ls` reads.
        assert_eq!(lines, ["0022", "1234", "1235 1236", "4", "SigIgn:\t0000000000000000"], "{text}");
        drop(leak);
    }
}
