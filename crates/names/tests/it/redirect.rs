//! The whole of it as in a gateway: netfilter redirects, the kernel tells where to.

use wakeful_names::What;

use crate::house::{House, SHARED, allow, client, inside};
use crate::tls::tls_server;

#[test]
fn redirected_connections_reach_what_they_meant() {
    inside(|| async {
        let mut house = House::new(allow(&["a.example.org"], &[80, 443])).await;
        house.echo(SHARED, 80, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nit is me\n").await;
        let _server = tls_server(SHARED, &[]).await;
        house.redirect();
        let curl = async |name: &str, scheme: &str| {
            let there = format!("{name}:{}:{SHARED}", if scheme == "http" { 80 } else { 443 });
            let url = format!("{scheme}://{name}/");
            client("curl", &["-sSk", "--max-time", "8", "--resolve", &there, &url]).await
        };
        assert!(!curl("a.example.org", "https").await.0, "it was not resolved here");
        house.resolve("a.example.org.").await;
        let (ok, said) = curl("a.example.org", "https").await;
        assert!(ok && said.contains("s_server"), "{said}");
        let (_, said) = curl("a.example.org", "http").await;
        assert!(said.contains("it is me"), "{said}");
        let (_, said) = curl("other.net", "http").await;
        assert!(said.contains("may not reach other.net on port 80"), "{said}");
        let (ok, said) = client("curl", &["-sS", "--max-time", "8", "http://127.0.0.1:5302/"]).await;
        assert!(!ok && !said.contains("timed out"), "who comes by no redirection goes nowhere: {said}");
        assert_eq!(house.refused(What::Host), ["other.net"]);
    });
}
