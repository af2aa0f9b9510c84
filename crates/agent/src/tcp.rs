//! The host's channel over TCP, for engines without a port of their own.
//!
//! ```text
//!   0.0.0.0:49982 ──accept──▶ a thread each: hello ──▶ first contact ──▶  ┌ fresh socket pair ┐
//!                                  ▲   two threads move the bytes         │ hyper, HTTP/2     │
//!                                  └──────────────────────────────────────└───────────────────┘
//! ```
//!
//! Plain threads and blocking calls: what an engine restores of a connection to the outside is a dead socket, and events of
//! such sockets are not to be trusted (they are lost, or come for descriptors that are long closed). A blocked read ends with
//! an error, and the listener accepts on.
//!
//! Who may come in: the address is open to every process inside, but none of them comes from outside, so those are turned
//! away unheard. A stranger that says nothing holds a thread for two seconds, and nobody up: of too many the oldest goes.
//! Whoever knows the secret is the host; the newest one counts, the last one's connection is cut.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use wakeful_guest_proto::contact::{self, Reader, Repair};
use wakeful_guest_proto::hello::{self, Hello, Scanner, Side};

use crate::channel::{Accepted, last_hello};
use crate::context::{Context, Powers};
use crate::control;
use crate::init;
use crate::session::Session;

/// A dialler that does not say hello in this time is not the host.
const HELLO: Duration = Duration::from_secs(2);
/// Diallers that have not said hello yet, at one time.
const STRANGERS: usize = 8;
/// After a failed accept, which mostly means that descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);
const BUFFER: usize = 64 * 1024;
const STACK: usize = 128 * 1024;

/// The door for hosts.
pub(crate) struct Door {
    context: Arc<Context>,
    runtime: Handle,
    sessions: mpsc::Sender<Accepted>,
    lines: Mutex<Lines>,
}

/// Connections, by the order in which they came.
#[derive(Default)]
struct Lines {
    next: u64,
    strangers: VecDeque<(u64, TcpStream)>,
    host: Option<(u64, TcpStream)>,
}

impl Door {
    /// `sessions` takes each socket pair's other end.
    pub(crate) fn new(context: Arc<Context>, runtime: Handle, sessions: mpsc::Sender<Accepted>) -> Arc<Self> {
        Arc::new(Self { context, runtime, sessions, lines: Mutex::default() })
    }

