//! A connection to a port inside that outlives a sleep of its sandbox.
//!
//! ```text
//!   attached ──carrier lost──▶ parked ──client said something: wake──▶ attached
//!      │                         └──somebody else woke it────────────▶    │
//!      └── ended, broken, nobody needs it ──▶ over ◀── destroyed, failed, cold boot, daemon ends ──┘
//! ```
//!
//! Parked, it holds nothing awake and asks nothing of the sandbox.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;
use wakeful_guest_client::{Error as GuestError, Opened, Tunnel, TunnelId};
use wakeful_lifecycle::{Access, Use};
use wakeful_tunnel::{End, Line};

use crate::Error;
use crate::forward::{Gateway, Place};

/// The agent connects within five seconds or says why not; under emulation it may be slow to begin.
const CONNECT: Duration = Duration::from_secs(20);
/// Between the HTTP connection and the line.
const BUFFER: usize = 64 * 1024;

/// Whether bytes keep the sandbox awake, and how they do it.
pub(crate) struct Pulse {
    /// Every byte counts; else somebody who understands them says which do.
    every_byte: AtomicBool,
    access: Mutex<Access>,
}

impl Pulse {
    /// Something went through.
    pub(crate) fn touch(&self) {
        self.access.lock().unwrap_or_else(PoisonError::into_inner).touch();
    }

    /// From now on only [`touch`](Self::touch) counts.
    pub(crate) fn only_when_told(&self) {
        self.every_byte.store(false, Ordering::Relaxed);
    }

    fn moved(&self) {
        if self.every_byte.load(Ordering::Relaxed) {
            self.touch();
        }
    }
}

/// An open connection.
pub(crate) struct Open {
    /// Its bytes.
    pub(crate) stream: DuplexStream,
    /// Whether the sandbox is at the other end at the moment.
    pub(crate) attached: watch::Receiver<bool>,
    pub(crate) pulse: Arc<Pulse>,
    /// Dropped: nobody needs it any more.
    pub(crate) needed: DropGuard,
    /// Cancelled when it is over by itself.
    pub(crate) over: CancellationToken,
}

fn addresses(port: u16) -> [SocketAddr; 2] {
    [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))]
}

/// Connects to whichever loopback address the service listens on.
pub(crate) async fn open(gateway: &Gateway, place: &Place, access: &Access) -> Result<Open, Error> {
    let mut name = [0; 16];
    getrandom::fill(&mut name).map_err(|error| wakeful_lifecycle::Error::Internal(error.to_string()))?;
    let id = TunnelId(name);
    for address in addresses(place.port) {
        match access.open_tunnel(address, id, CONNECT).await {
            Ok(opened) => return Ok(start(gateway, place, access, Target { address, id }, opened)),
            Err(GuestError::Refused { errno: Some(_), .. }) => {}
            Err(error) => return Err(access.explain(error).await.into()),
        }
    }
    Err(Error::NotOpen { id: place.id.clone(), port: place.port })
}

#[derive(Clone, Copy)]
struct Target {
    address: SocketAddr,
    id: TunnelId,
}

fn start(gateway: &Gateway, place: &Place, access: &Access, target: Target, opened: Opened) -> Open {
    let (stream, local) = duplex(BUFFER);
    let (telling, attached) = watch::channel(true);
    let pulse = Arc::new(Pulse { every_byte: AtomicBool::new(true), access: Mutex::new(access.stream()) });
    let (unneeded, over) = (CancellationToken::new(), CancellationToken::new());
    let needed = unneeded.clone().drop_guard();
    let ended = over.clone().drop_guard();
    let keeper = Keeper { gateway: gateway.clone(), place: place.clone(), target, pulse: Arc::clone(&pulse), telling };
    let access = access.stream();
    gateway.tasks.spawn(unneeded.run_until_cancelled_owned(async move {
        let _ended = ended;
        match opened {
            Opened::Kept(tunnel) => keeper.keep(access, tunnel, local).await,
            Opened::Plain(tunnel) => copy(&keeper.pulse, &access, tunnel, local).await,
        }
    }));
    Open { stream, attached, pulse, needed, over }
}

/// Goes on with one carrier after the other.
struct Keeper {
    gateway: Gateway,
    place: Place,
    target: Target,
    pulse: Arc<Pulse>,
    telling: watch::Sender<bool>,
}

impl Keeper {
    async fn keep(self, mut access: Access, mut carrier: Tunnel, local: DuplexStream) {
        let (mut from, mut to) = split(local);
        let mut line = Line::default();
        let mut service_has = 0;
        let moved = || self.pulse.moved();
        loop {
            let end = tokio::select! {
                end = line.carry(&mut from, &mut to, carrier, service_has, std::future::pending(), &moved) => end,
                () = access.draining() => return,
            };
            if end != End::Lost {
                return;
            }
            self.telling.send_replace(false);
            debug!(sandbox_id = %self.place.id, port = self.place.port, "a connection to a service waits for its sandbox");
            if !self.wait(&mut line, &mut from, &access).await {
                return;
            }
            match self.attach(&line).await {
                Some((again, with, has)) => (access, carrier, service_has) = (again, with, has),
                None => return,
            }
            *self.pulse.access.lock().unwrap_or_else(PoisonError::into_inner) = access.stream();
            self.telling.send_replace(true);
        }
    }

    /// Until there is a reason to go back: the client has said something, or the sandbox runs anyway. False if there will be
    /// none.
    async fn wait(&self, line: &mut Line, from: &mut (impl AsyncRead + Unpin), access: &Access) -> bool {
        if line.has_unconfirmed() {
            return true;
        }
        if line.has_ended() {
            // It only listens.
            return tokio::select! {
                running = self.gateway.lifecycle.running(&self.place.id) => running.is_ok(),
                () = access.draining() => false,
            };
        }
        tokio::select! {
            running = self.gateway.lifecycle.running(&self.place.id) => running.is_ok(),
            // Who hangs up on a sleeping sandbox does not wake it for that: its agent gives the socket up after the wake.
            said = line.fill(from) => said.is_ok() && !line.has_ended(),
            () = access.draining() => false,
        }
    }

    /// Wakes the sandbox if it sleeps.
    async fn attach(&self, line: &Line) -> Option<(Access, Tunnel, u64)> {
        let Place { tenant, id, .. } = &self.place;
        let attached = async {
            let access = self.gateway.lifecycle.access(tenant, id, Use::Stream).await.map_err(|e| e.to_string())?;
            let Target { address, id } = self.target;
            let resumed = access.resume_tunnel(address, id, line.received(), CONNECT).await;
            let (tunnel, has) = resumed.map_err(|error| error.to_string())?;
            Ok::<_, String>((access, tunnel, has))
        };
        match attached.await {
            Ok(attached) => Some(attached),
            Err(error) => {
                debug!(sandbox_id = %id, port = self.place.port, error, "a connection to a service did not survive");
                None
            }
        }
    }
}

/// An older agent's tunnel ends with the channel.
async fn copy(pulse: &Pulse, access: &Access, tunnel: Tunnel, local: DuplexStream) {
    let (from_client, to_client) = split(local);
    let (from_service, to_service) = split(tunnel);
    let both = async { tokio::join!(pipe(from_client, to_service, pulse), pipe(from_service, to_client, pulse)) };
    tokio::select! {
        _ = both => {}
        () = access.draining() => {}
    }
}

async fn pipe(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, pulse: &Pulse) {
    let mut buffer = vec![0; BUFFER / 2];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        pulse.moved();
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
