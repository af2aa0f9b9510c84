//! What is allowed arrives.

use std::io::{Read as _, Write as _};

use crate::world::{self, Guest, OTHER, OUTSIDE, allow_all, at, exchange, output, take, wait_for};

#[test]
fn allow_all_reaches_the_outside() {
    world::run(async |world| {
        let network = world.open().await;
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let guest = Guest::new(&slot);
        assert!(guest.reaches(OUTSIDE, 80), "TCP");
        assert!(guest.reaches_by_udp(OUTSIDE, 9000), "UDP");
        assert!(guest.reaches_by_udp(OTHER, 53), "UDP to port 53: no names are ruled");
        assert!(guest.pings(OUTSIDE), "ICMP");
        assert!(guest.pings(wakeful_net::GATEWAY), "the gateway answers");
        // In fragments.
        let socket = guest.udp(OUTSIDE, 9000).expect("connects");
        exchange(&socket, &[7; 5000]).expect("arrives whole");

        let before = slot.account().await.expect("is there");
        there_and_back(&guest);
        let after = slot.account().await.expect("is there");
        assert!(after.out.bytes - before.out.bytes > 1 << 20);
        assert!(after.received.bytes - before.received.bytes > 1 << 20);
        assert_eq!(after.denied, [], "nothing was refused");
    });
}

/// A megabyte.
fn there_and_back(guest: &Guest) {
    let mut stream = guest.connect(OUTSIDE, 443).expect("connects");
    let mut back = stream.try_clone().expect("can be");
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 20];
        back.read_exact(&mut bytes).map(|()| bytes)
    });
    let sent: Vec<u8> = (0..1_u32 << 20).map(|at| (at % 251) as u8).collect();
    stream.write_all(&sent).expect("is taken");
    let answer = reader.join().expect("does not panic").expect("arrives");
    assert!(answer == sent, "a megabyte comes back as it was");
}

#[test]
fn a_host_with_smaller_packets_is_no_obstacle() {
    world::run(async |world| {
        output("ip link set eth0 mtu 1300");
        at(&world.outside, || output("ip link set out0 mtu 1300"));
        let network = world.open().await;
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let guest = Guest::new(&slot);
        there_and_back(&guest);
        let socket = guest.udp(OUTSIDE, 9000).expect("connects");
        // The first is answered with the size that fits.
        wait_for("UDP adapts", async || exchange(&socket, &[7; 1400]).is_ok()).await;
    });
}
