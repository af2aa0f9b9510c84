//! One process: its journal, who listens to it, and how it ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;
use wakeful_guest_proto::process::{EndEvent, ProcessConfig, ProcessInfo};

use super::input::Input;
use super::journal::{Chunk, Gap, Journal, Stream};
use super::table::Table;
use super::tree::Tree;

/// Chunks on their way to one subscriber. With chunks of at most 32 KiB that is 256 KiB; when it is full, the process is
/// not read any further.
const QUEUE: usize = 8;

/// What a subscriber gets.
#[derive(Debug)]
pub(crate) enum Item {
    Gap(Gap),
    Output(Chunk),
    End { event: EndEvent, seq: u64 },
}

/// What is already there for a subscriber, and where the rest will come.
pub(crate) struct Subscription {
    pub(crate) backlog: Vec<Item>,
    pub(crate) live: mpsc::Receiver<Item>,
}

pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) config: ProcessConfig,
    pub(crate) tag: Option<String>,
    pub(crate) started: Instant,
    pub(crate) tree: Arc<Tree>,
    /// Held while something is written, so that inputs do not mix.
    pub(crate) input: tokio::sync::Mutex<Input>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    journal: Journal,
    subscribers: Vec<Subscriber>,
    end: Option<End>,
}

struct End {
    event: EndEvent,
    seq: u64,
    at: Instant,
}

struct Subscriber {
    sender: mpsc::Sender<Item>,
    stdout: Budget,
    stderr: Budget,
}

/// How much of a stream a subscriber still wants.
#[derive(Clone, Copy)]
struct Budget {
    left: Option<u64>,
    truncated: bool,
}

impl Budget {
    fn take(&mut self, chunk: &Chunk) -> Option<Chunk> {
        let Some(left) = &mut self.left else { return Some(chunk.clone()) };
        let length = usize::try_from(*left).unwrap_or(usize::MAX).min(chunk.data.len());
        self.truncated |= length < chunk.data.len();
        *left -= length as u64;
        (length > 0).then(|| Chunk { data: chunk.data.slice(..length), ..*chunk })
    }
}

impl Process {
    pub(crate) fn new(pid: u32, config: ProcessConfig, tag: Option<String>, tree: Arc<Tree>, input: Input) -> Self {
        let (input, state) = (tokio::sync::Mutex::new(input), Mutex::default());
        Self { pid, config, tag, started: Instant::now(), tree, input, state }
    }

    pub(crate) fn info(&self) -> ProcessInfo {
        ProcessInfo { config: self.config.clone(), pid: self.pid, tag: self.tag.clone() }
    }

    /// Begins to listen: to what comes from now on, or from a place in the journal on, without anything between lost or
    /// told twice. `limit` bounds each stream.
    pub(crate) fn subscribe(&self, from: Option<u64>, limit: Option<u64>) -> Subscription {
        let (sender, live) = mpsc::channel(QUEUE);
        let mut state = self.lock();
        let mut backlog = Vec::new();
        if let Some(from) = from {
            let (gap, chunks) = state.journal.replay(from);
            backlog.extend(gap.map(Item::Gap));
            backlog.extend(chunks.into_iter().map(Item::Output));
        }
        if let Some(end) = &state.end {
            backlog.push(Item::End { event: end.event.clone(), seq: end.seq });
        } else {
            let budget = Budget { left: limit, truncated: false };
            state.subscribers.push(Subscriber { sender, stdout: budget, stderr: budget });
        }
        Subscription { backlog, live }
    }

    /// Puts output into the journal and hands it to every subscriber, waiting for the slowest of them.
    pub(crate) async fn publish(&self, table: &Table, stream: Stream, data: Bytes) {
        let (before, after, deliveries) = {
            let mut state = self.lock();
            let before = state.journal.held();
            let chunk = state.journal.push(stream, data);
            state.subscribers.retain(|subscriber| !subscriber.sender.is_closed());
            let deliveries: Vec<_> = state
                .subscribers
                .iter_mut()
                .filter_map(|subscriber| {
                    let budget = match stream {
                        Stream::Stdout | Stream::Pty => &mut subscriber.stdout,
                        Stream::Stderr => &mut subscriber.stderr,
                    };
                    Some((subscriber.sender.clone(), budget.take(&chunk)?))
                })
                .collect();
            (before, state.journal.held(), deliveries)
        };
        table.account(before, after);
        for (sender, chunk) in deliveries {
            // Who has gone away meanwhile is dropped from the list at the next output.
            let _ = sender.send(Item::Output(chunk)).await;
        }
    }

