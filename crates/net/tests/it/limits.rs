//! What one guest may use.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use wakeful_net::{Limits, Network, Reason};

use crate::world::{self, Guest, OUTSIDE, allow_all, ping, take, was_denied};

#[test]
fn connections_are_counted() {
    world::run(async |world| {
        let mut options = world.options(0);
        options.limits = Limits { connections: Some(5), ..Limits::default() };
        let network = Network::open(options).await.expect("opens");
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let guest = Guest::new(&slot);
        let mut open: Vec<_> = (0..5).map(|_| guest.connect(OUTSIDE, 80).expect("connects")).collect();
        assert!(!guest.reaches(OUTSIDE, 80), "one too many");
        let account = slot.account().await.expect("is there");
        assert!(was_denied(&account, Reason::Connections, OUTSIDE, 6, 80), "{:?}", account.denied);
        open.iter_mut().for_each(|stream| ping(stream).expect("goes on"));
    });
}

#[test]
fn what_is_sent_is_held_to_its_bandwidth() {
    measure((Some(RATE), None));
}

#[test]
fn what_is_received_is_held_to_its_bandwidth() {
    measure((None, Some(RATE)));
}

const RATE: u64 = 2_000_000;

fn measure(limits: (Option<u64>, Option<u64>)) {
    world::run(async |world| {
        let mut options = world.options(0);
        (options.limits.bytes_per_second_up, options.limits.bytes_per_second_down) = limits;
        let network = Network::open(options).await.expect("opens");
        let slot = take(&network, "sbx_a", &allow_all()).await.expect("is made");
        let guest = Guest::new(&slot);
        let mut stream = guest.connect(OUTSIDE, 80).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("can be");
        stream.set_write_timeout(Some(Duration::from_secs(20))).expect("can be");
        let mut back = stream.try_clone().expect("can be");
        let reader = std::thread::spawn(move || back.read_exact(&mut vec![0; 2 * RATE as usize]));
        let begun = Instant::now();
        stream.write_all(&vec![0; 2 * RATE as usize]).expect("is taken");
        reader.join().expect("does not panic").expect("comes back");
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(700), "{took:?} for two seconds' worth");
    });
}
