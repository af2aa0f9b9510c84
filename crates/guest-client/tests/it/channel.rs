//! Hosts that come, go, lie and interrupt.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use wakeful_guest_client::proto::hello::{self, Hello, LENGTH, Side};
use wakeful_guest_client::{Error, Guest};

use crate::agent::{Agent, SOON};

#[tokio::test]
async fn a_channel_tells_who_answers() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    assert_eq!(guest.protocol(), hello::PROTOCOL);
    let version = guest.version().await.expect("version");
    assert_eq!((version.protocol, version.agent.as_str()), (hello::PROTOCOL, env!("CARGO_PKG_VERSION")));
    guest.health(SOON).await.expect("health");
    let metrics = guest.metrics().await.expect("metrics");
    assert!(metrics.mem_total > 0 && metrics.cpu_count > 0 && metrics.ts > 1_600_000_000);
}

#[tokio::test]
async fn garbage_before_the_hello_is_thrown_away_by_both_sides() {
    let agent = Agent::start().await;
    // To the agent: noise, a hello cut off, one with another secret, then the real one.
    let mut stream = agent.dial().await;
    let stale = hello::encode(Side::Host, &agent.secret, &Hello { nonce: [1; 16], protocol: 1 });
    let foreign = hello::encode(Side::Host, &[9; 32], &Hello { nonce: [2; 16], protocol: 1 });
    stream.write_all(&[0xff; 5000]).await.expect("write");
    stream.write_all(&stale[..50]).await.expect("write");
    stream.write_all(&foreign).await.expect("write");
    let guest = Guest::connect(stream, &agent.secret, SOON).await.expect("the agent answers");
    guest.health(SOON).await.expect("health");
    guest.close().await;

    // To the host: an agent whose stream begins with megabytes of old output and old answers.
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let secret = agent.secret;
    let relay = async move {
        let old = hello::encode(Side::Agent, &secret, &Hello { nonce: [3; 16], protocol: 1 });
        for _ in 0..64 {
            theirs.write_all(&[b'w'; 65_000]).await.expect("write");
            theirs.write_all(&old).await.expect("write");
        }
        let mut real = agent.dial().await;
        tokio::io::copy_bidirectional(&mut theirs, &mut real).await.ok();
        agent
    };
    let host = async {
        let guest = Guest::connect(ours, &secret, SOON).await.expect("the agent answers");
        guest.health(SOON).await.expect("health");
        guest.close().await;
    };
    let (_agent, ()) = tokio::join!(relay, host);
}

#[tokio::test]
async fn a_wrong_secret_an_echo_and_silence_are_no_agent() {
    let agent = Agent::start().await;
    let wrong = Guest::connect(agent.dial().await, &[1; 32], Duration::from_millis(200)).await;
    assert!(matches!(wrong, Err(Error::Hello { .. })), "{wrong:?}");

    let (ours, mut echo) = tokio::io::duplex(4096);
    let echoing = async {
        let mut bytes = [0; LENGTH];
        echo.read_exact(&mut bytes).await.expect("a hello");
        echo.write_all(&bytes).await.expect("an echo");
        drop(echo);
    };
    let (echoed, ()) = tokio::join!(Guest::connect(ours, &agent.secret, SOON), echoing);
    assert!(matches!(echoed, Err(Error::Hello { .. })), "{echoed:?}");

    // Whoever does not say hello is shown out after two seconds, and the next one is served.
    let begun = Instant::now();
    let silent = agent.dial().await;
    agent.connect().await.health(SOON).await.expect("health");
    assert!(begun.elapsed() >= Duration::from_millis(1500));
    drop(silent);
}

#[tokio::test]
async fn fifty_hosts_in_a_row() {
    let agent = Agent::start().await;
    for round in 0..50 {
        let guest = agent.connect().await;
        guest.health(SOON).await.expect("health");
        // Closed in order, or simply dropped.
        if round % 2 == 0 { guest.close().await } else { drop(guest) }
    }
}

#[tokio::test]
async fn a_second_host_waits_for_the_first_to_go() {
    let agent = Agent::start().await;
    let first = agent.connect().await;
    let early = Guest::connect(agent.dial().await, &agent.secret, Duration::from_millis(300)).await;
    assert!(matches!(early, Err(Error::Hello { .. })), "{early:?}");
    first.health(SOON).await.expect("the first is not disturbed");

    let stream = agent.dial().await;
    let second = Guest::connect(stream, &agent.secret, SOON);
    let going = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        first.close().await;
    };
    let (second, ()) = tokio::join!(second, going);
    second.expect("its turn").health(SOON).await.expect("health");
}

#[tokio::test]
async fn a_channel_that_ends_is_lost_to_every_call() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let clone = guest.clone();
    guest.close().await;
    assert!(clone.is_closed());
    clone.closed().await;
    assert!(matches!(clone.health(SOON).await, Err(Error::Lost)));

    let guest = agent.connect().await;
    drop(agent);
    timeout(SOON, guest.closed()).await.expect("the end is noticed");
    assert!(matches!(guest.version().await, Err(Error::Lost)));
}
