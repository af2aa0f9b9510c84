//! The guests' way out: which slot a sandbox is plugged into, who answers its names, and what it sent.
//!
//! ```text
//!   create, wake   a slot with the sandbox's rules ─▶ the engine's card    names are answered before the guest runs
//!   change         one transaction; what it forbids is cut at once         if that fails the slot goes: closed, not open
//!   engine gone    what it sent is added up ─▶ the slot goes
//!   daemon killed  slots stay, traffic goes on ─▶ the next start finds them by the sandbox's id
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use tracing::{error, warn};
use wakeful_driver::Card;
use wakeful_guest_proto::card;
use wakeful_model::{Egress, Rules, Sandbox, SandboxId};
use wakeful_names::{Gate, Gatekeeper, Limits, Sockets, Upstream};
use wakeful_net::{Reason, Slot};

use crate::lifecycle::error_chain;
use crate::{Error, Lifecycle};

/// What was refused is remembered for at most so many destinations of a sandbox.
const REMEMBERED: usize = 1000;

/// What gives guests a network.
#[derive(Clone)]
pub struct Network {
    /// Slots.
    pub slots: wakeful_net::Network,
    /// Where guests' questions for names go.
    pub upstream: Arc<Upstream>,
}

/// All slots that are in use.
#[derive(Default)]
pub(crate) struct Uplinks {
    network: Option<Network>,
    plugged: Mutex<HashMap<SandboxId, Arc<Uplink>>>,
    /// What sandboxes sent before they slept last.
    past: Mutex<HashMap<SandboxId, Traffic>>,
    /// What those sent that are no more; how much was blocked, not what.
    gone: Mutex<(u64, u64, u64)>,
}

struct Uplink {
    slot: Slot,
    /// Taken when it ends.
    keeper: tokio::sync::Mutex<Option<Gatekeeper>>,
}

/// What left, what came back, what was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that left.
    pub bytes_out: u64,
    /// Bytes that came back.
    pub bytes_in: u64,
    /// How often each was refused.
    pub blocked: HashMap<Attempt, u64>,
}

/// Something that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// What stopped it.
    pub reason: String,
    /// Where to.
    pub to: Target,
    /// Whether any policy could allow it.
    pub allowable: bool,
}

/// Where something was to go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address.
    Address {
        /// The address; none if it was no packet of IPv4.
        address: Option<Ipv4Addr>,
        /// Number of the protocol.
        protocol: u8,
        /// Its port; zero if it has none.
        port: u16,
    },
    /// A host.
    Name(String),
}

/// A policy, and what came of it.
#[derive(Clone, Debug)]
pub struct EgressReport {
    /// The policy that holds.
    pub egress: Egress,
    /// What it let through and what not.
    pub traffic: Traffic,
}

impl Traffic {
    fn add(&mut self, other: Self) {
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
        for (attempt, count) in other.blocked {
            if self.blocked.len() < REMEMBERED || self.blocked.contains_key(&attempt) {
                *self.blocked.entry(attempt).or_default() += count;
            }
        }
    }
}

impl Uplinks {
    pub(crate) fn new(network: Option<Network>) -> Self {
        Self { network, ..Self::default() }
    }

    /// Whether guests have a network at all.
    pub(crate) fn any(&self) -> bool {
        self.network.is_some()
    }

