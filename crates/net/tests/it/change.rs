//! A changed policy holds for what is under way.

use std::time::{Duration, Instant};

use crate::world::{self, Guest, OTHER, OUTSIDE, allow_all, exchange, lists, ping, take};

#[test]
fn a_change_cuts_what_it_forbids_and_leaves_the_rest() {
    world::run(async |world| {
        let network = world.open().await;
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let guest = Guest::new(&slot);
        let mut kept = guest.connect(OUTSIDE, 80).expect("connects");
        let mut cut = guest.connect(OTHER, 80).expect("connects");
        let (kept_udp, cut_udp) =
            (guest.udp(OUTSIDE, 9000).expect("connects"), guest.udp(OTHER, 9000).expect("connects"));
        ping(&mut kept).and_then(|()| ping(&mut cut)).expect("both answer");
        exchange(&kept_udp, b"a").and_then(|()| exchange(&cut_udp, b"a")).expect("both answer");
        let begun = Instant::now();
        slot.apply(&lists(&["203.0.113.2/32"], &[], &[], &[])).await.expect("is put into force");
        ping(&mut cut).expect_err("is cut");
        exchange(&cut_udp, b"b").expect_err("is cut");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        ping(&mut kept).expect("goes on");
        exchange(&kept_udp, b"b").expect("goes on");
        slot.apply(&lists(&["203.0.113.2/32"], &["203.0.113.0/30"], &[], &[])).await.expect("is put into force");
        ping(&mut kept).expect_err("is cut");
    });
}