    /// Records the end and tells every subscriber, waiting for the slowest of them.
    pub(crate) async fn finish(&self, event: EndEvent) {
        let (seq, subscribers) = {
            let mut state = self.lock();
            let seq = state.journal.next_seq();
            state.end = Some(End { event: event.clone(), seq, at: Instant::now() });
            (seq, std::mem::take(&mut state.subscribers))
        };
        for subscriber in subscribers {
            let mut event = event.clone();
            event.stdout_truncated = subscriber.stdout.truncated;
            event.stderr_truncated = subscriber.stderr.truncated;
            let _ = subscriber.sender.send(Item::End { event, seq }).await;
        }
    }

    /// Whether its end has been recorded.
    pub(crate) fn ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// When that was.
    pub(crate) fn ended_at(&self) -> Option<Instant> {
        self.lock().end.as_ref().map(|end| end.at)
    }

    /// What its journal holds.
    pub(crate) fn held(&self) -> usize {
        self.lock().journal.held()
    }

    /// Lets the oldest output fall out; says what that has freed.
    pub(crate) fn drop_oldest(&self) -> usize {
        self.lock().journal.drop_oldest()
    }

    /// Lets all output fall out; says what that has freed.
    pub(crate) fn forget(&self) -> usize {
        let mut state = self.lock();
        std::iter::from_fn(|| Some(state.journal.drop_oldest()).filter(|freed| *freed > 0)).sum()
    }

    /// SIGKILL to it and all its offspring.
    pub(crate) async fn kill_tree(&self) {
        let (tree, pid) = (Arc::clone(&self.tree), self.pid);
        // Looks through /proc, which takes a while on a busy machine. A panic in there has nobody to tell.
        let _ = tokio::task::spawn_blocking(move || tree.kill(pid)).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Process {
        pub(crate) fn for_test(pid: u32) -> Self {
            Self::new(pid, ProcessConfig::default(), None, Arc::new(Tree::nowhere()), Input::Absent)
        }
    }

    #[tokio::test]
    async fn a_late_subscriber_misses_nothing_it_asks_for() {
        let (table, process) = (Table::default(), Process::for_test(1));
        process.publish(&table, Stream::Stdout, Bytes::from_static(b"one")).await;
        let mut subscription = process.subscribe(Some(0), None);
        let mut plain = process.subscribe(None, None);
        process.publish(&table, Stream::Stderr, Bytes::from_static(b"two")).await;
        process.finish(EndEvent { exit_code: 3, ..EndEvent::default() }).await;
        assert!(matches!(&subscription.backlog[..], [Item::Output(Chunk { seq: 1, .. })]));
        assert!(matches!(subscription.live.recv().await, Some(Item::Output(Chunk { seq: 2, .. }))));
        assert!(matches!(subscription.live.recv().await, Some(Item::End { seq: 3, .. })));
        assert!(subscription.live.recv().await.is_none());
        assert!(plain.backlog.is_empty());
        assert!(matches!(plain.live.recv().await, Some(Item::Output(Chunk { seq: 2, .. }))));
        let after = process.subscribe(Some(2), None);
        assert!(matches!(&after.backlog[..], [Item::Output(_), Item::End { seq: 3, .. }]));
    }

    #[tokio::test]
    async fn a_limit_cuts_each_stream_by_itself() {
        let (table, process) = (Table::default(), Process::for_test(1));
        let mut subscription = process.subscribe(None, Some(4));
        process.publish(&table, Stream::Stdout, Bytes::from_static(b"abcdef")).await;
        process.publish(&table, Stream::Stdout, Bytes::from_static(b"never")).await;
        process.publish(&table, Stream::Stderr, Bytes::from_static(b"abcd")).await;
        process.finish(EndEvent::default()).await;
        let mut got = Vec::new();
        while let Some(item) = subscription.live.recv().await {
            match item {
                Item::Output(chunk) => got.push(chunk.data.to_vec()),
                Item::End { event, .. } => assert!(event.stdout_truncated && !event.stderr_truncated),
                Item::Gap(gap) => panic!("{gap:?}"),
            }
        }
        assert_eq!(got, [b"abcd", b"abcd"]);
    }

    #[tokio::test]
    async fn a_subscriber_that_left_holds_nothing_up() {
        let (table, process) = (Table::default(), Process::for_test(1));
        drop(process.subscribe(None, None));
        for _ in 0..QUEUE * 3 {
            process.publish(&table, Stream::Stdout, Bytes::from_static(b"x")).await;
        }
        process.finish(EndEvent::default()).await;
        assert!(process.ended());
    }
}
