//! The guest's network card: the same numbers in every sandbox, so that any image restores anywhere, and clones never
//! collide, since each has a gateway of its own.

use std::net::Ipv4Addr;

/// Address of the guest. The range is reserved for links such as this one, so nobody's network is hidden by it.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
/// Its gateway, which also answers names.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
/// Length of their common prefix.
pub const PREFIX: u8 = 29;
/// Where the agent takes the host's channel, on engines that have no port of their own for it.
pub const CHANNEL: u16 = 49982;
/// Hardware address of the guest's card.
pub const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Hardware address of the gateway; a guest never asks for it.
pub const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
