//! The slots of one daemon.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wakeful_model::{Cidr, EgressVerdict, Rules};

use crate::construct::Plan;
use crate::inside::{apart, inside, within};
use crate::links::{self, Links};
use crate::ranges::Ranges;
use crate::{Error, Slot, files, nft, pool, tables};

/// How long after a failure the next ready slot is tried.
const PAUSE: Duration = Duration::from_secs(5);

/// What one guest may use at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes per second that it sends.
    pub bytes_per_second_up: Option<u64>,
    /// Bytes per second that it is sent.
    pub bytes_per_second_down: Option<u64>,
    /// Connections at once, as the kernel tracks them.
    pub connections: Option<u32>,
}

/// What a guest's card is to its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A descriptor that frames are read from and written to, for a virtual machine.
    #[default]
    Tap,
    /// A link in a namespace that the engine enters, for one that has its own stack and no hardware.
    Veth,
}

/// How a network is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where slots are remembered; on a file system that is empty after a boot, as `/run` is.
    pub run_dir: PathBuf,
    /// Five hexadecimal digits that tell this daemon's links and tables from another's.
    pub tag: String,
    /// The range that uplinks are numbered from; picked if not given.
    pub pool: Option<Cidr>,
    /// Private ranges that are treated as the internet is.
    pub allow_private: Vec<Cidr>,
    /// How many slots are kept ready, of each kind that was asked for.
    pub ready: usize,
    /// The kind that will be asked for first.
    pub kind: Kind,
    /// What one guest may use.
    pub limits: Limits,
}

/// The slots of one daemon. Clones are the same network.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
    /// Ends the making of ready slots with the last clone.
    _stop: Arc<DropGuard>,
    turned_forwarding_on: bool,
}

/// Where a slot is between being made and gone. Those of an earlier daemon are `Found`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Found,
    Making,
    Ready,
    Taken,
    Leaving,
}

pub(crate) struct Shared {
    pub(crate) plan: Plan,
    numbers: Mutex<Numbers>,
    ready: Mutex<VecDeque<Slot>>,
    /// What the next ready slots of each kind are prepared for: what was asked for last.
    likely: Mutex<BTreeMap<Kind, Rules>>,
    wanted: usize,
    taken: Notify,
    pub(crate) tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Default)]
struct Numbers {
    phases: BTreeMap<u32, Phase>,
    /// Numbers are reused as late as can be: the host still knows connections of the last slots.
    next: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn claim(&self) -> Result<u32, Error> {
        let slots = pool::slots(self.plan.pool);
        let mut numbers = lock(&self.numbers);
        let from = numbers.next % slots;
        let free = (from..slots).chain(0..from).find(|number| !numbers.phases.contains_key(number));
        let number = free.ok_or(Error::Full { slots })?;
        numbers.phases.insert(number, Phase::Making);
        numbers.next = number + 1;
        Ok(number)
    }

    fn set_phase(&self, number: u32, phase: Option<Phase>) {
        let phases = &mut lock(&self.numbers).phases;
        match phase {
            Some(phase) => phases.insert(number, phase),
            None => phases.remove(&number),
        };
    }

    fn phase(&self, number: u32) -> Option<Phase> {
        lock(&self.numbers).phases.get(&number).copied()
    }

    async fn make(self: &Arc<Self>, kind: Kind, rules: Rules) -> Result<Slot, Error> {
        let number = self.claim()?;
        let shared = Arc::clone(self);
        let made = apart(move || {
            let made = shared.plan.make(number, kind, &rules);
            Ok((made?, rules))
        });
        let (made, rules) = match made.await {
            Ok(made) => made,
            Err(error) => {
                // Whatever of it is left is found by its directory.
                let left = files::directory(&self.plan.run_dir, number).exists();
                self.set_phase(number, left.then_some(Phase::Found));
                return Err(error);
            }
        };
        self.set_phase(number, Some(Phase::Ready));
        Ok(Slot::made(Arc::clone(self), number, made, rules))
    }

