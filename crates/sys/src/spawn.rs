//! A process that is started with less than its parent has.
//!
//! Engines run foreign code, so they get another uid, no capability, no way to gain one, no terminal, and exactly the
//! descriptors that they are given, under the same numbers as in the parent (so that arguments can name them). With
//! [`Walls`] they also get a root, a process table, a network and System V objects of their own, in all of which there
//! is nothing. They outlive their parent: there is no death signal, and no namespace has a name that could be left over.
//!
//! ```text
//!   parent   everything that allocates: arguments, streams, a pipe for the reason of a failure
//!   clone3   new namespaces, born in its cgroup (version 2)
//!   child    pid file ─▶ session, signals, streams, descriptors ─▶ root, proc ─▶ ids, capabilities ─▶ filter ─▶ exec
//! ```
//!
//! The child itself writes its pid before it becomes the engine, so that a parent which dies in between leaves a trace
//! of it: the pid as its parent sees it, which it reads from the parent's `/proc`.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::pidfd;
use crate::walls::{self, Walls};

/// One instruction of a system call filter.
pub use libc::sock_filter as Instruction;

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
    /// The program, as the child can find it (inside its walls, if it has any).
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
    /// What is around it; `None` leaves it in the parent's namespaces.
    pub walls: Option<Walls<'a>>,
    /// Directory of the version 2 cgroup that it is born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// No file that it writes becomes longer than this.
    pub longest_file: Option<u64>,
    /// Judges its system calls from the `execve` on; empty for none.
    pub filter: &'a [Instruction],
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
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let program = text(spec.program.as_os_str().as_bytes())?;
    let args = spec.args.iter().map(|arg| text(arg.as_bytes())).collect::<io::Result<Vec<_>>>()?;
    let env = spec.env.iter().map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
    let env = env.collect::<io::Result<Vec<_>>>()?;
    let argv: Vec<_> = [&program].into_iter().chain(&args).map(|arg| arg.as_ptr()).chain([ptr::null()]).collect();
    let envp: Vec<_> = env.iter().map(|pair| pair.as_ptr()).chain([ptr::null()]).collect();
    let keep: Vec<RawFd> = spec.inherit.iter().map(AsRawFd::as_raw_fd).collect();
    let nothing = File::open("/dev/null")?;
    let (reason, why) = pipe_with(PipeFlags::CLOEXEC)?;
    let child = Child {
        program: &program,
        argv: &argv,
        envp: &envp,
        keep: &keep,
        streams: [nothing.as_raw_fd(), spec.output.as_raw_fd(), spec.output.as_raw_fd()],
        pid_file: spec.pid_file.as_raw_fd(),
        identity: spec.identity.as_ref(),
        walls: spec.walls.as_ref(),
        longest_file: spec.longest_file,
        filter: spec.filter,
        why: why.as_raw_fd(),
    };
    let namespaces = if spec.walls.is_some() { walls::NAMESPACES } else { 0 };
    let pid = clone(namespaces, spec.cgroup, &child)?;
    drop(why);
    let mut said = [0; 8];
    match File::from(reason).read_exact(&mut said) {
        // Closed by the exec.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        outcome => {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let _ = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty());
            outcome?;
            return Err(Failed::read(said));
        }
    }
    // Not reaped yet, so the number still means this process.
    let pidfd = pidfd::open(pid)?;
    Ok(Spawned { pid, pidfd })
}

/// All that the child needs, allocated before it exists.
struct Child<'a> {
    program: &'a CString,
    argv: &'a [*const libc::c_char],
    envp: &'a [*const libc::c_char],
    keep: &'a [RawFd],
    streams: [RawFd; 3],
    pid_file: RawFd,
    identity: Option<&'a Identity>,
    walls: Option<&'a Walls<'a>>,
    longest_file: Option<u64>,
    filter: &'a [Instruction],
    why: RawFd,
}

/// A child in new namespaces, which runs [`Child::run`]; only the parent returns.
fn clone(namespaces: u64, cgroup: Option<BorrowedFd<'_>>, child: &Child<'_>) -> io::Result<u32> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: a structure of numbers, for which zeroes mean "none".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(dir) = cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = dir.as_raw_fd() as u64;
    }
    // A signal in the child before the exec would run a handler of the parent on descriptors that both have.
    let blocked = Blocked::all();
    // SAFETY: without CLONE_VM this is a fork: the child has a copy of this thread's memory and stack. The parent has
    // other threads, so until the exec the child only makes system calls on numbers and on memory that was allocated
    // before; it neither allocates nor locks, and it never returns from `run`.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    if pid == 0 {
        child.run();
    }
    let result = checked(pid);
    drop(blocked);
    result?;
    u32::try_from(pid).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// No signal is delivered to this thread while it exists.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Self {
        // SAFETY: a set of bits, for which zeroes are the empty set.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live set.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both pointers are to live sets.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self(before)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the pointer is to a live set; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// What the child was at when it failed. The number goes through the pipe.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Pid,
    Session,
    Limits,
    Streams,
    Descriptors,
    Root,
    Proc,
    Device,
    Pivot,
    Identity,
    Capabilities,
    Filter,
    Exec,
}

