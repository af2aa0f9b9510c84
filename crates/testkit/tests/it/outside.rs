//! A host of the test's own, with a world beyond its uplink: real servers in a namespace, reached by real packets.
//!
//! ```text
//!   guest ─ slot ─ host (namespace; the daemon and the client are here) ── outside (namespace)
//!                  203.0.113.1, 10.77.0.1                                  203.0.113.2 .10 .11 .53, 10.77.0.2, 169.254.169.254
//! ```
//!
//! Outside, every address has HTTP on 80, HTTPS on 443, an echo on TCP and UDP 9000; .53 answers names.

use std::future::Future;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use wakeful_client::Client;
use wakeful_client::types::{Blocked, EgressReport, ExecuteRequest};
use wakeful_testkit::Options;

/// Every test ends by then.
const DEADLINE: Duration = Duration::from_secs(240);

/// What the outside offers. The certificate is nobody's: guests do not check it.
const SERVERS: &str = r#"
import http.server, socketserver, ssl, socket, sys, threading
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        text = ("%s %s" % (self.connection.getsockname()[0], self.headers.get("Host"))).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(text))); self.end_headers()
        self.wfile.write(text)
    def log_message(self, *args): pass
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536): self.request.sendall(data)
class Say(socketserver.BaseRequestHandler):
    def handle(self): self.request[1].sendto(self.request[0], self.client_address)
class Threads(socketserver.ThreadingTCPServer):
    allow_reuse_address = True; daemon_threads = True
class Secure(Threads):
    def get_request(self):
        connection, address = super().get_request()
        connection.settimeout(20)
        return connection, address
    def finish_request(self, request, address):
        super().finish_request(context.wrap_socket(request, server_side=True), address)
    def handle_error(self, request, address): pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[1])
servers = [Threads(("", 80), Page), Secure(("", 443), Page), Threads(("", 9000), Echo), Threads(("", 22), Echo)]
servers.append(socketserver.ThreadingUDPServer(("", 9000), Say))
for server in servers: threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", flush=True); sys.stdin.read()
"#;

/// What a guest tries, one word for the outcome: `t.py tcp 203.0.113.10 80`.
const TRY: &str = r#"
import socket, ssl, struct, sys, urllib.request, urllib.error
def connect(host, port):
    s = socket.create_connection((host, int(port)), 5); s.settimeout(5); return s
def tcp(host, port):
    s = connect(host, port); s.sendall(b"hello\n"); return s.recv(5).decode() or "closed"
def udp(host, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.connect((host, int(port)))
    s.send(b"hello"); return s.recv(9).decode()
def http(host, name=None):
    request = urllib.request.Request("http://%s/" % host, headers={"Host": name or host})
    return urllib.request.urlopen(request, timeout=5).read().decode()
def https(host, name=None):
    context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
    s = context.wrap_socket(connect(host, 443), server_hostname=name or None)
    s.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (name or host).encode())
    text = b""
    while data := s.recv(9999): text += data
    return text.decode().split("\r\n\r\n")[-1] or "closed"
def dns(name, server="192.0.0.1", kind=1):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3); s.connect((server, 53))
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    s.send(struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", int(kind), 1))
    answer = s.recv(512); code, count = answer[3] & 15, struct.unpack(">H", answer[6:8])[0]
    return "code %d" % code if code else ".".join(str(b) for b in answer[-4:]) if count else "nothing"
def spoof(source, target):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    a, b = socket.inet_aton(source), socket.inet_aton(target)
    s.sendto(struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28, 1, 0, 64, 17, 0, a, b) + struct.pack(">4H", 9, 9000, 8, 0), (target, 0))
    return "sent"
def frame(mac, target):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
    a, b = socket.inet_aton("192.0.0.2"), socket.inet_aton(target)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28, 1, 0, 64, 17, 0, a, b)
    total = sum(struct.unpack(">10H", ip)); total = (total & 0xffff) + (total >> 16)
    ip = ip[:10] + struct.pack(">H", 0xffff ^ total) + ip[12:]
    s.send(bytes.fromhex("020000000001") + bytes.fromhex(mac) + b"\x08\x00" + ip + struct.pack(">4H", 9, 9000, 8, 0))
    return "sent"
try: print(globals()[sys.argv[1]](*sys.argv[2:]))
except urllib.error.HTTPError as e: print("status", e.code)
except Exception as e: print("refused", type(e).__name__, e)
"#;

/// The outside, until it is dropped.
pub(crate) struct World {
    outside: OwnedFd,
    children: Vec<Child>,
    #[expect(dead_code, reason = "removed with the world")]
    files: tempfile::TempDir,
}

