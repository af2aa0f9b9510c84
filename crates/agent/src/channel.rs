//! The virtio port: hosts come and go on one descriptor that is never closed.
//!
//! ```text
//!   /dev/vportNp1  ──scan──▶ hello ──answer──▶  ┌ fresh socket pair ┐
//!        ▲   one plain thread pumps both ways   │ hyper, HTTP/2     │  one per host connection
//!        └──────────────────────────────────────└───────────────────┘
//! ```
//!
//! Why it is made like this:
//! - Closing the port throws away what a new host has already sent, so it is opened once; after a session the same
//!   descriptor is scanned for the next hello.
//! - Without a host, `poll` says "readable, hung up" for ever and `read` returns 0. Edge-triggered epoll tells only of
//!   changes (data, room, opened, closed: the driver wakes its queue for all of them), so an idle guest sleeps.
//!   tokio would remember the hang-up and never ask again: hence the thread.
//! - Bytes may overtake the port's "opened" message: after a hello the thread waits until the hang-up is gone.
//! - Every write is non-blocking: a blocked one would end up in the next host's connection. What a dead session still
//!   has queued goes away with its buffers and its socket pair.
//! - A restored guest runs cold code, so the host's first words (see `contact`) are answered by this thread alone;
//!   runtime, socket pair and hyper come in with the first byte of HTTP/2.
//! - A host sends nothing between its hello and the answer. So a hello with anything behind it is stale, left by a
//!   host that gave up; the newest one counts.
//! - After the last call (see `session`) the port is not read for that session any more.
//! - A host that closes and dials again at once may do so between two runs of the guest: no hang-up is seen, and the
//!   hello lands in the old session, which breaks on it. So the end of what a broken session was given is scanned too.
//!   (Never before it broke: an uploaded file may contain anything.)

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::OFlags;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use wakeful_guest_proto::contact::{self, Reader, Repair};
use wakeful_guest_proto::hello::{self, Hello, Scanner, Side};

use crate::context::{Context, Powers};
use crate::control;
use crate::session::Session;

/// Room for what is under way in one direction; the driver's own buffers are of a page.
const BUFFER: usize = 64 * 1024;
/// How long "opened" may lag behind a hello, and how long its answer may find no room.
const ANSWER: Duration = Duration::from_secs(1);
/// No event is known to get lost; if one does, a waiting hello is found this much later.
const GLANCE: Duration = Duration::from_secs(5);

/// A host that has said hello, for hyper to serve.
pub(crate) struct Accepted {
    pub(crate) stream: UnixStream,
    pub(crate) session: Arc<Session>,
}

/// The agent's end of a byte stream on which hosts succeed each other.
pub(crate) struct Port<P> {
    port: P,
    events: OwnedFd,
}

impl Port<File> {
    /// Opens the first port of whichever virtio device is the console: without udev there is no name to look for.
    ///
    /// # Errors
    /// `NotFound` while the driver has not made it yet.
    pub(crate) fn open() -> io::Result<Self> {
        for device in 0..10 {
            let path = format!("/dev/vport{device}p1");
            let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
            match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
                Ok(port) => return Self::new(port),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::NotFound.into())
    }
}

/// Why a session's bytes stopped.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The host is gone.
    HungUp,
    /// Our own side closed, and all that it had written is out.
    Closed {
        /// The last bytes that it was given.
        tail: Vec<u8>,
    },
}

/// What followed a hello.
enum Contact {
    /// HTTP/2, which begins with these bytes.
    Session(Vec<u8>),
    /// Nothing more, or not from that host: scan on, beginning with these.
    Over(Vec<u8>),
}