    /// Lets hosts in, one after the other, for ever.
    pub(crate) fn run(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) if comes_from_inside(&stream) => {}
                // No thread or descriptor was left for it; the host tries again.
                Ok((stream, _)) => drop(self.admit(stream)),
                // One that is gone before it was taken says so here, and so may a restore.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(_) => init::nap(PAUSE),
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream) -> io::Result<()> {
        let known = stream.try_clone()?;
        let id = {
            let mut lines = self.lock();
            if lines.strangers.len() >= STRANGERS
                && let Some((_, oldest)) = lines.strangers.pop_front()
            {
                let _ = oldest.shutdown(Shutdown::Both);
            }
            lines.next += 1;
            let id = lines.next;
            lines.strangers.push_back((id, known));
            id
        };
        let door = Arc::clone(self);
        let serve = move || {
            // However it ends: the dialler is gone, or was none of ours.
            let _ = door.serve(id, &stream);
            door.forget(id);
        };
        let started = thread::Builder::new().name("host".to_owned()).stack_size(STACK).spawn(serve);
        started.map(drop).inspect_err(|_| self.forget(id))
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, id: u64) {
        let mut lines = self.lock();
        lines.strangers.retain(|(stranger, _)| *stranger != id);
        lines.host.take_if(|(host, _)| *host == id);
    }

    /// It has proved that it is the host, so the last one is not any more. Unless that one came later: what was said while we
    /// stood still is all heard at once, in any order.
    fn promote(&self, id: u64) -> bool {
        let mut lines = self.lock();
        if lines.host.as_ref().is_some_and(|(host, _)| *host > id) {
            return false;
        }
        let Some(at) = lines.strangers.iter().position(|(stranger, _)| *stranger == id) else { return false };
        let Some(host) = lines.strangers.remove(at) else { return false };
        if let Some((_, last)) = lines.host.replace(host) {
            let _ = last.shutdown(Shutdown::Both);
        }
        true
    }

    fn serve(&self, id: u64, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let hello = self.greet(stream)?;
        if !self.promote(id) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let secret = self.context.secret();
        let answer = Hello { nonce: hello.nonce, protocol: hello::PROTOCOL };
        write_all(stream, &hello::encode(Side::Agent, &secret, &answer))?;
        stream.set_read_timeout(None)?;
        let first = if hello.protocol >= contact::SINCE { self.first_contact(stream)? } else { Vec::new() };
        self.carry(stream, &first)
    }

    /// Throws everything away until a valid hello is the last thing that came.
    fn greet(&self, stream: &TcpStream) -> io::Result<Hello> {
        let deadline = Instant::now() + HELLO;
        let (mut scanner, mut buffer) = (Scanner::new(Side::Host), [0; 4096]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            let n = read(stream, &mut buffer)?;
            if let Some(said) = last_hello(&mut scanner, &self.context.secret(), &buffer[..n]) {
                return Ok(said);
            }
        }
    }

    /// Does what the host asks for before its session, and gives what came of that already.
    fn first_contact(&self, stream: &TcpStream) -> io::Result<Vec<u8>> {
        let invalid = |_| io::Error::from(ErrorKind::InvalidData);
        let (mut reader, mut within, mut buffer) = (Reader::default(), false, vec![0; 16 * 1024]);
        let mut hostname: Option<String> = None;
        loop {
            let n = read(stream, &mut buffer)?;
            let bytes = &buffer[..n];
            if !within && bytes[0] != contact::ASK {
                if let Some(name) = hostname {
                    let settle = control::settle(&self.context, name);
                    self.context.tasks.spawn_blocking_on(settle, &self.runtime);
                }
                return Ok(bytes.to_vec());
            }
            let fed = reader.feed(contact::ASK, bytes).map_err(invalid)?;
            within = fed.is_none();
            let Some((body, used)) = fed else { continue };
            let ask = Repair::decode(&body).map_err(invalid)?;
            if used != n {
                return Err(ErrorKind::InvalidData.into());
            }
            let outcome = control::repair_here(&self.context, &self.runtime, &ask).map_err(control::Refusal::text);
            if outcome.is_ok() && self.context.powers != Powers::Process {
                hostname = ask.hostname.or(hostname);
            }
            write_all(stream, &contact::encode_outcome(&outcome))?;
        }
    }

    /// Moves bytes both ways until the session ends; `first` came already.
    fn carry(&self, stream: &TcpStream, first: &[u8]) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let session = Arc::new(Session::default());
        let accepted = Accepted { stream: theirs, session: Arc::clone(&session) };
        self.sessions.blocking_send(accepted).map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
        thread::scope(|scope| {
            let outward = || outward(&ours, stream, &session);
            let started =
                thread::Builder::new().name("outward".to_owned()).stack_size(STACK).spawn_scoped(scope, outward);
            if started.is_ok() {
                inward(stream, &ours, &session, first);
            }
            // Whoever is still reading or writing in the other thread stops with this.
            let _ = stream.shutdown(Shutdown::Both);
            let _ = ours.shutdown(Shutdown::Both);
            started.map(drop)
        })
    }
}

/// From the host to hyper, until the host closes. After the last call nobody wants what comes, but it is the host that closes
/// first then: a connection that we had closed would linger in the memory that is about to be saved.
fn inward(stream: &TcpStream, pair: &UnixStream, session: &Session, first: &[u8]) {
    let mut buffer = vec![0; BUFFER];
    let mut to = pair;
    let mut gone = to.write_all(first).is_err();
    while !gone || session.last_called() {
        let Ok(n) = read(stream, &mut buffer) else { return };
        gone |= !session.last_called() && to.write_all(&buffer[..n]).is_err();
    }
}