/// Runs a test on a host of its own: the thread, and with it the daemon, has its own network.
pub(crate) fn on_a_host<F: Future<Output = Result<()>>>(test: impl FnOnce(World) -> F + Send) -> Result<()> {
    thread::scope(|scope| {
        let done = scope.spawn(|| -> Result<()> {
            wakeful_sys::net::leave_network()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let world = World::new()?;
            let ended =
                runtime.block_on(async { tokio::time::timeout(DEADLINE, test(world)).await.context("ends in time")? });
            runtime.shutdown_background();
            ended
        });
        done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A daemon's configuration on such a host.
pub(crate) fn options() -> Options {
    Options::default().config("[network]\ndns = [\"203.0.113.53\"]\n")
}

/// A shell command of the host.
pub(crate) fn host(command: &str) -> Result<String> {
    let output = Command::new("/bin/sh").args(["-c", command]).output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command}: {out}{err}");
    Ok(out.into_owned())
}

impl World {
    fn new() -> Result<Self> {
        let made = thread::spawn(|| {
            wakeful_sys::net::leave_network()?;
            wakeful_sys::net::current_network()
        });
        let outside = made.join().expect("does not panic")?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), outside.as_raw_fd());
        host("ip link set lo up; ip link add eth0 type veth peer name out0")?;
        host(&format!("ip link set out0 netns {path} && ip link set eth0 up"))?;
        host("ip address add 203.0.113.1/24 dev eth0; ip address add 10.77.0.1/16 dev eth0")?;
        host("ip route add default via 203.0.113.2")?;
        let files = tempfile::tempdir()?;
        let pem = files.path().join("pem").display().to_string();
        host(&format!(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=outside -keyout {pem} -out {pem}.crt 2>&1 && \
             cat {pem}.crt >> {pem}"
        ))?;
        let mut world = Self { outside, children: Vec::new(), files };
        world.at_outside(|| {
            host("ip link set lo up; ip link set out0 up; ip address add 169.254.169.254/32 dev lo")?;
            host("for i in 2 10 11 53; do ip address add 203.0.113.$i/24 dev out0; done")?;
            host("ip address add 10.77.0.2/16 dev out0")
        })?;
        let names = [
            "allowed.example/203.0.113.10",
            "shared.example/203.0.113.10",
            "other.example/203.0.113.11",
            "inner.example/10.77.0.2",
        ];
        let mut dnsmasq = Command::new("dnsmasq");
        dnsmasq.args(["--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--pid-file="]);
        dnsmasq.args(["--listen-address=203.0.113.53", "--bind-interfaces", "--user=root", "--local-ttl=60"]);
        dnsmasq.args(names.map(|name| format!("--address=/{name}")));
        let mut servers = Command::new("python3");
        servers.args(["-c", SERVERS, &pem]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let dnsmasq = world.at_outside(|| dnsmasq.spawn().context("dnsmasq-base is installed"))?;
        world.children.push(dnsmasq);
        let mut servers = world.at_outside(|| Ok(servers.spawn()?))?;
        let mut ready = [0; 5];
        std::io::Read::read_exact(servers.stdout.as_mut().context("has an output")?, &mut ready)?;
        world.children.push(servers);
        Ok(world)
    }

    /// Does something outside. Processes that it starts are there too.
    pub(crate) fn at_outside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                wakeful_sys::net::enter_network(self.outside.as_fd())?;
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A guest that tries things.
pub(crate) struct Guest<'a> {
    client: &'a Client,
    id: String,
}

impl<'a> Guest<'a> {
    pub(crate) async fn new(client: &'a Client, id: &str) -> Result<Self> {
        let mut write = ExecuteRequest::new(wakeful_client::types::Command::Shell("cat > /tmp/t.py".to_owned()));
        write.stdin = Some(TRY.to_owned());
        client.execute(id, &write).await?;
        Ok(Self { client, id: id.to_owned() })
    }

    /// What comes of it, in a word or a few.
    pub(crate) async fn tries(&self, what: &str) -> Result<String> {
        self.tries_as(what, None).await
    }

    pub(crate) async fn tries_as(&self, what: &str, user: Option<&str>) -> Result<String> {
        let words = ["python3", "/tmp/t.py"].into_iter().chain(what.split(' ')).map(str::to_owned).collect();
        let mut ask = ExecuteRequest::new(wakeful_client::types::Command::Argv(words));
        ask.user = user.map(str::to_owned);
        let done = self.client.execute(&self.id, &ask).await?;
        ensure!(done.exit_code == 0, "{what}: {}{}", done.stdout, done.stderr);
        Ok(done.stdout.trim().to_owned())
    }

    pub(crate) async fn reaches(&self, what: &str, answer: &str) -> Result<()> {
        let said = self.tries(what).await?;
        ensure!(said.contains(answer), "{what}: {said}; not {answer}");
        Ok(())
    }

    pub(crate) async fn is_refused(&self, what: &str) -> Result<()> {
        let said = self.tries(what).await?;
        ensure!(said.starts_with("refused") || said.starts_with("status 403") || said == "closed", "{what}: {said}");
        Ok(())
    }

    pub(crate) async fn report(&self) -> Result<EgressReport> {
        Ok(self.client.egress(&self.id).await?)
    }

    /// The line about what was blocked for this reason.
    pub(crate) async fn blocked(&self, reason: &str, to: &str) -> Result<Blocked> {
        let report = self.report().await?;
        let is = |line: &&Blocked| {
            line.reason == reason && (line.address.as_deref() == Some(to) || line.name.as_deref() == Some(to))
        };
        let found = report.blocked.iter().find(is).cloned();
        found.with_context(|| format!("nothing was blocked for {reason} to {to}: {:?}", report.blocked))
    }
}
