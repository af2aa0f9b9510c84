//! One guest's slot.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::sync::{OwnedRwLockWriteGuard, oneshot};
use wakeful_model::Rules;

use crate::account::{self, Account};
use crate::construct::Made;
use crate::inside::{inside, within};
use crate::network::{Kind, Shared};
use crate::{Error, compile, files, nft, pool, tables};

/// A network namespace in which one guest's card ends. Clones are the same slot.
#[derive(Clone)]
pub struct Slot(Arc<Inner>);

struct Inner {
    number: u32,
    shared: Arc<Shared>,
    namespace: Arc<OwnedFd>,
    kind: Kind,
    tap: Mutex<Option<OwnedFd>>,
    /// What is in force. Held while it is changed, also where nobody waits any more, so that changes come one after
    /// another.
    policy: Arc<tokio::sync::RwLock<Policy>>,
    /// What comes of the rules that it was taken for.
    settling: Mutex<Option<oneshot::Receiver<Result<(), Error>>>>,
    released: AtomicBool,
}

/// What is known of a slot's rules and of its way out: nothing after adoption, or after a change that failed.
#[derive(Debug, Default)]
struct Policy {
    rules: Option<Rules>,
    open: Option<bool>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("number", &self.0.number).finish_non_exhaustive()
    }
}

impl Slot {
    fn new(
        shared: Arc<Shared>,
        number: u32,
        namespace: OwnedFd,
        kind: Kind,
        tap: Option<OwnedFd>,
        policy: Policy,
    ) -> Self {
        Self(Arc::new(Inner {
            number,
            shared,
            namespace: Arc::new(namespace),
            kind,
            tap: Mutex::new(tap),
            policy: Arc::new(tokio::sync::RwLock::new(policy)),
            settling: Mutex::default(),
            released: AtomicBool::new(false),
        }))
    }

    /// One that was just made, for these rules, with its way out closed.
    pub(crate) fn made(shared: Arc<Shared>, number: u32, made: Made, rules: Rules) -> Self {
        let policy = Policy { rules: Some(rules), open: Some(false) };
        let kind = if made.tap.is_some() { Kind::Tap } else { Kind::Veth };
        Self::new(shared, number, made.namespace, kind, made.tap, policy)
    }

    /// One that an earlier daemon made.
    pub(crate) fn found(shared: Arc<Shared>, number: u32, namespace: OwnedFd) -> Self {
        let kind = if files::card(&shared.plan.run_dir, number).exists() { Kind::Veth } else { Kind::Tap };
        Self::new(shared, number, namespace, kind, None, Policy::default())
    }

    /// Its number, which no other slot of this network has at the same time.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// What the guest's card is to its engine.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The guest's card, for an engine that takes a [`Kind::Tap`]; once, and never after adoption, where the engine has
    /// it. It carries whole Ethernet frames with nothing before them, does not block, and is gone when it is closed.
    #[must_use]
    pub fn take_tap(&self) -> Option<OwnedFd> {
        self.0.tap.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The namespace that the guest's card lies in, for an engine that takes a [`Kind::Veth`]: a file to enter it by.
    /// The card is `eth0`; address, route and neighbour are set.
    #[must_use]
    pub fn card_namespace(&self) -> Option<PathBuf> {
        (self.0.kind == Kind::Veth).then(|| files::card(&self.0.shared.plan.run_dir, self.0.number))
    }

    /// A file to enter the slot's own namespace by, which outlives this process.
    #[must_use]
    pub fn namespace_file(&self) -> PathBuf {
        files::namespace(&self.0.shared.plan.run_dir, self.0.number)
    }

    /// The slot's own namespace.
    #[must_use]
    pub fn namespace(&self) -> BorrowedFd<'_> {
        self.0.namespace.as_fd()
    }

    /// Whether these rules are in force, as far as is known without waiting.
    pub(crate) fn has(&self, rules: &Rules) -> bool {
        self.0.policy.try_read().is_ok_and(|policy| policy.rules.as_ref() == Some(rules))
    }

