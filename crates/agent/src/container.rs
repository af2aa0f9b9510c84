//! The init of a container: the engine has made its world, and this is what is left to do in it.
//!
//! ```text
//!   the engine    root, /proc /sys /dev /run /tmp, the card with its address, limits, clock, random numbers
//!   the agent     secret from standard input, host name, /etc/{hosts,resolv.conf}, its own command, orderly end
//! ```
//!
//! It needs no mounts and no modules, and little may be allowed: what is refused is done without.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::symlink;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{init, network};

/// How long the answer to "switch off" has for its way out before the sandbox is gone.
const ANSWER: Duration = Duration::from_millis(50);

/// Makes itself at home and returns the secret of the first hello, which came by standard input.
///
/// # Errors
/// Without a secret, or if standard input cannot be given up: programs must not find it.
pub(crate) fn prepare() -> io::Result<[u8; 32]> {
    let secret = take_secret()?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    raise_open_files();
    if let Err(error) = network::write_resolver() {
        init::say(&format!("no names: {error}"));
    }
    let _ = init::set_hostname(init::HOSTNAME);
    init::publish_hostname(init::HOSTNAME);
    match symlink(init::COMMAND, init::COMMAND_LINK) {
        Err(error) if !matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {
            init::say(&format!("the agent is no command: {error}"));
        }
        _ => {}
    }
    Ok(secret)
}

fn take_secret() -> io::Result<[u8; 32]> {
    let (mut secret, mut had) = ([0; 32], 0);
    while had < secret.len() {
        match rustix::io::read(io::stdin(), &mut secret[had..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => had += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    wakeful_sys::guest::replace_stdin(File::open("/dev/null")?)?;
    Ok(secret)
}

/// As for an init of a machine; as far as the engine allows it.
fn raise_open_files() {
    let wanted = Rlimit { current: Some(65_536), maximum: Some(524_288) };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = maximum.map_or(65_536, |maximum| maximum.min(65_536));
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum });
    }
}

/// How large the root file system is. The host has made it so already.
pub(crate) fn disk_bytes() -> io::Result<u64> {
    let root = rustix::fs::statvfs("/")?;
    Ok(root.f_blocks.saturating_mul(root.f_frsize))
}

/// Ends every process, writes the disk out, and ends itself, which ends the sandbox.
pub(crate) fn power_off() {
    init::end_everyone();
    rustix::fs::sync();
    init::nap(ANSWER);
    std::process::exit(0)
}

/// The start has failed: says why and ends the sandbox.
pub(crate) fn give_up(why: &str) -> ! {
    let _ = writeln!(io::stderr(), "wakeful-agent: {why}");
    std::process::exit(1)
}
