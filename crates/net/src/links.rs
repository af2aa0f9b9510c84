//! Links, addresses, routes and neighbours of the calling thread's namespace, by netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Where the kernel listens.
const KERNEL: (u32, u32) = (0, 0);
/// The pool's route loses against every other of the host.
const POOL_METRIC: u32 = 4_278_198_272;

/// A netlink socket in the namespace of the thread that opened it.
pub(crate) struct Links {
    socket: Socket,
    sequence: u32,
}

/// A route's destination.
pub(crate) type Route = (Ipv4Addr, u8);

impl Links {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(KERNEL.0, KERNEL.1))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends one request and gives what comes back before its end. The kernel answers every request, so this waits for
    /// nobody else.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while let Some(length) = rest.first_chunk().map(|first| u32::from_ne_bytes(*first) as usize) {
                if length < 16 || length > rest.len() {
                    break;
                }
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&rest[..length]);
                rest = &rest[length.next_multiple_of(4).min(rest.len())..];
                // What a newer kernel says in words that are not known here concerns nothing that is asked for.
                let Ok(answer) = answer else { continue };
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(inner) => answers.push(inner),
                    _ => {}
                }
            }
        }
    }

    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.request(message, NLM_F_ACK | flags).map(drop)
    }

    fn index(&self, name: &str) -> io::Result<u32> {
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
        Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
    }

    /// Makes a veth pair: `name` here, `peer` in another namespace.
    pub(crate) fn add_veth(&mut self, name: &str, peer: &str, peer_namespace: BorrowedFd<'_>) -> io::Result<()> {
        let mut other = LinkMessage::default();
        other.attributes =
            vec![LinkAttribute::IfName(peer.to_owned()), LinkAttribute::NetNsFd(peer_namespace.as_raw_fd())];
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
            ]),
        ];
        self.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sets a link up or down.
    pub(crate) fn set_up(&mut self, name: &str, up: bool) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        message.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    pub(crate) fn set_mac(&mut self, name: &str, mac: [u8; 6]) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        message.attributes = vec![LinkAttribute::Address(mac.to_vec())];
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Removes a link; one that is not there is removed.
    pub(crate) fn remove(&mut self, name: &str) -> io::Result<()> {
        let index = match self.index(name) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => return Ok(()),
            index => index?,
        };
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.change(RouteNetlinkMessage::DelLink(message), 0) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(()),
            done => done,
        }
    }

    pub(crate) fn add_address(&mut self, name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix;
        message.header.index = self.index(name)?;
        message.attributes =
            vec![AddressAttribute::Local(IpAddr::V4(address)), AddressAttribute::Address(IpAddr::V4(address))];
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Says for good which hardware address a neighbour has, so that it is never asked.
    pub(crate) fn add_neighbour(&mut self, name: &str, address: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = self.index(name)?;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Sets the default route.
    pub(crate) fn route_all_via(&mut self, gateway: Ipv4Addr) -> io::Result<()> {
        let mut message = route(RouteType::Unicast, RouteScope::Universe, 0);
        message.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet(gateway))];
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Claims a range, so that others see it taken and what no slot owns goes nowhere.
    pub(crate) fn reserve(&mut self, (address, prefix): Route) -> io::Result<()> {
        let message = reservation(address, prefix);
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Gives a claimed range up.
    pub(crate) fn unreserve(&mut self, (address, prefix): Route) -> io::Result<()> {
        match self.change(RouteNetlinkMessage::DelRoute(reservation(address, prefix)), 0) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(()),
            done => done,
        }
    }

    /// Every IPv4 range that this namespace knows a way to, its own addresses among them; default routes aside.
    pub(crate) fn routes(&mut self) -> io::Result<Vec<Route>> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        let answers = self.request(RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP)?;
        let found = answers.into_iter().filter_map(|answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return None };
            let to = route.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(*address),
                _ => None,
            })?;
            Some((to, route.header.destination_prefix_length)).filter(|(_, prefix)| *prefix > 0)
        });
        Ok(found.collect())
    }
}

/// The links of the calling thread's namespace.
pub(crate) fn names() -> io::Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    Ok(text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect())
}

fn reservation(address: Ipv4Addr, prefix: u8) -> RouteMessage {
    let mut message = route(RouteType::Unreachable, RouteScope::Universe, prefix);
    message.attributes =
        vec![RouteAttribute::Destination(RouteAddress::Inet(address)), RouteAttribute::Priority(POOL_METRIC)];
    message
}

fn route(kind: RouteType, scope: RouteScope, prefix: u8) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = prefix;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = scope;
    message.header.kind = kind;
    message
}
