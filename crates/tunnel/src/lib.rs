//! A byte stream that survives the loss of what carries it.
//!
//! A sandbox that goes to sleep keeps its sockets in its memory, but the channel over which the host reaches them ends. So
//! both ends of a tunnel keep what the other has not confirmed, and when there is a new carrier they go on from there:
//!
//! ```text
//!   client ── gateway [Line] ═══ carrier 1 ═══╳                    [Line] agent ── service
//!                            ═══ carrier 2: "I have n", "I have m" ═══
//! ```
//!
//! On a carrier both directions are frames: `1` length and bytes, `2` end of a direction, `3` "I have so many bytes",
//! `4` broken. What counts as had is what was given to the local side, so whatever a lost carrier had in flight is sent again
//! and nothing twice. Neither end keeps more than [`WINDOW`] unconfirmed bytes: then it reads no more until it hears.
//!
//! The other end is not trusted: lengths are bounded, and who confirms what was never sent is cut off.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, BytesMut};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Most that is kept for the case that the other end has not got it.
pub const WINDOW: usize = 256 * 1024;
/// Largest piece in one frame.
const PIECE: usize = 32 * 1024;
/// What came is confirmed at the latest after so much.
const CONFIRM: u64 = 64 * 1024;
/// How long the other end may take to take notice of an end.
const GOODBYE: Duration = Duration::from_secs(5);

const DATA: u8 = 1;
const END: u8 = 2;
const HAVE: u8 = 3;
const BROKEN: u8 = 4;

/// Why a carrier is not needed any more, or of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both directions have ended, and both ends know.
    Done,
    /// The carrier has ended; with another one the line goes on.
    Lost,
    /// It was given up because the caller said so; with another one the line goes on.
    Stopped,
    /// One of the two local sides broke, or the other end makes no sense. The line is over.
    Broken,
}

/// One end of a stream: all that must be known to go on with another carrier.
#[derive(Debug, Default)]
pub struct Line {
    /// How much of ours the other end is known to have.
    confirmed: u64,
    /// What comes behind that.
    kept: BytesMut,
    /// The local side will say no more.
    ended: bool,
    /// How much of theirs the local side got.
    received: u64,
    /// They will say no more, and the local side knows.
    their_end: bool,
    /// The local side takes no more; what comes for it is dropped.
    deaf: bool,
}

/// What the two directions of one carrier tell each other.
struct Shared {
    confirmed: AtomicU64,
    received: AtomicU64,
    their_end: AtomicBool,
    our_end: AtomicBool,
    news: Notify,
}

impl Line {
    /// How much of theirs the local side got: what the other end must be told to go on.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether there is anything that the other end may not have.
    #[must_use]
    pub fn has_unconfirmed(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether the local side will say no more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Without a carrier: takes the next bytes of the local side.
    ///
    /// # Errors
    /// If the local side breaks.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        if from.read_buf(&mut (&mut self.kept).limit(PIECE)).await? == 0 {
            self.ended = true;
        }
        Ok(())
    }

    /// Joins the local side (`from` and `to`) to a carrier whose other end has `peer_has` bytes of ours, until one of the
    /// [`End`]s. `stop` makes it confirm what it has and let go. `moved` is called whenever bytes go through.
    ///
    /// # Cancel safety
    /// Dropped, the carrier is lost; the line can go on with another one.
    pub async fn carry<R, W, C>(
        &mut self,
        from: &mut R,
        to: &mut W,
        carrier: C,
        peer_has: u64,
        stop: impl Future<Output = ()>,
        moved: &(dyn Fn() + Send + Sync),
    ) -> End
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
        C: AsyncRead + AsyncWrite,
    {
        if !self.confirm(peer_has) {
            return End::Broken;
        }
        let (input, output) = tokio::io::split(carrier);
        let shared = Shared {
            confirmed: AtomicU64::new(peer_has),
            received: AtomicU64::new(self.received),
            their_end: AtomicBool::new(self.their_end),
            our_end: AtomicBool::new(false),
            news: Notify::new(),
        };
        let end = self.both(from, to, input, output, &shared, stop, moved).await;
        // The last word may have come just before the end, and counts: whether there is anything unconfirmed decides whether
        // a sandbox is woken for it.
        if self.confirm(shared.confirmed.load(Ordering::Acquire)) { end } else { End::Broken }
    }

    #[expect(clippy::too_many_arguments, reason = "both directions of both sides, and what they share")]
    async fn both(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Unpin,
        shared: &Shared,
        stop: impl Future<Output = ()>,
        moved: &(dyn Fn() + Send + Sync),
    ) -> End {
        let Self { confirmed, kept, ended, deaf, received, their_end } = self;
        let sending = Sending { confirmed, kept, ended };
        let receiving = Receiving { received, their_end, deaf };
        let mut receive = pin!(receiving.run(BufReader::with_capacity(PIECE, input), to, shared, moved));
        let sent = tokio::select! {
            end = &mut receive => return end,
            sent = sending.run(output, from, shared, stop, moved) => sent,
        };
        match sent {
            // Letting go of a carrier at once could take back what is still on its way.
            Ok(end @ (End::Done | End::Broken)) => {
                let _ = timeout(GOODBYE, receive).await;
                end
            }
            Ok(end) => end,
            Err(_) => End::Lost,
        }
    }

    fn confirm(&mut self, peer_has: u64) -> bool {
        trim(&mut self.confirmed, &mut self.kept, peer_has)
    }
}

/// Forgets what the other end has; false if it cannot have that.
fn trim(confirmed: &mut u64, kept: &mut BytesMut, peer_has: u64) -> bool {
    match peer_has.checked_sub(*confirmed).and_then(|more| usize::try_from(more).ok()) {
        Some(more) if more <= kept.len() => {
            kept.advance(more);
            *confirmed = peer_has;
            true
        }
        _ => false,
    }
}

