//! A host, an outside behind it, and guests: all in namespaces that end with the test.
//!
//! ```text
//!  guest (namespace) eth0 ══ frames copied ══ the slot's TAP ─ slot ─ host (namespace) ── outside (namespace)
//!                                                                   203.0.113.1          203.0.113.2, .3, .4
//!                                                                   10.77.0.1            10.77.0.2, 169.254.169.254
//! ```

use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use wakeful_model::{Egress, EgressMode, Rules};
use wakeful_net::{Account, Error, Kind, Limits, Network, Options, Reason, Slot};

/// Every test ends by then.
const DEADLINE: Duration = Duration::from_secs(60);
/// What is refused is refused by then; what is dropped takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(2);

pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
pub(crate) const OTHER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 3);
pub(crate) const THIRD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 4);
pub(crate) const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(crate) const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

const TCP_PORTS: [u16; 5] = [22, 53, 80, 443, 8080];
const UDP_PORTS: [u16; 3] = [53, 443, 9000];

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) outside: Arc<OwnedFd>,
}

/// Runs a test on a host of its own.
pub(crate) fn run<F: Future<Output = ()>>(test: impl FnOnce(World) -> F + Send) {
    thread::scope(|scope| {
        let done = scope.spawn(|| {
            wakeful_sys::net::leave_mounts().expect("tests run as root");
            let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private).expect("is a mount");
            wakeful_sys::net::leave_network().expect("tests run as root");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
            let world = World::new();
            runtime.block_on(async { tokio::time::timeout(DEADLINE, test(world)).await.expect("ends in time") });
            runtime.shutdown_background();
        });
        if let Err(panic) = done.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Does something in a namespace.
pub(crate) fn at<T: Send>(namespace: &OwnedFd, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            wakeful_sys::net::enter_network(namespace.as_fd()).expect("is a namespace");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn new_namespace() -> OwnedFd {
    let made = thread::spawn(|| {
        wakeful_sys::net::leave_network().expect("tests run as root");
        wakeful_sys::net::current_network().expect("has one")
    });
    made.join().expect("does not panic")
}

pub(crate) fn output(command: &str) -> String {
    let output = Command::new("/bin/sh").args(["-c", command]).output().expect("starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command}: {out}{err}");
    out.into_owned()
}

impl World {
    fn new() -> Self {
        let outside = new_namespace();
        output("ip link set lo up; ip link add eth0 type veth peer name out0");
        // The other end moves by way of a descriptor that the child inherits through /proc.
        let path = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&outside));
        output(&format!("ip link set out0 netns {path} && ip link set eth0 up"));
        output("ip address add 203.0.113.1/24 dev eth0; ip address add 10.77.0.1/16 dev eth0");
        output("ip route add default via 203.0.113.2");
        at(&outside, || {
            output("ip link set lo up; ip link set out0 up; ip address add 169.254.169.254/32 dev lo");
            output(
                "for i in 2 3 4; do ip address add 203.0.113.$i/24 dev out0; done; ip address add 10.77.0.2/16 dev out0",
            );
            output("ip route add default via 203.0.113.1");
            for port in TCP_PORTS {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("is free");
                thread::spawn(move || {
                    listener.incoming().flatten().for_each(|stream| drop(thread::spawn(|| echo(stream))));
                });
            }
            for address in [OUTSIDE, OTHER, THIRD, PRIVATE, METADATA] {
                for port in UDP_PORTS {
                    let socket = UdpSocket::bind((address, port)).expect("is free");
                    thread::spawn(move || {
                        let mut buffer = vec![0; 65536];
                        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                            let _ = socket.send_to(&buffer[..length], from);
                        }
                    });
                }
            }
        });
        Self { directory: tempfile::tempdir().expect("can be made"), outside: Arc::new(outside) }
    }

    pub(crate) fn options(&self, ready: usize) -> Options {
        Options {
            run_dir: self.directory.path().join("net"),
            tag: "0abcd".into(),
            pool: None,
            allow_private: Vec::new(),
            ready,
            kind: Kind::Tap,
            limits: Limits::default(),
        }
    }

    pub(crate) async fn open(&self) -> Network {
        Network::open(self.options(0)).await.expect("opens")
    }
}

/// A slot whose rules are in force.
pub(crate) async fn take(network: &Network, owner: &str, rules: &Rules) -> Result<Slot, Error> {
    let slot = network.take(owner, Kind::Tap, rules).await?;
    slot.settled().await?;
    Ok(slot)
}

fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 65536];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

pub(crate) fn allow_all() -> Rules {
    Egress::default().rules()
}

/// The rules of `deny_all` with these lists.
pub(crate) fn lists(allow: &[&str], deny: &[&str], ports: &[i64], names: &[&str]) -> Rules {
    let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    let egress =
        Egress::check(Some("deny_all"), strings(allow), strings(deny), ports, strings(names)).expect("is sound");
    assert_eq!(egress.mode, EgressMode::DenyAll);
    egress.rules()
}

/// What stands in for a virtual machine: a namespace whose card's frames go to and from a slot's TAP. Or for an engine
/// that takes a link: then it is the namespace of the slot's card.
pub(crate) struct Guest {
    pub(crate) namespace: OwnedFd,
    card: Option<OwnedFd>,
    wire: Option<Wire>,
}