/// A step that failed, and the reason.
pub(crate) struct Failed(pub(crate) Step, pub(crate) i32);

impl Failed {
    /// The reason of the call that has just failed.
    pub(crate) fn last(step: Step) -> Self {
        // SAFETY: the address is that of this thread's own variable.
        let number = unsafe { libc::__errno_location() };
        // SAFETY: as above; it is initialised.
        Self(step, unsafe { *number })
    }

    fn bytes(&self) -> [u8; 8] {
        let ([a, b, c, d], [e, f, g, h]) = ((self.0 as u32).to_le_bytes(), self.1.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    fn read([a, b, c, d, e, f, g, h]: [u8; 8]) -> io::Error {
        let error = io::Error::from_raw_os_error(i32::from_le_bytes([e, f, g, h]));
        let doing = match u32::from_le_bytes([a, b, c, d]) {
            n if n == Step::Exec as u32 => return error,
            n if n == Step::Pid as u32 => "write its pid",
            n if n == Step::Session as u32 => "have a session of its own",
            n if n == Step::Limits as u32 => "limit its files",
            n if n == Step::Streams as u32 => "have its streams",
            n if n == Step::Descriptors as u32 => "close what it does not need",
            n if n == Step::Root as u32 => "have a root of its own",
            n if n == Step::Proc as u32 => "mount proc",
            n if n == Step::Device as u32 => "have a device",
            n if n == Step::Pivot as u32 => "leave the host's root",
            n if n == Step::Identity as u32 => "change its ids",
            n if n == Step::Capabilities as u32 => "drop its capabilities",
            _ => "filter its system calls",
        };
        io::Error::new(error.kind(), format!("the child could not {doing}: {error}"))
    }
}

impl Child<'_> {
    /// Becomes the program, or says why not.
    fn run(&self) -> ! {
        let failed = match self.prepare() {
            Ok(()) => {
                // SAFETY: a path and two lists that end with a null pointer, all alive.
                unsafe { libc::execve(self.program.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr()) };
                Failed::last(Step::Exec)
            }
            Err(failed) => failed,
        };
        let said = failed.bytes();
        // SAFETY: pointer and length belong to one array.
        unsafe { libc::write(self.why, said.as_ptr().cast(), said.len()) };
        // SAFETY: ends this process without running anything of the parent's.
        unsafe { libc::_exit(127) }
    }

    fn prepare(&self) -> Result<(), Failed> {
        write_pid(self.pid_file)?;
        // SAFETY: takes nothing.
        check(Step::Session, unsafe { libc::setsid() })?;
        default_signals();
        // SAFETY: takes a number.
        unsafe { libc::umask(0o077) };
        // A core file would be a copy of the guest's memory.
        limit(libc::RLIMIT_CORE, 0)?;
        if let Some(bytes) = self.longest_file {
            limit(libc::RLIMIT_FSIZE, bytes)?;
        }
        for (number, &stream) in (0..).zip(&self.streams) {
            // SAFETY: takes numbers.
            check(Step::Streams, unsafe { libc::dup2(stream, number) })?;
        }
        // Whoever started us may have left descriptors open that are none of the engine's business.
        // SAFETY: takes numbers; marking is all that is done to the descriptors, and only in this process.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        check_long(Step::Descriptors, closed)?;
        for &fd in self.keep {
            // SAFETY: takes numbers; a wrong descriptor is an error, which is returned.
            check(Step::Descriptors, unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
        }
        match self.walls {
            Some(walls) => walls.enter()?,
            // SAFETY: a path that ends with a zero.
            None => check(Step::Root, unsafe { libc::chdir(c"/".as_ptr()) })?,
        }
        self.surrender()?;
        if !self.filter.is_empty() {
            filter(self.filter)?;
        }
        unblock_signals();
        Ok(())
    }

    /// Ids, groups, capabilities, and any way to get some.
    fn surrender(&self) -> Result<(), Failed> {
        for capability in 0..64u64 {
            // SAFETY: takes numbers. Without the right to drop it is refused, and then there is nothing to drop; numbers
            // that this kernel does not know are refused too.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0u64, 0u64, 0u64) };
        }
        if let Some(Identity { uid, gid, groups }) = self.identity {
            // The raw calls: glibc's own would speak to the threads of the parent, which the child does not have.
            // SAFETY: length and pointer belong to one slice.
            let set = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
            check_long(Step::Identity, set)?;
            // SAFETY: takes numbers.
            check_long(Step::Identity, unsafe { libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) })?;
            // SAFETY: takes numbers.
            check_long(Step::Identity, unsafe { libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) })?;
        }
        // All sets, the inheritable one too.
        const VERSION_3: u32 = 0x2008_0522;
        let (header, none): ([u32; 2], _) = ([VERSION_3, 0], [0u32; 6]);
        // SAFETY: a header of two words and data of two times three words, as version 3 wants.
        let dropped = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
        check_long(Step::Capabilities, dropped)?;
        // SAFETY: takes numbers.
        check(Step::Capabilities, unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1u64, 0u64, 0u64, 0u64) })
    }
}