/// From the local side to the carrier.
struct Sending<'a> {
    confirmed: &'a mut u64,
    kept: &'a mut BytesMut,
    ended: &'a mut bool,
}

impl Sending<'_> {
    async fn run(
        self,
        mut output: impl AsyncWrite + Unpin,
        from: &mut (impl AsyncRead + Unpin),
        shared: &Shared,
        stop: impl Future<Output = ()>,
        moved: &(dyn Fn() + Send + Sync),
    ) -> io::Result<End> {
        let Self { confirmed, kept, ended } = self;
        let mut stop = pin!(stop);
        let mut told = shared.received.load(Ordering::Relaxed);
        let mut end_sent = false;
        for piece in kept.chunks(PIECE) {
            data(&mut output, piece).await?;
        }
        loop {
            if *ended && !end_sent {
                output.write_all(&[END]).await?;
                end_sent = true;
                shared.our_end.store(true, Ordering::Release);
            }
            output.flush().await?;
            if end_sent && shared.their_end.load(Ordering::Acquire) {
                output.shutdown().await?;
                return Ok(End::Done);
            }
            if !trim(confirmed, kept, shared.confirmed.load(Ordering::Acquire)) {
                return Ok(End::Broken);
            }
            let room = kept.len() < WINDOW;
            let read = async { from.read_buf(&mut (&mut *kept).limit(PIECE)).await };
            tokio::select! {
                () = shared.news.notified() => {
                    let has = shared.received.load(Ordering::Acquire);
                    if has - told >= CONFIRM {
                        have(&mut output, has).await?;
                        told = has;
                    }
                }
                read = read, if !*ended && room => match read {
                    Ok(0) => *ended = true,
                    Ok(length) => {
                        moved();
                        data(&mut output, &kept[kept.len() - length..]).await?;
                    }
                    Err(_) => {
                        output.write_all(&[BROKEN]).await?;
                        output.flush().await?;
                        output.shutdown().await?;
                        return Ok(End::Broken);
                    }
                },
                () = &mut stop => {
                    have(&mut output, shared.received.load(Ordering::Acquire)).await?;
                    output.flush().await?;
                    output.shutdown().await?;
                    return Ok(End::Stopped);
                }
            }
        }
    }
}

async fn data(output: &mut (impl AsyncWrite + Unpin), piece: &[u8]) -> io::Result<()> {
    let mut frame = BytesMut::with_capacity(5 + piece.len());
    frame.put_u8(DATA);
    frame.put_u32(u32::try_from(piece.len()).unwrap_or(u32::MAX));
    frame.put_slice(piece);
    output.write_all(&frame).await
}

async fn have(output: &mut (impl AsyncWrite + Unpin), has: u64) -> io::Result<()> {
    let mut frame = [HAVE; 9];
    frame[1..].copy_from_slice(&has.to_be_bytes());
    output.write_all(&frame).await
}

/// From the carrier to the local side.
struct Receiving<'a> {
    received: &'a mut u64,
    their_end: &'a mut bool,
    deaf: &'a mut bool,
}

impl Receiving<'_> {
    async fn run(
        mut self,
        mut input: BufReader<impl AsyncRead + Unpin>,
        to: &mut (impl AsyncWrite + Unpin),
        shared: &Shared,
        moved: &(dyn Fn() + Send + Sync),
    ) -> End {
        loop {
            let Ok(kind) = input.read_u8().await else {
                // Who has said its end, and heard ours, lets go first.
                let done = *self.their_end && shared.our_end.load(Ordering::Acquire);
                return if done { End::Done } else { End::Lost };
            };
            match kind {
                DATA => {
                    let Ok(length) = input.read_u32().await else { return End::Lost };
                    let length = length as usize;
                    if length == 0 || length > PIECE || *self.their_end {
                        return End::Broken;
                    }
                    moved();
                    if !self.piece(length, &mut input, to, shared).await {
                        return End::Lost;
                    }
                }
                END => {
                    if !*self.their_end {
                        // One that has hung up needs no telling.
                        let _ = to.shutdown().await;
                        *self.their_end = true;
                    }
                    shared.their_end.store(true, Ordering::Release);
                    shared.news.notify_one();
                }
                HAVE => {
                    let Ok(has) = input.read_u64().await else { return End::Lost };
                    shared.confirmed.fetch_max(has, Ordering::AcqRel);
                    shared.news.notify_one();
                }
                _ => return End::Broken,
            }
        }
    }

    /// False if the carrier ended in the middle of it.
    async fn piece(
        &mut self,
        mut left: usize,
        input: &mut BufReader<impl AsyncRead + Unpin>,
        to: &mut (impl AsyncWrite + Unpin),
        shared: &Shared,
    ) -> bool {
        while left > 0 {
            let there = match input.fill_buf().await {
                Ok(there) if !there.is_empty() => &there[..there.len().min(left)],
                _ => return false,
            };
            // Counted as it is written: should this be dropped in between, what was not written comes again.
            let taken = if *self.deaf {
                there.len()
            } else {
                match to.write(there).await {
                    Ok(taken) if taken > 0 => taken,
                    _ => {
                        *self.deaf = true;
                        continue;
                    }
                }
            };
            input.consume(taken);
            left -= taken;
            *self.received += taken as u64;
            shared.received.store(*self.received, Ordering::Release);
            shared.news.notify_one();
        }
        if !*self.deaf && to.flush().await.is_err() {
            *self.deaf = true;
        }
        true
    }
}

#[cfg(test)]
mod tests;
