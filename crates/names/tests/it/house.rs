//! A place to test in: an outside with hosts and a resolver, and a gatekeeper before it.

use std::io;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use wakeful_model::{Destination, EgressVerdict, Rule, Rules};
use wakeful_names::{Gate, Gatekeeper, Limits, Refused, Sockets, Upstream, What};

/// Where `a.example.org`, `b.example.org` and `other.net` live together.
pub(crate) const SHARED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// Where only `c.example.org` lives.
pub(crate) const ALONE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 8);
pub(crate) const DNS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 5301);
pub(crate) const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 5302);
const UPSTREAM: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 5300);
/// Where the proxy's own connections come from, so that they are not redirected again.
const OURS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// A child that ends with its owner.
pub(crate) struct Kept(pub(crate) Child);

impl Drop for Kept {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a client beside us; what it printed, both ways.
pub(crate) async fn client(program: &str, args: &[&str]) -> (bool, String) {
    let command = tokio::process::Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = tokio::time::timeout(Duration::from_secs(20), command).await.expect("ends").expect("runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs a test in a thread that has a network of its own; what it starts inherits that.
pub(crate) fn inside<T: Future<Output = ()>>(test: impl FnOnce() -> T + Send + 'static) {
    let body = move || {
        let holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; exec sleep infinity"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs; are we root?");
        let mut holder = Kept(holder);
        let mut line = String::new();
        let stdout = holder.0.stdout.take().expect("is piped");
        BufReader::new(stdout).read_line(&mut line).expect("says that it is ready");
        assert_eq!(line.trim(), "ready");
        let space = std::fs::File::open(format!("/proc/{}/ns/net", holder.0.id())).expect("has a namespace");
        rustix::thread::move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&space),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )
        .expect("is entered");
        run("ip", &["link", "set", "lo", "up"]);
        for address in [SHARED, ALONE, Ipv4Addr::new(10, 0, 0, 7)] {
            run("ip", &["address", "add", &format!("{address}/32"), "dev", "lo"]);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(50), test()).await.expect("ends in time") });
    };
    if let Err(panic) = std::thread::spawn(body).join() {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) fn allow(names: &[&str], ports: &[u16]) -> Rules {
    let rule = |name: &&str| Rule {
        verdict: EgressVerdict::Allow,
        to: Destination::Name((*name).to_owned()),
        ports: ports.to_vec(),
    };
    Rules { list: names.iter().map(rule).collect(), otherwise: EgressVerdict::Deny }
}

pub(crate) fn open() -> Rules {
    Rules { list: vec![], otherwise: EgressVerdict::Allow }
}

/// The owner of the network: writes down what is admitted, and says where connections go unless the kernel knows.
pub(crate) struct Owner {
    pub(crate) admitted: Mutex<Vec<(Ipv4Addr, Duration)>>,
    pub(crate) admits: Mutex<bool>,
    pub(crate) to: Mutex<Option<SocketAddrV4>>,
}

#[async_trait::async_trait]
impl Gate for Owner {
    async fn admit(&self, _name: &str, address: Ipv4Addr, lifetime: Duration) -> io::Result<()> {
        if !*self.admits.lock().expect("is sound") {
            return Err(io::Error::other("not today"));
        }
        self.admitted.lock().expect("is sound").push((address, lifetime));
        Ok(())
    }

    fn socket(&self) -> io::Result<OwnedFd> {
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(OURS, 0))?;
        Ok(socket)
    }

    fn destination(&self, accepted: BorrowedFd<'_>) -> io::Result<SocketAddrV4> {
        match *self.to.lock().expect("is sound") {
            Some(to) => Ok(to),
            None => wakeful_sys::origdst::original_destination(accepted),
        }
    }
}

pub(crate) struct House {
    pub(crate) owner: Arc<Owner>,
    pub(crate) keeper: Gatekeeper,
    log: std::path::PathBuf,
    _directory: tempfile::TempDir,
    _dnsmasq: Kept,
    servers: JoinSet<()>,
}

