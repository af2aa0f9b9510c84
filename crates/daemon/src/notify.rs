//! Telling the service manager how far we are: one datagram each, so that nothing has to be linked for it.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::debug;

/// Where a service manager listens, if one started us.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Calls are answered.
pub(crate) fn ready() {
    tell("READY=1");
}

/// No more calls are taken.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return };
    // Who does not hear it sees us come and go all the same.
    if let Err(error) = send(&socket, state) {
        debug!(%error, state, "the service manager was not told");
    }
}

/// A name that begins with `@` is none in the file system.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let from = UnixDatagram::unbound()?;
    // A manager that does not read must not hold us up.
    from.set_nonblocking(true)?;
    from.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut text = [0; 100];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[test]
    fn it_is_told_by_path_and_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listening = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(heard(&listening), "READY=1");

        let name = format!("wakeful-test-{}", std::process::id());
        let listening = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(heard(&listening), "STOPPING=1");
        assert!(send(dir.path().join("nobody").as_os_str(), "READY=1").is_err());
    }
}
