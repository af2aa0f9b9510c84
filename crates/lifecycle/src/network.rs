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
use tokio_util::task::TaskTracker;
use tracing::{error, warn};
use wakeful_driver::{Card, CardKind, Driver, Veth};
use wakeful_guest_proto::card;
use wakeful_model::{Egress, EgressMode, Rules, Sandbox, SandboxId};
use wakeful_names::{Gate, Gatekeeper, Limits, Refused, Sockets, Upstream};
use wakeful_net::{Account, Reason, Slot};

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
    ledger: Arc<Mutex<Ledger>>,
    /// Last accounts that are being read.
    reading: TaskTracker,
}

/// What went through slots that are no more.
#[derive(Default)]
struct Ledger {
    /// Of sandboxes that are there, by their id.
    past: HashMap<SandboxId, Traffic>,
    /// Of those that are not: bytes out, bytes in, and how much was blocked.
    gone: (u64, u64, u64),
}

impl Ledger {
    /// A last account. It may come after its sandbox has been forgotten.
    fn add(&mut self, id: &SandboxId, sent: Traffic) {
        match self.past.get_mut(id) {
            Some(past) => past.add(sent),
            None => self.bury(&sent),
        }
    }

    fn bury(&mut self, sent: &Traffic) {
        let blocked: u64 = sent.blocked.values().sum();
        let (bytes_out, bytes_in, before) = self.gone;
        self.gone = (bytes_out + sent.bytes_out, bytes_in + sent.bytes_in, before + blocked);
    }
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

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &SandboxId) -> Option<Arc<Uplink>> {
        self.plugged().get(id).cloned()
    }

    /// Somebody answers the slot's names, and it is known by its sandbox.
    fn keep(&self, network: &Network, id: &SandboxId, slot: Slot, rules: Rules) -> io::Result<()> {
        let at = |port| SocketAddrV4::new(card::GATEWAY, port);
        let sockets = Sockets {
            dns_udp: slot.bind_udp(at(53))?,
            dns_tcp: slot.bind_tcp(at(53))?,
            proxy: slot.bind_tcp(at(wakeful_net::PROXY_PORT))?,
        };
        let gate = Arc::new(SlotGate(slot.clone()));
        let keeper = Gatekeeper::start(sockets, rules, gate, Arc::clone(&network.upstream), Limits::default())?;
        let uplink = Uplink { slot, keeper: tokio::sync::Mutex::new(Some(keeper)) };
        self.plugged().insert(id.clone(), Arc::new(uplink));
        Ok(())
    }

    /// A slot for a sandbox that is about to run. Its rules come into force beside the start of its engine: before the
    /// guest runs, they must be [settled](Self::settled).
    pub(crate) async fn plug(&self, row: &Sandbox, driver: &dyn Driver) -> Result<Card, Error> {
        self.plug_as(&row.id, &row.egress, driver).await
    }

    /// The same for one that has no row.
    pub(crate) async fn plug_as(&self, id: &SandboxId, egress: &Egress, driver: &dyn Driver) -> Result<Card, Error> {
        let Some(network) = &self.network else { return Ok(Card::Unplugged) };
        self.unplug(id).await;
        let rules = egress.rules();
        let slot = network.slots.take(id.bare(), kind_for(driver), &rules).await?;
        self.plug_into(network, id, slot, rules).await
    }

    /// A slot for a guest that is nobody's yet: nothing leaves it, neither by itself nor by what answers its names, until it
    /// is [steered](Self::steer). Its rules are those that it will most likely have.
    pub(crate) async fn plug_shut(&self, id: &SandboxId, likely: &Egress, driver: &dyn Driver) -> Result<Card, Error> {
        let Some(network) = &self.network else { return Ok(Card::Unplugged) };
        self.unplug(id).await;
        let slot = network.slots.take_shut(id.bare(), kind_for(driver), &likely.rules()).await?;
        let nothing = Egress { mode: EgressMode::DenyAll, ..Egress::default() };
        self.plug_into(network, id, slot, nothing.rules()).await
    }

    async fn plug_into(&self, network: &Network, id: &SandboxId, slot: Slot, rules: Rules) -> Result<Card, Error> {
        let card = match slot.card_namespace() {
            Some(card) => Card::Veth(Veth { card, gateway: slot.namespace_file() }),
            None => slot.take_tap().map_or(Card::Unplugged, Card::Tap),
        };
        if let Err(error) = self.keep(network, id, slot.clone(), rules) {
            slot.release().await;
            return Err(Error::Io { doing: "answer a sandbox's names".to_owned(), source: error });
        }
        Ok(card)
    }

    /// Waits until the rules of its slot are in force. If they cannot be, nothing leaves it.
    pub(crate) async fn settled(&self, id: &SandboxId) -> Result<(), Error> {
        let Some(uplink) = self.get(id) else { return Ok(()) };
        Ok(uplink.slot.settled().await?)
    }

    /// Finds the slot of a sandbox whose engine was found.
    pub(crate) async fn adopt(&self, row: &Sandbox) {
        let Some(network) = &self.network else { return };
        let rules = row.egress.rules();
        let adopted = async {
            let Some(slot) = network.slots.adopt(row.id.bare()).await? else { return Ok(false) };
            slot.apply(&rules).await?;
            self.keep(network, &row.id, slot, rules)
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

    /// Removes the slots of everybody else: those of a daemon that was killed. What cannot be removed keeps nobody from
    /// starting; the next start tries again.
    pub(crate) async fn sweep(&self) {
        let Some(network) = &self.network else { return };
        let known: Vec<String> = self.plugged().keys().map(|id| id.bare().to_owned()).collect();
        if let Err(error) = network.slots.sweep(|owner| known.iter().any(|id| id == owner)).await {
            error!(error = error_chain(&error), "could not remove all network slots of before");
        }
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
        let keeper = uplink.keeper.lock().await.take();
        let refused = keeper.as_ref().map(Gatekeeper::refused).unwrap_or_default();
        if let Some(keeper) = keeper {
            keeper.stop().await;
        }
        // The slot is nobody's from here on. What it has counted takes a program to read, which no sleep waits for.
        let last = uplink.slot.clone().retire();
        self.ledger().past.entry(id.clone()).or_default();
        let (ledger, id) = (Arc::clone(&self.ledger), id.clone());
        self.reading.spawn(async move {
            let Ok(account) = last.await else { return };
            let sent = Traffic::of(account, refused);
            ledger.lock().unwrap_or_else(PoisonError::into_inner).add(&id, sent);
        });
    }

    /// Ends what the daemon keeps ready. Slots in use stay, and so does what they send.
    pub(crate) async fn close(&self) {
        let Some(network) = &self.network else { return };
        network.slots.close().await;
        // Their slots are gone by now.
        self.reading.close();
        self.reading.wait().await;
    }

    /// Nobody will ask for it again.
    pub(crate) fn forget(&self, id: &SandboxId) {
        let mut ledger = self.ledger();
        if let Some(past) = ledger.past.remove(id) {
            ledger.bury(&past);
        }
    }

    /// What all sandboxes sent since the daemon started; of what was blocked, the sum.
    pub(crate) async fn all_traffic(&self) -> Traffic {
        let (mut bytes_out, mut bytes_in, mut blocked) = self.ledger().gone;
        let mut add = |one: &Traffic| {
            bytes_out += one.bytes_out;
            bytes_in += one.bytes_in;
            blocked += one.blocked.values().sum::<u64>();
        };
        self.ledger().past.values().for_each(&mut add);
        let now: Vec<_> = self.plugged().values().cloned().collect();
        let now = futures_util::stream::iter(now).map(|uplink| async move { uplink.traffic().await });
        // Each is a program of its own, and there are few processors.
        now.buffer_unordered(4).collect::<Vec<_>>().await.iter().for_each(&mut add);
        let sum = Attempt { reason: String::new(), to: Target::Name(String::new()), allowable: false };
        Traffic { bytes_out, bytes_in, blocked: HashMap::from([(sum, blocked)]) }
    }

    async fn traffic(&self, id: &SandboxId) -> Traffic {
        let mut sum = self.ledger().past.get(id).cloned().unwrap_or_default();
        if let Some(uplink) = self.get(id) {
            sum.add(uplink.traffic().await);
        }
        sum
    }
}

impl Uplink {
    async fn traffic(&self) -> Traffic {
        let account = self.slot.account().await;
        let refused = self.keeper.lock().await.as_ref().map(Gatekeeper::refused).unwrap_or_default();
        Traffic::of(account, refused)
    }
}

impl Traffic {
    fn of(account: Result<Account, wakeful_net::Error>, refused: Vec<Refused>) -> Self {
        let account = account.unwrap_or_else(|error| {
            warn!(error = error_chain(&error), "could not read what a sandbox sent");
            Account::default()
        });
        let mut blocked: HashMap<Attempt, u64> = HashMap::new();
        for denied in account.denied {
            let to = Target::Address { address: denied.address, protocol: denied.protocol, port: denied.port };
            let attempt = Attempt { reason: denied.reason.to_string(), to, allowable: allowable(denied.reason) };
            *blocked.entry(attempt).or_default() += denied.traffic.packets;
        }
        for refused in refused {
            let reason = refused.what.to_string();
            let attempt = Attempt { reason, to: Target::Name(refused.name), allowable: true };
            *blocked.entry(attempt).or_default() += refused.count;
        }
        Self { bytes_out: account.out.bytes, bytes_in: account.received.bytes, blocked }
    }
}

/// Whether a policy could let it through.
fn allowable(reason: Reason) -> bool {
    matches!(reason, Reason::Policy | Reason::DeniedRange | Reason::Private | Reason::Dns | Reason::Quic)
}

/// What a slot must end in for the driver's engines.
fn kind_for(driver: &dyn Driver) -> wakeful_net::Kind {
    match driver.capabilities().card {
        CardKind::Tap => wakeful_net::Kind::Tap,
        CardKind::Veth => wakeful_net::Kind::Veth,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_account_finds_its_sandbox_or_its_grave() {
        let (id, sent) = (SandboxId::random(), Traffic { bytes_out: 5, ..Traffic::default() });
        let mut ledger = Ledger::default();
        ledger.past.insert(id.clone(), Traffic::default());
        ledger.add(&id, sent.clone());
        assert_eq!(ledger.past[&id].bytes_out, 5);
        let past = ledger.past.remove(&id).expect("is there");
        ledger.bury(&past);
        ledger.add(&id, sent);
        assert!(ledger.past.is_empty(), "what is forgotten stays forgotten");
        assert_eq!(ledger.gone, (10, 0, 0));
    }
}