impl<P: AsFd> Port<P>
where
    for<'a> &'a P: Read + Write,
{
    /// Takes a non-blocking descriptor.
    fn new(port: P) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&events, &port, epoll::EventData::new_u64(0), edges())?;
        Ok(Self { port, events })
    }

    /// Serves one host after the other; `sessions` takes each socket pair's other end.
    ///
    /// # Errors
    /// When the port itself fails, or nobody takes sessions any more.
    pub(crate) fn run(&self, context: &Context, runtime: &Handle, sessions: &mpsc::Sender<Accepted>) -> io::Result<()> {
        let mut early = Vec::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            let hello = self.greet(context, &early, &mut buffer)?;
            let mut first = Vec::new();
            if hello.protocol >= contact::SINCE {
                match self.first_contact(context, runtime, &mut buffer)? {
                    Contact::Session(bytes) => first = bytes,
                    Contact::Over(bytes) => {
                        early = bytes;
                        continue;
                    }
                }
            }
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            let session = Arc::new(Session::default());
            let accepted = Accepted { stream: theirs, session: Arc::clone(&session) };
            sessions.blocking_send(accepted).map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
            early = match self.pump(&ours, &session, &first)? {
                End::HungUp => Vec::new(),
                End::Closed { tail } => tail,
            };
        }
    }

    /// Throws everything away until a valid hello is the last thing that came, and answers it. `early` came before.
    fn greet(&self, context: &Context, early: &[u8], buffer: &mut [u8]) -> io::Result<Hello> {
        let mut scanner = Scanner::new(Side::Host);
        let mut scan = |bytes: &[u8]| {
            let said = last_hello(&mut scanner, &context.secret(), bytes)?;
            Some((said, Instant::now() + ANSWER))
        };
        let mut last = scan(early);
        loop {
            // 0 means "nobody there" or "not opened yet", nothing means "nothing more for now".
            if let Some(n @ 1..) = read(&self.port, buffer)? {
                last = scan(&buffer[..n]);
                continue;
            }
            let Some((hello, deadline)) = last else {
                self.wait(GLANCE)?;
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                last = None;
            } else if self.hung_up()? || !self.answer(context, &hello)? {
                // Short, since the change may have come between the questions, and its event with it.
                self.wait(left.min(Duration::from_millis(20)))?;
            } else {
                return Ok(hello);
            }
        }
    }

    /// Does what the host asks for before its session. It waits for every answer, so nothing is behind a message.
    fn first_contact(&self, context: &Context, runtime: &Handle, buffer: &mut [u8]) -> io::Result<Contact> {
        let (mut reader, mut within) = (Reader::default(), false);
        let mut hostname: Option<String> = None;
        loop {
            let n = match read(&self.port, buffer)? {
                None => {
                    self.wait(GLANCE)?;
                    continue;
                }
                Some(0) => return Ok(Contact::Over(Vec::new())),
                Some(n) => n,
            };
            let bytes = &buffer[..n];
            if !within && bytes[0] != contact::ASK {
                // A hello is that of the next host, which came so soon that no hang-up was seen.
                if bytes[0] == hello::MAGIC[0] {
                    return Ok(Contact::Over(bytes.to_vec()));
                }
                if let Some(name) = hostname {
                    context.tasks.spawn_blocking_on(control::settle(context, name), runtime);
                }
                return Ok(Contact::Session(bytes.to_vec()));
            }
            let Ok(fed) = reader.feed(contact::ASK, bytes) else { return Ok(Contact::Over(Vec::new())) };
            within = fed.is_none();
            let Some((body, used)) = fed else { continue };
            let Ok(ask) = Repair::decode(&body) else { return Ok(Contact::Over(Vec::new())) };
            if used != n {
                return Ok(Contact::Over(bytes[used..].to_vec()));
            }
            let outcome = control::repair_here(context, runtime, &ask).map_err(control::Refusal::text);
            if outcome.is_ok() && context.powers != Powers::Process {
                hostname = ask.hostname.or(hostname);
            }
            if !self.write_whole(&contact::encode_outcome(&outcome))? {
                return Ok(Contact::Over(Vec::new()));
            }
        }
    }

    /// Writes all of a short message; false if the host does not take it.
    fn write_whole(&self, mut bytes: &[u8]) -> io::Result<bool> {
        let deadline = Instant::now() + ANSWER;
        while !bytes.is_empty() {
            match write(&self.port, bytes) {
                Ok(Some(n)) => bytes = &bytes[n..],
                Ok(None) if Instant::now() < deadline => self.wait(Duration::from_millis(20))?,
                Ok(None) => return Ok(false),
                Err(error) if is_closed(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes the answer to a hello; false if there is no room.
    fn answer(&self, context: &Context, hello: &Hello) -> io::Result<bool> {
        let answer = Hello { nonce: hello.nonce, protocol: hello::PROTOCOL };
        let bytes = hello::encode(Side::Agent, &context.secret(), &answer);
        // The port takes it whole or not at all; if it ever took a part, the host would see garbage and try again.
        Ok(write(&self.port, &bytes)? == Some(bytes.len()))
    }

    /// Moves bytes both ways until the session ends; `first` came already.
    fn pump(&self, pair: &UnixStream, session: &Session, first: &[u8]) -> io::Result<End> {
        epoll::add(&self.events, pair, epoll::EventData::new_u64(1), edges())?;
        let end = self.pump_until(pair, session, first);
        epoll::delete(&self.events, pair)?;
        end
    }

    fn pump_until(&self, pair: &UnixStream, session: &Session, first: &[u8]) -> io::Result<End> {
        let mut inward = Buffer::holding(first);
        let mut outward = Buffer::holding(&[]);
        let mut tail = Vec::new();
        keep_tail(&mut tail, first);
        loop {
            let mut moved = false;
            if session.last_called() {
                inward.clear();
                tail.clear();
                if self.hung_up()? {
                    return Ok(End::HungUp);
                }
            } else if inward.is_empty() {
                match inward.fill(&self.port)? {
                    Some(0) => return Ok(End::HungUp),
                    Some(_) => {
                        moved = true;
                        keep_tail(&mut tail, inward.rest());
                    }
                    None => {}
                }
            }
            match inward.drain(pair) {
                Ok(drained) => moved |= drained,
                // Our side closed; what it wrote before is still to be read below.
                Err(error) if is_closed(&error) => inward.clear(),
                Err(error) => return Err(error),
            }
            if outward.is_empty() {
                match outward.fill(pair) {
                    Ok(Some(0)) => return Ok(End::Closed { tail }),
                    Ok(filled) => moved |= filled.is_some(),
                    Err(error) if is_closed(&error) => return Ok(End::Closed { tail }),
                    Err(error) => return Err(error),
                }
            }
            match outward.drain(&self.port) {
                Ok(drained) => moved |= drained,
                Err(error) if is_closed(&error) => return Ok(End::HungUp),
                Err(error) => return Err(error),
            }
            if !moved {
                self.wait(GLANCE)?;
            }
        }
    }

    fn hung_up(&self) -> io::Result<bool> {
        let mut fds = [PollFd::from_borrowed_fd(self.port.as_fd(), PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&now)) {
            Ok(_) => Ok(fds[0].revents().contains(PollFlags::HUP)),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until something has changed since the last call.
    fn wait(&self, at_most: Duration) -> io::Result<()> {
        let timeout = Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: at_most.subsec_nanos().into() };
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        match epoll::wait(&self.events, &mut events[..], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The hello at the very end of what has been fed, if there is one: with anything behind it, it is stale.
pub(crate) fn last_hello(scanner: &mut Scanner, secret: &[u8; 32], mut bytes: &[u8]) -> Option<Hello> {
    while let Some(found) = scanner.feed(secret, bytes) {
        bytes = &bytes[found.consumed..];
        if bytes.is_empty() {
            return Some(found.hello);
        }
    }
    None
}

/// Keeps the last bytes of a stream, as many as a hello has.
fn keep_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    let fresh = &bytes[bytes.len().saturating_sub(hello::LENGTH)..];
    tail.drain(..(tail.len() + fresh.len()).saturating_sub(hello::LENGTH));
    tail.extend_from_slice(fresh);
}

fn edges() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected)
}

/// `None` if there is nothing now.
fn read(mut from: impl Read, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match from.read(buffer) {
            Ok(n) => return Ok(Some(n)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A socket in the port's place says so instead of 0.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Some(0)),
            Err(error) => return Err(error),
        }
    }
}

/// `None` if there is no room now.
fn write(mut to: impl Write, bytes: &[u8]) -> io::Result<Option<usize>> {
    loop {
        match to.write(bytes) {
            Ok(n) => return Ok(Some(n)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Bytes under way in one direction: filled when empty, then drained.
struct Buffer {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
}

impl Buffer {
    /// With what is to be drained first, which is no more than one read of the port.
    fn holding(first: &[u8]) -> Self {
        let mut bytes = vec![0; BUFFER.max(first.len())].into_boxed_slice();
        bytes[..first.len()].copy_from_slice(first);
        Self { bytes, from: 0, to: first.len() }
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// What is still to be drained.
    fn rest(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    fn clear(&mut self) {
        (self.from, self.to) = (0, 0);
    }

    /// As `read`.
    fn fill(&mut self, source: impl Read) -> io::Result<Option<usize>> {
        let filled = read(source, &mut self.bytes)?;
        (self.from, self.to) = (0, filled.unwrap_or(0));
        Ok(filled)
    }

    /// Writes what it can; whether that was anything.
    fn drain(&mut self, target: impl Write + Copy) -> io::Result<bool> {
        let before = self.from;
        while !self.is_empty() {
            match write(target, self.rest())? {
                Some(n) => self.from += n,
                None => break,
            }
        }
        Ok(self.from != before)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use wakeful_guest_proto::hello::LENGTH;

    use super::*;
    use crate::context::Powers;
    use crate::reaper::Reaper;

    const SECRET: [u8; 32] = [6; 32];
    const SOON: Duration = Duration::from_secs(20);

    /// A socket stands for the port; a hang-up is then for good, everything else is alike.
    fn port() -> (UnixStream, Port<UnixStream>) {
        let (host, port) = UnixStream::pair().expect("a pair");
        host.set_read_timeout(Some(SOON)).expect("a timeout");
        port.set_nonblocking(true).expect("non-blocking");
        (host, Port::new(port).expect("epoll"))
    }

    fn context() -> Context {
        Context::new(Powers::Process, SECRET, Reaper::start().expect("a thread"), None)
    }

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("non-blocking");
        theirs.set_read_timeout(Some(SOON)).expect("a timeout");
        (ours, theirs)
    }

    fn hello_of(nonce: u8) -> [u8; LENGTH] {
        hello::encode(Side::Host, &SECRET, &Hello { nonce: [nonce; 16], protocol: 1 })
    }

    #[test]
    fn the_newest_hello_is_answered_and_no_other() {
        let (mut host, port) = port();
        let stale = [&[0xfe; 100_000][..], &hello_of(1), &hello_of(2)[..30], &hello_of(3), &hello_of(4)].concat();
        host.write_all(&stale).expect("there is room for all of it");
        port.greet(&context(), &[], &mut [0; 4096]).expect("greeted");
        drop(port);
        let mut answer = Vec::new();
        host.read_to_end(&mut answer).expect("an answer and the end");
        let answer = answer.try_into().expect("one answer");
        assert_eq!(hello::decode(Side::Agent, &SECRET, &answer).map(|said| said.nonce), Some([4; 16]));
    }

    /// What the port's thread says to a message, and what it takes for the rest.
    fn contacted(
        host: &mut UnixStream,
        port: &Port<UnixStream>,
        context: &Context,
        message: &[u8],
    ) -> (Vec<u8>, Contact) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        thread::scope(|scope| {
            let thread = scope.spawn(|| port.first_contact(context, runtime.handle(), &mut [0; 4096]));
            for piece in message.chunks(70) {
                host.write_all(piece).expect("write");
            }
            let mut answer = vec![0; 14];
            host.read_exact(&mut answer).expect("an answer");
            host.write_all(b"PRI * HTTP/2.0").expect("write");
            (answer, thread.join().expect("no panic").expect("no error"))
        })
    }

    #[test]
    fn a_repair_is_answered_before_the_session() {
        let ((mut host, port), context) = (port(), context());
        let env = [("A".to_owned(), "1".to_owned())].into();
        let ask = Repair { secret: Some([9; 32]), env: Some(env), ..Repair::new(1, [3; 64]) };
        let (answer, rest) = contacted(&mut host, &port, &context, &ask.encode());
        let (body, _) = Reader::default().feed(contact::ANSWER, &answer).expect("sound").expect("whole");
        assert!(contact::decode_outcome(&body).expect("sound").is_ok());
        assert!(matches!(rest, Contact::Session(bytes) if bytes == b"PRI * HTTP/2.0"));
        assert_eq!((context.secret(), context.env().len()), ([9; 32], 1));
    }

    #[test]
    fn nonsense_and_the_next_host_end_a_first_contact() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut long = vec![contact::ASK];
        long.extend_from_slice(&[0xff; 20]);
        for (bytes, scanned) in [(&long[..], 0), (&hello_of(1)[..], LENGTH)] {
            let (mut host, port) = port();
            host.write_all(bytes).expect("write");
            let end = port.first_contact(&context(), runtime.handle(), &mut [0; 4096]).expect("no error");
            assert!(matches!(end, Contact::Over(rest) if rest.len() == scanned));
        }
        let (host, port) = port();
        drop(host);
        let end = port.first_contact(&context(), runtime.handle(), &mut [0; 4096]).expect("no error");
        assert!(matches!(end, Contact::Over(rest) if rest.is_empty()), "a hang-up");
    }

    #[test]
    fn after_the_last_call_input_belongs_to_the_next_host() {
        let (mut host, port) = port();
        let (ours, mut theirs) = pair();
        let session = Session::default();
        thread::scope(|scope| {
            let pump = scope.spawn(|| port.pump(&ours, &session, &[]));
            let mut bytes = [0; 7];
            host.write_all(b"request").expect("write");
            theirs.read_exact(&mut bytes).expect("read");
            assert_eq!(&bytes, b"request");
            session.call_last();
            theirs.write_all(b"answer!").expect("write");
            host.read_exact(&mut bytes).expect("read");
            assert_eq!(&bytes, b"answer!");
            host.write_all(&hello_of(8)).expect("write");
            drop(theirs);
            assert_eq!(pump.join().expect("no panic").expect("pumped"), End::Closed { tail: Vec::new() });
        });
        port.greet(&context(), &[], &mut [0; 4096]).expect("the hello was not lost");
        let mut answer = [0; LENGTH];
        host.read_exact(&mut answer).expect("an answer");
        assert_eq!(hello::decode(Side::Agent, &SECRET, &answer).map(|said| said.nonce), Some([8; 16]));
    }

    #[test]
    fn a_hello_that_breaks_an_old_session_is_found_after_it() {
        let (mut host, port) = port();
        let (ours, mut theirs) = pair();
        let session = Session::default();
        let tail = thread::scope(|scope| {
            let pump = scope.spawn(|| port.pump(&ours, &session, &[]));
            for piece in [&b"old frames"[..], &hello_of(5)[..1], &hello_of(5)[1..50], &hello_of(5)[50..]] {
                host.write_all(piece).expect("write");
                theirs.read_exact(&mut vec![0; piece.len()]).expect("read");
            }
            drop(theirs);
            match pump.join().expect("no panic").expect("pumped") {
                End::Closed { tail } => tail,
                End::HungUp => panic!("nobody hung up"),
            }
        });
        port.greet(&context(), &tail, &mut [0; 4096]).expect("greeted");
        let mut answer = [0; LENGTH];
        host.read_exact(&mut answer).expect("an answer");
        assert_eq!(hello::decode(Side::Agent, &SECRET, &answer).map(|said| said.nonce), Some([5; 16]));
    }

    #[test]
    fn a_host_that_reads_nothing_and_hangs_up_ends_the_session() {
        let (host, port) = port();
        let (ours, theirs) = pair();
        theirs.set_nonblocking(true).expect("non-blocking");
        let session = Session::default();
        thread::scope(|scope| {
            let pump = scope.spawn(|| port.pump(&ours, &session, &[]));
            let begun = Instant::now();
            // Until every buffer on the way is full.
            let mut quiet = 0;
            while quiet < 1000 {
                match write(&theirs, &[1; 4096]).expect("write") {
                    Some(_) => quiet = 0,
                    None => {
                        quiet += 1;
                        thread::yield_now();
                    }
                }
                assert!(begun.elapsed() < SOON);
            }
            drop(host);
            assert_eq!(pump.join().expect("no panic").expect("pumped"), End::HungUp);
        });
        // The pump has let go of its end; hyper would see that.
        drop(ours);
        assert_eq!(write(&theirs, b"more").map_err(|error| error.kind()), Err(ErrorKind::BrokenPipe));
    }
}
