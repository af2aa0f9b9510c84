//! Handing slots out.

use std::time::{Duration, Instant};

use wakeful_model::{Cidr, Rules};
use wakeful_net::{Error, Kind, Network};

use crate::world::{self, Guest, OTHER, OUTSIDE, allow_all, lists, output, take, wait_for};

/// How long it takes to be handed one, and until its rules are in force.
async fn timed(network: &Network, owner: &str, rules: &Rules) -> [Duration; 2] {
    wait_for("slots are made ready", async || network.ready() == 3).await;
    let begun = Instant::now();
    let slot = network.take(owner, Kind::Tap, rules).await.expect("is ready");
    let taken = begun.elapsed();
    slot.settled().await.expect("is put into force");
    let settled = begun.elapsed();
    slot.release().await;
    [taken, settled]
}

#[test]
#[expect(clippy::print_stderr, reason = "a figure to look at")]
fn a_ready_slot_is_handed_out_at_once() {
    world::run(async |world| {
        let network = Network::open(world.options(3)).await.expect("opens");
        let (mut alike, mut other) = (Vec::new(), Vec::new());
        for round in 0..9 {
            // Those that are ready are for the rules of the round before, twice the same.
            let rules = lists(&["203.0.113.0/24"], &[], &[443 + round], &["*.example.org"]);
            other.push(timed(&network, &format!("sbx_{round}a"), &rules).await);
            for slot in ["b", "c", "d"] {
                timed(&network, &format!("sbx_{round}{slot}"), &rules).await;
            }
            alike.push(timed(&network, &format!("sbx_{round}e"), &rules).await);
        }
        alike.sort_unstable();
        other.sort_unstable();
        eprintln!("taken and settled: {:?} median; with other rules {:?}", alike[4], other[4]);
        assert!([alike[4], other[4]].iter().all(|[taken, _]| *taken < Duration::from_millis(50)));
        network.close().await;
        assert!(matches!(take(&network, "sbx_a", &allow_all()).await, Err(Error::Closed)));
    });
}

#[test]
fn a_slot_is_closed_until_its_rules_are_in_force() {
    world::run(async |world| {
        let network = Network::open(world.options(2)).await.expect("opens");
        for round in 0..6 {
            // Ready for everything, taken for less: what runs in it at once must not find the rules of before.
            take(&network, &format!("sbx_{round}"), &allow_all()).await.expect("is ready").release().await;
            wait_for("slots are made ready", async || network.ready() == 2).await;
            let rules = lists(&["203.0.113.3/32"], &[], &[], &[]);
            let slot = network.take("sbx_a", Kind::Tap, &rules).await.expect("is ready");
            let guest = Guest::new(&slot);
            assert!(guest.connect(OUTSIDE, 80).is_err(), "round {round}");
            slot.settled().await.expect("is put into force");
            slot.settled().await.expect("asked again, it still is");
            assert!(guest.reaches(OTHER, 80) && !guest.reaches(OUTSIDE, 80), "round {round}");
            slot.release().await;
        }
    });
}

#[test]
fn one_that_is_shut_opens_with_its_policy() {
    world::run(async |world| {
        let network = Network::open(world.options(1)).await.expect("opens");
        for rules in [allow_all(), lists(&["203.0.113.3/32"], &[], &[], &[])] {
            let slot = network.take_shut("sbx_a", Kind::Tap, &allow_all()).await.expect("is made");
            slot.settled().await.expect("settles");
            let guest = Guest::new(&slot);
            assert!(!guest.reaches(OUTSIDE, 80) && !guest.reaches(OTHER, 80), "nothing leaves it");
            slot.apply(&rules).await.expect("opens");
            assert!(guest.reaches(OTHER, 80));
            assert_eq!(guest.reaches(OUTSIDE, 80), rules == allow_all());
            slot.release().await;
        }
    });
}