    fn check(&self) -> Result<(), Error> {
        if self.0.released.load(Ordering::Acquire) {
            return Err(Error::Released { slot: self.0.number });
        }
        Ok(())
    }

    /// Puts another policy into force, at once and whole. What it no longer allows is cut, also where it is under way;
    /// the rest goes on. Connections to names go on as long as the rules about names are the same.
    ///
    /// # Errors
    /// The policy from before is in force then, unless the way out could not be opened or closed.
    ///
    /// # Cancel safety
    /// It is put into force all the same, before any that is asked for later.
    pub async fn apply(&self, rules: &Rules) -> Result<(), Error> {
        let policy = Arc::clone(&self.0.policy).write_owned().await;
        self.check()?;
        self.put(policy, rules, rules.allow_anything()).await
    }

    /// Puts rules into force in whose place the lock says nothing else may come.
    async fn put(&self, mut policy: OwnedRwLockWriteGuard<Policy>, rules: &Rules, open: bool) -> Result<(), Error> {
        let known = policy.rules.as_ref() == Some(rules);
        if known && policy.open == Some(open) {
            return Ok(());
        }
        let (shared, number, rules) = (Arc::clone(&self.0.shared), self.0.number, rules.clone());
        within(Arc::clone(&self.0.namespace), move || {
            let before = std::mem::take(&mut *policy);
            if !known {
                let (mark, changed) = shared.plan.remember_names(number, &rules)?;
                nft::apply("set a policy", &compile::policy(&rules, mark, changed))?;
            }
            if before.open != Some(open) {
                shared.plan.set_uplink(number, open)?;
            }
            *policy = Policy { rules: Some(rules), open: Some(open) };
            Ok(())
        })
        .await
    }

    /// Begins to put the rules into force that it was taken for. Its way out is closed meanwhile, and stays so unless `open`.
    pub(crate) async fn settle(&self, rules: &Rules, open: bool) {
        let policy = Arc::clone(&self.0.policy).write_owned().await;
        let (done, settled) = oneshot::channel();
        *self.0.settling.lock().unwrap_or_else(PoisonError::into_inner) = Some(settled);
        let (slot, rules) = (self.clone(), rules.clone());
        self.0.shared.tasks.spawn(async move {
            // Nobody asks if its caller has left, who gives it up then.
            let _ = done.send(slot.put(policy, &rules, open).await);
        });
    }

    /// Waits until the rules are in force that it was taken for, before which nothing leaves it. A guest had better not
    /// run yet: what it sends is lost, and sent again a second later.
    ///
    /// # Errors
    /// They cannot be put into force: nothing will leave it.
    pub async fn settled(&self) -> Result<(), Error> {
        let settling = self.0.settling.lock().unwrap_or_else(PoisonError::into_inner).take();
        match settling {
            Some(settling) => settling.await.unwrap_or(Err(Error::Closed)),
            None => Ok(()),
        }
    }

    /// Lets the guest begin connections to the addresses of a name for `lifetime`, if a rule that is in force allows
    /// the name; whether one does is the answer. What is begun in time goes on; asked again, the later lifetime holds.
    /// After adoption no rules are known, so none does, until a policy is applied.
    ///
    /// # Errors
    /// If the kernel refuses; the set holds 65536 addresses.
    pub async fn admit(&self, name: &str, addresses: &[Ipv4Addr], lifetime: Duration) -> Result<bool, Error> {
        // Held to the end, so that no address of an earlier policy comes after a change.
        let policy = Arc::clone(&self.0.policy).read_owned().await;
        self.check()?;
        if !policy.rules.as_ref().is_some_and(|rules| compile::allows_name(rules, name)) {
            return Ok(false);
        }
        let addresses: BTreeSet<_> = addresses.iter().copied().collect();
        if addresses.is_empty() {
            return Ok(true);
        }
        let milliseconds = lifetime.as_millis().clamp(1, 7 * 24 * 3600 * 1000);
        let list = |each: &dyn Fn(&Ipv4Addr) -> String| addresses.iter().map(each).collect::<Vec<_>>().join(", ");
        let (bare, timed) =
            (list(&Ipv4Addr::to_string), list(&|address| format!("{address} timeout {milliseconds}ms")));
        // Added first so that there is something to delete: an address that is there keeps its old lifetime otherwise.
        let script = format!(
            "add element inet wakeful names {{ {bare} }}\ndelete element inet wakeful names {{ {bare} }}\n\
             add element inet wakeful names {{ {timed} }}\n"
        );
        within(Arc::clone(&self.0.namespace), move || {
            let _in_force = policy;
            nft::apply("admit an address", &script)
        })
        .await?;
        Ok(true)
    }

