//! What was open before a sleep.

use std::time::{Duration, Instant};

use wakeful_net::Reason;

use crate::world::{self, Guest, OUTSIDE, allow_all, ping, take, was_denied};

#[test]
fn an_old_connection_is_reset_in_a_new_slot() {
    world::run(async |world| {
        let network = world.open().await;
        let before = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let mut guest = Guest::new(&before);
        let mut stream = guest.connect(OUTSIDE, 80).expect("connects");
        ping(&mut stream).expect("answers");
        guest.unplug();
        before.release().await;
        let after = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        guest.plug(&after);
        let begun = Instant::now();
        ping(&mut stream).expect_err("is gone");
        assert!(begun.elapsed() < Duration::from_secs(1), "at once, not after {:?}", begun.elapsed());
        let account = after.account().await.expect("is there");
        assert!(was_denied(&account, Reason::Stale, OUTSIDE, 6, 80), "{:?}", account.denied);
        assert!(guest.reaches(OUTSIDE, 80), "a new one is not");
    });
}
