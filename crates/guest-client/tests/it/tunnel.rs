//! Tunnels to ports inside.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wakeful_guest_client::Error;

use crate::agent::{Agent, SOON};

const CONNECTION_REFUSED: i32 = 111;

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

#[tokio::test]
async fn half_close_passes_both_ways() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let (listener, address) = listener().await;
    let server = async {
        // Answers only when the client has finished, then goes on alone.
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).await.expect("all of it");
        stream.write_all(&got.iter().rev().copied().collect::<Vec<_>>()).await.expect("an answer");
        stream.shutdown().await.expect("the end");
        // And the other way round: the server is first to finish.
        let (mut stream, _) = listener.accept().await.expect("a client");
        stream.write_all(b"greeting").await.expect("write");
        stream.shutdown().await.expect("the end");
        got.clear();
        stream.read_to_end(&mut got).await.expect("all of it");
        got
    };
    let client = async {
        let sent: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
        let mut tunnel = guest.tunnel(address, SOON).await.expect("a tunnel");
        tunnel.write_all(&sent).await.expect("write");
        tunnel.shutdown().await.expect("half of it");
        let mut got = Vec::new();
        tunnel.read_to_end(&mut got).await.expect("the answer");
        assert!(got.iter().rev().eq(sent.iter()), "{} bytes back", got.len());

        let mut tunnel = guest.tunnel(address, SOON).await.expect("a tunnel");
        got.clear();
        tunnel.read_to_end(&mut got).await.expect("the greeting");
        assert_eq!(got, b"greeting");
        tunnel.write_all(b"still here").await.expect("the other half is open");
        tunnel.shutdown().await.expect("the end");
    };
    let (heard, ()) = timeout(SOON, async { tokio::join!(server, client) }).await.expect("in time");
    assert_eq!(heard, b"still here");
}

#[tokio::test]
async fn nothing_listens_or_not_loopback() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let (listener, address) = listener().await;
    drop(listener);
    let refused = guest.tunnel(address, SOON).await;
    assert!(
        matches!(&refused, Err(Error::Refused { code, errno: Some(CONNECTION_REFUSED), .. }) if code == "502"),
        "{refused:?}"
    );
    let outside = guest.tunnel(([10, 0, 0, 1], 80).into(), SOON).await;
    assert!(matches!(&outside, Err(Error::Refused { code, .. }) if code == "400"), "{outside:?}");
}

#[tokio::test]
async fn many_tunnels_at_once_and_one_that_stalls() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let (listener, address) = listener().await;
    let mut servers = JoinSet::new();
    servers.spawn(async move {
        let mut echoes = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            echoes.spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.ok();
            });
        }
    });
    // Written to until its window is full, and never read: the others must not notice.
    let mut stalled = guest.tunnel(address, SOON).await.expect("a tunnel");
    let block = vec![1; 64 * 1024];
    while timeout(std::time::Duration::from_millis(300), stalled.write_all(&block)).await.is_ok() {}
    let mut clients = JoinSet::new();
    for n in 0..20_u8 {
        let guest = guest.clone();
        clients.spawn(async move {
            let tunnel = guest.tunnel(address, SOON).await.expect("a tunnel");
            let (mut read, mut write) = tokio::io::split(tunnel);
            let sending = async {
                write.write_all(&vec![n; 500_000]).await.expect("write");
                write.shutdown().await.expect("half of it");
            };
            let mut got = Vec::new();
            let (read, ()) = tokio::join!(read.read_to_end(&mut got), sending);
            assert_eq!(read.expect("the echo"), 500_000);
            assert!(got.iter().all(|byte| *byte == n));
        });
    }
    while let Some(done) = timeout(SOON, clients.join_next()).await.expect("in time") {
        done.expect("no panic");
    }
}
