//! Between a program in the guest and one outside. The guest connects; the outside tells it what to do, and has the clock.

use std::io;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::{CHUNK, Two, WARM, Ways, read_over, soon};
use crate::cases::timed;
use crate::report::Pairs;
use crate::{Case, Error, Row};

const PROGRAM: &str = include_str!("peer.pl");
/// So many bytes are sent at a time.
const BYTES: usize = 4 << 20;

/// The program in the guest, as the outside sees it.
struct Peer {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Peer {
    async fn accept(listener: &TcpListener) -> Result<Self, Error> {
        let (stream, _) = soon("wait for a guest's connection", listener.accept()).await?;
        stream.set_nodelay(true).map_err(Error::io("set up a connection"))?;
        Ok(Self { stream, buffer: vec![b'x'; CHUNK] })
    }

    async fn order(&mut self, what: char, size: usize) -> io::Result<()> {
        self.stream.write_all(format!("{what}{size:<15}").as_bytes()).await
    }

    /// Reads so many bytes.
    async fn read(&mut self, bytes: usize) -> io::Result<()> {
        read_over(&mut self.stream, &mut self.buffer, bytes).await
    }

    /// There and back.
    async fn ping(&mut self) -> Result<(), Error> {
        let round = async {
            self.order('p', 0).await?;
            self.read(16).await
        };
        soon("exchange a message with a guest", round).await
    }

    /// The guest sends.
    async fn take(&mut self) -> Result<(), Error> {
        let all = async {
            self.order('s', BYTES).await?;
            self.read(BYTES).await
        };
        soon("receive from a guest", all).await
    }

    /// The guest receives, and says when it has.
    async fn give(&mut self) -> Result<(), Error> {
        let all = async {
            self.order('t', BYTES).await?;
            for _ in 0..BYTES / CHUNK {
                self.stream.write_all(&self.buffer).await?;
            }
            self.read(16).await
        };
        soon("send to a guest", all).await
    }
}

pub(super) async fn measure(two: &Two<'_>, cases: &[Case]) -> Result<Vec<Row>, Error> {
    let (outside, at_tap) = (two.site.listen_outside()?, two.site.listen_at_tap()?);
    let words = |listener: &TcpListener| {
        let address = listener.local_addr().map_err(Error::io("listen for a guest"))?;
        Ok((address.ip().to_string(), address.port().to_string()))
    };
    let (ours, bare) = (words(&outside)?, words(&at_tap)?);
    let work = async {
        let (mut ours, mut bare) = (Peer::accept(&outside).await?, Peer::accept(&at_tap).await?);
        let mut rows = Vec::new();
        if cases.contains(&Case::UplinkLatency) {
            rows.push(latency(two, &mut ours, &mut bare).await?);
        }
        if cases.contains(&Case::UplinkThroughput) {
            rows.push(throughput(two, &mut ours, &mut bare).await?);
        }
        Ok(rows)
    };
    two.beside(PROGRAM, [&ours.0, &ours.1], [&bare.0, &bare.1], work).await
}

async fn latency(two: &Two<'_>, ours: &mut Peer, bare: &mut Peer) -> Result<Row, Error> {
    for _ in 0..WARM {
        ours.ping().await?;
        bare.ping().await?;
    }
    let (mut pairs, n) = (Pairs::default(), two.bench.pairs(Case::UplinkLatency));
    for round in 0..n {
        two.bench.tell(Case::UplinkLatency, round, n);
        pairs.ours.push(timed(ours.ping()).await?.0);
        pairs.engine.push(timed(bare.ping()).await?.0);
    }
    Ok(Row::of(Case::UplinkLatency, &two.bench.runtime, &pairs))
}

async fn throughput(two: &Two<'_>, ours: &mut Peer, bare: &mut Peer) -> Result<Row, Error> {
    for peer in [&mut *ours, &mut *bare] {
        peer.take().await?;
        peer.give().await?;
    }
    let (mut ways, n) = (Ways::default(), two.bench.pairs(Case::UplinkThroughput));
    for round in 0..n {
        two.bench.tell(Case::UplinkThroughput, round, n);
        ways.out.ours.push(timed(ours.take()).await?.0);
        ways.out.engine.push(timed(bare.take()).await?.0);
        ways.into.ours.push(timed(ours.give()).await?.0);
        ways.into.engine.push(timed(bare.give()).await?.0);
    }
    let (row, worse) = ways.row(Case::UplinkThroughput, two.bench, BYTES);
    Ok(row.judged(worse.is_some_and(|share| share >= 0.8)))
}
