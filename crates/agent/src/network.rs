//! The guest's network: one card with fixed addresses, and an end to connections that a sleep has cut.
//!
//! Both speak netlink: short messages to the kernel, each answered by an acknowledgement.
//!
//! ```text
//!   boot    card up, address, route, the gateway as a permanent neighbour, /etc/resolv.conf
//!   wake    every TCP connection to the outside is aborted: its other end has been forgotten by the gateway, and a
//!           program that only listens would wait for ever
//! ```

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use wakeful_guest_proto::card;

const CARD: &str = "eth0";

// <linux/netlink.h>
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const REPLACE: u16 = 0x100;
const CREATE: u16 = 0x400;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;

// <linux/rtnetlink.h>; its protocol has the number zero.
const ROUTE: Option<Protocol> = None;
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const NEW_NEIGHBOUR: u16 = 28;

// <linux/sock_diag.h>, <linux/inet_diag.h>
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// `struct inet_diag_sockid`.
const SOCKET_ID: usize = 48;
/// Every state that has another end: not listening, not closed, not merely lingering.
const CONNECTED: u32 = 0xfff & !(1 << 10) & !(1 << 7) & !(1 << 6);

const IPV4: u8 = 2;
const IPV6: u8 = 10;
const TCP: u8 = 6;

/// Gives the card its addresses. An image may have no such card, or a kernel without the driver.
pub(crate) fn raise_card() -> io::Result<()> {
    let index = fs::read_to_string(format!("/sys/class/net/{CARD}/ifindex"))?;
    let index: u32 = index.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    // There is no IPv6 outside; without this the card would look for a router for ever.
    fs::write(format!("/proc/sys/net/ipv6/conf/{CARD}/disable_ipv6"), "1")?;
    let kernel = Kernel::open(ROUTE)?;
    let number = index.to_ne_bytes();
    let (up, unspecified) = (1u32.to_ne_bytes(), [0; 4]);
    let link = Message::new(NEW_LINK, 0, &[&unspecified[..], &number, &up, &up].concat());
    kernel.ask(link)?;
    let (guest, gateway) = (card::GUEST.octets(), card::GATEWAY.octets());
    let address = Message::new(NEW_ADDRESS, CREATE | REPLACE, &[&[IPV4, card::PREFIX, 0, 0][..], &number].concat());
    kernel.ask(address.with(1, &guest).with(2, &guest))?;
    // Permanent and reachable, on this card.
    let neighbour = [&[IPV4, 0, 0, 0][..], &number, &0x80u16.to_ne_bytes(), &[0, 0]].concat();
    let neighbour = Message::new(NEW_NEIGHBOUR, CREATE | REPLACE, &neighbour);
    kernel.ask(neighbour.with(1, &gateway).with(2, &card::GATEWAY_MAC))?;
    // The main table, made at boot, for the whole world, to one address at a time.
    let route = [&[IPV4, 0, 0, 0, 254, 3, 0, 1][..], &[0; 4]].concat();
    let route = Message::new(NEW_ROUTE, CREATE | REPLACE, &route);
    kernel.ask(route.with(5, &gateway).with(4, &number))
}

/// Names are asked for at the gateway. An image's own file is the one of the machine that it was built on.
pub(crate) fn write_resolver() -> io::Result<()> {
    let path = "/etc/resolv.conf";
    let text = format!("nameserver {}\n", card::GATEWAY);
    if fs::read_to_string(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    // It may be a link to a place that no service fills here.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::write(path, text),
    }
}

/// Aborts every TCP connection that leaves the guest; how many there were.
pub(crate) fn abort_outside() -> io::Result<usize> {
    let kernel = Kernel::open(Some(netlink::SOCK_DIAG))?;
    let mut aborted = 0;
    for family in [IPV4, IPV6] {
        for id in kernel.connections(family)? {
            let destroy = Message::new(DESTROY, 0, &diag(family, &id));
            // Gone by itself meanwhile.
            aborted += usize::from(kernel.ask(destroy).is_ok());
        }
    }
    Ok(aborted)
}

/// `struct inet_diag_req_v2`.
fn diag(family: u8, id: &[u8; SOCKET_ID]) -> Vec<u8> {
    [&[family, TCP, 0, 0][..], &CONNECTED.to_ne_bytes(), id].concat()
}

/// Whether the other end of a connection is outside.
fn is_outside(family: u8, id: &[u8; SOCKET_ID]) -> bool {
    let word = |at: usize| -> [u8; 4] { [id[at], id[at + 1], id[at + 2], id[at + 3]] };
    // Two ports, then the own address, then the other one's.
    let other = match family {
        IPV4 => IpAddr::V4(Ipv4Addr::from(word(20))),
        _ => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&id[20..36]);
            let v6 = Ipv6Addr::from(octets);
            v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
        }
    };
    !other.is_loopback() && !other.is_unspecified() && other != IpAddr::V4(card::GUEST)
}

struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    /// With one more attribute.
    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn finish(mut self, more: u16) -> Vec<u8> {
        let flags = u16::from_ne_bytes([self.0[6], self.0[7]]) | more;
        self.0[6..8].copy_from_slice(&flags.to_ne_bytes());
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX).to_ne_bytes();
        self.0[..4].copy_from_slice(&length);
        self.0
    }
}

struct Kernel(OwnedFd);

impl Kernel {
    fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        Ok(Self(socket))
    }

    /// Asks for something to be done.
    fn ask(&self, message: Message) -> io::Result<()> {
        send(&self.0, &message.finish(ACK), SendFlags::empty())?;
        self.answers(|_| {})
    }

    /// The connections that leave the guest.
    fn connections(&self, family: u8) -> io::Result<Vec<[u8; SOCKET_ID]>> {
        let all = Message::new(BY_FAMILY, 0, &diag(family, &[0; SOCKET_ID]));
        send(&self.0, &all.finish(DUMP), SendFlags::empty())?;
        let mut found = Vec::new();
        self.answers(|body| {
            // `struct inet_diag_msg`: four bytes, then the id.
            if let Some(id) = body.get(4..4 + SOCKET_ID).and_then(|id| <[u8; SOCKET_ID]>::try_from(id).ok())
                && is_outside(family, &id)
            {
                found.push(id);
            }
        })?;
        Ok(found)
    }

    /// Reads messages until the one that ends them.
    fn answers(&self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = vec![0; 32 << 10];
        loop {
            let (_, length) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = &buffer[..length];
            while let Some((kind, body, next)) = split(rest) {
                match kind {
                    DONE => return Ok(()),
                    ERROR => {
                        let code = body.get(..4).and_then(|code| <[u8; 4]>::try_from(code).ok());
                        return match code.map(i32::from_ne_bytes) {
                            Some(0) => Ok(()),
                            Some(code) => Err(io::Error::from_raw_os_error(-code)),
                            None => Err(io::ErrorKind::InvalidData.into()),
                        };
                    }
                    _ => each(body),
                }
                rest = next;
            }
        }
    }
}

/// The first message: its kind, its body, and what follows.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn id(own: [u8; 16], other: [u8; 16]) -> [u8; SOCKET_ID] {
        let mut id = [0; SOCKET_ID];
        id[4..20].copy_from_slice(&own);
        id[20..36].copy_from_slice(&other);
        id
    }

    #[test]
    fn only_what_leaves_is_outside() {
        let v4 = |octets: [u8; 4]| {
            let mut all = [0; 16];
            all[..4].copy_from_slice(&octets);
            all
        };
        let v6 = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
        assert!(is_outside(IPV4, &id(v4([192, 0, 0, 2]), v4([1, 1, 1, 1]))));
        assert!(is_outside(IPV6, &id(v6("::"), v6("::ffff:1.1.1.1"))));
        assert!(!is_outside(IPV4, &id(v4([127, 0, 0, 1]), v4([127, 0, 0, 9]))));
        assert!(!is_outside(IPV6, &id(v6("::1"), v6("::1"))));
        assert!(!is_outside(IPV6, &id(v6("::"), v6("::ffff:127.0.0.1"))));
        assert!(!is_outside(IPV4, &id(v4([192, 0, 0, 2]), v4([192, 0, 0, 2]))));
    }

    #[test]
    fn messages_are_as_long_as_they_say() {
        let message = Message::new(NEW_ROUTE, CREATE, &[1, 2, 3, 4]).with(5, &[9; 6]).finish(ACK);
        assert_eq!(message.len(), 16 + 4 + 12);
        assert_eq!(message[..8], [32, 0, 0, 0, 24, 0, 5, 4]);
        let (kind, body, rest) = split(&message).expect("a message");
        assert_eq!((kind, body.len(), rest.len()), (NEW_ROUTE, 16, 0));
        assert!(split(&message[..20]).is_none() && split(&[0; 3]).is_none() && split(&[0; 64]).is_none());
    }

    #[test]
    fn the_kernel_lists_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let _client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
        // Those on loopback are there, and not outside. A kernel without the module says so by an error.
        if let Ok(kernel) = Kernel::open(Some(netlink::SOCK_DIAG))
            && let Ok(found) = kernel.connections(IPV4)
        {
            assert!(found.iter().all(|id| id[20] != 127), "{found:?}");
        }
    }
}