/// The pid that the host knows this process by: in a process table of its own it is number one.
fn write_pid(fd: RawFd) -> Result<(), Failed> {
    let mut text = [0u8; 16];
    // SAFETY: a path that ends with a zero; pointer and length belong to one array, and a byte is left for the end.
    let length = unsafe { libc::readlink(c"/proc/self".as_ptr(), text.as_mut_ptr().cast(), text.len() - 1) };
    let Ok(length) = usize::try_from(length) else { return Err(Failed::last(Step::Pid)) };
    text[length] = b'\n';
    // SAFETY: the length is that of what was read and one more, which the array has.
    let written = unsafe { libc::write(fd, text.as_ptr().cast(), length + 1) };
    if usize::try_from(written) == Ok(length + 1) { Ok(()) } else { Err(Failed::last(Step::Pid)) }
}

fn default_signals() {
    for signal in 1..=64 {
        // SAFETY: takes numbers. Those that cannot be set are refused, and have their default.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn unblock_signals() {
    // SAFETY: a set of bits, for which zeroes are the empty set.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live set; the old one is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) };
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) -> Result<(), Failed> {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the pointer is to a live rlimit.
    check(Step::Limits, unsafe { libc::setrlimit(resource, &raw const limit) })
}

fn filter(instructions: &[Instruction]) -> Result<(), Failed> {
    let Ok(len) = u16::try_from(instructions.len()) else { return Err(Failed(Step::Filter, libc::E2BIG)) };
    let program = libc::sock_fprog { len, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: a program whose length belongs to its pointer; the kernel only reads it.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0u32, &raw const program) };
    check_long(Step::Filter, set)
}

pub(crate) fn check(step: Step, result: libc::c_int) -> Result<(), Failed> {
    if result < 0 { Err(Failed::last(step)) } else { Ok(()) }
}

pub(crate) fn check_long(step: Step, result: libc::c_long) -> Result<(), Failed> {
    if result < 0 { Err(Failed::last(step)) } else { Ok(()) }
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
            walls: None,
            cgroup: None,
            longest_file: Some(4096),
            filter: &[],
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
            walls: None,
            cgroup: None,
            longest_file: None,
            filter: &[],
        };
        assert_eq!(spawn(&spec).expect_err("there is no such program").kind(), io::ErrorKind::NotFound);
    }

    /// What a shell says whose whole world is the host's own root, seen through walls.
    fn walled(script: &str, filter: &[Instruction]) -> String {
        let (mut output, mut pid_file) = (temporary("walled"), temporary("walled-pid"));
        let root = walls::detached(Path::new("/"), walls::Rights::ReadOnly).expect("tests run as root");
        let args: Vec<OsString> = ["-c", script].map(OsString::from).into();
        let spec = Spec {
            program: Path::new("/bin/sh"),
            args: &args,
            env: &[("PATH", "/usr/bin:/bin".into())],
            inherit: &[],
            output: &output,
            pid_file: pid_file.as_fd(),
            identity: Some(Identity { uid: 64101, gid: 64101, groups: Vec::new() }),
            walls: Some(Walls { root: root.as_fd(), devices: &[] }),
            cgroup: None,
            longest_file: None,
            filter,
        };
        let child = spawn(&spec).expect("it starts");
        assert_eq!(text(&mut pid_file), format!("{}\n", child.pid), "the host's number, not its own");
        assert!(pidfd::wait_ended(&child.pidfd, Duration::from_secs(20)).expect("can be polled"));
        assert_eq!(pidfd::reap(&child.pidfd).as_deref(), Some("exit code 0"));
        text(&mut output)
    }

    #[test]
    fn inside_walls_there_is_nobody_else() {
        let said = walled(
            "echo pid $$; uname -n; cat /proc/self/mounts; wc -l < /proc/self/net/dev; test -e /proc/sys && echo sys; \
             test -e /sys/kernel && echo kernel; test -e /proc/2 || echo alone; (: > /tmp/w) 2>&1; cat /proc/self/status",
            &[],
        );
        assert!(said.starts_with("pid 1\nwakeful\n"), "{said}");
        assert_eq!(said.matches(" / ").count() + said.matches(" /proc ").count(), 2, "two mounts: {said}");
        assert!(said.contains("\n3\n"), "two lines of titles and a loopback: {said}");
        assert!(!said.contains("sys\n") && !said.contains("kernel\n") && said.contains("alone\n"), "{said}");
        assert!(said.contains("Read-only file system"), "{said}");
        assert!(said.contains("NSpid:\t") && said.contains("CapEff:\t0000000000000000"), "{said}");
    }

    #[test]
    fn a_filter_judges_system_calls() {
        let (load, equal, give) = (0x20, 0x15, 0x06);
        let deny = [
            Instruction { code: load, jt: 0, jf: 0, k: 0 },
            Instruction { code: equal, jt: 0, jf: 1, k: u32::try_from(libc::SYS_uname).expect("a number") },
            Instruction { code: give, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned() },
            Instruction { code: give, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
        ];
        assert!(walled("uname -n 2>&1; true", &deny).contains("not permitted"));
        assert_eq!(walled("uname -n", &[]), "wakeful\n");
    }
}
