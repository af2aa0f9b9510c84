//! A process that is started with less than its parent has.
//!
//! Engines run foreign code, so they get another uid, no capability, no way to gain one, no terminal, and exactly the
//! descriptors that they are given, under the same numbers as in the parent (so that arguments can name them). They
//! outlive their parent: there is no death signal. The child itself writes its pid before it becomes the engine, so
//! that a parent which dies in between leaves a trace of it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::pidfd;

/// Who the child is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What is started, and with what.
#[derive(Debug)]
pub struct Spec<'a> {
    /// The program, as the child can find it.
    pub program: &'a Path,
    /// Its arguments, without its own name.
    pub args: &'a [OsString],
    /// Its whole environment.
    pub env: &'a [(&'a str, OsString)],
    /// Descriptors that it keeps, under their numbers.
    pub inherit: &'a [BorrowedFd<'a>],
    /// Where its standard output and error go.
    pub output: &'a File,
    /// Where it writes its pid, as decimal digits and a newline, before it runs the program.
    pub pid_file: BorrowedFd<'a>,
    /// Who it becomes; `None` keeps the parent's ids.
    pub identity: Option<Identity>,
}

/// A process that was just started.
#[derive(Debug)]
pub struct Spawned {
    /// Its pid; it stays taken until [`pidfd::reap`] was called.
    pub pid: u32,
    /// The process itself.
    pub pidfd: OwnedFd,
}

/// Starts it. When this returns, the program is running and its pid is in the pid file.
///
/// # Errors
/// Why the child could not become what it should, or the program could not be run; no process is left then.
pub fn spawn(spec: &Spec<'_>) -> io::Result<Spawned> {
    let output = spec.output.try_clone()?;
    let mut command = Command::new(spec.program);
    command
        .args(spec.args)
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output);
    let keep: Vec<RawFd> = spec.inherit.iter().map(AsRawFd::as_raw_fd).collect();
    let pid_file = spec.pid_file.as_raw_fd();
    let identity = spec.identity.clone();
    // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe things may be done. It
    // makes system calls on numbers and on memory that was allocated before the fork; it neither allocates nor locks.
    unsafe { command.pre_exec(move || become_engine(&keep, pid_file, identity.as_ref())) };
    let child = command.spawn()?;
    let pid = child.id();
    // Not reaped yet, so the number still means this process.
    let pidfd = pidfd::open(pid)?;
    Ok(Spawned { pid, pidfd })
}

fn become_engine(keep: &[RawFd], pid_file: RawFd, identity: Option<&Identity>) -> io::Result<()> {
    // SAFETY: takes nothing and cannot fail in a fresh child.
    let pid = unsafe { libc::getpid() };
    write_pid(pid_file, pid)?;
    // SAFETY: takes nothing.
    check(unsafe { libc::setsid() })?;
    // SAFETY: takes a number.
    unsafe { libc::umask(0o077) };
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live rlimit. A core file would be a copy of the guest's memory.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core) })?;
    // Whoever started us may have left descriptors open that are none of the engine's business.
    // SAFETY: takes numbers; marking is all that is done to the descriptors, and only in this process.
    checked(unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })?;
    for &fd in keep {
        // SAFETY: takes numbers; a wrong descriptor is an error, which is returned.
        check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
    }
    for capability in 0..64u64 {
        // SAFETY: takes numbers. Without the right to drop it is refused, and then there is nothing to drop; numbers
        // that this kernel does not know are refused too.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0u64, 0u64, 0u64) };
    }
    if let Some(identity) = identity {
        // The raw calls: glibc's own would speak to the threads of the parent, which the child does not have.
        // SAFETY: length and pointer belong to one slice.
        checked(unsafe { libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr()) })?;
        let (uid, gid) = (identity.uid, identity.gid);
        // SAFETY: takes numbers.
        checked(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
        // SAFETY: takes numbers.
        checked(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })?;
    }
    drop_capabilities()?;
    // SAFETY: takes numbers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1u64, 0u64, 0u64, 0u64) })
}

/// All sets, the inheritable one too.
fn drop_capabilities() -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [VERSION_3, 0];
    let none = [0u32; 6];
    // SAFETY: a header of two words and data of two times three words, as version 3 wants.
    checked(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) })
}

fn write_pid(fd: RawFd, pid: libc::pid_t) -> io::Result<()> {
    let mut text = [0u8; 12];
    let mut at = text.len() - 1;
    text[at] = b'\n';
    let mut rest = pid.unsigned_abs();
    while rest > 0 {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let digits = &text[at..];
    // SAFETY: pointer and length belong to one slice.
    let written = unsafe { libc::write(fd, digits.as_ptr().cast(), digits.len()) };
    if usize::try_from(written) == Ok(digits.len()) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    fn temporary(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("wakeful-spawn-{}-{name}", std::process::id()));
        let file = File::options().read(true).append(true).create(true).open(&path).expect("can be made");
        std::fs::remove_file(path).expect("can be unlinked");
        file
    }

    fn text(file: &mut File) -> String {
        let mut text = String::new();
        file.rewind().expect("can be rewound");
        file.read_to_string(&mut text).expect("is text");
        text
    }

    #[test]
    fn the_child_is_stripped() {
        let (mut output, mut pid_file, lock) = (temporary("out"), temporary("pid"), temporary("lock"));
        let foreign = temporary("foreign");
        rustix::io::fcntl_setfd(&foreign, rustix::io::FdFlags::empty()).expect("can be left open");
        let script = format!(
            "id -u; id -g; id -G; umask; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; ls /proc/self/fd; test -e /proc/self/fd/{} && echo kept; test -e /proc/self/fd/{} && echo foreign; echo $0 $ONLY $HOME.",
            lock.as_raw_fd(),
            foreign.as_raw_fd()
        );
        let args: Vec<OsString> = ["-c", &script].map(OsString::from).into();
        let root = rustix::process::geteuid().is_root();
        let spec = Spec {
            program: Path::new("/bin/sh"),
            args: &args,
            env: &[("ONLY", "this".into()), ("PATH", "/usr/bin:/bin".into())],
            inherit: &[lock.as_fd()],
            output: &output,
            pid_file: pid_file.as_fd(),
            identity: root.then(|| Identity { uid: 64101, gid: 64100, groups: vec![64102] }),
        };
        let child = spawn(&spec).expect("it starts");
        assert_eq!(text(&mut pid_file), format!("{}\n", child.pid));
        assert!(pidfd::wait_ended(&child.pidfd, Duration::from_secs(20)).expect("can be polled"));
        assert_eq!(pidfd::reap(&child.pidfd).as_deref(), Some("exit code 0"));
        let said = text(&mut output);
        if root {
            assert!(said.starts_with("64101\n64100\n64100 64102\n"), "{said}");
        }
        assert!(said.contains("0077\n") && said.contains("NoNewPrivs:\t1") && said.contains("kept\n"), "{said}");
        assert!(!said.contains("foreign"), "{said}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(said.contains(&format!("{set}:\t0000000000000000")), "{said}");
        }
        assert!(said.ends_with("/bin/sh this .\n"), "{said}");
    }

    #[test]
    fn a_missing_program_leaves_nothing() {
        let (output, pid_file) = (temporary("out2"), temporary("pid2"));
        let spec = Spec {
            program: Path::new("/nonexistent/engine"),
            args: &[],
            env: &[],
            inherit: &[],
            output: &output,
            pid_file: pid_file.as_fd(),
            identity: None,
        };
        assert_eq!(spawn(&spec).expect_err("there is no such program").kind(), io::ErrorKind::NotFound);
    }
}
