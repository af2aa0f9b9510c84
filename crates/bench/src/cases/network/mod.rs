//! The network: ours through slot and daemon, the bare engine's through a plain TAP.
//!
//! A network namespace belongs to a thread. So all of this happens on a thread of its own, with a runtime of its own, a
//! private daemon of its own, and a program in each guest that does what it is told.

mod http;
mod preview;
mod uplink;

use std::io;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Bench, id_of};
use crate::bare::qemu::{Bare, Sandbox};
use crate::report::Pairs;
use crate::runtime::Ran;
use crate::site::Site;
use crate::stats::{median, paired, rounded};
use crate::{Case, Error, Options, Row, Runtime};

/// No single step takes as long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
/// So much is read or written at a time.
const CHUNK: usize = 64 << 10;
/// Pairs that an emulated guest translates its code in, and a connection finds its pace.
const WARM: usize = 8;

/// Both guests, and where they are.
struct Two<'a> {
    bench: &'a Bench<'a>,
    site: &'a Site,
    ours: String,
    bare: Sandbox,
}

/// Reads so many bytes over what the buffer held.
async fn read_over(stream: &mut (impl AsyncRead + Unpin), buffer: &mut [u8], mut left: usize) -> io::Result<()> {
    while left > 0 {
        let most = left.min(buffer.len());
        match stream.read(&mut buffer[..most]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => left -= got,
        }
    }
    Ok(())
}

/// Measures what is asked for of [`Case::NETWORK`].
pub(super) async fn measure(options: &Options, tell: &dyn Fn(&str, f32), cases: Vec<Case>) -> Result<Vec<Row>, Error> {
    let (mut apart, mut steps) = Apart::start(options.clone(), cases)?;
    while let Some((step, done)) = steps.recv().await {
        tell(&step, done);
    }
    apart.end()
}

/// A thread that measures. Dropped: it has cleared up and is gone.
struct Apart {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<Vec<Row>, Error>>>,
}

impl Apart {
    /// Starts it; what comes back tells how far it is, and closes at its end.
    fn start(options: Options, cases: Vec<Case>) -> Result<(Self, mpsc::Receiver<(String, f32)>), Error> {
        let (stop, stopped) = oneshot::channel();
        let (telling, steps) = mpsc::channel(16);
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(Error::io("start a runtime"))?;
            // Who is slow to hear misses a step.
            let tell = move |step: &str, done: f32| drop(telling.try_send((step.to_owned(), done)));
            runtime.block_on(async {
                tokio::select! {
                    rows = on_site(&options, &tell, &cases) => rows,
                    _ = stopped => Err(Error::engine("go on", "nobody waits for it")),
                }
            })
        };
        let thread = thread::Builder::new().name("bench-network".into()).spawn(work);
        let thread = Some(thread.map_err(Error::io("start a thread"))?);
        Ok((Self { stop: Some(stop), thread }, steps))
    }

    fn end(&mut self) -> Result<Vec<Row>, Error> {
        let rows = self.thread.take().map(JoinHandle::join);
        rows.and_then(Result::ok).unwrap_or_else(|| Err(Error::engine("go on", "its thread panicked")))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// On the thread.
async fn on_site(options: &Options, tell: &dyn Fn(&str, f32), cases: &[Case]) -> Result<Vec<Row>, Error> {
    let skip = |ran: &Ran, why: &str| cases.iter().map(|case| Row::skipped(*case, ran, why)).collect();
    let site = match Site::move_in() {
        Ok(site) => site,
        Err(error) => {
            let reason = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
            let ran = Ran { runtime: Runtime::Qemu, accel: "-".to_owned() };
            return Ok(skip(&ran, &format!("{error}{reason}")));
        }
    };
    let bench = Bench::open(options, Some(Runtime::Qemu), tell).await?;
    let ours = bench.create(json!({})).await?;
    if ours["capabilities"]["network"] != Value::Bool(true) {
        return Ok(skip(&bench.runtime, "guests have no network here; wakeful doctor says why"));
    }
    let bare = Bare { tap: Some(site.tap()), ..bench.qemu(json!({})).await? };
    let bare = bare.create(bench.name()).await?;
    let two = Two { bench: &bench, site: &site, ours: id_of(&ours).to_owned(), bare };
    let mut rows = Vec::new();
    if cases.iter().any(|case| matches!(case, Case::UplinkLatency | Case::UplinkThroughput)) {
        rows.extend(uplink::measure(&two, cases).await?);
    }
    if cases.iter().any(|case| matches!(case, Case::PreviewLatency | Case::PreviewThroughput)) {
        rows.extend(preview::measure(&two, cases).await?);
    }
    two.bare.destroy().await?;
    bench.destroy(&two.ours).await?;
    Ok(rows)
}

impl Two<'_> {
    /// Does `work` while a program runs in both guests; it has arguments for ours and for the other.
    async fn beside<T>(
        &self,
        program: &str,
        ours: [&str; 2],
        bare: [&str; 2],
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let ours = ["perl", "-e", program, ours[0], ours[1]];
        let bare = ["-e", program, bare[0], bare[1]];
        let early =
            |ended: Result<(), Error>| ended.err().unwrap_or_else(|| Error::engine("go on", "its program ended"));
        tokio::select! {
            done = work => done,
            ended = self.bench.execute(&self.ours, &ours) => Err(early(ended)),
            ended = self.bare.run("perl", &bare) => Err(early(ended)),
        }
    }
}

/// What was sent one way, in turns, as milliseconds.
#[derive(Default)]
struct Ways {
    /// From the guest.
    out: Pairs,
    /// To the guest.
    into: Pairs,
}

impl Ways {
    /// A case's row: its times are those of both ways together. Beside it, the worse of the two shares of a TAP's speed.
    fn row(&self, case: Case, bench: &Bench<'_>, bytes: usize) -> (Row, Option<f64>) {
        let sum = |out: &[f64], into: &[f64]| out.iter().zip(into).map(|(out, into)| out + into).collect();
        let both =
            Pairs { ours: sum(&self.out.ours, &self.into.ours), engine: sum(&self.out.engine, &self.into.engine) };
        let mut row = Row::of(case, &bench.runtime, &both);
        // Megabytes in a second.
        #[expect(clippy::cast_precision_loss, reason = "some millions")]
        let speed = |times: &[f64]| median(times).map(|time| rounded(bytes as f64 / 1e3 / time));
        let mut worse: Option<f64> = None;
        for (way, pairs) in [("out", &self.out), ("in", &self.into)] {
            let share = paired(&pairs.ours, &pairs.engine, |ours, engine| engine / ours);
            worse = share.into_iter().chain(worse).reduce(f64::min);
            row = row
                .with(&format!("ours_{way}_mb_s"), speed(&pairs.ours))
                .with(&format!("engine_{way}_mb_s"), speed(&pairs.engine))
                .with(&format!("{way}_ratio"), share.map(rounded));
        }
        (row, worse)
    }
}

/// Nothing waits for ever for a guest.
async fn soon<T>(doing: &'static str, work: impl Future<Output = std::io::Result<T>>) -> Result<T, Error> {
    let done = timeout(PATIENCE, work).await;
    done.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(Error::io(doing))
}