#[test]
fn many_are_made_at_once() {
    world::run(async |world| {
        let network = Network::open(world.options(1)).await.expect("opens");
        let rules = allow_all();
        let (a, b, c, d) = tokio::join!(
            take(&network, "a", &rules),
            take(&network, "b", &rules),
            take(&network, "c", &rules),
            take(&network, "d", &rules)
        );
        for slot in [a, b, c, d] {
            assert!(Guest::new(&slot.expect("is made")).reaches(OUTSIDE, 80));
        }
    });
}

#[test]
fn closing_leaves_nothing() {
    world::run(async |world| {
        let routes = output("ip route");
        let network = Network::open(world.options(2)).await.expect("opens");
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        wait_for("slots are made ready", async || network.ready() == 2).await;
        let again = slot.clone();
        slot.release().await;
        assert!(matches!(again.apply(&allow_all()).await, Err(Error::Released { .. })));
        again.release().await;
        network.close().await;
        assert_eq!(output("nft list tables"), "");
        assert!(!output("ip -o link").contains("wk0abcd"));
        assert_eq!(output("ip route"), routes);
        let mounts = output("cat /proc/thread-self/mounts");
        assert!(!mounts.contains(&*world.directory.path().to_string_lossy()), "{mounts}");
        assert_eq!(std::fs::read_dir(world.directory.path().join("net")).expect("is there").count(), 0);
    });
}

#[test]
fn a_slot_that_nobody_waits_for_is_not_lost() {
    world::run(async |world| {
        let network = world.open().await;
        // Given up at the first wait.
        let given_up = tokio::time::timeout(Duration::ZERO, take(&network, "sbx_a", &allow_all())).await;
        assert!(given_up.is_err());
        wait_for("it is kept for the next", async || network.ready() == 1).await;
        take(&network, "sbx_b", &allow_all()).await.expect("is ready");
        assert!(network.adopt("sbx_a").await.expect("can be looked for").is_none());
        // Nor those that are ready when the network is dropped.
        network.sweep(|_| false).await.expect("sweeps");
        drop(network);
        let network = Network::open(world.options(2)).await.expect("opens");
        wait_for("slots are made ready", async || network.ready() == 2).await;
        drop(network);
        wait_for("they are removed", async || !output("ip -o link").contains("wk0abcd")).await;
    });
}

#[test]
fn pools_keep_clear_of_the_hosts_networks() {
    world::run(async |world| {
        let pool: Cidr = "10.77.128.0/20".parse().expect("is a range");
        let mut options = world.options(0);
        options.pool = Some(pool);
        let error = Network::open(options.clone()).await.map(drop).expect_err("is the private network");
        assert_eq!(error.kind(), wakeful_model::Kind::Invalid, "{error}");
        output("ip route add 10.205.64.0/24 via 203.0.113.2; ip route add 10.206.0.0/15 via 203.0.113.2");
        let network = world.open().await;
        assert_eq!(network.pool().to_string(), "10.208.0.0/16");
        // Another daemon sees that it is taken.
        let mut other = world.options(0);
        (other.run_dir, other.pool) = (world.directory.path().join("other"), Some(network.pool()));
        other.tag = "fffff".into();
        assert!(matches!(Network::open(other.clone()).await, Err(Error::PoolTaken { .. })));
        other.pool = None;
        let other = Network::open(other).await.expect("opens");
        // Both work, and are strangers to each other.
        let (slot, stranger) = (take(&network, "a", &allow_all()).await, take(&other, "a", &allow_all()).await);
        let (slot, stranger) = (slot.expect("is made"), stranger.expect("is made"));
        assert!(Guest::new(&slot).reaches(OUTSIDE, 80) && Guest::new(&stranger).reaches(OUTSIDE, 80));
        other.sweep(|_| false).await.expect("sweeps its own");
        assert!(output("ip -o link").contains("wk0abcdx") && !output("ip -o link").contains("wkfffffx"));
    });
}
