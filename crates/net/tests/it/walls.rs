//! What no policy opens.

use std::net::Ipv4Addr;

use wakeful_net::{GATEWAY, Reason};

use crate::world::{self, Guest, HOST, METADATA, OUTSIDE, PRIVATE, allow_all, lists, output, take, was_denied};

#[test]
fn host_neighbours_metadata_and_private_ranges_are_out_of_reach() {
    world::run(async |world| {
        // What would answer if a packet came through.
        std::thread::spawn(|| {
            let listener = std::net::TcpListener::bind("0.0.0.0:80").expect("is free");
            listener.incoming().for_each(drop);
        });
        let network = world.open().await;
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let neighbour = take(&network, "sbx_b", &allow_all()).await.expect("is made");
        let listener = neighbour.bind_tcp("0.0.0.0:80".parse().expect("is an address")).expect("is free");
        let guest = Guest::new(&slot);
        assert!(guest.reaches(OUTSIDE, 80));
        let address = |link: &str| -> Ipv4Addr {
            let shown = output(&format!("ip -4 -o address show dev {link}"));
            let address = shown.split_whitespace().nth(3).and_then(|range| range.split('/').next());
            address.expect("has one").parse().expect("is one")
        };
        let host_end = address(&format!("wk0abcdx{}", neighbour.number()));
        let neighbour_end = Ipv4Addr::from(u32::from(host_end) + 1);
        let cases = [
            (HOST, Reason::Host),
            (host_end, Reason::Neighbour),
            (neighbour_end, Reason::Neighbour),
            (METADATA, Reason::LinkLocal),
            (PRIVATE, Reason::Private),
            (Ipv4Addr::new(192, 0, 0, 3), Reason::Reserved),
            (Ipv4Addr::new(240, 0, 0, 1), Reason::Reserved),
            (GATEWAY, Reason::Gateway),
        ];
        // By way of the gateway, as a guest may try.
        world::at(&guest.namespace, || output("ip route add 192.0.0.3/32 via 192.0.0.1"));
        for (address, reason) in cases {
            assert!(!guest.reaches(address, 80), "{address}");
            let account = slot.account().await.expect("is there");
            assert!(was_denied(&account, reason, address, 6, 80), "{address} {reason}: {:?}", account.denied);
            assert!(!guest.pings(address) || address == GATEWAY, "{address}");
        }
        // A port of the host that leads elsewhere is the host's all the same.
        output("nft add table ip container");
        output("nft 'add chain ip container in { type nat hook prerouting priority dstnat; }'");
        output("nft add rule ip container in tcp dport 8080 dnat to 203.0.113.2");
        assert!(!guest.reaches(HOST, 8080));
        assert!(!guest.reaches_by_udp(METADATA, 53));
        assert!(!guest.reaches_by_udp(HOST, 53));
        assert!(!guest.reaches(GATEWAY, wakeful_net::PROXY_PORT), "the proxy is not for direct use");
        // A range under deny_all opens private addresses, and nothing of the rest.
        slot.apply(&lists(&["0.0.0.0/0"], &[], &[], &[])).await.expect("is put into force");
        assert!(guest.reaches(PRIVATE, 80));
        for (address, reason) in cases {
            assert!(reason == Reason::Private || !guest.reaches(address, 80), "{address}");
        }
        drop(listener);
        // The outside cannot begin a connection either.
        let denied = world::at(&world.outside, || {
            output(&format!("ip route replace {} via 203.0.113.1", network.pool()));
            std::net::TcpStream::connect_timeout(&(neighbour_end, 80).into(), std::time::Duration::from_millis(300))
        });
        assert!(denied.is_err());
    });
}

#[test]
fn the_host_may_open_a_private_range() {
    world::run(async |world| {
        let mut options = world.options(0);
        options.allow_private = vec!["10.77.0.0/24".parse().expect("is a range")];
        let network = wakeful_net::Network::open(options).await.expect("opens");
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let guest = Guest::new(&slot);
        assert!(guest.reaches(PRIVATE, 80));
        slot.apply(&lists(&[], &["10.77.0.2/32"], &[], &[])).await.expect("is put into force");
        assert!(!guest.reaches(PRIVATE, 80));
    });
}
