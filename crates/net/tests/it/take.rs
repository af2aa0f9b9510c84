//! Handing slots out.

use std::time::{Duration, Instant};

use wakeful_model::{Cidr, Kind};
use wakeful_net::{Error, Network};

use crate::world::{self, Guest, OUTSIDE, allow_all, lists, output, wait_for};

async fn median_take(network: &Network, rules: &wakeful_model::Rules, rounds: usize) -> Duration {
    let mut times = Vec::new();
    for round in 0..rounds {
        wait_for("slots are made ready", async || network.ready() >= 2).await;
        let begun = Instant::now();
        let slot = network.take(&format!("sbx_{round}"), rules).await.expect("is ready");
        times.push(begun.elapsed());
        slot.release().await;
    }
    times.sort_unstable();
    times[rounds / 2]
}

#[test]
#[expect(clippy::print_stderr, reason = "a figure to look at")]
fn a_ready_slot_is_handed_out_at_once() {
    world::run(async |world| {
        let network = Network::open(world.options(3)).await.expect("opens");
        let alike = median_take(&network, &allow_all(), 15).await;
        let rules = lists(&["203.0.113.0/24"], &[], &[443], &["*.example.org"]);
        wait_for("slots are made ready", async || network.ready() == 3).await;
        let begun = Instant::now();
        let slot = network.take("sbx_other", &rules).await.expect("is ready");
        let other = begun.elapsed();
        let others = median_take(&network, &rules, 9).await;
        eprintln!("take: {alike:?} median; with other rules {other:?}, then {others:?} median");
        assert!(alike < Duration::from_millis(50) && others < Duration::from_millis(50));
        slot.release().await;
        network.close().await;
        assert!(matches!(network.take("sbx_a", &rules).await, Err(Error::Closed)));
    });
}

#[test]
fn many_are_made_at_once() {
    world::run(async |world| {
        let network = Network::open(world.options(1)).await.expect("opens");
        let rules = allow_all();
        let (a, b, c, d) = tokio::join!(
            network.take("a", &rules),
            network.take("b", &rules),
            network.take("c", &rules),
            network.take("d", &rules)
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
        let slot = network.take("sbx_a", &allow_all()).await.expect("is made");
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
        let given_up = tokio::time::timeout(Duration::ZERO, network.take("sbx_a", &allow_all())).await;
        assert!(given_up.is_err());
        wait_for("it is kept for the next", async || network.ready() == 1).await;
        network.take("sbx_b", &allow_all()).await.expect("is ready");
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
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
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
        let (slot, stranger) = (network.take("a", &allow_all()).await, other.take("a", &allow_all()).await);
        let (slot, stranger) = (slot.expect("is made"), stranger.expect("is made"));
        assert!(Guest::new(&slot).reaches(OUTSIDE, 80) && Guest::new(&stranger).reaches(OUTSIDE, 80));
        other.sweep(|_| false).await.expect("sweeps its own");
        assert!(output("ip -o link").contains("wk0abcdx") && !output("ip -o link").contains("wkfffffx"));
    });
}