    async fn destroy(self: &Arc<Self>, number: u32) -> Result<(), Error> {
        self.set_phase(number, Some(Phase::Leaving));
        let shared = Arc::clone(self);
        let done = apart(move || shared.plan.destroy(number)).await;
        self.set_phase(number, done.is_err().then_some(Phase::Found));
        done
    }

    pub(crate) fn destroy_after(this: &Arc<Self>, number: u32, last: impl Future<Output = ()> + Send + 'static) {
        this.set_phase(number, Some(Phase::Leaving));
        let shared = Arc::clone(this);
        this.tasks.spawn(async move {
            last.await;
            if let Err(error) = shared.destroy(number).await {
                tracing::warn!(slot = number, %error, "could not remove a network slot; sweeping will");
            }
        });
    }

    /// Keeps slots ready until the network is closed. Only the queue is locked, and only to look or to add.
    async fn keep_ready(self: Arc<Self>) {
        loop {
            while let Some((kind, rules)) = self.lacks().filter(|_| !self.stop.is_cancelled()) {
                match self.make(kind, rules).await {
                    Ok(slot) => lock(&self.ready).push_back(slot),
                    Err(error) => {
                        tracing::warn!(%error, "could not make a network slot ready");
                        let _ = self.stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                    }
                }
            }
            if self.stop.run_until_cancelled(self.taken.notified()).await.is_none() {
                self.give_up_ready();
                return;
            }
        }
    }

    /// A kind of which too few are ready, and what for.
    fn lacks(&self) -> Option<(Kind, Rules)> {
        let ready: Vec<Kind> = lock(&self.ready).iter().map(Slot::kind).collect();
        let few = |kind: &Kind| ready.iter().filter(|one| *one == kind).count() < self.wanted;
        lock(&self.likely).iter().find(|(kind, _)| few(kind)).map(|(kind, rules)| (*kind, rules.clone()))
    }

    /// Those that are ready hold the network; with it gone, nobody takes them any more.
    fn give_up_ready(&self) {
        let ready: Vec<_> = lock(&self.ready).drain(..).collect();
        ready.iter().for_each(Slot::give_up);
    }

    /// A slot made for one caller. If that one leaves meanwhile, it is ready for the next.
    async fn make_apart(self: &Arc<Self>, kind: Kind, rules: &Rules) -> Result<Slot, Error> {
        let (done, made) = oneshot::channel();
        let (shared, rules) = (Arc::clone(self), rules.clone());
        self.tasks.spawn(async move {
            let slot = shared.make(kind, rules).await;
            if let Err(Ok(slot)) = done.send(slot) {
                lock(&shared.ready).push_back(slot);
            }
        });
        made.await.unwrap_or(Err(Error::Closed))
    }
}

/// A slot that is given up unless it is handed out.
struct Pending(Option<Slot>);

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.give_up();
        }
    }
}

/// What is found out about the host when a network is opened.
struct Ground {
    pool: Cidr,
    slots: Vec<u32>,
    turned_forwarding_on: bool,
}