    fn plugged(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Uplink>>> {
        self.plugged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past(&self) -> MutexGuard<'_, HashMap<SandboxId, Traffic>> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &SandboxId) -> Option<Arc<Uplink>> {
        self.plugged().get(id).cloned()
    }

    /// Somebody answers the slot's names, and it is known by its sandbox.
    fn keep(&self, network: &Network, row: &Sandbox, slot: Slot, rules: Rules) -> io::Result<()> {
        let at = |port| SocketAddrV4::new(card::GATEWAY, port);
        let sockets = Sockets {
            dns_udp: slot.bind_udp(at(53))?,
            dns_tcp: slot.bind_tcp(at(53))?,
            proxy: slot.bind_tcp(at(wakeful_net::PROXY_PORT))?,
        };
        let gate = Arc::new(SlotGate(slot.clone()));
        let keeper = Gatekeeper::start(sockets, rules, gate, Arc::clone(&network.upstream), Limits::default())?;
        let uplink = Uplink { slot, keeper: tokio::sync::Mutex::new(Some(keeper)) };
        self.plugged().insert(row.id.clone(), Arc::new(uplink));
        Ok(())
    }

    /// A slot for a sandbox that is about to run.
    pub(crate) async fn plug(&self, row: &Sandbox) -> Result<Card, Error> {
        let Some(network) = &self.network else { return Ok(Card::Unplugged) };
        self.unplug(&row.id).await;
        let rules = row.egress.rules();
        let slot = network.slots.take(row.id.bare(), &rules).await?;
        let tap = slot.take_tap();
        if let Err(error) = self.keep(network, row, slot.clone(), rules) {
            slot.release().await;
            return Err(Error::Io { doing: "answer a sandbox's names".to_owned(), source: error });
        }
        Ok(tap.map_or(Card::Unplugged, Card::Tap))
    }

    /// Finds the slot of a sandbox whose engine was found.
    pub(crate) async fn adopt(&self, row: &Sandbox) {
        let Some(network) = &self.network else { return };
        let rules = row.egress.rules();
        let adopted = async {
            let Some(slot) = network.slots.adopt(row.id.bare()).await? else { return Ok(false) };
            slot.apply(&rules).await?;
            self.keep(network, row, slot, rules)
                .map_err(|source| Error::Io { doing: "answer a sandbox's names".to_owned(), source })?;
            Ok::<_, Error>(true)
        };
        match adopted.await {
            Ok(true) => {}
            Ok(false) => warn!(sandbox_id = %row.id, "its network is gone; it comes back with the next wake"),
            Err(error) => {
                error!(sandbox_id = %row.id, error = error_chain(&error), "could not go on with its network");
            }
        }
    }

    /// Removes the slots of everybody else: those of a daemon that was killed.
    pub(crate) async fn sweep(&self) -> Result<(), Error> {
        let Some(network) = &self.network else { return Ok(()) };
        let known: Vec<String> = self.plugged().keys().map(|id| id.bare().to_owned()).collect();
        Ok(network.slots.sweep(|owner| known.iter().any(|id| id == owner)).await?)
    }

    /// A policy that has changed. If it cannot be had, there is no network rather than the old one.
    pub(crate) async fn steer(&self, row: &Sandbox) -> Result<(), Error> {
        let Some(uplink) = self.get(&row.id) else { return Ok(()) };
        let rules = row.egress.rules();
        if let Err(error) = uplink.slot.apply(&rules).await {
            self.unplug(&row.id).await;
            return Err(error.into());
        }
        if let Some(keeper) = &*uplink.keeper.lock().await {
            keeper.change(rules);
        }
        Ok(())
    }

    /// Gives the slot back. Fine twice.
    pub(crate) async fn unplug(&self, id: &SandboxId) {
        let Some(uplink) = self.plugged().remove(id) else { return };
        let sent = uplink.traffic().await;
        self.past().entry(id.clone()).or_default().add(sent);
        if let Some(keeper) = uplink.keeper.lock().await.take() {
            keeper.stop().await;
        }
        uplink.slot.clone().release().await;
    }

    /// Ends what the daemon keeps ready. Slots in use stay, and so does what they send.
    pub(crate) async fn close(&self) {
        let Some(network) = &self.network else { return };
        network.slots.close().await;
    }

    /// Nobody will ask for it again.
    pub(crate) fn forget(&self, id: &SandboxId) {
        if let Some(past) = self.past().remove(id) {
            let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
            let blocked: u64 = past.blocked.values().sum();
            *gone = (gone.0 + past.bytes_out, gone.1 + past.bytes_in, gone.2 + blocked);
        }
    }

    /// What all sandboxes sent since the daemon started; of what was blocked, the sum.
    pub(crate) async fn all_traffic(&self) -> Traffic {
        let (mut bytes_out, mut bytes_in, mut blocked) = *self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let mut add = |one: &Traffic| {
            bytes_out += one.bytes_out;
            bytes_in += one.bytes_in;
            blocked += one.blocked.values().sum::<u64>();
        };
        self.past().values().for_each(&mut add);
        let now: Vec<_> = self.plugged().values().cloned().collect();
        let now = futures_util::stream::iter(now).map(|uplink| async move { uplink.traffic().await });
        // Each is a program of its own, and there are few processors.
        now.buffer_unordered(4).collect::<Vec<_>>().await.iter().for_each(&mut add);
        let sum = Attempt { reason: String::new(), to: Target::Name(String::new()), allowable: false };
        Traffic { bytes_out, bytes_in, blocked: HashMap::from([(sum, blocked)]) }
    }

    async fn traffic(&self, id: &SandboxId) -> Traffic {
        let mut sum = self.past().get(id).cloned().unwrap_or_default();
        if let Some(uplink) = self.get(id) {
            sum.add(uplink.traffic().await);
        }
        sum
    }
}

impl Uplink {
    async fn traffic(&self) -> Traffic {
        let account = self.slot.account().await.unwrap_or_else(|error| {
            warn!(error = error_chain(&error), "could not read what a sandbox sent");
            wakeful_net::Account::default()
        });
        let mut blocked: HashMap<Attempt, u64> = HashMap::new();
        for denied in account.denied {
            let to = Target::Address { address: denied.address, protocol: denied.protocol, port: denied.port };
            let attempt = Attempt { reason: denied.reason.to_string(), to, allowable: allowable(denied.reason) };
            *blocked.entry(attempt).or_default() += denied.traffic.packets;
        }
        if let Some(keeper) = &*self.keeper.lock().await {
            for refused in keeper.refused() {
                let reason = refused.what.to_string();
                let attempt = Attempt { reason, to: Target::Name(refused.name), allowable: true };
                *blocked.entry(attempt).or_default() += refused.count;
            }
        }
        Traffic { bytes_out: account.out.bytes, bytes_in: account.received.bytes, blocked }
    }
}

/// Whether a policy could let it through.
fn allowable(reason: Reason) -> bool {
    matches!(reason, Reason::Policy | Reason::DeniedRange | Reason::Private | Reason::Dns | Reason::Quic)
}

/// What a gatekeeper needs of its slot.
struct SlotGate(Slot);

#[async_trait]
impl Gate for SlotGate {
    async fn admit(&self, name: &str, address: Ipv4Addr, lifetime: Duration) -> io::Result<()> {
        match self.0.admit(name, &[address], lifetime).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::PermissionDenied.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn socket(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.0.tcp_socket()
    }
}

impl Lifecycle {
    /// What a sandbox may reach, and what it tried. Asking wakes nobody.
    ///
    /// # Errors
    /// If there is no such sandbox.
    pub async fn egress(&self, tenant: &str, id: &SandboxId) -> Result<EgressReport, Error> {
        let view = self.sandbox(tenant, id).await?;
        let traffic = self.inner.uplinks.traffic(&view.row.id).await;
        Ok(EgressReport { egress: view.row.egress, traffic })
    }
}
