//! A daemon dies, and another one goes on.

use wakeful_net::Network;

use crate::world::{self, Guest, OTHER, OUTSIDE, allow_all, lists, output, ping, take, wait_for};

#[test]
fn slots_outlive_the_daemon_and_are_swept() {
    world::run(async |world| {
        let routes = output("ip route");
        let network = Network::open(world.options(2)).await.expect("opens");
        let mut slots = Vec::new();
        for number in 0..20 {
            slots.push(take(&network, &format!("sbx_{number}"), &allow_all()).await.expect("is made"));
        }
        let guests: Vec<_> = slots[..2].iter().map(Guest::new).collect();
        let mut streams: Vec<_> = guests.iter().map(|guest| guest.connect(OUTSIDE, 80).expect("connects")).collect();
        streams.iter_mut().for_each(|stream| ping(stream).expect("answers"));
        wait_for("slots are made ready", async || network.ready() == 2).await;
        // Nothing of it is told that it ends.
        std::mem::forget((network, slots));

        let network = Network::open(world.options(0)).await.expect("opens");
        streams.iter_mut().for_each(|stream| ping(stream).expect("goes on"));
        assert!(network.adopt("sbx_99").await.expect("can be looked for").is_none());
        let adopted = network.adopt("sbx_0").await.expect("can be opened").expect("is there");
        assert!(adopted.take_tap().is_none(), "the engine has it");
        assert!(adopted.account().await.expect("is there").out.packets > 0);
        adopted.apply(&lists(&["203.0.113.2/32"], &[], &[], &[])).await.expect("is put into force");
        ping(&mut streams[0]).expect("goes on");
        assert!(!guests[0].reaches(OTHER, 80));

        network.sweep(|owner| owner == "sbx_0" || owner == "sbx_7").await.expect("sweeps");
        ping(&mut streams[0]).expect("goes on");
        ping(&mut streams[1]).expect_err("was swept");
        let links = output("ip -o link");
        assert_eq!(links.matches("wk0abcdx").count(), 2, "{links}");
        // New slots keep clear of the old.
        let slot = take(&network, "sbx_new", &allow_all()).await.expect("is made");
        assert!(Guest::new(&slot).reaches(OUTSIDE, 80));
        // Of a daemon that died at the worst moments: a link without a directory, a directory without anything.
        output("ip link add wk0abcdx9999 type veth peer name lost0");
        std::fs::create_dir(world.directory.path().join("net/8888")).expect("can be made");
        // And of one from before the host was started anew.
        std::fs::create_dir(world.directory.path().join("net/7777")).expect("can be made");
        std::fs::write(world.directory.path().join("net/7777/netns"), "").expect("can be written");
        std::fs::write(world.directory.path().join("net/7777/owner"), "sbx_old").expect("can be written");
        assert!(network.adopt("sbx_old").await.expect("can be looked for").is_none());
        network.sweep(|_| false).await.expect("sweeps");
        network.sweep(|_| false).await.expect("twice is fine");
        adopted.release().await;
        network.close().await;
        assert_eq!(output("nft list tables"), "");
        let links = output("ip -o link");
        assert!(!links.contains("wk0abcd") && !links.contains("lost0"), "{links}");
        assert_eq!(output("ip route"), routes);
        let mounts = output("cat /proc/thread-self/mounts");
        assert!(!mounts.contains(&*world.directory.path().to_string_lossy()), "{mounts}");
        assert_eq!(std::fs::read_dir(world.directory.path().join("net")).expect("is there").count(), 0);
    });
}