/// Looks at the host and sets what all slots need of it. In the host's namespace; blocks.
fn prepare(options: &Options) -> Result<Ground, Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    nft::check()?;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .map_err(|source| Error::NoTun { source })?;
    std::fs::create_dir_all(&options.run_dir).map_err(Error::io("make", &options.run_dir))?;
    let slots = files::slots(&options.run_dir)?;
    let pool_file = options.run_dir.join("pool");
    let before =
        files::read(&pool_file)?.and_then(|text| text.parse::<Cidr>().ok()).and_then(|pool| pool::check(pool).ok());
    let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
    let pool = match before {
        Some(pool) if !slots.is_empty() => {
            if options.pool.is_some_and(|wanted| wanted.network() != pool) {
                tracing::warn!(%pool, "slots are numbered from the pool of before until all of them are gone");
            }
            pool
        }
        before => {
            let mut routes = links.routes().map_err(Error::link("list", "routes"))?;
            // Our own claim of before.
            routes.retain(|route| before.map(pool::route) != Some(*route));
            let pool = pool::pick(options.pool.or(before), &options.tag, &routes);
            // What was picked before may be taken by now.
            let pool = pool.or_else(|error| match options.pool {
                Some(_) => Err(error),
                None => pool::pick(None, &options.tag, &routes),
            })?;
            if let Some(before) = before.filter(|before| *before != pool) {
                links.unreserve(pool::route(before)).map_err(Error::link("remove the route of", before.to_string()))?;
            }
            files::write(&pool_file, &pool.to_string())?;
            pool
        }
    };
    let forward = "/proc/sys/net/ipv4/ip_forward";
    let turned_forwarding_on = std::fs::read_to_string(forward).map_err(Error::io("read", forward))?.trim() == "0";
    if turned_forwarding_on {
        std::fs::write(forward, "1").map_err(Error::io("set", forward))?;
        tracing::info!("turned net.ipv4.ip_forward on");
    }
    Ok(Ground { pool, slots, turned_forwarding_on })
}