/// From hyper to the host, until hyper has written its last.
fn outward(pair: &UnixStream, stream: &TcpStream, session: &Session) {
    let mut buffer = vec![0; BUFFER];
    let (mut from, mut broken) = (pair, false);
    while !broken {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => broken = write_all(stream, &buffer[..n]).is_err(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if broken || !session.last_called() {
        // Wakes the reader.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// A process inside that dials this address comes from it, or from loopback.
fn comes_from_inside(stream: &TcpStream) -> bool {
    match (stream.peer_addr(), stream.local_addr()) {
        (Ok(peer), Ok(local)) => peer.ip().is_loopback() || peer.ip() == local.ip(),
        // It is gone already.
        _ => true,
    }
}

/// At least one byte; the end of the stream is an error.
fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn write_all(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use wakeful_guest_proto::hello::LENGTH;

    use super::*;
    use crate::reaper::Reaper;

    const SECRET: [u8; 32] = [6; 32];
    const SOON: Duration = Duration::from_secs(20);

    /// A door on loopback that takes everybody for a stranger from outside.
    struct House {
        address: std::net::SocketAddr,
        sessions: mpsc::Receiver<Accepted>,
        _runtime: tokio::runtime::Runtime,
    }

    fn house() -> House {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let context = Context::new(Powers::Process, SECRET, Reaper::start().expect("a thread"), None);
        let (sender, sessions) = mpsc::channel(4);
        let door = Door::new(Arc::new(context), runtime.handle().clone(), sender);
        thread::spawn(move || {
            for stream in listener.incoming() {
                door.admit(stream.expect("accepted")).expect("admitted");
            }
        });
        House { address, sessions, _runtime: runtime }
    }

    impl House {
        fn dial(&self) -> TcpStream {
            let stream = TcpStream::connect(self.address).expect("somebody listens");
            stream.set_read_timeout(Some(SOON)).expect("a timeout");
            stream
        }

        /// The host's end and the agent's.
        fn enter(&mut self) -> (TcpStream, UnixStream, Arc<Session>) {
            let mut host = self.dial();
            let hello = Hello { nonce: [3; 16], protocol: 1 };
            host.write_all(&hello::encode(Side::Host, &SECRET, &hello)).expect("write");
            let mut answer = [0; LENGTH];
            host.read_exact(&mut answer).expect("an answer");
            assert_eq!(hello::decode(Side::Agent, &SECRET, &answer).map(|said| said.nonce), Some([3; 16]));
            let Accepted { stream, session } = self.sessions.blocking_recv().expect("a session");
            stream.set_nonblocking(false).expect("blocking");
            stream.set_read_timeout(Some(SOON)).expect("a timeout");
            (host, stream, session)
        }
    }

    fn is_closed(mut stream: &TcpStream) -> bool {
        match stream.read(&mut [0; 64]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn bytes_go_both_ways_and_either_end_closes() {
        let mut house = house();
        for host_first in [true, false] {
            let (mut host, mut agent, _) = house.enter();
            let mut bytes = [0; 5];
            host.write_all(b"there").expect("write");
            agent.read_exact(&mut bytes).expect("read");
            assert_eq!(&bytes, b"there");
            agent.write_all(b"again").expect("write");
            host.read_exact(&mut bytes).expect("read");
            assert_eq!(&bytes, b"again");
            if host_first {
                drop(host);
                assert_eq!(agent.read(&mut bytes).expect("the end"), 0);
            } else {
                agent.write_all(b"words").expect("write");
                drop(agent);
                host.read_exact(&mut bytes).expect("the last words");
                assert!(is_closed(&host));
            }
        }
    }

    #[test]
    fn the_newest_host_replaces_the_last_one() {
        let mut house = house();
        let (old, mut agent, _) = house.enter();
        let (mut host, mut other, _) = house.enter();
        assert!(is_closed(&old));
        assert_eq!(agent.read(&mut [0; 4]).expect("the end"), 0);
        host.write_all(b"x").expect("write");
        other.read_exact(&mut [0; 1]).expect("read");
    }

    #[test]
    fn one_who_came_before_the_host_does_not_replace_it() {
        let mut house = house();
        let mut early = house.dial();
        let (mut host, mut agent, _) = house.enter();
        let hello = Hello { nonce: [4; 16], protocol: 1 };
        early.write_all(&hello::encode(Side::Host, &SECRET, &hello)).expect("write");
        assert!(is_closed(&early));
        host.write_all(b"x").expect("write");
        agent.read_exact(&mut [0; 1]).expect("read");
    }

    #[test]
    fn after_the_last_call_the_host_closes_first() {
        let mut house = house();
        let (mut host, mut agent, session) = house.enter();
        session.call_last();
        agent.write_all(b"quiet").expect("write");
        drop(agent);
        let mut bytes = [0; 5];
        host.read_exact(&mut bytes).expect("the answer");
        host.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let still = host.read(&mut bytes).expect_err("neither bytes nor the end");
        assert!(matches!(still.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{still:?}");
        // What it sends now is for nobody, and does no harm.
        host.write_all(b"frame").expect("write");
        drop(host);
        house.enter();
    }

    #[test]
    fn strangers_hold_nobody_up() {
        let mut house = house();
        let silent: Vec<TcpStream> = (0..3 * STRANGERS).map(|_| house.dial()).collect();
        let (_host, _agent, _) = house.enter();
        assert!(is_closed(&silent[0]), "the oldest went for the newer ones");
        let begun = Instant::now();
        let mut liar = house.dial();
        let hello = Hello { nonce: [1; 16], protocol: 1 };
        liar.write_all(&hello::encode(Side::Host, &[7; 32], &hello)).expect("write");
        assert!(is_closed(&liar));
        assert!(begun.elapsed() >= HELLO && begun.elapsed() < SOON);
    }

    #[test]
    fn those_inside_are_known_by_their_address() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let _dialler = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        assert!(comes_from_inside(&listener.accept().expect("it is there").0));
    }
}
