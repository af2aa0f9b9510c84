//! A service in the guest: ours on loopback, through its preview; the other's at its card, over the TAP.
//!
//! The preview's way is another one: the daemon, then HTTP/2 over virtio-serial to the agent, then a connection of its
//! own for each request. How much of that is the way and not the daemon is shown by the same request through the agent's
//! tunnel on the bare engine, in a tunnel of its own and in one that stays open.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use super::http::Http;
use super::{PATIENCE, Two, WARM, Ways, soon};
use crate::cases::timed;
use crate::report::Pairs;
use crate::stats::{median, paired, rounded};
use crate::{Case, Error, Row};

const PROGRAM: &str = include_str!("pages.pl");
const PORT: u16 = 3000;
const SMALL: usize = 100;
/// A body that is sent.
const LARGE: usize = 2 << 20;

pub(super) async fn measure(two: &Two<'_>, cases: &[Case]) -> Result<Vec<Row>, Error> {
    let port = PORT.to_string();
    let work = async {
        let (mut ours, mut bare) = (preview(two).await?, by_tap(two).await?);
        let mut rows = Vec::new();
        if cases.contains(&Case::PreviewLatency) {
            rows.push(latency(two, &mut ours, &mut bare).await?);
        }
        if cases.contains(&Case::PreviewThroughput) {
            rows.push(throughput(two, &mut ours, &mut bare).await?);
        }
        Ok(rows)
    };
    two.beside(PROGRAM, ["127.0.0.1", &port], ["0.0.0.0", &port], work).await
}

/// A client of the preview's host name, once the service answers.
async fn preview(two: &Two<'_>) -> Result<Http<TcpStream>, Error> {
    let address = two.bench.server.address();
    let bare = two.ours.strip_prefix("sbx_").unwrap_or(&two.ours);
    let host = format!("{PORT}-{bare}.localhost");
    until_served("connect to a preview", async || connected(TcpStream::connect(address).await?, &host).await).await
}

/// A client at the TAP, likewise.
async fn by_tap(two: &Two<'_>) -> Result<Http<TcpStream>, Error> {
    let connect = async || connected(two.site.connect_by_tap(PORT).await?, "bare").await;
    until_served("connect to a guest over a TAP", connect).await
}

async fn connected(stream: TcpStream, host: &str) -> io::Result<Http<TcpStream>> {
    stream.set_nodelay(true)?;
    let mut http = Http::new(stream, host.to_owned());
    http.get(SMALL).await?;
    Ok(http)
}

/// The program has just been started.
async fn until_served<T>(doing: &'static str, connect: impl AsyncFn() -> io::Result<T>) -> Result<T, Error> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match soon(doing, connect()).await {
            Err(error) if tokio::time::Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            done => return done,
        }
    }
}

async fn page<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(http: &mut Http<S>) -> Result<(), Error> {
    soon("get a page", http.get(SMALL)).await
}

async fn latency(two: &Two<'_>, ours: &mut Http<TcpStream>, bare: &mut Http<TcpStream>) -> Result<Row, Error> {
    let tunnel = async || Ok::<_, Error>(Http::new(two.bare.tunnel(PORT).await?, "bare".to_owned()));
    let by_channel = async || page(&mut tunnel().await?).await;
    let mut open = tunnel().await?;
    for _ in 0..WARM {
        page(ours).await?;
        page(bare).await?;
        by_channel().await?;
        page(&mut open).await?;
    }
    let (mut pairs, n) = (Pairs::default(), two.bench.pairs(Case::PreviewLatency));
    let (mut channel, mut kept) = (Vec::new(), Vec::new());
    for round in 0..n {
        two.bench.tell(Case::PreviewLatency, round, n);
        pairs.ours.push(timed(page(ours)).await?.0);
        pairs.engine.push(timed(page(bare)).await?.0);
        channel.push(timed(by_channel()).await?.0);
        kept.push(timed(page(&mut open)).await?.0);
    }
    let above = paired(&pairs.ours, &channel, |ours, channel| ours - channel);
    let row = Row::of(Case::PreviewLatency, &two.bench.runtime, &pairs);
    Ok(row
        .with("engine_tunnel_ms", median(&channel).map(rounded))
        .with("engine_open_tunnel_ms", median(&kept).map(rounded))
        .with("above_tunnel_ms", above.map(rounded)))
}

async fn throughput(two: &Two<'_>, ours: &mut Http<TcpStream>, bare: &mut Http<TcpStream>) -> Result<Row, Error> {
    let out = async |http: &mut Http<TcpStream>| soon("get a large page", http.get(LARGE)).await;
    let into = async |http: &mut Http<TcpStream>| soon("send a large body", http.post(LARGE)).await;
    for http in [&mut *ours, &mut *bare] {
        out(http).await?;
        into(http).await?;
    }
    let (mut ways, n) = (Ways::default(), two.bench.pairs(Case::PreviewThroughput));
    for round in 0..n {
        two.bench.tell(Case::PreviewThroughput, round, n);
        ways.out.ours.push(timed(out(ours)).await?.0);
        ways.out.engine.push(timed(out(bare)).await?.0);
        ways.into.ours.push(timed(into(ours)).await?.0);
        ways.into.engine.push(timed(into(bare)).await?.0);
    }
    Ok(ways.row(Case::PreviewThroughput, two.bench, LARGE).0)
}