impl Network {
    /// Opens the network in the calling thread's namespace, which is the host from then on. Slots of an earlier daemon
    /// are left as they are until they are adopted or swept.
    ///
    /// # Errors
    /// Says what is missing: root's rights, `nft`, TUN, a free range.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let host = wakeful_sys::net::current_network().map_err(|source| Error::Namespace { source })?;
        let host: Arc<OwnedFd> = Arc::new(host);
        let tag_is_sound = options.tag.len() == 5 && options.tag.bytes().all(|b| b.is_ascii_hexdigit());
        if !tag_is_sound {
            return Err(Error::InvalidTag { tag: options.tag });
        }
        let (wanted, kind, inner) = (options.ready, options.kind, Arc::clone(&host));
        let (ground, plan) = within(host, move || {
            let ground = prepare(&options)?;
            let plan = Plan {
                host: inner,
                run_dir: options.run_dir,
                tag: options.tag,
                pool: ground.pool,
                private: Ranges::private_but(&options.allow_private),
                limits: options.limits,
            };
            plan.set_host()?;
            Ok((ground, plan))
        })
        .await?;
        let phases: BTreeMap<_, _> = ground.slots.iter().map(|number| (*number, Phase::Found)).collect();
        let next = ground.slots.last().map_or(0, |last| last + 1);
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            plan,
            numbers: Mutex::new(Numbers { phases, next }),
            ready: Mutex::default(),
            likely: Mutex::new([(kind, Rules { list: Vec::new(), otherwise: EgressVerdict::Allow })].into()),
            wanted,
            taken: Notify::new(),
            tasks: TaskTracker::new(),
            stop: stop.clone(),
        });
        shared.tasks.spawn(Arc::clone(&shared).keep_ready());
        let turned_forwarding_on = ground.turned_forwarding_on;
        Ok(Self { shared, _stop: Arc::new(stop.drop_guard()), turned_forwarding_on })
    }

    /// The range that uplinks are numbered from.
    #[must_use]
    pub fn pool(&self) -> Cidr {
        self.shared.plan.pool
    }

    /// Whether the host did not forward packets before this was opened.
    #[must_use]
    pub fn turned_forwarding_on(&self) -> bool {
        self.turned_forwarding_on
    }

    /// How many slots are ready now.
    #[must_use]
    pub fn ready(&self) -> usize {
        lock(&self.shared.ready).len()
    }

    /// Hands out a slot for `rules`. They are in force, and its way out is open, once it is [settled](Slot::settled);
    /// until then nothing leaves it. So taking one that is ready costs a file, and the rest goes on beside the start of
    /// an engine. If none is ready, one is made.
    ///
    /// # Errors
    /// If the pool is used up, or the kernel refuses.
    ///
    /// # Cancel safety
    /// What was begun is given up.
    pub async fn take(&self, owner: &str, kind: Kind, rules: &Rules) -> Result<Slot, Error> {
        self.hand_out(owner, kind, rules, rules.allow_anything()).await
    }

    /// [`Network::take`], save that its way out stays closed until a policy is [applied](Slot::apply): for a guest that is
    /// nobody's yet. If that policy is the one it was taken for, it takes no program to apply it.
    ///
    /// # Errors
    /// As `take`.
    ///
    /// # Cancel safety
    /// As `take`.
    pub async fn take_shut(&self, owner: &str, kind: Kind, rules: &Rules) -> Result<Slot, Error> {
        self.hand_out(owner, kind, rules, false).await
    }

    async fn hand_out(&self, owner: &str, kind: Kind, rules: &Rules, open: bool) -> Result<Slot, Error> {
        if owner.is_empty() || owner.len() > 255 || owner.chars().any(char::is_control) {
            return Err(Error::InvalidOwner { owner: owner.to_owned() });
        }
        let shared = &self.shared;
        if shared.stop.is_cancelled() {
            return Err(Error::Closed);
        }
        lock(&shared.likely).insert(kind, rules.clone());
        let ready = {
            let mut ready = lock(&shared.ready);
            let fitting = ready.iter().position(|slot| slot.kind() == kind && slot.has(rules));
            let fitting = fitting.or_else(|| ready.iter().position(|slot| slot.kind() == kind));
            fitting.and_then(|fitting| ready.remove(fitting))
        };
        shared.taken.notify_one();
        let slot = match ready {
            Some(slot) => slot,
            None => shared.make_apart(kind, rules).await?,
        };
        let mut pending = Pending(Some(slot.clone()));
        let number = slot.number();
        let (file, owner) = (files::owner_file(&shared.plan.run_dir, number), owner.to_owned());
        apart(move || files::write(&file, &owner)).await?;
        shared.set_phase(number, Some(Phase::Taken));
        slot.settle(rules, open).await;
        pending.0 = None;
        Ok(slot)
    }

    /// Finds the slot that an earlier daemon handed out to `owner`, the latest if there are more. It has no TAP any
    /// more, which its engine has, and its policy is in force but not known until one is applied. One whose namespace
    /// is gone is removed.
    ///
    /// # Errors
    /// If it is there and cannot be opened.
    pub async fn adopt(&self, owner: &str) -> Result<Option<Slot>, Error> {
        let (shared, owner) = (Arc::clone(&self.shared), owner.to_owned());
        apart(move || {
            let run_dir = &shared.plan.run_dir;
            let mut latest = None;
            for number in files::slots(run_dir)? {
                let leaving = shared.phase(number) == Some(Phase::Leaving);
                if !leaving && files::owner(run_dir, number)?.as_deref() == Some(&owner) {
                    latest = latest.max(Some((files::owned_since(run_dir, number), number)));
                }
            }
            let Some((_, number)) = latest else { return Ok(None) };
            let file = files::namespace(run_dir, number);
            let namespace = std::fs::File::open(&file).map_err(Error::io("open", &file))?;
            if inside(namespace.as_fd(), || Ok(())).is_err() {
                // A file that nothing is mounted on: the host was started anew.
                shared.plan.destroy(number)?;
                shared.set_phase(number, None);
                return Ok(None);
            }
            shared.set_phase(number, Some(Phase::Taken));
            Ok(Some(Slot::found(Arc::clone(&shared), number, namespace.into())))
        })
        .await
    }

    /// Removes every slot whose owner is not kept, and whatever an earlier daemon left ready or half-made. Slots that
    /// this one has ready stay. The host's table and route are set again, in case that somebody flushed them.
    ///
    /// # Errors
    /// The first; the rest is removed all the same.
    pub async fn sweep(&self, keep: impl Fn(&str) -> bool) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let found = apart(move || {
            let run_dir = &shared.plan.run_dir;
            let slots = files::slots(run_dir)?.into_iter();
            slots.map(|number| Ok((number, files::owner(run_dir, number)?))).collect::<Result<Vec<_>, Error>>()
        })
        .await?;
        let mut first = Ok(());
        for (number, owner) in found {
            let busy = matches!(self.shared.phase(number), Some(Phase::Making | Phase::Ready | Phase::Leaving));
            if !busy && !owner.is_some_and(|owner| keep(&owner)) {
                let done = self.shared.destroy(number).await;
                first = first.and(done);
            }
        }
        first?;
        // Links whose directory is gone.
        let shared = Arc::clone(&self.shared);
        within(Arc::clone(&self.shared.plan.host), move || {
            shared.plan.set_host()?;
            let prefix = tables::host_link(&shared.plan.tag, 0);
            let prefix = prefix.trim_end_matches('0');
            let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
            for name in links::names().map_err(Error::link("list", "links"))? {
                let number = name.strip_prefix(prefix).and_then(|number| number.parse::<u32>().ok());
                let lost = number.is_some_and(|number| shared.phase(number).is_none());
                if lost {
                    links.remove(&name).map_err(Error::link("remove", &name))?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Ends the keeping of ready slots and removes them (as dropping the last clone does), and waits for those that are
    /// being removed; with the last slot the host's table and route go too. Slots in use stay.
    pub async fn close(&self) {
        let shared = &self.shared;
        shared.stop.cancel();
        shared.tasks.close();
        shared.tasks.wait().await;
        // One whose caller left meanwhile.
        shared.give_up_ready();
        shared.tasks.wait().await;
        let last = Arc::clone(shared);
        let done = within(Arc::clone(&shared.plan.host), move || last.plan.leave_host()).await;
        if let Err(error) = done {
            tracing::warn!(%error, "could not remove the network's traces on the host");
        }
    }
}

impl Plan {
    /// Sets what is the host's own; again changes nothing.
    fn set_host(&self) -> Result<(), Error> {
        let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
        links.reserve(pool::route(self.pool)).map_err(Error::link("add a route for", self.pool.to_string()))?;
        nft::apply("set the host's rules", &tables::host(&self.tag, self.pool))
    }

    /// Removes what is the host's own, once no slot is left.
    fn leave_host(&self) -> Result<(), Error> {
        if !files::slots(&self.run_dir)?.is_empty() {
            return Ok(());
        }
        let table = tables::host_table(&self.tag);
        nft::apply("remove the host's rules", &format!("table inet {table} {{ }}\ndelete table inet {table}\n"))?;
        let mut links = Links::open().map_err(Error::link("open", "netlink"))?;
        links.unreserve(pool::route(self.pool)).map_err(Error::link("remove the route of", self.pool.to_string()))?;
        files::remove(&self.run_dir.join("pool"))
    }
}

/// Removes everything of a daemon that will not start again: slots in use too, the host's table and route.
///
/// # Errors
/// What could not be removed.
pub async fn erase(run_dir: &Path, tag: &str) -> Result<(), Error> {
    if !run_dir.exists() {
        return Ok(());
    }
    let options = Options {
        run_dir: run_dir.to_owned(),
        tag: tag.to_owned(),
        pool: None,
        allow_private: Vec::new(),
        ready: 0,
        kind: Kind::default(),
        limits: Limits::default(),
    };
    let network = Network::open(options).await?;
    network.sweep(|_| false).await?;
    network.close().await;
    std::fs::remove_dir(run_dir).map_err(Error::io("remove", run_dir))
}

/// [`erase`] for those who clear up after a daemon that was killed, from its run directory, whose name begins with the tag.
/// Waits on a thread of its own: the caller may be in a runtime.
///
/// # Errors
/// As [`erase`].
pub fn erase_after(run: &Path) -> Result<(), Error> {
    let tag: String = run.file_name().map(|name| name.to_string_lossy().chars().take(5).collect()).unwrap_or_default();
    let run_dir = run.join("net");
    std::thread::scope(|scope| {
        let erased = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(Error::io("clear", &run_dir))?;
            runtime.block_on(erase(&run_dir, &tag))
        });
        erased.join().unwrap_or(Err(Error::Closed))
    })
}
