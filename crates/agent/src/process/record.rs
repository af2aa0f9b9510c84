//! One process: its journal, who listens to it, and how it ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::mpsc;
use wakeful_guest_proto::process::{EndEvent, ProcessConfig, ProcessDetails, ProcessInfo};

use super::input::{Input, Terminal};
use super::journal::{Chunk, Gap, Journal, Stream};
use super::table::Table;
use super::tree::Tree;

/// Chunks on their way to one subscriber. With chunks of at most 32 KiB that is 256 KiB; when it is full, the process is
/// not read any further.
const QUEUE: usize = 8;
/// Journal that is taken at once for one subscriber: what a stalled one holds back when the journal itself lets go.
const BACKLOG: usize = 256 << 10;
/// What is told of a command line.
const MAX_TOLD: usize = 4096;

/// What a subscriber gets.
#[derive(Debug)]
pub(crate) enum Item {
    Gap(Gap),
    Output(Chunk),
    End { event: EndEvent, seq: u64 },
}

/// What a subscriber wants.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wish {
    /// From this place in the journal on; `None`: only what comes from now on.
    pub(crate) from: Option<u64>,
    /// Bytes of each stream.
    pub(crate) limit: Option<u64>,
    /// How long it may take nothing before the process goes on without it; `None`: for ever. Whoever was left behind goes
    /// on from the journal.
    pub(crate) patience: Option<Duration>,
    /// Only what is there already.
    pub(crate) past_only: bool,
}

/// What is already there for a subscriber, and where the rest will come.
pub(crate) struct Subscription {
    pub(crate) backlog: VecDeque<Item>,
    pub(crate) rest: Rest,
    /// The number after the backlog.
    pub(crate) next_seq: u64,
}

/// What comes after a backlog.
pub(crate) enum Rest {
    /// What the process writes from then on.
    Live(mpsc::Receiver<Item>),
    /// More of the journal: subscribe again.
    More,
    /// Nothing.
    Over,
}

/// What a process was started as.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) config: ProcessConfig,
    pub(crate) tag: Option<String>,
    pub(crate) user: String,
    pub(crate) workdir: String,
    pub(crate) keep_awake: bool,
}

pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) origin: Origin,
    pub(crate) started: Instant,
    /// The same by the clock on the wall, in milliseconds since 1970.
    pub(crate) started_at_ms: i64,
    pub(crate) tree: Arc<Tree>,
    /// Held while something is written, so that inputs do not mix.
    pub(crate) input: tokio::sync::Mutex<Input>,
    /// Beside the input: a terminal must be resizable while it takes none.
    pub(crate) terminal: Mutex<Option<Terminal>>,
    has_terminal: bool,
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
    patience: Option<Duration>,
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
    pub(crate) fn new(pid: u32, origin: Origin, tree: Arc<Tree>, input: Input) -> Self {
        let terminal = match &input {
            Input::Terminal(terminal) => Some(Arc::clone(terminal)),
            Input::Absent | Input::Closed | Input::Pipe(_) => None,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            pid,
            origin,
            started: Instant::now(),
            started_at_ms: i64::try_from(now.as_millis()).unwrap_or(i64::MAX),
            tree,
            input: tokio::sync::Mutex::new(input),
            has_terminal: terminal.is_some(),
            terminal: Mutex::new(terminal),
            state: Mutex::default(),
        }
    }

    /// As E2B's clients know it.
    pub(crate) fn info(&self) -> ProcessInfo {
        let Origin { config, tag, .. } = self.origin.clone();
        ProcessInfo { config, pid: self.pid, tag, details: None }
    }

    /// As the host knows it: with everything but its environment, and no more of its command line than one reads.
    pub(crate) fn described(&self) -> ProcessInfo {
        let Origin { config, tag, user, workdir, keep_awake } = &self.origin;
        let mut left = MAX_TOLD;
        let args = config.args.iter().map_while(|argument| {
            let told = (left > 0).then(|| argument[..argument.floor_char_boundary(left)].to_owned());
            left = left.saturating_sub(argument.len() + 1);
            told
        });
        let config = ProcessConfig {
            cmd: config.cmd.clone(),
            args: args.collect(),
            cwd: config.cwd.clone(),
            ..Default::default()
        };
        let state = self.lock();
        let details = ProcessDetails {
            user: user.clone(),
            workdir: workdir.clone(),
            started_at_ms: self.started_at_ms,
            pty: self.has_terminal,
            keep_awake: *keep_awake,
            last_seq: state.end.as_ref().map_or(state.journal.next_seq() - 1, |end| end.seq),
            end: state.end.as_ref().map(|end| end.event.clone()),
        };
        ProcessInfo { config, pid: self.pid, tag: tag.clone(), details: Some(details) }
    }

    /// Begins to listen, without anything between journal and now lost or told twice.
    pub(crate) fn subscribe(&self, wish: Wish) -> Subscription {
        let mut state = self.lock();
        let mut backlog = VecDeque::new();
        let mut next_seq = state.journal.next_seq();
        if let Some(from) = wish.from {
            let (gap, chunks) = state.journal.replay(from, BACKLOG);
            let reached = chunks.last().map(|chunk| chunk.seq).or(gap.map(|gap| gap.seq));
            backlog.extend(gap.map(Item::Gap));
            backlog.extend(chunks.into_iter().map(Item::Output));
            if let Some(reached) = reached
                && reached + 1 < next_seq
            {
                return Subscription { backlog, rest: Rest::More, next_seq: reached + 1 };
            }
            next_seq = next_seq.max(from);
        }
        let rest = match &state.end {
            Some(end) => {
                backlog.push_back(Item::End { event: end.event.clone(), seq: end.seq });
                Rest::Over
            }
            None if wish.past_only => Rest::Over,
            None => {
                let (sender, live) = mpsc::channel(QUEUE);
                let budget = Budget { left: wish.limit, truncated: false };
                state.subscribers.push(Subscriber { sender, patience: wish.patience, stdout: budget, stderr: budget });
                Rest::Live(live)
            }
        };
        Subscription { backlog, rest, next_seq }
    }

    /// Puts output into the journal and hands it to every subscriber, waiting for the slowest of them, though not longer
    /// than its patience: one that takes nothing for so long is dropped from the list and goes on from the journal.
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
                    Some((subscriber.sender.clone(), subscriber.patience, budget.take(&chunk)?))
                })
                .collect();
            (before, state.journal.held(), deliveries)
        };
        table.account(before, after);
        for (sender, patience, chunk) in deliveries {
            // Who has gone away meanwhile is dropped from the list at the next output.
            if !deliver(&sender, Item::Output(chunk), patience).await {
                self.lock().subscribers.retain(|subscriber| !subscriber.sender.same_channel(&sender));
            }
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
            deliver(&subscriber.sender, Item::End { event, seq }, subscriber.patience).await;
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

/// Whether it was taken, or nobody is there to take it.
async fn deliver(sender: &mpsc::Sender<Item>, item: Item, patience: Option<Duration>) -> bool {
    let send = sender.send(item);
    match patience {
        None => {
            let _ = send.await;
            true
        }
        Some(patience) => tokio::time::timeout(patience, send).await.is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Process {
        pub(crate) fn for_test(pid: u32) -> Self {
            Self::new(pid, Origin::default(), Arc::new(Tree::nowhere()), Input::Absent)
        }

        pub(crate) fn awake_for_test(pid: u32) -> Self {
            let origin = Origin { keep_awake: true, ..Origin::default() };
            Self::new(pid, origin, Arc::new(Tree::nowhere()), Input::Absent)
        }
    }

    fn live(subscription: &mut Subscription) -> &mut mpsc::Receiver<Item> {
        match &mut subscription.rest {
            Rest::Live(live) => live,
            Rest::More | Rest::Over => panic!("it is not live"),
        }
    }

    fn from(seq: u64) -> Wish {
        Wish { from: Some(seq), ..Wish::default() }
    }

    #[tokio::test]
    async fn a_late_subscriber_misses_nothing_it_asks_for() {
        let (table, process) = (Table::default(), Process::for_test(1));
        process.publish(&table, Stream::Stdout, Bytes::from_static(b"one")).await;
        let mut subscription = process.subscribe(from(0));
        let mut plain = process.subscribe(Wish::default());
        process.publish(&table, Stream::Stderr, Bytes::from_static(b"two")).await;
        process.finish(EndEvent { exit_code: 3, ..EndEvent::default() }).await;
        assert!(matches!(subscription.backlog.make_contiguous(), [Item::Output(Chunk { seq: 1, .. })]));
        assert!(matches!(live(&mut subscription).recv().await, Some(Item::Output(Chunk { seq: 2, .. }))));
        assert!(matches!(live(&mut subscription).recv().await, Some(Item::End { seq: 3, .. })));
        assert!(live(&mut subscription).recv().await.is_none());
        assert!(plain.backlog.is_empty());
        assert!(matches!(live(&mut plain).recv().await, Some(Item::Output(Chunk { seq: 2, .. }))));
        let mut after = process.subscribe(from(2));
        assert!(matches!(after.backlog.make_contiguous(), [Item::Output(_), Item::End { seq: 3, .. }]));
    }

    #[tokio::test]
    async fn a_limit_cuts_each_stream_by_itself() {
        let (table, process) = (Table::default(), Process::for_test(1));
        let mut subscription = process.subscribe(Wish { limit: Some(4), ..Wish::default() });
        process.publish(&table, Stream::Stdout, Bytes::from_static(b"abcdef")).await;
        process.publish(&table, Stream::Stdout, Bytes::from_static(b"never")).await;
        process.publish(&table, Stream::Stderr, Bytes::from_static(b"abcd")).await;
        process.finish(EndEvent::default()).await;
        let mut got = Vec::new();
        while let Some(item) = live(&mut subscription).recv().await {
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
        drop(process.subscribe(Wish::default()));
        for _ in 0..QUEUE * 3 {
            process.publish(&table, Stream::Stdout, Bytes::from_static(b"x")).await;
        }
        process.finish(EndEvent::default()).await;
        assert!(process.ended());
    }

    #[tokio::test]
    async fn one_that_stands_still_is_left_behind_and_goes_on_from_the_journal() {
        let (table, process) = (Table::default(), Process::for_test(1));
        let patience = Some(Duration::from_millis(20));
        let mut stalled = process.subscribe(Wish { patience, ..from(0) });
        let total = u64::try_from(QUEUE).unwrap() * 3;
        for _ in 0..total {
            process.publish(&table, Stream::Stdout, Bytes::from_static(b"x")).await;
        }
        process.finish(EndEvent::default()).await;
        let mut seen = 0;
        while let Some(item) = live(&mut stalled).recv().await {
            assert!(matches!(item, Item::Output(chunk) if chunk.seq == seen + 1));
            seen += 1;
        }
        assert_eq!(seen, u64::try_from(QUEUE).unwrap());
        let mut rest = process.subscribe(from(seen + 1));
        assert!(matches!(rest.backlog.pop_back(), Some(Item::End { seq, .. }) if seq == total + 1));
        assert_eq!(rest.backlog.len() as u64, total - seen);
    }

    #[tokio::test]
    async fn a_long_journal_comes_in_parts() {
        let (table, process) = (Table::default(), Process::for_test(1));
        for _ in 0..20 {
            process.publish(&table, Stream::Stdout, Bytes::from(vec![0; 32 << 10])).await;
        }
        let (mut next, mut parts, mut chunks) = (0, 0, 0);
        loop {
            let part = process.subscribe(Wish { past_only: true, ..from(next) });
            (next, parts, chunks) = (part.next_seq, parts + 1, chunks + part.backlog.len());
            let held: usize = part.backlog.iter().map(|i| if let Item::Output(c) = i { c.data.len() } else { 0 }).sum();
            assert!(held <= BACKLOG);
            if matches!(part.rest, Rest::Over) {
                break;
            }
        }
        assert_eq!((next, chunks), (21, 20));
        assert!(parts > 2, "{parts}");
    }

    #[test]
    fn no_secret_and_no_book_is_told() {
        let config = ProcessConfig {
            cmd: "sh".into(),
            args: vec!["é".repeat(3000), "never".into()],
            envs: [("KEY".to_owned(), "secret".to_owned())].into(),
            cwd: None,
        };
        let origin = Origin { config, user: "u".into(), ..Origin::default() };
        let told = Process::new(7, origin, Arc::new(Tree::nowhere()), Input::Absent).described();
        assert!(told.config.envs.is_empty());
        assert_eq!((told.config.args.len(), told.config.args[0].len()), (1, MAX_TOLD));
        let details = told.details.unwrap();
        assert_eq!((details.last_seq, details.end, details.user.as_str()), (0, None, "u"));
    }
}
