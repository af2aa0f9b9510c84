//! Ranges and ports, in the order of the list.

use wakeful_model::{Destination, EgressVerdict, Rule, Rules};
use wakeful_net::{GATEWAY, Reason};

use crate::world::{self, Guest, OTHER, OUTSIDE, PRIVATE, THIRD, at, lists, output, take, was_denied};

#[test]
fn deny_all_lets_through_what_is_listed() {
    world::run(async |world| {
        let network = world.open().await;
        let rules = lists(&["203.0.113.2/32", "10.77.0.0/16"], &[], &[80, 9000], &[]);
        let slot = take(&network, "sbx_a", &rules).await.expect("is made");
        let guest = Guest::new(&slot);
        assert!(guest.reaches(OUTSIDE, 80));
        assert!(guest.reaches(PRIVATE, 80), "a range that names it opens it");
        assert!(guest.reaches_by_udp(OUTSIDE, 9000));
        assert!(!guest.reaches(OUTSIDE, 443), "another port");
        assert!(!guest.reaches(OTHER, 80), "another address");
        assert!(!guest.reaches_by_udp(OUTSIDE, 53));
        assert!(!guest.pings(OUTSIDE), "a rule with ports is about what has ports");
        let account = slot.account().await.expect("is there");
        for (address, protocol, port) in [(OUTSIDE, 6, 443), (OTHER, 6, 80), (OUTSIDE, 17, 53), (OUTSIDE, 1, 0)] {
            assert!(was_denied(&account, Reason::Policy, address, protocol, port), "{port}: {:?}", account.denied);
        }
    });
}

#[test]
fn the_first_rule_that_matches_decides() {
    world::run(async |world| {
        let network = world.open().await;
        let rules = lists(&["203.0.113.0/24", "203.0.113.3/32"], &["203.0.113.3/32"], &[], &[]);
        let slot = take(&network, "sbx_a", &rules).await.expect("is made");
        let guest = Guest::new(&slot);
        assert!(guest.reaches(OUTSIDE, 80) && guest.pings(OUTSIDE));
        assert!(!guest.reaches(OTHER, 80) && !guest.pings(OTHER));
        let account = slot.account().await.expect("is there");
        assert!(was_denied(&account, Reason::DeniedRange, OTHER, 6, 80), "{:?}", account.denied);
        // The other way round, as other surfaces may say it: allowed before denied.
        let rule = |verdict, range: &str, ports: &[u16]| Rule {
            verdict,
            to: Destination::Range(range.parse().expect("is a range")),
            ports: ports.to_vec(),
        };
        let list = vec![
            rule(EgressVerdict::Allow, "203.0.113.3/32", &[443]),
            rule(EgressVerdict::Deny, "203.0.113.3/32", &[]),
            rule(EgressVerdict::Deny, "fd00::/8", &[]),
            rule(EgressVerdict::Deny, "203.0.113.4/32", &[80]),
        ];
        slot.apply(&Rules { list, otherwise: EgressVerdict::Allow }).await.expect("is put into force");
        assert!(guest.reaches(OTHER, 443) && !guest.reaches(OTHER, 80));
        assert!(guest.reaches(THIRD, 443) && !guest.reaches(THIRD, 80));
        assert!(guest.reaches(OUTSIDE, 80) && !guest.reaches(PRIVATE, 80));
    });
}

#[test]
fn where_nothing_is_allowed_nothing_leaves() {
    world::run(async |world| {
        let network = world.open().await;
        let slot = take(&network, "sbx_a", &lists(&[], &[], &[], &[])).await.expect("is made");
        let resolver = slot.bind_udp("192.0.0.1:53".parse().expect("is an address")).expect("is free");
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = resolver.recv_from(&mut buffer) {
                let _ = resolver.send_to(&buffer[..length], from);
            }
        });
        let guest = Guest::new(&slot);
        let uplink = || at(&slot.namespace().try_clone_to_owned().expect("can be"), || output("ip -o link show up0"));
        assert!(!uplink().contains(",UP") && !uplink().contains("<UP"));
        assert!(!guest.reaches(OUTSIDE, 80));
        assert!(!guest.reaches_by_udp(OUTSIDE, 9000));
        assert!(!guest.reaches_by_udp(GATEWAY, 53));
        let account = slot.account().await.expect("is there");
        assert!(was_denied(&account, Reason::Policy, OUTSIDE, 6, 80), "{:?}", account.denied);
        assert!(was_denied(&account, Reason::Policy, OUTSIDE, 17, 9000), "{:?}", account.denied);
        assert!(was_denied(&account, Reason::Gateway, GATEWAY, 17, 53), "{:?}", account.denied);
        slot.apply(&lists(&["203.0.113.2/32"], &[], &[], &[])).await.expect("is put into force");
        assert!(uplink().contains(",UP") && guest.reaches(OUTSIDE, 80));
        assert!(guest.reaches_by_udp(GATEWAY, 53));
        slot.apply(&lists(&[], &[], &[], &[])).await.expect("is put into force");
        assert!(!uplink().contains(",UP") && !guest.reaches(OUTSIDE, 80));
    });
}