/// Copies frames between two TAPs until it is dropped.
struct Wire {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
    tap: OwnedFd,
}

impl Wire {
    fn new(card: OwnedFd, tap: OwnedFd) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, end) = (Arc::clone(&stop), tap.try_clone().expect("can be"));
        let thread = thread::spawn(move || {
            let mut frame = vec![0; 65536];
            while !stopped.load(Ordering::Acquire) {
                let mut ready = [PollFd::new(&card, PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
                let tick = rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                if rustix::event::poll(&mut ready, Some(&tick)).is_err() {
                    continue;
                }
                for (from, to) in [(&card, &end), (&end, &card)] {
                    while let Ok(length) = rustix::io::read(from, &mut frame) {
                        let _ = rustix::io::write(to, &frame[..length]);
                    }
                }
            }
        });
        Self { stop, thread: Some(thread), tap }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

impl Guest {
    /// A program in the namespace of a slot's card.
    pub(crate) fn within(slot: &Slot) -> Self {
        let namespace = slot.card_namespace().expect("is a link");
        Self { namespace: std::fs::File::open(namespace).expect("is mounted").into(), card: None, wire: None }
    }

    pub(crate) fn new(slot: &Slot) -> Self {
        let namespace = new_namespace();
        let card = at(&namespace, || {
            let card = wakeful_sys::net::open_tap("eth0").expect("can be made");
            // It would greet routers that are not there.
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1");
            output(
                "ip link set lo up; ip link set eth0 address 02:00:00:00:00:02; ip address add 192.0.0.2/29 dev eth0",
            );
            output("ip link set eth0 up; ip route add default via 192.0.0.1");
            card
        });
        let mut guest = Self { namespace, card: Some(card), wire: None };
        guest.plug(slot);
        guest
    }

    /// Wires the card to another slot, as a wake does.
    pub(crate) fn plug(&mut self, slot: &Slot) {
        self.wire = None;
        let tap = slot.take_tap().expect("was not taken");
        let card = self.card.as_ref().expect("is a virtual machine");
        self.wire = Some(Wire::new(card.try_clone().expect("can be"), tap));
    }

    pub(crate) fn unplug(&mut self) {
        self.wire = None;
    }

    /// Sends a frame that the guest's own system would not.
    pub(crate) fn inject(&self, frame: &[u8]) {
        let wire = self.wire.as_ref().expect("is plugged");
        rustix::io::write(&wire.tap, frame).expect("is open");
    }

    pub(crate) fn connect(&self, address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
        at(&self.namespace, || {
            let stream = TcpStream::connect_timeout(&SocketAddrV4::new(address, port).into(), SOON)?;
            stream.set_read_timeout(Some(SOON))?;
            stream.set_write_timeout(Some(SOON))?;
            Ok(stream)
        })
    }

    pub(crate) fn udp(&self, address: Ipv4Addr, port: u16) -> io::Result<UdpSocket> {
        at(&self.namespace, || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect((address, port))?;
            socket.set_read_timeout(Some(SOON))?;
            Ok(socket)
        })
    }

    /// Whether a TCP server answers; what is refused is refused soon.
    pub(crate) fn reaches(&self, address: Ipv4Addr, port: u16) -> bool {
        let begun = Instant::now();
        let answer = self.connect(address, port).and_then(|mut stream| ping(&mut stream));
        assert!(answer.is_ok() || begun.elapsed() < SOON, "hangs: {answer:?}");
        answer.is_ok()
    }

    /// Whether a UDP server answers; what is refused is refused soon.
    pub(crate) fn reaches_by_udp(&self, address: Ipv4Addr, port: u16) -> bool {
        let begun = Instant::now();
        let answer = self.udp(address, port).and_then(|socket| exchange(&socket, b"hello"));
        assert!(answer.is_ok() || begun.elapsed() < SOON, "hangs: {answer:?}");
        answer.is_ok()
    }

    pub(crate) fn pings(&self, address: Ipv4Addr) -> bool {
        at(&self.namespace, || {
            let status = Command::new("ping").args(["-c1", "-W1", "-q", &address.to_string()]).output();
            status.expect("iputils-ping is installed").status.success()
        })
    }
}

pub(crate) fn ping(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"hello")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    if &answer == b"hello" { Ok(()) } else { Err(io::Error::other("another answer")) }
}

pub(crate) fn exchange(socket: &UdpSocket, message: &[u8]) -> io::Result<()> {
    socket.send(message)?;
    let mut answer = vec![0; 65536];
    let length = socket.recv(&mut answer)?;
    if &answer[..length] == message { Ok(()) } else { Err(io::Error::other("another answer")) }
}

pub(crate) fn was_denied(account: &Account, reason: Reason, address: Ipv4Addr, protocol: u8, port: u16) -> bool {
    account.denied.iter().any(|denied| {
        (denied.reason, denied.address, denied.protocol, denied.port) == (reason, Some(address), protocol, port)
            && denied.traffic.packets > 0
    })
}

/// Waits until something holds.
pub(crate) async fn wait_for(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
