//! From a request to a running child.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::tcsetwinsize;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::process::{PtySize, StartRequest};
use wakeful_sys::child::{Setup, prepare};

use super::accounts::{Accounts, User};
use super::input::winsize;
use super::record::Origin;
use super::tree::Tree;
use crate::context::Context;
use crate::reaper::Exit;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A child that runs, and our ends of its streams.
pub(crate) struct Launched {
    pub(crate) pid: u32,
    pub(crate) exit: Exit,
    pub(crate) tree: Arc<Tree>,
    pub(crate) ends: Ends,
    /// What runs, as whom and where.
    pub(crate) origin: Origin,
}

/// Our ends of a child's streams.
pub(crate) enum Ends {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(OwnedFd),
}

/// Starts what the request asks for, as the user of the request, else `header_user`, else the default one. Blocks until
/// the program runs or has failed to.
pub(crate) fn launch(
    context: &Context,
    request: &StartRequest,
    header_user: Option<String>,
) -> Result<Launched, ErrorBody> {
    if request.process.cmd.is_empty() {
        return Err(ErrorBody::new(Code::InvalidArgument, "no command given"));
    }
    let user = request.user.clone().filter(|user| !user.is_empty()).or(header_user);
    let accounts = Accounts::load();
    let spec = user.unwrap_or_else(|| context.default_user());
    let user = accounts.find(&spec).ok_or_else(|| unknown_user(&spec))?;
    let workdir = find_workdir(request.process.cwd.as_deref(), context.default_workdir().as_deref(), &user)?;

    let tree = Arc::new(Tree::create());
    let mut config = request.process.clone();
    let shell = if request.login_shell { accounts.shell(&user).filter(|shell| lets_in(shell)) } else { None };
    let mut command = match shell {
        // As login does it: the dash tells the shell what it is.
        Some(shell) => {
            let mut command = Command::new(shell);
            command.arg0(format!("-{}", shell.rsplit('/').next().unwrap_or(shell)));
            (config.cmd, config.args) = (shell.to_owned(), Vec::new());
            command
        }
        None => Command::new(&config.cmd),
    };
    command.args(&config.args).current_dir(&workdir).env_clear();
    command.envs(environment(&user, &context.env(), &request.process.envs)).envs(tree.mark());

    let started = (|| {
        let ends = match request.pty {
            Some(pty) => attach_terminal(&mut command, pty.size, &user)?,
            None => attach_pipes(&mut command, request.stdin.unwrap_or(true))?,
        };
        let cgroup = tree.entrance()?;
        let terminal = request.pty.is_some();
        let groups = user.groups.clone();
        prepare(&mut command, Setup { uid: user.uid, gid: user.gid, groups, cgroup, terminal });
        let (child, exit) = context.reaper.spawn(&mut command)?;
        Ok((child.id(), exit, ends))
    })();
    match started {
        Ok((pid, exit, ends)) => {
            let workdir = workdir.to_string_lossy().into_owned();
            let (tag, keep_awake) = (request.tag.clone(), request.keep_awake);
            let origin = Origin { config, tag, user: user.name, workdir, keep_awake };
            Ok(Launched { pid, exit, tree, ends, origin })
        }
        Err(error) => {
            tree.try_remove();
            Err(explain(&config.cmd, &error))
        }
    }
}

/// Whether a login shell is there and lets anybody in.
fn lets_in(shell: &str) -> bool {
    let barred = ["nologin", "false"].iter().any(|name| shell.ends_with(&format!("/{name}")));
    let runs = |file: std::fs::Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    !barred && std::fs::metadata(shell).is_ok_and(runs)
}

/// No such user.
pub(crate) fn unknown_user(spec: &str) -> ErrorBody {
    ErrorBody::new(Code::Unauthenticated, format!("invalid username: '{spec}'")).because(WakefulCode::UnknownUser)
}

/// Empty: the default one, else the home. Relative: to the home. `~` is the home. One that nobody asked for by name may
/// be missing, then it is `/`.
fn find_workdir(asked: Option<&str>, default: Option<&str>, user: &User) -> Result<PathBuf, ErrorBody> {
    let home = Path::new(&user.home);
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else {
        let wanted = default.map_or_else(|| home.to_owned(), PathBuf::from);
        return Ok(if wanted.is_dir() { wanted } else { PathBuf::from("/") });
    };
    let workdir = match asked.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => home.join(asked),
    };
    if workdir.is_dir() {
        return Ok(workdir);
    }
    let message = format!("cwd '{}' does not exist", workdir.display());
    Err(ErrorBody::new(Code::InvalidArgument, message).because(WakefulCode::WorkdirNotFound))
}

