//! A build's log: kept in memory while it is under way, and line by line in a file for later.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Clock, Error, files};

/// Lines of a build that are kept; of one that says more, what follows is left out.
const MOST_LINES: usize = 20_000;
/// Longest line that is kept.
const LONGEST_LINE: usize = 4096;

/// One line of a build's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuildLine {
    /// When.
    pub at: Timestamp,
    /// Which step.
    pub step: String,
    /// How far the build is, where that is known.
    pub fraction: Option<f32>,
    /// What it said.
    pub line: Option<String>,
    /// How far one layer of an image is.
    #[serde(default)]
    pub layer: Option<BuildLayer>,
}

/// How far one layer of an image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildLayer {
    /// Which, from 1.
    pub number: u32,
    /// Of how many.
    pub count: u32,
    /// Beginning of its digest.
    pub digest: String,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// A build's log, line by line; ends when the build has ended (or at its last line, if it is not followed).
pub type BuildLog = ReceiverStream<BuildLine>;

/// A build under way.
pub(super) struct Record {
    lines: Mutex<Vec<BuildLine>>,
    /// Number of lines; closed when the build ends.
    count: watch::Sender<usize>,
    file: Mutex<Option<std::fs::File>>,
    /// How far each part was told to be.
    told: Mutex<HashMap<(&'static str, u32), u64>>,
    /// Somebody wants it to end.
    pub(super) cancelled: CancellationToken,
}

impl Record {
    /// Begins a log in this directory. A log that cannot be written is no reason to fail the build.
    pub(super) fn begin(dir: &Path) -> (Arc<Self>, std::io::Result<()>) {
        let opened = files::make_private_dir(dir).and_then(|()| std::fs::File::create(dir.join("log")));
        let (file, result) = match opened {
            Ok(file) => (Some(file), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let (count, _) = watch::channel(0);
        let cancelled = CancellationToken::new();
        let (lines, told) = (Mutex::default(), Mutex::default());
        (Arc::new(Self { lines, count, file: Mutex::new(file), told, cancelled }), result)
    }

    pub(super) fn add(&self, step: &str, fraction: Option<f32>, line: Option<&str>) {
        let line = line.map(|line| line.chars().take(LONGEST_LINE).collect());
        let at = Clock::default().now();
        self.push(BuildLine { at, step: step.to_owned(), fraction, line, layer: None });
    }

    fn push(&self, entry: BuildLine) {
        let count = {
            let mut lines = self.lines.lock().expect("no panic while it is held");
            if lines.len() >= MOST_LINES {
                return;
            }
            if let (Some(file), Ok(text)) =
                (&mut *self.file.lock().expect("no panic while it is held"), serde_json::to_string(&entry))
            {
                let _ = writeln!(file, "{text}");
            }
            lines.push(entry);
            lines.len()
        };
        self.count.send_replace(count);
    }

    /// How far a layer is: an entry for every tenth of it.
    pub(super) fn layer(&self, step: &'static str, layer: BuildLayer, cached: bool) {
        let tenth = layer.done.min(layer.total).saturating_mul(10).checked_div(layer.total).unwrap_or(10);
        let told = self.told.lock().expect("no panic while it is held").insert((step, layer.number), tenth);
        if told == Some(tenth) {
            return;
        }
        let line = (cached && tenth == 10).then(|| format!("layer {} is cached", layer.digest));
        let at = Clock::default().now();
        self.push(BuildLine { at, step: step.to_owned(), fraction: None, line, layer: Some(layer) });
    }

    /// What there is, and with `follow` what comes.
    pub(super) fn read(self: Arc<Self>, follow: bool, tasks: &TaskTracker) -> BuildLog {
        let (send, receive) = mpsc::channel(64);
        tasks.spawn(async move {
            let mut count = self.count.subscribe();
            // The build's own hold on it is what its end is known by.
            let weak = Arc::downgrade(&self);
            drop(self);
            let mut next = 0;
            loop {
                let fresh = match weak.upgrade() {
                    Some(record) => record.lines.lock().expect("no panic while it is held")[next..].to_vec(),
                    None => return,
                };
                next += fresh.len();
                for line in fresh {
                    if send.send(line).await.is_err() {
                        return;
                    }
                }
                if !follow || count.changed().await.is_err() {
                    return;
                }
            }
        });
        ReceiverStream::new(receive)
    }
}

/// The log of a build that has ended.
pub(super) async fn read_kept(dir: &Path, tasks: &TaskTracker) -> Result<BuildLog, Error> {
    let path = dir.join("log");
    let text = files::blocking("read a build's log", move || match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    })
    .await?;
    let (send, receive) = mpsc::channel(64);
    tasks.spawn(async move {
        for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            if send.send(line).await.is_err() {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(receive))
}