impl House {
    pub(crate) async fn new(rules: Rules) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        let records = [
            "--host-record=a.example.org,203.0.113.7",
            "--host-record=b.example.org,203.0.113.7",
            "--host-record=other.net,203.0.113.7",
            "--host-record=c.example.org,203.0.113.8",
            "--host-record=inner.example.org,10.0.0.7",
            "--host-record=mixed.example.org,10.0.0.7",
            "--host-record=mixed.example.org,203.0.113.8",
            "--host-record=six.example.org,2001:db8::1",
            "--cname=alias.example.org,a.example.org",
            "--mx-host=example.org,a.example.org,5",
            "--txt-record=example.org,hello",
            "--local-ttl=120",
            "--max-ttl=7200",
        ];
        let many = (1..=100).map(|i| format!("--host-record=many.example.org,198.51.100.{i}"));
        let dnsmasq = Command::new("dnsmasq")
            .args(["--no-daemon", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--user=root", "--pid-file="])
            .args(["--port=5300", "--listen-address=127.0.0.1", "--bind-interfaces", "--log-queries"])
            .arg(format!("--log-facility={}", log.display()))
            .args(records)
            .args(many)
            .stderr(Stdio::null())
            .spawn()
            .expect("dnsmasq runs");
        let dnsmasq = Kept(dnsmasq);
        while TcpStream::connect(UPSTREAM).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let sockets = Sockets {
            dns_udp: std::net::UdpSocket::bind(DNS).expect("binds"),
            dns_tcp: std::net::TcpListener::bind(DNS).expect("binds"),
            proxy: std::net::TcpListener::bind(PROXY).expect("binds"),
        };
        let owner =
            Arc::new(Owner { admitted: Mutex::default(), admits: Mutex::new(true), to: Mutex::new(Some(web(SHARED))) });
        let upstream = Arc::new(Upstream::new(vec![UPSTREAM.into()], Duration::from_secs(5)));
        let limits = Limits {
            hello: Duration::from_secs(2),
            quiet: Duration::from_millis(100),
            dns_idle: Duration::from_secs(1),
            ..Limits::default()
        };
        let keeper = Gatekeeper::start(sockets, rules, owner.clone(), upstream, limits).expect("starts");
        Self { owner, keeper, log, _directory: directory, _dnsmasq: dnsmasq, servers: JoinSet::new() }
    }

    /// Connections go there from now on.
    pub(crate) fn toward(&self, address: Ipv4Addr, port: u16) {
        *self.owner.to.lock().expect("is sound") = Some(SocketAddrV4::new(address, port));
    }

    /// Redirects by the kernel, as in a gateway.
    pub(crate) fn redirect(&self) {
        *self.owner.to.lock().expect("is sound") = None;
        let rules = format!(
            "table ip gate {{ chain out {{ type nat hook output priority -100; \
             ip daddr 203.0.113.0/24 ip saddr != {OURS} tcp dport 1-65535 redirect to :{}\n }}\n }}",
            PROXY.port()
        );
        run("nft", &[&rules]);
    }

    /// A server that answers each piece it reads with the same behind `> `, after `greeting`.
    pub(crate) async fn echo(&mut self, address: Ipv4Addr, port: u16, greeting: &'static [u8]) {
        let listener = TcpListener::bind((address, port)).await.expect("binds");
        self.servers.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                clients.spawn(async move {
                    client.write_all(greeting).await?;
                    let mut buffer = [0; 4096];
                    loop {
                        match client.read(&mut buffer).await? {
                            0 => return client.shutdown().await,
                            length => client.write_all(&[b"> ", &buffer[..length]].concat()).await?,
                        }
                    }
                });
            }
        });
    }

    /// Whether the upstream was asked for something so far.
    pub(crate) async fn asked_upstream(&self, text: &str) -> bool {
        // The log is written in order but late: what we ask ourselves marks the end.
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        let marker = question("marker.invalid.", RecordType::A).to_vec().expect("encodes");
        socket.send_to(&marker, SocketAddr::from(UPSTREAM)).await.expect("sends");
        loop {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            if let Some((before, _)) = log.rsplit_once("marker.invalid") {
                return before.contains(text);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn refused(&self, what: What) -> Vec<String> {
        self.keeper.refused().into_iter().filter(|r| r.what == what).map(|Refused { name, .. }| name).collect()
    }

    /// Makes the book know a name.
    pub(crate) async fn resolve(&self, name: &str) -> Vec<Ipv4Addr> {
        addresses(&ask(name, RecordType::A).await)
    }

    /// What comes back for these bytes, read until `enough` or the end.
    pub(crate) async fn say(&self, bytes: &[u8], enough: &str) -> String {
        let mut client = connect().await;
        client.write_all(bytes).await.expect("writes");
        heard(&mut client, enough).await
    }
}

pub(crate) fn web(address: Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, 80)
}

pub(crate) async fn connect() -> TcpStream {
    TcpStream::connect(PROXY).await.expect("connects")
}

/// Reads until a text came, or the end; a reset ends too.
pub(crate) async fn heard(client: &mut TcpStream, enough: &str) -> String {
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains(enough) {
        match client.read_buf(&mut text).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                text.extend(b"[reset]");
                break;
            }
            Err(e) => panic!("{e}"),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

pub(crate) fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).expect("a name"), kind));
    message
}

pub(crate) async fn exchange(bytes: &[u8]) -> Option<Message> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
    socket.connect(SocketAddr::from(DNS)).await.expect("connects");
    socket.send(bytes).await.expect("sends");
    let mut buffer = [0; 65535];
    let length = tokio::time::timeout(Duration::from_secs(2), socket.recv(&mut buffer)).await.ok()?.expect("receives");
    Some(Message::from_vec(&buffer[..length]).expect("is a message"))
}

pub(crate) async fn ask(name: &str, kind: RecordType) -> Message {
    let asked = question(name, kind);
    let answer = exchange(&asked.to_vec().expect("encodes")).await.expect("is answered");
    assert_eq!((answer.metadata.id, &answer.queries), (asked.metadata.id, &asked.queries));
    answer
}

pub(crate) async fn code(name: &str, kind: RecordType) -> ResponseCode {
    ask(name, kind).await.metadata.response_code
}

pub(crate) fn addresses(answer: &Message) -> Vec<Ipv4Addr> {
    let address = |data: &RData| if let RData::A(address) = data { Some(address.0) } else { None };
    answer.answers.iter().filter_map(|record| address(&record.data)).collect()
}
