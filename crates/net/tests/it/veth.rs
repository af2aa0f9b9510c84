//! An engine that takes a link instead of a TAP: the same slot, the same rules.

use wakeful_net::{GATEWAY, Kind, Network, Reason};

use crate::world::{
    self, Guest, HOST, METADATA, OTHER, OUTSIDE, PRIVATE, allow_all, at, lists, output, wait_for, was_denied,
};

const TCP: u8 = 6;

#[test]
fn a_link_is_held_to_the_same_rules() {
    world::run(async |world| {
        let network = world.open().await;
        let rules = lists(&["203.0.113.2/32"], &[], &[80], &[]);
        let slot = network.take("sbx_a", Kind::Veth, &rules).await.expect("is made");
        slot.settled().await.expect("is put into force");
        assert!(slot.take_tap().is_none(), "it is no TAP");
        let guest = Guest::within(&slot);
        assert!(guest.reaches(OUTSIDE, 80) && guest.pings(GATEWAY));
        assert!(!guest.reaches(OUTSIDE, 443) && !guest.reaches(OTHER, 80));
        for address in [HOST, METADATA, PRIVATE] {
            assert!(!guest.reaches(address, 80), "{address}");
        }
        let account = slot.account().await.expect("is there");
        assert!(was_denied(&account, Reason::Policy, OTHER, TCP, 80), "{account:?}");
        assert!(account.out.bytes > 0 && account.received.bytes > 0);
        slot.apply(&allow_all()).await.expect("changes");
        assert!(guest.reaches(OTHER, 443));

        // Root in there changes who it is.
        at(&guest.namespace, || {
            output("ip address add 192.0.0.5/29 dev eth0; ip route replace default via 192.0.0.1 src 192.0.0.5")
        });
        assert!(guest.connect(OUTSIDE, 80).is_err(), "another address");
        at(&guest.namespace, || output("ip route replace default via 192.0.0.1 src 192.0.0.2"));
        assert!(guest.reaches(OUTSIDE, 80));
        at(&guest.namespace, || output("ip link set eth0 address 02:00:00:00:00:77"));
        assert!(guest.connect(OUTSIDE, 80).is_err(), "another card");
    });
}

#[test]
fn links_are_ready_adopted_and_removed_as_taps_are() {
    world::run(async |world| {
        let network = Network::open(world.options(2)).await.expect("opens");
        wait_for("slots are made ready", async || network.ready() == 2).await;
        let slot = network.take("sbx_a", Kind::Veth, &allow_all()).await.expect("is made");
        slot.settled().await.expect("is put into force");
        wait_for("two of each kind are ready", async || network.ready() == 4).await;
        let guest = Guest::within(&slot);
        drop((slot, network));

        let network = world.open().await;
        assert!(guest.reaches(OUTSIDE, 80), "nobody is needed for it");
        let slot = network.adopt("sbx_a").await.expect("is found").expect("is there");
        assert_eq!(slot.kind(), Kind::Veth);
        assert!(Guest::within(&slot).reaches(OUTSIDE, 80), "also for a program that comes now");
        slot.apply(&lists(&[], &[], &[], &[])).await.expect("changes");
        assert!(guest.connect(OUTSIDE, 80).is_err());
        slot.release().await;
        network.sweep(|_| false).await.expect("sweeps");
        network.close().await;
        drop(guest);
        let mounts = output("cat /proc/thread-self/mounts");
        assert!(!mounts.contains(&*world.directory.path().to_string_lossy()), "{mounts}");
        assert_eq!(std::fs::read_dir(world.directory.path().join("net")).expect("is there").count(), 0);
    });
}
