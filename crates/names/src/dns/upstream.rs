//! The resolvers that we ask in turn.
//!
//! A forwarder of a few lines rather than a resolver library: no cache (the upstream has one, and admissions follow
//! its lifetimes), no search domains, one question at a time. Each question has a socket of its own, so both the port
//! and the number in it must be guessed by whoever wants to forge an answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, Query, ResponseCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

const PAYLOAD: u16 = 1232;
const PORT: u16 = 53;
const DEADLINE: Duration = Duration::from_secs(5);
const SHORTEST_TRY: Duration = Duration::from_secs(1);
const MOST_SERVERS: usize = 8;
/// How long the system's list is believed without a look.
const FRESH: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Servers {
    Fixed(Vec<SocketAddr>),
    /// Hosts move between networks, so the file is read again.
    File {
        path: PathBuf,
        read: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
    },
}

/// Resolvers that are asked, from the namespace of this process.
#[derive(Debug)]
pub struct Upstream {
    servers: Servers,
    deadline: Duration,
}

impl Upstream {
    /// These servers, in this order; `deadline` for all of them together.
    #[must_use]
    pub fn new(servers: Vec<SocketAddr>, deadline: Duration) -> Self {
        Self { servers: Servers::Fixed(servers), deadline }
    }

    /// The servers of `/etc/resolv.conf`, five seconds.
    #[must_use]
    pub fn system() -> Self {
        Self::file(Path::new("/etc/resolv.conf"))
    }

    fn file(path: &Path) -> Self {
        Self { servers: Servers::File { path: path.to_owned(), read: Mutex::default() }, deadline: DEADLINE }
    }

    async fn servers(&self) -> io::Result<Vec<SocketAddr>> {
        let servers = match &self.servers {
            Servers::Fixed(servers) => servers.clone(),
            Servers::File { path, read } => {
                let known = read.lock().unwrap_or_else(PoisonError::into_inner).clone();
                match known {
                    Some((at, servers)) if at.elapsed() < FRESH => servers,
                    _ => {
                        let servers = nameservers(&tokio::fs::read_to_string(path).await?);
                        let new = Some((Instant::now(), servers.clone()));
                        *read.lock().unwrap_or_else(PoisonError::into_inner) = new;
                        servers
                    }
                }
            }
        };
        if servers.is_empty() { Err(io::Error::other("there is no upstream resolver")) } else { Ok(servers) }
    }

    /// Asks one server after the other until one has an answer. One that fails or refuses is as good as silent, unless
    /// all do.
    pub(super) async fn ask(&self, query: &Query) -> io::Result<Message> {
        let servers = self.servers().await?;
        let end = Instant::now() + self.deadline;
        let count = u32::try_from(servers.len()).unwrap_or(u32::MAX);
        let each = (self.deadline / count.saturating_add(1)).max(SHORTEST_TRY);
        let mut last = Err(io::ErrorKind::TimedOut.into());
        // Twice each: a lost packet is no failure.
        for server in servers.iter().chain(&servers) {
            let until = end.min(Instant::now() + each);
            if until <= Instant::now() {
                break;
            }
            let said = match timeout_at(until, by_udp(*server, query)).await {
                Ok(Ok(said)) if said.metadata.truncation => {
                    timeout(each, by_tcp(*server, query)).await.unwrap_or_else(|late| Err(late.into()))
                }
                Ok(said) => said,
                Err(late) => Err(late.into()),
            };
            match said {
                Ok(answer) => match answer.metadata.response_code {
                    ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp => last = Ok(answer),
                    _ => return Ok(answer),
                },
                Err(e) if last.is_err() => last = Err(e),
                Err(_) => {}
            }
        }
        last.map(|mut answer| {
            // What the upstream refuses to us is its failure, not the guest's.
            answer.metadata.response_code = ResponseCode::ServFail;
            answer
        })
    }
}

