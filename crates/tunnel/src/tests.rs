use proptest::prelude::*;
use tokio::io::{DuplexStream, duplex};

use super::*;

fn bytes(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|n| u8::try_from((n * 31 + n / 251 + salt) % 256).unwrap_or(0)).collect()
}

fn quiet() {}

/// One end with its local side.
struct Place {
    line: Line,
    inner: DuplexStream,
}

impl Place {
    fn new() -> (Self, DuplexStream) {
        let (inner, outer) = duplex(4096);
        (Self { line: Line::default(), inner }, outer)
    }

    async fn carry(&mut self, carrier: DuplexStream, peer_has: u64, stop: Option<Duration>) -> End {
        let (mut from, mut to) = tokio::io::split(&mut self.inner);
        let stop = async {
            match stop {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        self.line.carry(&mut from, &mut to, carrier, peer_has, stop, &quiet).await
    }
}

/// Says all, ends, and reads to the end.
async fn user(stream: DuplexStream, said: Vec<u8>) -> Vec<u8> {
    let (mut from, mut to) = tokio::io::split(stream);
    let say = async {
        to.write_all(&said).await.expect("taken");
        to.shutdown().await.expect("ended");
    };
    let mut heard = Vec::new();
    let (heard_all, ()) = tokio::join!(from.read_to_end(&mut heard), say);
    heard_all.expect("heard");
    heard
}

/// Joins two users through carriers that are cut (or stopped by one end) again and again.
async fn through(cuts: Vec<(u64, bool)>, up: usize, down: usize) {
    let (mut near, client) = Place::new();
    let (mut far, service) = Place::new();
    let users = async { tokio::join!(user(client, bytes(up, 1)), user(service, bytes(down, 2))) };
    let lines = async {
        let mut cuts = cuts.into_iter();
        loop {
            let (one, two) = duplex(1024);
            let (near_has, far_has) = (near.line.received(), far.line.received());
            let cut = cuts.next();
            let stop = cut.filter(|cut| cut.1).map(|cut| Duration::from_micros(cut.0));
            let both = async { tokio::join!(near.carry(one, far_has, None), far.carry(two, near_has, stop)) };
            let ends = match cut {
                Some((micros, false)) => timeout(Duration::from_micros(micros), both).await.ok(),
                _ => Some(both.await),
            };
            match ends {
                None | Some((End::Lost, End::Stopped | End::Lost)) => {}
                Some(ends) => {
                    assert_eq!(ends, (End::Done, End::Done));
                    break;
                }
            }
        }
        drop((near, far));
    };
    let ((heard_near, heard_far), ()) = tokio::join!(users, lines);
    assert!(heard_far == bytes(up, 1), "{} of {up}", heard_far.len());
    assert!(heard_near == bytes(down, 2), "{} of {down}", heard_near.len());
}

#[tokio::test]
async fn one_carrier_is_enough() {
    timeout(Duration::from_secs(30), through(Vec::new(), 3_000_000, 70_000)).await.expect("in time");
    timeout(Duration::from_secs(30), through(Vec::new(), 0, 1)).await.expect("in time");
}

#[tokio::test]
async fn who_makes_no_sense_is_cut_off() {
    for said in [
        &[9][..],
        &[DATA, 0, 0, 0, 0],
        &[DATA, 0xff, 0xff, 0xff, 0xff],
        &[HAVE, 0, 0, 0, 0, 0, 0, 0, 1],
        &[END, DATA, 0, 0, 0, 1, 7],
        &[BROKEN],
    ] {
        let (mut place, _user) = Place::new();
        let (one, mut two) = duplex(1024);
        two.write_all(said).await.expect("taken");
        let end = timeout(Duration::from_secs(20), place.carry(one, 0, None));
        let (end, _) = tokio::join!(end, async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(two);
        });
        assert_eq!(end.expect("in time"), End::Broken, "{said:?}");
    }
    let (mut place, _user) = Place::new();
    assert_eq!(place.carry(duplex(64).0, 1, None).await, End::Broken);
}

/// Otherwise a sleeping sandbox would be woken for what it has got already.
#[tokio::test]
async fn who_lets_go_confirms_all_first() {
    for _ in 0..50 {
        let (mut near, mut client) = Place::new();
        let (mut far, mut service) = Place::new();
        let (one, two) = duplex(1024);
        client.write_all(b"hello").await.expect("taken");
        let stop = Some(Duration::from_millis(5));
        let ends = tokio::join!(near.carry(one, 0, None), far.carry(two, 0, stop));
        assert_eq!(ends, (End::Lost, End::Stopped));
        let mut heard = [0; 5];
        service.read_exact(&mut heard).await.expect("heard");
        assert!(!near.line.has_unconfirmed());
    }
}

#[tokio::test]
async fn what_was_said_without_a_carrier_is_kept() {
    let (mut place, mut user) = Place::new();
    user.write_all(b"hello").await.expect("taken");
    place.line.fill(&mut place.inner).await.expect("read");
    assert!(place.line.has_unconfirmed() && !place.line.has_ended());
    drop(user);
    place.line.fill(&mut place.inner).await.expect("read");
    assert!(place.line.has_ended());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn nothing_is_lost_or_doubled(
        cuts in prop::collection::vec((0u64..3000, any::<bool>()), 0..12),
        up in 0usize..600_000,
        down in 0usize..600_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async { timeout(Duration::from_secs(60), through(cuts, up, down)).await }).expect("in time");
    }
}
