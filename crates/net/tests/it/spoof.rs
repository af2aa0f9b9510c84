//! A guest speaks for itself only.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use wakeful_net::{GATEWAY_MAC, GUEST, GUEST_MAC, Reason};

use crate::world::{self, Guest, OTHER, OUTSIDE, allow_all, at, take, wait_for, was_denied};

/// A UDP packet to port 7000 in an Ethernet frame.
fn frame(from_mac: [u8; 6], from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 33, 0, 1, 0, 0, 64, 17, 0, 0];
    header.extend(from.octets());
    header.extend(to.octets());
    let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = Vec::new();
    frame.extend(GATEWAY_MAC);
    frame.extend(from_mac);
    frame.extend([8, 0]);
    frame.extend(header);
    frame.extend([0x1b, 0x58, 0x1b, 0x58, 0, 13, 0, 0]);
    frame.extend(b"hello");
    frame
}

#[test]
fn foreign_senders_and_protocols_are_dropped() {
    world::run(async |world| {
        let network = world.open().await;
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let guest = Guest::new(&slot);
        let socket = at(&world.outside, || UdpSocket::bind((OUTSIDE, 7000)).expect("is free"));
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("can be");
        let mut buffer = [0; 64];
        guest.inject(&frame(GUEST_MAC, GUEST, OUTSIDE));
        assert_eq!(socket.recv(&mut buffer).expect("the guest's own arrives"), 5);

        guest.inject(&frame(GUEST_MAC, OTHER, OUTSIDE));
        guest.inject(&frame([2, 0, 0, 0, 0, 9], GUEST, OUTSIDE));
        // IPv6 to all nodes, ARP for somebody else, and a protocol of nobody's.
        let mut six = vec![0x33, 0x33, 0, 0, 0, 1];
        six.extend(GUEST_MAC);
        six.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 59, 1]);
        six.extend([0; 32]);
        guest.inject(&six);
        let mut arp = vec![0xff; 6];
        arp.extend(GUEST_MAC);
        arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        arp.extend(GUEST_MAC);
        arp.extend([192, 0, 0, 5, 0, 0, 0, 0, 0, 0, 192, 0, 0, 1]);
        guest.inject(&arp);
        let mut other = six.clone();
        other[12..14].copy_from_slice(&[0x88, 0xb5]);
        guest.inject(&other);
        assert!(socket.recv(&mut buffer).is_err(), "nothing of it arrives");
        wait_for("each is counted with its reason", async || {
            let account = slot.account().await.expect("is there");
            let frames = |reason| {
                let of = account.denied.iter().filter(|denied| denied.reason == reason && denied.address.is_none());
                of.map(|denied| denied.traffic.packets).sum::<u64>()
            };
            was_denied(&account, Reason::Spoofed, OUTSIDE, 17, 7000)
                && account.denied.iter().any(|denied| denied.reason == Reason::Spoofed && denied.traffic.packets == 2)
                && frames(Reason::Spoofed) == 1
                && frames(Reason::Protocol) == 2
        })
        .await;
    });
}
