//! Where the network is measured: a host of the run's own, so that nothing of the machine's network is used or changed.
//!
//! ```text
//!   guest ── slot ── host 203.0.113.1 ── outside 203.0.113.2      ours: the thread and its daemon are on that host
//!   guest ── tap0 192.0.0.1                                       the bare engine's: no rules, nothing beyond
//! ```
//!
//! Namespaces without a name: they go with their descriptors and the processes in them.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, PoisonError};
use std::thread;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use wakeful_net::{GATEWAY, GATEWAY_MAC, GUEST, GUEST_MAC, PREFIX};
use wakeful_sys::net::{current_network, enter_network, leave_network, open_tap};

use crate::Error;
use crate::bare::SPAWN;

/// Addresses for examples, which the rules take for anybody's.
const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const TAP: &str = "tap0";

pub(crate) struct Site {
    outside: OwnedFd,
    /// Where the TAP is.
    plain: OwnedFd,
    tap: Arc<OwnedFd>,
}

impl Site {
    /// Puts the calling thread, and what it starts from now on, on a host of its own.
    pub(crate) fn move_in() -> Result<Self, Error> {
        let made = || -> io::Result<Self> {
            let outside = elsewhere(current_network)?;
            leave_network()?;
            let place = format!("/proc/{}/fd/{}", std::process::id(), outside.as_raw_fd());
            ip(&format!(
                "link set lo up\nlink add eth0 type veth peer name out0\nlink set out0 netns {place}\nlink set eth0 up\n\
                 address add {HOST}/24 dev eth0\nroute add default via {OUTSIDE}\n"
            ))?;
            within(outside.as_fd(), || {
                ip(&format!("link set lo up\naddress add {OUTSIDE}/24 dev out0\nlink set out0 up\n"))
            })?;
            let (plain, tap) = elsewhere(|| {
                let tap = open_tap(TAP)?;
                ip(&format!(
                    "link set {TAP} address {}\naddress add {GATEWAY}/{PREFIX} dev {TAP}\nlink set {TAP} up\n\
                     neighbour add {GUEST} lladdr {} dev {TAP} nud permanent\n",
                    hardware(GATEWAY_MAC),
                    hardware(GUEST_MAC)
                ))?;
                Ok((current_network()?, tap))
            })?;
            Ok(Self { outside, plain, tap: Arc::new(tap) })
        };
        made().map_err(Error::io("make a network of the run's own"))
    }

    /// What the bare engine's card is plugged into.
    pub(crate) fn tap(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.tap)
    }

    /// Listens beyond our uplink.
    pub(crate) fn listen_outside(&self) -> Result<TcpListener, Error> {
        listen(self.outside.as_fd(), OUTSIDE)
    }

    /// Listens at the bare TAP.
    pub(crate) fn listen_at_tap(&self) -> Result<TcpListener, Error> {
        listen(self.plain.as_fd(), GATEWAY)
    }

    /// Connects to the bare engine's guest, over the TAP.
    pub(crate) async fn connect_by_tap(&self, port: u16) -> io::Result<TcpStream> {
        let socket = within(self.plain.as_fd(), TcpSocket::new_v4)?;
        socket.connect(SocketAddr::from((GUEST, port))).await
    }
}

/// A socket belongs to the namespace that it was made in, whoever uses it then.
fn listen(namespace: BorrowedFd<'_>, address: Ipv4Addr) -> Result<TcpListener, Error> {
    let bound = within(namespace, || {
        let listener = std::net::TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.and_then(TcpListener::from_std).map_err(Error::io("listen for a guest"))
}

/// Does `work` in a namespace, on a thread that ends with it.
pub(crate) fn within<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    on_a_thread(|| {
        enter_network(namespace)?;
        work()
    })
}

/// Does `work` in a new namespace.
pub(crate) fn elsewhere<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    on_a_thread(|| {
        leave_network()?;
        work()
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let done = scope.spawn(work).join();
        done.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}

/// Runs commands of `ip`, one a line.
pub(crate) fn ip(commands: &str) -> io::Result<()> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = {
        let _turn = SPAWN.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn()
    };
    let mut child = child.map_err(|error| io::Error::new(error.kind(), format!("could not run ip: {error}")))?;
    // It reads all of it, and what is not read shows in how it ends.
    let _ = child.stdin.take().map(|mut input| input.write_all(commands.as_bytes()));
    let done = child.wait_with_output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip: {}", String::from_utf8_lossy(&done.stderr).trim())))
}

pub(crate) fn hardware(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}
