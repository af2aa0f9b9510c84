//! Requests in clear text.

use tokio::io::AsyncWriteExt as _;
use wakeful_names::What;

use crate::house::{ALONE, House, SHARED, allow, connect, heard, inside};

async fn house() -> House {
    let mut house = House::new(allow(&["a.example.org", "b.example.org", "c.example.org"], &[])).await;
    house.echo(SHARED, 80, b"").await;
    house.echo(ALONE, 80, b"").await;
    for name in ["a.example.org.", "b.example.org.", "c.example.org."] {
        assert_eq!(house.resolve(name).await.len(), 1);
    }
    house
}

#[test]
fn each_request_of_a_connection_is_checked() {
    inside(|| async {
        let house = house().await;
        let mut client = connect().await;
        for request in [
            "GET /1 HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
            "POST /2 HTTP/1.1\r\nHost: B.example.org:80\r\nContent-Length: 5\r\n\r\nhello",
            "POST /3 HTTP/1.1\r\nHost: a.example.org\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ] {
            client.write_all(request.as_bytes()).await.expect("writes");
            let mut said = String::new();
            while said.replace("> ", "") != request {
                said += &heard(&mut client, "").await;
                let mut more = [0; 4096];
                client.readable().await.expect("is readable");
                let length = client.try_read(&mut more).unwrap_or(0);
                said += std::str::from_utf8(&more[..length]).expect("is text");
            }
        }
        client.write_all(b"GET / HTTP/1.1\r\nHost: other.net\r\n\r\n").await.expect("writes");
        let said = heard(&mut client, "[never]").await;
        assert!(said.starts_with("HTTP/1.1 403 ") && said.contains("may not reach other.net on port 80"), "{said}");
        assert_eq!(house.refused(What::Host), ["other.net"]);
    });
}

#[test]
fn another_host_behind_a_body_does_not_pass() {
    inside(|| async {
        let house = house().await;
        let requests = "POST / HTTP/1.1\r\nHost: a.example.org\r\nTransfer-Encoding: chunked\r\n\r\n\
                        1\r\nx\r\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: other.net\r\n\r\n";
        let said = house.say(requests.as_bytes(), "[never]").await;
        assert!(said.contains("403 Forbidden") && !said.contains("/secret"), "{said}");
    });
}

#[test]
fn shapes_of_smuggling_are_refused() {
    inside(|| async {
        let house = house().await;
        for request in [
            "POST / HTTP/1.1\r\nHost: a.example.org\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example.org\r\nHost: other.net\r\n\r\n",
            "GET http://other.net/ HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
            "GET / HTTP/1.1\nHost: a.example.org\n\n",
            "GET / HTTP/1.1\r\n\r\n",
            "CONNECT other.net:443 HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            let said = house.say(request.as_bytes(), "[never]").await;
            assert!(said.starts_with("HTTP/1.1 403 ") && !said.contains("> "), "{request:?} {said:?}");
        }
        assert_eq!(house.refused(What::Protocol), ["203.0.113.7:80"]);
    });
}

#[test]
fn a_name_is_reached_only_where_it_was_resolved_to() {
    inside(|| async {
        let house = house().await;
        let request = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert!(house.say(request("a.example.org").as_bytes(), "> GET").await.starts_with("> GET"));
        let said = house.say(request("c.example.org").as_bytes(), "[never]").await;
        assert!(said.contains("203.0.113.7 is not an address that c.example.org"), "{said}");
        assert_eq!(house.refused(What::Address), ["c.example.org"]);
        house.toward(ALONE, 80);
        assert!(house.say(request("c.example.org").as_bytes(), "> GET").await.starts_with("> GET"));
    });
}

#[test]
fn a_websocket_goes_on_blindly_but_only_after_the_server_agreed() {
    inside(|| async {
        let mut house = House::new(allow(&["a.example.org"], &[])).await;
        house.echo(SHARED, 80, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n").await;
        house.echo(SHARED, 8080, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        house.resolve("a.example.org.").await;
        let upgrade = b"GET / HTTP/1.1\r\nHost: a.example.org\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        let mut client = connect().await;
        client.write_all(upgrade).await.expect("writes");
        heard(&mut client, "Upgrade: websocket\r\n\r\n> GET").await;
        client.write_all(b"\x81\x05binary, Host: other.net\r\n").await.expect("writes");
        assert!(heard(&mut client, "binary").await.contains("binary"));

        house.toward(SHARED, 8080);
        let mut client = connect().await;
        client
            .write_all(&[&upgrade[..], b"GET /secret HTTP/1.1\r\nHost: other.net\r\n\r\n"].concat())
            .await
            .expect("writes");
        let said = heard(&mut client, "[never]").await;
        assert!(said.contains("403 Forbidden") && !said.contains("/secret"), "{said}");
    });
}

#[test]
fn slow_heads_come_to_an_end() {
    inside(|| async {
        let house = house().await;
        assert_eq!(house.say(b"GET / HTTP/1.1\r\nHost: a.exam", "[never]").await, "[reset]");
    });
}
