//! Names in TLS, with real clients and servers.

use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use wakeful_names::What;

use crate::house::{ALONE, House, Kept, SHARED, allow, client, connect, heard, inside, run};

/// `openssl s_server` with a certificate of its own, which answers with what it saw.
pub(crate) async fn tls_server(address: std::net::Ipv4Addr, more: &[&str]) -> (Kept, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let (key, cert) = (directory.path().join("key"), directory.path().join("cert"));
    let (key, cert) = (key.display().to_string(), cert.display().to_string());
    run(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=x",
            "-keyout",
        ]
        .iter()
        .copied()
        .chain([key.as_str(), "-out", cert.as_str()])
        .collect::<Vec<_>>(),
    );
    let server = Command::new("openssl")
        .args(["s_server", "-www", "-accept", &format!("{address}:443"), "-key", &key, "-cert", &cert])
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl runs");
    let server = Kept(server);
    while TcpStream::connect((address, 443)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (server, directory)
}

async fn curl(name: &str, more: &[&str]) -> (bool, String) {
    let url = format!("https://{name}/");
    let mut args = vec!["-sSk", "--max-time", "8", "--connect-to", "::127.0.0.1:5302", &url];
    args.extend(more);
    client("curl", &args).await
}

#[test]
fn real_clients_reach_allowed_names_and_no_others() {
    inside(|| async {
        let house = House::new(allow(&["*.example.org"], &[443])).await;
        let _server = tls_server(SHARED, &[]).await;
        house.toward(SHARED, 443);
        house.resolve("a.example.org.").await;
        for version in ["--tlsv1.3", "--tls-max=1.2"] {
            let version: Vec<&str> = version.split('=').collect();
            let (ok, said) = curl("a.example.org", &version).await;
            assert!(ok && said.contains("s_server"), "{said}");
        }
        let (ok, said) = curl("other.net", &[]).await;
        assert!(!ok && said.contains("unrecognized name"), "{said}");
        let (ok, said) = curl("b.example.org", &[]).await;
        assert!(!ok && said.contains("unrecognized name"), "allowed, but was not resolved: {said}");
        assert_eq!(house.refused(What::Sni), ["other.net"]);
        assert_eq!(house.refused(What::Address), ["b.example.org"]);

        let (ok, said) = client("openssl", &["s_client", "-connect", "127.0.0.1:5302", "-noservername"]).await;
        assert!(!ok && said.contains("unrecognized name"), "{said}");
        assert_eq!(house.refused(What::Protocol), ["203.0.113.7:443"]);

        house.toward(ALONE, 443);
        let (ok, _) = curl("a.example.org", &[]).await;
        assert!(!ok, "a true name at another address");
    });
}

#[test]
fn a_second_hello_passes_if_it_names_the_same() {
    inside(|| async {
        let house = House::new(allow(&["a.example.org"], &[])).await;
        let _server = tls_server(SHARED, &["-groups", "P-384"]).await;
        house.toward(SHARED, 443);
        house.resolve("a.example.org.").await;
        // Its first guess is not what the server wants, so it is asked to begin anew.
        let args =
            ["s_client", "-connect", "127.0.0.1:5302", "-servername", "a.example.org", "-groups", "X25519:P-384"];
        let (ok, said) = client("openssl", &[&args[..], &["-tls1_3", "-msg"]].concat()).await;
        assert!(ok && said.matches("ClientHello").count() >= 2 && said.contains("Cipher is TLS_"), "{said}");
    });
}

pub(crate) fn hello(name: &str, extension: &[u8]) -> Vec<u8> {
    let sized = |content: &[u8]| [&(content.len() as u16).to_be_bytes()[..], content].concat();
    let entry = [&[0][..], &sized(name.as_bytes())].concat();
    let extensions = [&[0, 0][..], &sized(&sized(&entry)), extension].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &sized(&extensions)].concat();
    let message = [&[1, 0][..], &sized(&body)].concat();
    [&[22, 3, 1][..], &sized(&message)].concat()
}

#[test]
fn a_second_hello_with_another_name_is_refused() {
    inside(|| async {
        // A server that asks to begin anew, whatever it is told.
        const RETRY: &[u8] =
            b"\x16\x03\x03\x00\x2a\x02\x00\x00\x26\x03\x03\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\
            \x02\x1e\x65\xb8\x91\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c";
        let mut house = House::new(allow(&["a.example.org"], &[])).await;
        house.echo(SHARED, 443, RETRY).await;
        house.toward(SHARED, 443);
        house.resolve("a.example.org.").await;
        let mark = b"\x14\x03\x03\x00\x01\x01";
        // Also when it does not wait to be asked.
        let bytes = [&hello("a.example.org", &[])[..], mark, &hello("other.net", &[])].concat();
        let said = house.say(&bytes, "[never]").await;
        assert!(said.contains("a.example.org") && !said.contains("other.net"), "{said:?}");
        let bytes = [&hello("a.example.org", &[])[..], mark, &hello("a.example.org", b"\xaa\xaa\0\x06second")].concat();
        assert!(house.say(&bytes, "second").await.contains("second"));
    });
}

#[test]
fn hidden_and_split_hellos() {
    inside(|| async {
        let mut house = House::new(allow(&["a.example.org"], &[])).await;
        house.echo(SHARED, 443, b"").await;
        house.toward(SHARED, 443);
        house.resolve("a.example.org.").await;
        let alert = String::from_utf8_lossy(b"\x15\x03\x01\x00\x02\x02\x70").into_owned();
        let hiding = hello("a.example.org", b"\xfe\x0d\0\x08\0\0\x01\0\x01\x05ab");
        assert_eq!(house.say(&hiding, "[never]").await, alert);
        assert_eq!(house.refused(What::Hidden), ["a.example.org"]);

        let mut client = connect().await;
        client.set_nodelay(true).expect("is set");
        for byte in hello("A.example.org", b"") {
            client.write_all(&[byte]).await.expect("writes");
            tokio::task::yield_now().await;
        }
        assert!(heard(&mut client, "A.example.org").await.contains("A.example.org"));
        assert_eq!(house.say(b"\x16\x03\x01\x02", "[never]").await, "[reset]", "one that never ends");
    });
}
