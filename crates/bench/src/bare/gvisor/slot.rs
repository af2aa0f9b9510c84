//! A bare sandbox's network: a pair of links between two namespaces without a name, as a slot of the daemon's is, and no
//! rules.
//!
//! ```text
//!   card      eth0 192.0.0.2, nothing else: runsc takes over every link that it finds
//!   gateway   192.0.0.1, where the connections to the agent begin
//! ```

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use wakeful_net::{GATEWAY, GATEWAY_MAC, GUEST, GUEST_MAC, PREFIX};
use wakeful_sys::net::current_network;

use crate::Error;
use crate::site::{elsewhere, hardware, ip, within};

/// A packet that meets no stack yet is lost, and repeated only after a second: so a new socket is tried soon.
const TRY: Duration = Duration::from_millis(10);
const AGAIN: Duration = Duration::from_millis(1);

pub(crate) struct Slot {
    card: OwnedFd,
    gateway: OwnedFd,
}

impl Slot {
    pub(crate) fn make() -> Result<Self, Error> {
        let made = || -> io::Result<Self> {
            let card = elsewhere(|| {
                no_ipv6()?;
                current_network()
            })?;
            let place = path(&card);
            let gateway = elsewhere(|| {
                no_ipv6()?;
                ip(&format!(
                    "link set lo up\n\
                     link add gw0 address {} type veth peer name eth0 address {} netns {place}\n\
                     address add {GATEWAY}/{PREFIX} dev gw0\nlink set gw0 up\n\
                     neighbour add {GUEST} lladdr {} dev gw0 nud permanent\n",
                    hardware(GATEWAY_MAC),
                    hardware(GUEST_MAC),
                    hardware(GUEST_MAC)
                ))?;
                current_network()
            })?;
            within(card.as_fd(), || {
                ip(&format!(
                    "link set lo up\naddress add {GUEST}/{PREFIX} dev eth0\nlink set eth0 up\n\
                     neighbour add {GATEWAY} lladdr {} dev eth0 nud permanent\nroute add default via {GATEWAY}\n",
                    hardware(GATEWAY_MAC)
                ))
            })?;
            Ok(Self { card, gateway })
        };
        made().map_err(Error::io("make a bare sandbox's network"))
    }

    pub(crate) fn card(&self) -> BorrowedFd<'_> {
        self.card.as_fd()
    }

    /// A file by which others enter the namespace of the card, while this process has it.
    pub(crate) fn card_path(&self) -> String {
        path(&self.card)
    }

    /// A connection to a port of the guest, as soon as it listens.
    pub(crate) async fn connect(&self, port: u16, patience: Duration) -> Result<TcpStream, Error> {
        let (began, failed) = (Instant::now(), || Error::io("connect to the bare engine's agent"));
        loop {
            let socket = within(self.gateway.as_fd(), TcpSocket::new_v4).map_err(failed())?;
            match timeout(TRY, socket.connect(SocketAddr::from((GUEST, port)))).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true).map_err(failed())?;
                    return Ok(stream);
                }
                Ok(Err(error)) if began.elapsed() > patience => return Err(failed()(error)),
                Err(_) if began.elapsed() > patience => return Err(failed()(io::ErrorKind::TimedOut.into())),
                _ => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

fn path(namespace: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// As in the daemon's slots; a kernel without it has nothing to turn off.
fn no_ipv6() -> io::Result<()> {
    for name in ["all", "default"] {
        match std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done?,
        }
    }
    Ok(())
}
