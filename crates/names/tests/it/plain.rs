//! Protocols that name nobody.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use wakeful_names::What;

use crate::house::{House, SHARED, allow, connect, heard, inside};
use crate::tls::hello;

#[test]
fn a_named_port_lets_protocols_without_names_through() {
    inside(|| async {
        let mut house = House::new(allow(&["a.example.org"], &[22, 443])).await;
        house.echo(SHARED, 22, b"SSH-2.0-server\r\n").await;
        house.echo(SHARED, 443, b"").await;
        house.toward(SHARED, 22);
        assert_eq!(house.say(b"SSH-2.0-client\r\n", "[never]").await, "[reset]", "nobody asked for the name yet");
        house.resolve("a.example.org.").await;
        let said = house.say(b"SSH-2.0-client\r\n", "client").await;
        assert!(said.starts_with("SSH-2.0-server\r\n"), "{said}");

        // Servers that speak first, to clients that wait for it.
        let mut client = connect().await;
        assert_eq!(heard(&mut client, "\n").await, "SSH-2.0-server\r\n");
        client.write_all(b"SSH-2.0-client\r\n").await.expect("writes");
        assert_eq!(heard(&mut client, "\n").await, "> SSH-2.0-client\r\n");
        client.shutdown().await.expect("half closes");
        assert_eq!(heard(&mut client, "[never]").await, "", "and the server's end comes back");

        // Waiting is no way around the check.
        let mut client = connect().await;
        heard(&mut client, "\n").await;
        client.write_all(b"GET / HTTP/1.1\r\nHost: other.net\r\n\r\n").await.expect("writes");
        let said = heard(&mut client, "[never]").await;
        assert!(said.starts_with("HTTP/1.1 403 "), "{said}");

        let mut client = connect().await;
        heard(&mut client, "\n").await;
        client.write_all(&hello("other.net", &[])).await.expect("writes");
        assert_eq!(heard(&mut client, "[never]").await, "\u{15}\u{3}\u{1}\0\u{2}\u{2}p");
        assert_eq!(house.refused(What::Sni), ["other.net"]);

        house.toward(SHARED, 443);
        assert_eq!(house.say(b"SSH-2.0-client\r\n", "[never]").await, "[reset]");
        let refused = house.refused(What::Protocol);
        assert!(refused.contains(&"203.0.113.7:22".into()) && refused.contains(&"203.0.113.7:443".into()));
    });
}

#[test]
fn without_ports_they_are_refused() {
    inside(|| async {
        let mut house = House::new(allow(&["a.example.org"], &[])).await;
        house.echo(SHARED, 22, b"SSH-2.0-server\r\n").await;
        house.resolve("a.example.org.").await;
        house.toward(SHARED, 22);
        assert_eq!(house.say(b"SSH-2.0-client\r\n", "[never]").await, "[reset]");
    });
}

#[test]
fn much_goes_both_ways_and_half_closes_are_kept() {
    inside(|| async {
        const MUCH: usize = 8 << 20;
        let house = House::new(allow(&["a.example.org"], &[9000])).await;
        house.resolve("a.example.org.").await;
        house.toward(SHARED, 9000);
        let listener = TcpListener::bind((SHARED, 9000)).await.expect("binds");
        let server = async {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            let mut got = Vec::new();
            // Answers only after all was read, so the client's end must arrive without closing the way back.
            stream.read_to_end(&mut got).await.expect("reads");
            stream.write_all(&got).await.expect("writes");
            got.len()
        };
        let client = async {
            let mut stream = connect().await;
            let sent: Vec<u8> = (0..MUCH).map(|i| (i % 251) as u8).collect();
            stream.write_all(&sent).await.expect("writes");
            stream.shutdown().await.expect("half closes");
            let mut got = Vec::new();
            stream.read_to_end(&mut got).await.expect("reads");
            got == sent
        };
        assert_eq!(tokio::join!(server, client), (MUCH, true));
    });
}

#[test]
fn connections_are_bounded() {
    inside(|| async {
        let house = House::new(allow(&["a.example.org"], &[])).await;
        let mut all = Vec::new();
        for _ in 0..256 {
            all.push(connect().await);
        }
        let mut late = connect().await;
        assert_eq!(heard(&mut late, "[never]").await, "[reset]");
        house.keeper.stop().await;
        for mut client in all {
            assert_eq!(heard(&mut client, "[never]").await, "[reset]");
        }
    });
}
