//! Addresses of allowed names.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use wakeful_model::Rules;
use wakeful_net::{GATEWAY, PROXY_PORT, Reason, Slot};

use crate::world::{
    self, Guest, OTHER, OUTSIDE, PRIVATE, SOON, THIRD, exchange, lists, ping, take, wait_for, was_denied,
};

const LONG: Duration = Duration::from_secs(60);

/// Stands in for the proxy: echoes, and tells where each connection was going.
fn proxy(slot: &Slot) -> mpsc::Receiver<SocketAddrV4> {
    let listener = slot.bind_tcp(SocketAddrV4::new(GATEWAY, PROXY_PORT)).expect("is free");
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let to = rustix::net::sockopt::ip_original_dst(stream.as_fd()).expect("was redirected");
            let _ = tell.send(to);
            std::thread::spawn(move || echo(stream));
        }
    });
    told
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let _ = stream.write_all(&buffer[..length]);
    }
}

async fn admit(slot: &Slot, address: Ipv4Addr, lifetime: Duration) {
    // Twice in one answer is fine.
    let admitted = slot.admit("API.example.org.", &[address, address], lifetime).await;
    assert!(admitted.expect("can be"), "is allowed");
}

fn named() -> Rules {
    lists(&["203.0.113.4/32"], &[], &[], &["api.example.org"])
}

#[test]
fn connections_to_names_go_through_the_proxy() {
    world::run(async |world| {
        let network = world.open().await;
        let slot = take(&network, "sbx_a", &named()).await.expect("is made");
        let told = proxy(&slot);
        let guest = Guest::new(&slot);
        assert!(!guest.reaches(OUTSIDE, 443), "not admitted");
        admit(&slot, OUTSIDE, LONG).await;
        assert!(guest.reaches(OUTSIDE, 443));
        assert_eq!(told.recv_timeout(SOON), Ok(SocketAddrV4::new(OUTSIDE, 443)));
        assert!(guest.reaches(THIRD, 443), "a range goes straight");
        assert!(told.try_recv().is_err());
        assert!(!guest.reaches_by_udp(OUTSIDE, 443), "QUIC");
        assert!(guest.reaches_by_udp(OUTSIDE, 9000));
        assert!(guest.pings(OUTSIDE));
        assert!(!guest.reaches(GATEWAY, PROXY_PORT), "not directly");
        // Names are asked of our resolver only, also where a range without port 53 would allow another.
        assert!(!guest.reaches_by_udp(THIRD, 53) && !guest.reaches(THIRD, 53) && !guest.reaches_by_udp(OUTSIDE, 53));
        // A name never leads into a private network.
        admit(&slot, PRIVATE, LONG).await;
        assert!(!guest.reaches(PRIVATE, 80));
        let account = slot.account().await.expect("is there");
        let cases = [
            (Reason::Policy, OUTSIDE, 6, 443),
            (Reason::Quic, OUTSIDE, 17, 443),
            (Reason::Dns, THIRD, 17, 53),
            (Reason::Dns, THIRD, 6, 53),
            (Reason::Private, PRIVATE, 6, 80),
            (Reason::Gateway, GATEWAY, 6, PROXY_PORT),
        ];
        for (reason, address, protocol, port) in cases {
            assert!(was_denied(&account, reason, address, protocol, port), "{reason}: {:?}", account.denied);
        }
        assert!(account.out.bytes > 0 && account.received.bytes > 0);
        // With port 53 by name, it is allowed.
        slot.apply(&lists(&["203.0.113.4/32"], &[], &[53], &["api.example.org"])).await.expect("is put into force");
        assert!(guest.reaches_by_udp(THIRD, 53));
        assert!(!guest.reaches_by_udp(OUTSIDE, 53), "a name does not open it");
    });
}

#[test]
fn a_connection_outlives_its_addresss_lifetime_and_not_its_policy() {
    world::run(async |world| {
        let network = world.open().await;
        let slot = take(&network, "sbx_a", &named()).await.expect("is made");
        let _told = proxy(&slot);
        let guest = Guest::new(&slot);
        admit(&slot, OUTSIDE, Duration::from_millis(700)).await;
        let mut stream = guest.connect(OUTSIDE, 443).expect("connects");
        let socket = guest.udp(OUTSIDE, 9000).expect("connects");
        exchange(&socket, b"a").expect("answers");
        wait_for("the address expires", async || !guest.reaches(OUTSIDE, 443)).await;
        ping(&mut stream).expect("goes on");
        exchange(&socket, b"b").expect("goes on");
        // The same names, other ranges: not their business.
        slot.apply(&lists(&["203.0.113.3/32"], &[], &[], &["api.example.org"])).await.expect("is put into force");
        ping(&mut stream).expect("goes on");
        exchange(&socket, b"c").expect("goes on");
        // A lifetime is made longer by asking again.
        admit(&slot, OUTSIDE, Duration::from_millis(300)).await;
        admit(&slot, OUTSIDE, LONG).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert!(guest.reaches(OUTSIDE, 443));
        let begun = Instant::now();
        slot.apply(&lists(&[], &[], &[], &["other.example.org"])).await.expect("is put into force");
        ping(&mut stream).expect_err("is cut");
        exchange(&socket, b"d").expect_err("is cut");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert!(!guest.reaches(OUTSIDE, 443), "addresses of other names are forgotten");
        let late = slot.admit("api.example.org", &[OUTSIDE], LONG).await;
        assert!(!late.expect("can be asked"), "and come too late");
        assert!(!guest.reaches(OUTSIDE, 443));
    });
}

fn connect(slot: &Slot, to: Ipv4Addr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::from(slot.tcp_socket()?);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SOON))?;
    // Bounds the connect too.
    stream.set_write_timeout(Some(SOON))?;
    rustix::net::connect(&stream, &SocketAddrV4::new(to, 80))?;
    Ok(stream)
}

#[test]
fn the_proxy_is_held_to_ranges() {
    world::run(async |world| {
        let network = world.open().await;
        let rules = lists(&[], &["203.0.113.3/32"], &[], &["api.example.org"]);
        let slot = take(&network, "sbx_a", &rules).await.expect("is made");
        let mut stream = connect(&slot, OUTSIDE).expect("connects");
        ping(&mut stream).expect("answers");
        for address in [OTHER, PRIVATE, world::METADATA, world::HOST] {
            connect(&slot, address).expect_err("is refused");
        }
        slot.apply(&lists(&[], &["203.0.113.2/31"], &[], &["api.example.org"])).await.expect("is put into force");
        ping(&mut stream).expect_err("is cut");
    });
}