fn question(query: &Query) -> io::Result<(Message, Vec<u8>)> {
    // Nothing else of what the guest sent goes out: no options, no flags, no further records.
    let mut message = Message::query();
    message.add_query(query.clone());
    message.metadata.recursion_desired = true;
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD);
    message.set_edns(edns);
    let bytes = message.to_vec().map_err(io::Error::other)?;
    Ok((message, bytes))
}

/// An answer, if it is one to this question.
fn matching(asked: &Message, bytes: &[u8]) -> Option<Message> {
    let answer = Message::from_vec(bytes).ok()?;
    let same = answer.metadata.id == asked.metadata.id
        && answer.metadata.message_type == MessageType::Response
        && answer.metadata.op_code == asked.metadata.op_code
        && match (answer.queries.as_slice(), asked.queries.as_slice()) {
            ([theirs], [ours]) => {
                theirs.name() == ours.name()
                    && theirs.query_type() == ours.query_type()
                    && theirs.query_class() == ours.query_class()
            }
            _ => false,
        };
    same.then_some(answer)
}

async fn by_udp(server: SocketAddr, query: &Query) -> io::Result<Message> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    let (asked, bytes) = question(query)?;
    socket.send(&bytes).await?;
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = matching(&asked, &buffer[..length]) {
            return Ok(answer);
        }
    }
}

async fn by_tcp(server: SocketAddr, query: &Query) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let (asked, bytes) = question(query)?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
    let length = usize::from(stream.read_u16().await?);
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    matching(&asked, &answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The servers of a `resolv.conf`.
fn nameservers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
        address.parse().ok().map(|address: IpAddr| SocketAddr::new(address, PORT))
    };
    text.lines().filter_map(server).take(MOST_SERVERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::{Name, RecordType};

    #[test]
    fn the_systems_servers_are_read() {
        let text =
            "# nameserver 9.9.9.9\nsearch a.org\nnameserver 1.1.1.1\nnameserver\t::1 \nnameserver fe80::1%eth0\n";
        let expected: Vec<SocketAddr> = vec!["1.1.1.1:53".parse().expect("one"), "[::1]:53".parse().expect("one")];
        assert_eq!(nameservers(text), expected);
    }

    #[test]
    fn answers_to_other_questions_are_none() {
        let query = Query::query(Name::from_ascii("a.org.").expect("a name"), RecordType::A);
        let (asked, bytes) = question(&query).expect("encodes");
        assert_eq!(matching(&asked, &bytes), None, "a question is no answer");
        let mut answer = asked.clone().into_response();
        assert!(matching(&asked, &answer.to_vec().expect("encodes")).is_some());
        answer.metadata.id ^= 1;
        assert_eq!(matching(&asked, &answer.to_vec().expect("encodes")), None);
        answer.metadata.id ^= 1;
        answer.queries[0].set_name(Name::from_ascii("b.org.").expect("a name"));
        assert_eq!(matching(&asked, &answer.to_vec().expect("encodes")), None);
        assert_eq!(matching(&asked, b"junk"), None);
    }

    #[tokio::test]
    async fn a_silent_server_is_passed_over() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        let speaking = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        let servers = [&silent, &speaking].map(|socket| socket.local_addr().expect("has an address"));
        let upstream = Upstream::new(servers.to_vec(), Duration::from_secs(4));
        let query = Query::query(Name::from_ascii("a.org.").expect("a name"), RecordType::A);
        let server = async {
            let mut buffer = [0; 512];
            let (length, from) = speaking.recv_from(&mut buffer).await.expect("is asked");
            let asked = Message::from_vec(&buffer[..length]).expect("is a question");
            // A forged one first: it must be waited past.
            let mut forged = asked.clone().into_response();
            forged.metadata.id = forged.metadata.id.wrapping_add(1);
            speaking.send_to(&forged.to_vec().expect("encodes"), from).await.expect("sends");
            speaking.send_to(&asked.into_response().to_vec().expect("encodes"), from).await.expect("sends");
        };
        let (answer, ()) = tokio::join!(upstream.ask(&query), server);
        assert_eq!(answer.expect("is answered").metadata.response_code, ResponseCode::NoError);
    }
}
