//! One sandbox's gate, from its first packet to its last.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wakeful_model::Rules;

use crate::book::Book;
use crate::dns::{self, Upstream};
use crate::policy::Policy;
use crate::proxy;
use crate::refusals::{Refusals, Refused};

/// Bound sockets that the guest reaches.
#[derive(Debug)]
pub struct Sockets {
    /// The resolver's. Bound to the gateway's own address, so that answers come from where they were asked.
    pub dns_udp: std::net::UdpSocket,
    /// The resolver's, for long answers.
    pub dns_tcp: std::net::TcpListener,
    /// Where the guest's connections are redirected to.
    pub proxy: std::net::TcpListener,
}

/// What the owner of a sandbox's network does for its gatekeeper.
#[async_trait::async_trait]
pub trait Gate: Send + Sync {
    /// Opens an address of a name in the packet filter, if the rules in force there still allow the name. The resolver's answer is sent when this returns, and not at all if it
    /// fails. Called again before `lifetime` is over if the name is asked for again.
    async fn admit(&self, name: &str, address: Ipv4Addr, lifetime: Duration) -> io::Result<()>;

    /// A TCP socket (IPv4, not connected) from which the outside is reached.
    fn socket(&self) -> io::Result<OwnedFd>;

    /// Where an accepted connection was going before it was redirected.
    fn destination(&self, accepted: BorrowedFd<'_>) -> io::Result<SocketAddrV4> {
        wakeful_sys::origdst::original_destination(accepted)
    }
}

/// How much of everything, and how long.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Questions under way; more are dropped, and clients ask again.
    pub questions: usize,
    /// Connections to the resolver.
    pub dns_connections: usize,
    /// How long such a connection may say nothing.
    pub dns_idle: Duration,
    /// Connections through the proxy; more are reset.
    pub connections: usize,
    /// How long a client may take to say whom it wants.
    pub hello: Duration,
    /// How long a client that may do so says nothing before the server is let speak first.
    pub quiet: Duration,
    /// How long connecting may take.
    pub connect: Duration,
    /// How long a connection may be without a byte.
    pub idle: Duration,
    /// How long it is remembered which names an address was given for.
    pub remembered: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            questions: 64,
            dns_connections: 16,
            dns_idle: Duration::from_secs(10),
            connections: 256,
            hello: Duration::from_secs(10),
            quiet: Duration::from_millis(500),
            connect: Duration::from_secs(10),
            idle: Duration::from_hours(1),
            remembered: Duration::from_hours(1),
        }
    }
}

/// What all tasks of one gatekeeper know.
pub(crate) struct Shared {
    pub(crate) policy: watch::Sender<Arc<Policy>>,
    pub(crate) gate: Arc<dyn Gate>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) book: Book,
    pub(crate) refusals: Refusals,
    pub(crate) limits: Limits,
    pub(crate) tasks: TaskTracker,
    pub(crate) end: CancellationToken,
}

impl Shared {
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.borrow().clone()
    }
}

/// The resolver and the proxy of one sandbox. Ends when dropped; [`Gatekeeper::stop`] also waits until all has ended.
pub struct Gatekeeper {
    shared: Arc<Shared>,
}

impl Gatekeeper {
    /// Begins to answer. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the sockets cannot be used.
    pub fn start(
        sockets: Sockets,
        rules: Rules,
        gate: Arc<dyn Gate>,
        upstream: Arc<Upstream>,
        limits: Limits,
    ) -> io::Result<Self> {
        sockets.dns_udp.set_nonblocking(true)?;
        sockets.dns_tcp.set_nonblocking(true)?;
        sockets.proxy.set_nonblocking(true)?;
        let udp = tokio::net::UdpSocket::from_std(sockets.dns_udp)?;
        let tcp = tokio::net::TcpListener::from_std(sockets.dns_tcp)?;
        let proxy = tokio::net::TcpListener::from_std(sockets.proxy)?;
        let shared = Arc::new(Shared {
            policy: watch::Sender::new(Arc::new(Policy::new(rules))),
            gate,
            upstream,
            book: Book::new(limits.remembered),
            refusals: Refusals::default(),
            limits,
            tasks: TaskTracker::new(),
            end: CancellationToken::new(),
        });
        dns::serve(&shared, udp, tcp);
        proxy::serve(&shared, proxy);
        Ok(Self { shared })
    }

    /// Puts other rules in force. Connections that they do not allow are reset at once; every address is admitted
    /// anew with the next answer that names it, so the packet filter may be emptied.
    pub fn change(&self, rules: Rules) {
        self.shared.policy.send_replace(Arc::new(Policy::new(rules)));
        self.shared.book.forget_admissions();
    }

    /// What was refused, the latest first; at most 256 entries.
    #[must_use]
    pub fn refused(&self) -> Vec<Refused> {
        self.shared.refusals.list()
    }

    /// Ends everything and waits for it; the sockets are closed then.
    pub async fn stop(self) {
        self.shared.end.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for Gatekeeper {
    fn drop(&mut self) {
        self.shared.end.cancel();
        self.shared.tasks.close();
    }
}
