//! What a process has written, from the first byte on, as far as it is still kept.
//!
//! Chunks have sequence numbers: 0 is the start of the process, its output counts from 1, the exit comes last. The
//! journal is bounded; what falls out at the old end is counted, so that a replay can name its gap. The process is never
//! blocked for it.

use std::collections::VecDeque;

use bytes::Bytes;

/// Bytes kept for one process.
pub(crate) const PROCESS_LIMIT: usize = 1 << 20;
/// Bytes kept for all of them.
pub(crate) const TOTAL_LIMIT: usize = 16 << 20;
/// What a chunk costs besides its bytes, so that a million one-byte chunks are bounded too.
const CHUNK_COST: usize = 64;
/// How many places of the lost part are remembered.
const MAX_MARKS: usize = 64;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
    Pty,
}

/// One piece of output. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) seq: u64,
    pub(crate) stream: Stream,
    pub(crate) data: Bytes,
}

/// A part that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The last lost chunk; output goes on after it.
    pub(crate) seq: u64,
    /// How much is lost from where the reader wanted to begin. Old losses are remembered coarsely, so for a reader that
    /// begins in the middle of them it may count what lies a little before.
    pub(crate) dropped_bytes: u64,
}

/// Beginning of a lost chunk: so many bytes came before it.
#[derive(Debug, Clone, Copy)]
struct Mark {
    seq: u64,
    offset: u64,
}

#[derive(Debug)]
pub(crate) struct Journal {
    chunks: VecDeque<Chunk>,
    /// Cost of all chunks.
    held: usize,
    next_seq: u64,
    /// Bytes of all chunks that fell out.
    dropped: u64,
    /// Places within the lost part, the first always its beginning.
    marks: Vec<Mark>,
    /// Every how many lost chunks one is marked; doubles whenever the marks are thinned out.
    stride: u64,
}

impl Default for Journal {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), held: 0, next_seq: 1, dropped: 0, marks: Vec::new(), stride: 1 }
    }
}

impl Journal {
    /// Appends, and lets the oldest fall out if it gets too long.
    pub(crate) fn push(&mut self, stream: Stream, data: Bytes) -> Chunk {
        let chunk = Chunk { seq: self.next_seq, stream, data };
        self.next_seq += 1;
        self.held += cost(&chunk);
        self.chunks.push_back(chunk.clone());
        while self.held > PROCESS_LIMIT {
            self.drop_oldest();
        }
        chunk
    }

    /// The number that the next event gets.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// What is held, overhead included.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Lets the oldest chunk fall out; says what that has freed.
    pub(crate) fn drop_oldest(&mut self) -> usize {
        let Some(chunk) = self.chunks.pop_front() else { return 0 };
        let freed = cost(&chunk);
        self.held -= freed;
        if (chunk.seq - 1).is_multiple_of(self.stride) {
            self.marks.push(Mark { seq: chunk.seq, offset: self.dropped });
            if self.marks.len() >= MAX_MARKS {
                self.stride *= 2;
                let stride = self.stride;
                self.marks.retain(|mark| (mark.seq - 1).is_multiple_of(stride));
            }
        }
        self.dropped += chunk.data.len() as u64;
        freed
    }

    /// What is there from `from` on, up to `most` bytes, and the gap before it if some of that is lost.
    pub(crate) fn replay(&self, from: u64, most: usize) -> (Option<Gap>, Vec<Chunk>) {
        let from = from.max(1);
        let first_kept = self.chunks.front().map_or(self.next_seq, |chunk| chunk.seq);
        let gap = (from < first_kept).then(|| {
            let mark = self.marks.iter().rev().find(|mark| mark.seq <= from);
            Gap { seq: first_kept - 1, dropped_bytes: self.dropped - mark.map_or(0, |mark| mark.offset) }
        });
        // Numbers follow upon each other, so the place of one is known.
        let skipped = usize::try_from(from.saturating_sub(first_kept)).unwrap_or(usize::MAX);
        let mut left = most;
        let fitting = self.chunks.iter().skip(skipped).take_while(|chunk| {
            let fits = chunk.data.len() <= left;
            left = left.saturating_sub(chunk.data.len());
            fits
        });
        (gap, fitting.cloned().collect())
    }
}

fn cost(chunk: &Chunk) -> usize {
    chunk.data.len() + CHUNK_COST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(journal: &Journal, from: u64) -> (Option<Gap>, Vec<Chunk>) {
        journal.replay(from, usize::MAX)
    }

    fn bytes(length: usize) -> Bytes {
        Bytes::from(vec![b'x'; length])
    }

    #[test]
    fn numbers_begin_at_one_and_nothing_is_lost_at_first() {
        let mut journal = Journal::default();
        assert_eq!(journal.push(Stream::Stdout, bytes(3)).seq, 1);
        assert_eq!(journal.push(Stream::Stderr, bytes(4)).seq, 2);
        let (gap, chunks) = all(&journal, 0);
        assert_eq!((gap, chunks.len(), journal.next_seq()), (None, 2, 3));
        let (gap, chunks) = all(&journal, 2);
        assert_eq!((gap, chunks[0].stream), (None, Stream::Stderr));
        assert_eq!(all(&journal, 3), (None, Vec::new()));
        assert_eq!(all(&journal, 99), (None, Vec::new()));
    }

    #[test]
    fn what_falls_out_is_counted_to_the_byte() {
        let mut journal = Journal::default();
        for _ in 0..40 {
            journal.push(Stream::Stdout, bytes(32 << 10));
            assert!(journal.held() <= PROCESS_LIMIT);
        }
        let (gap, chunks) = all(&journal, 1);
        let kept: u64 = chunks.iter().map(|chunk| chunk.data.len() as u64).sum();
        let gap = gap.unwrap();
        assert_eq!(gap.dropped_bytes + kept, 40 * (32 << 10));
        assert_eq!(gap.seq + 1, chunks[0].seq);
        // A reader that had the first three misses that much less.
        let (later, same) = all(&journal, 4);
        assert_eq!(later.unwrap().dropped_bytes, gap.dropped_bytes - 3 * (32 << 10));
        assert_eq!(same, chunks);
    }

    #[test]
    fn losses_without_end_stay_bounded_and_never_too_small() {
        let mut journal = Journal::default();
        for _ in 0..200_000 {
            journal.push(Stream::Pty, bytes(7));
        }
        assert!(journal.marks.len() < MAX_MARKS && journal.held() <= PROCESS_LIMIT);
        let first_kept = journal.chunks[0].seq;
        assert_eq!(all(&journal, 1).0.unwrap().dropped_bytes, 7 * (first_kept - 1));
        for from in [2, 999, 54_321, first_kept - 1] {
            let told = all(&journal, from).0.unwrap().dropped_bytes;
            let missed = 7 * (first_kept - from);
            assert!(told >= missed && told <= missed + 7 * journal.stride, "{from}: {told} for {missed}");
        }
        assert_eq!(all(&journal, first_kept).0, None);
    }

    #[test]
    fn an_emptied_journal_still_knows_its_gap() {
        let mut journal = Journal::default();
        for _ in 0..3 {
            journal.push(Stream::Stdout, bytes(10));
        }
        while journal.drop_oldest() > 0 {}
        assert_eq!(journal.held(), 0);
        assert_eq!(all(&journal, 2), (Some(Gap { seq: 3, dropped_bytes: 20 }), Vec::new()));
        assert_eq!(all(&journal, 4), (None, Vec::new()));
    }
}
