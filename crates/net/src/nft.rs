//! The program `nft`, in the calling thread's namespace.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::fs::MemfdFlags;

use crate::Error;

/// Far more than the largest policy takes.
const DEADLINE: Duration = Duration::from_secs(30);
/// How much of a complaint is kept.
const COMPLAINT: usize = 2048;

/// Memory as a file: unlike a pipe it never makes either side wait.
fn memory(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(c"nft", MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

fn content(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn run(doing: &'static str, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, Error> {
    let failed = |source: io::Error| Error::RunNft { source };
    let (stdin, stdout, stderr) =
        (memory(input).map_err(failed)?, memory(&[]).map_err(failed)?, memory(&[]).map_err(failed)?);
    let spawn = |program: &str| -> io::Result<Child> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(stdin.try_clone()?).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        command.spawn()
    };
    let not_found = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let mut child = match spawn("nft") {
        // A user's search path need not have it.
        Err(error) if not_found(&error) => spawn("/usr/sbin/nft"),
        started => started,
    }
    .map_err(|source| if not_found(&source) { Error::NoNft } else { Error::RunNft { source } })?;
    let ended = wakeful_sys::pidfd::open(child.id())
        .and_then(|pidfd| wakeful_sys::pidfd::wait_ended(pidfd, DEADLINE))
        .map_err(failed);
    if !matches!(ended, Ok(true)) {
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    if !ended? {
        return Err(Error::Late { after: DEADLINE });
    }
    if status.success() {
        return content(stdout).map_err(failed);
    }
    let mut complaint = content(stderr).map_err(failed)?;
    complaint.truncate(COMPLAINT);
    Err(Error::Nft { doing, output: String::from_utf8_lossy(&complaint).trim_end().to_owned() })
}

/// Does everything in `script` or nothing of it.
pub(crate) fn apply(doing: &'static str, script: &str) -> Result<(), Error> {
    run(doing, &["-f", "-"], script.as_bytes()).map(drop)
}

/// Lists something, as JSON with numbers rather than names.
pub(crate) fn list(what: &[&str]) -> Result<Vec<u8>, Error> {
    let mut arguments = vec!["-j", "-n", "list"];
    arguments.extend(what);
    run("list rules", &arguments, &[])
}

/// Whether the program is there.
pub(crate) fn check() -> Result<(), Error> {
    run("say its version", &["--version"], &[]).map(drop)
}
