//! The network of a guest: a slot on the host in which its card ends, and what may pass there.
//!
//! A slot is a network namespace. Everything in it is fixed and the same in each, so that any image restores in any
//! slot and forks never collide. What a guest may reach is decided in the slot, out of its reach.
//!
//! ```text
//!  guest eth0 192.0.0.2 ── tap0 192.0.0.1                      fixed MAC on both sides, permanent neighbour;
//!                           │                                  a TAP, or a veth whose other end lies in a namespace
//!        slot namespace: tables `netdev wakeful` and `inet wakeful`, no IPv6, forwarding on
//!                          up0 10.x.y.(2n+1)/31, masquerade
//!                           │ veth
//!        host:     wk<tag>x<n> 10.x.y.2n/31                    table `inet wakeful_<tag>`: masquerade, walls
//!                           └── the host's own routes
//! ```
//!
//! Every packet is judged, in both directions, by the destination that its connection began with; there is no blanket
//! "established, so accept". A changed policy therefore cuts what it no longer allows, and leaves the rest alone. What
//! is refused is answered (a reset for TCP, an ICMP error otherwise), so that programs fail and do not hang.
//!
//! Namespaces are bind-mounted to `<run_dir>/<n>/netns`, so traffic goes on while no daemon runs. The directory is made
//! before anything else of a slot and removed last; [`Network::sweep`] removes whatever it finds that nobody keeps.
//!
//! **On the host** this turns `net.ipv4.ip_forward` on and leaves it on (others may rely on it by then), adds one
//! nftables table, one `unreachable` route for the pool, and a link for each slot. A firewall of the host that drops
//! forwarded packets drops those of guests too.
//!
//! It fails when not started by root, without `nft`, or without `/dev/net/tun`; [`Error`] says which.

mod account;
mod compile;
mod construct;
mod error;
mod files;
mod inside;
mod links;
mod network;
mod nft;
mod pool;
mod ranges;
mod slot;
mod survey;
mod tables;

pub use account::{Account, Denied, Reason, Traffic};
pub use error::Error;
pub use network::{Kind, Limits, Network, Options, erase, erase_after};
pub use slot::Slot;
pub use survey::{Traces, survey};
pub use wakeful_guest_proto::card::{GATEWAY, GATEWAY_MAC, GUEST, GUEST_MAC, PREFIX};

/// Where connections to allowed names are redirected to, at the gateway's address.
pub const PROXY_PORT: u16 = 15001;