fn environment(
    user: &User,
    sandbox: &BTreeMap<String, String>,
    request: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let own = [("PATH", DEFAULT_PATH), ("HOME", &user.home), ("USER", &user.name), ("LOGNAME", &user.name)];
    let mut environment: BTreeMap<_, _> = own.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    for (key, value) in sandbox.iter().chain(request) {
        // A name that no environment can hold would be an error of the whole start.
        if !key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0') {
            environment.insert(key.clone(), value.clone());
        }
    }
    environment
}

fn attach_pipes(command: &mut Command, with_stdin: bool) -> io::Result<Ends> {
    let stdin = if with_stdin {
        let (reader, writer) = io::pipe()?;
        command.stdin(reader);
        Some(writer.into())
    } else {
        command.stdin(Stdio::null());
        None
    };
    let (stdout, writer) = io::pipe()?;
    command.stdout(writer);
    let (stderr, writer) = io::pipe()?;
    command.stderr(writer);
    Ok(Ends::Pipes { stdin, stdout: stdout.into(), stderr: stderr.into() })
}

fn attach_terminal(command: &mut Command, size: PtySize, user: &User) -> io::Result<Ends> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = match ioctl_tiocgptpeer(&ours, flags) {
        // gVisor knows it by its name only.
        Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
            let name = ptsname(&ours, Vec::new())?;
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?
        }
        other => other?,
    };
    tcsetwinsize(&ours, winsize(size))?;
    // As a login would: programs of the user open their terminal by name.
    rustix::fs::fchown(&theirs, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    rustix::fs::fchmod(&theirs, Mode::RUSR | Mode::WUSR | Mode::WGRP)?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    Ok(Ends::Terminal(ours))
}

/// What a failed start means to the caller.
fn explain(cmd: &str, error: &io::Error) -> ErrorBody {
    let failed = |code, why: &str| ErrorBody::new(code, format!("could not start '{cmd}': {why}"));
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) if cmd == "/bin/sh" => {
            failed(Code::InvalidArgument, "the image has no shell").because(WakefulCode::NoShell)
        }
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => {
            failed(Code::InvalidArgument, "no such command").because(WakefulCode::CommandNotFound)
        }
        Some(Errno::ACCESS | Errno::NOEXEC | Errno::ISDIR | Errno::TXTBSY) => {
            failed(Code::InvalidArgument, "it cannot be executed").because(WakefulCode::NotExecutable)
        }
        Some(Errno::TOOBIG) => failed(Code::InvalidArgument, "arguments and environment are too long"),
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => {
            failed(Code::ResourceExhausted, &error.to_string())
        }
        None if error.kind() == io::ErrorKind::InvalidInput => failed(Code::InvalidArgument, "it contains a NUL"),
        _ => failed(Code::Internal, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(home: &str) -> User {
        User { name: "u".to_owned(), uid: 1, gid: 1, groups: vec![1], home: home.to_owned() }
    }

    #[test]
    fn workdirs() {
        let temp = std::env::temp_dir();
        let home = user(temp.to_str().unwrap());
        assert_eq!(find_workdir(None, None, &home).unwrap(), temp);
        assert_eq!(find_workdir(Some(""), Some("/usr"), &home).unwrap(), Path::new("/usr"));
        assert_eq!(find_workdir(Some("~"), Some("/usr"), &home).unwrap(), temp);
        assert_eq!(find_workdir(Some("bin"), None, &user("/usr")).unwrap(), Path::new("/usr/bin"));
        assert_eq!(find_workdir(Some("~/bin"), None, &user("/usr")).unwrap(), Path::new("/usr/bin"));
        assert_eq!(find_workdir(None, Some("/no/such"), &home).unwrap(), Path::new("/"));
        let error = find_workdir(Some("/no/such"), None, &home).unwrap_err();
        assert_eq!(error.wakeful_code, Some(WakefulCode::WorkdirNotFound));
        assert_eq!(error.message, "cwd '/no/such' does not exist");
    }

    #[test]
    fn only_a_shell_that_runs_is_a_login_shell() {
        assert!(lets_in("/bin/sh"));
        for none in ["/usr/sbin/nologin", "/bin/false", "/no/such/shell", "/etc/passwd", "/etc"] {
            assert!(!lets_in(none), "{none}");
        }
    }

    #[test]
    fn the_request_wins_over_the_sandbox_over_the_user() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let environment = environment(
            &user("/h"),
            &map(&[("A", "1"), ("B", "1"), ("HOME", "/other"), ("BAD=", "x")]),
            &map(&[("B", "2"), ("", "x")]),
        );
        let expected =
            map(&[("A", "1"), ("B", "2"), ("HOME", "/other"), ("LOGNAME", "u"), ("PATH", DEFAULT_PATH), ("USER", "u")]);
        assert_eq!(environment, expected);
    }
}