    /// What passed since the slot was made, and what was refused.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub async fn account(&self) -> Result<Account, Error> {
        self.check()?;
        self.read_account().await
    }

    async fn read_account(&self) -> Result<Account, Error> {
        let plan = &self.0.shared.plan;
        let (table, own) = (tables::host_table(&plan.tag), pool::uplink(plan.pool, self.0.number).1);
        let here = within(Arc::clone(&self.0.namespace), || nft::list(&["ruleset"]));
        let host = within(Arc::clone(&plan.host), move || nft::list(&["set", "inet", &table, "denied"]));
        let (here, host) = tokio::join!(here, host);
        let mut account = account::read(&here?)?;
        let is_neighbour = |address: Ipv4Addr| {
            format!("{address}/32").parse().is_ok_and(|one: wakeful_model::Cidr| one.is_inside(plan.pool))
        };
        account.denied.extend(account::read_host(&host?, own, is_neighbour)?);
        Ok(account)
    }

    fn socket<T: Send>(&self, make: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        inside(self.namespace(), || Ok(make())).map_err(io::Error::other)?
    }

    /// A UDP socket in the slot.
    ///
    /// # Errors
    /// As `bind`.
    pub fn bind_udp(&self, address: SocketAddrV4) -> io::Result<UdpSocket> {
        self.socket(|| UdpSocket::bind(address))
    }

    /// A listening TCP socket in the slot.
    ///
    /// # Errors
    /// As `bind` and `listen`.
    pub fn bind_tcp(&self, address: SocketAddrV4) -> io::Result<TcpListener> {
        self.socket(|| TcpListener::bind(address))
    }

    /// A TCP socket in the slot that does not block and is not connected yet. What it connects to is held to the
    /// policy's ranges; names are for its user to check.
    ///
    /// # Errors
    /// As `socket`.
    pub fn tcp_socket(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.socket(|| Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?))
    }

    /// Gives the slot up: it is nobody's at once, and taken down in the background. Twice is fine; what fails is left
    /// to [`crate::Network::sweep`].
    pub async fn release(self) {
        self.give_up();
    }

    /// [`Slot::release`], with the last account, which is read before the slot is taken down; nobody waits for it meanwhile.
    /// None comes of a slot that was released before.
    #[must_use]
    pub fn retire(self) -> oneshot::Receiver<Result<Account, Error>> {
        let (told, last) = oneshot::channel();
        let slot = self.clone();
        self.give_up_after(async move {
            let _ = told.send(slot.read_account().await);
        });
        last
    }

    pub(crate) fn give_up(&self) {
        self.give_up_after(std::future::ready(()));
    }

    fn give_up_after(&self, last: impl Future<Output = ()> + Send + 'static) {
        if self.0.released.swap(true, Ordering::AcqRel) {
            return;
        }
        drop(self.take_tap());
        let (shared, number) = (Arc::clone(&self.0.shared), self.0.number);
        // Gone first, so that a daemon that starts now finds no second slot of this owner.
        let owner = files::owner_file(&shared.plan.run_dir, number);
        if let Err(error) = files::remove(&owner) {
            tracing::warn!(slot = number, %error, "could not disown a network slot");
        }
        // A change that is under way writes where nothing may be left. Who waits for its turn finds the slot released.
        let policy = Arc::clone(&self.0.policy);
        Shared::destroy_after(&shared, number, async move {
            drop(policy.write_owned().await);
            last.await;
        });
    }
}
