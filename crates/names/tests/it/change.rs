//! Rules that change while connections are open.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use wakeful_names::What;

use crate::house::{House, SHARED, allow, connect, heard, inside, open};

#[test]
fn what_is_no_longer_allowed_is_cut_at_once() {
    inside(|| async {
        let mut house = House::new(allow(&["a.example.org", "b.example.org"], &[80, 22])).await;
        house.echo(SHARED, 80, b"").await;
        house.echo(SHARED, 22, b"").await;
        house.resolve("a.example.org.").await;
        house.resolve("b.example.org.").await;
        let mut clients = Vec::new();
        for host in ["a.example.org", "b.example.org"] {
            let mut client = connect().await;
            client.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.expect("writes");
            heard(&mut client, "\r\n\r\n").await;
            clients.push(client);
        }
        house.toward(SHARED, 22);
        let mut shell = connect().await;
        shell.write_all(b"SSH-2.0\n").await.expect("writes");
        heard(&mut shell, "SSH").await;

        let start = Instant::now();
        house.keeper.change(allow(&["b.example.org"], &[80]));
        assert_eq!(heard(&mut clients[0], "[never]").await, "[reset]");
        assert!(heard(&mut shell, "[never]").await.ends_with("[reset]"));
        assert!(start.elapsed() < Duration::from_secs(1));

        clients[1].write_all(b"GET /2 HTTP/1.1\r\nHost: b.example.org\r\n\r\n").await.expect("writes");
        assert!(heard(&mut clients[1], "/2").await.contains("> GET /2"));
        clients[1].write_all(b"GET /3 HTTP/1.1\r\nHost: a.example.org\r\n\r\n").await.expect("writes");
        assert!(heard(&mut clients[1], "[never]").await.contains("403"));
    });
}

#[test]
fn a_lie_told_while_all_was_open_does_not_outlive_it() {
    inside(|| async {
        let mut rules = open();
        // A rule about some name, so that names are looked at.
        rules.list = allow(&["b.example.org"], &[]).list;
        let mut house = House::new(rules).await;
        house.echo(SHARED, 80, b"").await;
        let mut client = connect().await;
        client.write_all(b"GET / HTTP/1.1\r\nHost: c.example.org\r\n\r\n").await.expect("writes");
        heard(&mut client, "\r\n\r\n").await;
        house.keeper.change(allow(&["c.example.org"], &[]));
        assert_eq!(heard(&mut client, "[never]").await, "[reset]");
        assert_eq!(house.refused(What::Host).len(), 0);
    });
}

#[test]
fn each_change_admits_anew() {
    inside(|| async {
        let house = House::new(allow(&["a.example.org"], &[])).await;
        let admitted = || house.owner.admitted.lock().expect("is sound").len();
        house.resolve("a.example.org.").await;
        assert_eq!(admitted(), 1);
        house.keeper.change(allow(&["a.example.org"], &[443]));
        house.resolve("a.example.org.").await;
        assert_eq!(admitted(), 2);
    });
}
