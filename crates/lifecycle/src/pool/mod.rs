//! The warm pool: sandboxes that are made before they are asked for.
//!
//! A clone's first answer is slow, because under emulation every first instruction is translated, and so is a first start.
//! A member has that behind it: it was cloned or started, run to its first answer, quiesced and stopped. A create that finds
//! one gives it its identity and lets it run.
//!
//! ```text
//!            made                     id given out             its row is there
//!   making ───────▶ ready ───────────────────────▶ reserved ───────────────────▶ claimed: a sandbox like any other
//!                     ▲ ◀── not used, and nobody was told the id ──┘ │
//!                     └ stale, dead, too many, in the way            └ not used in time
//!                                      └───────────▶ leaving ◀───────┘
//! ```
//!
//! A member lies where the sandbox of its id will lie, so that a claim moves nothing. No row names it before: what a killed
//! daemon leaves, the next start removes like everything else that no row names. Each step from one stage to the next is
//! one change under one lock; the durable half of a claim is the row, whose id is unique. An id that was given out goes to
//! somebody else only if it is certain that nobody kept it.

mod keeper;
mod member;
mod targets;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{error, info};
use wakeful_driver::{Engine, EngineInfo, Machine};
use wakeful_model::{DEFAULT_TENANT, SandboxId, SnapshotId, TemplateId};

use crate::golden::Recipe;
use crate::lifecycle::{Inner, error_chain};
use crate::ops;
use crate::{Error, Lifecycle, NewSandbox};

pub use keeper::PoolOptions;
pub(crate) use targets::Name;
use targets::Targets;

/// How long an id that was given out is waited for.
const RESERVED: Duration = Duration::from_secs(30);
/// How long one that leaves may take, for whoever needs its place.
const LEAVES: Duration = Duration::from_secs(10);
/// Most members of one pool.
pub const MOST_MEMBERS: u32 = 1000;

/// What a member is made of: it fits a sandbox of the same and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    template: TemplateId,
    base: String,
    machine: Machine,
    /// What runs in it already ([`Recipe::warmth`]).
    warmth: Option<String>,
    runtime: String,
    golden_key: String,
}

impl Kind {
    pub(crate) fn of(recipe: &Recipe, engine: &EngineInfo) -> Self {
        Self {
            template: recipe.template.clone(),
            base: recipe.base.clone(),
            machine: recipe.machine,
            warmth: recipe.warmth(),
            runtime: engine.runtime.clone(),
            golden_key: engine.golden_key.clone(),
        }
    }
}

/// One that stands still and can be claimed.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) engine: Arc<dyn Engine>,
    /// What its agent must hear before it learns the sandbox's own.
    pub(crate) secret: [u8; 32],
}

/// Whether a call that is given an id may be repeated under it, also after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// By its idempotency key, with which the id is stored.
    ByKey,
    /// It is forgotten with the call.
    Never,
}

enum Stage {
    Making,
    Ready(Member),
    Reserved { member: Member, until: Instant, repeats: Repeats },
    Leaving,
}

struct Entry {
    name: Name,
    memory_mb: u32,
    stage: Stage,
    /// When it was begun: the oldest is claimed first, and the youngest goes first.
    since: Instant,
}

impl Entry {
    fn member(&self) -> Option<&Member> {
        match &self.stage {
            Stage::Ready(member) | Stage::Reserved { member, .. } => Some(member),
            Stage::Making | Stage::Leaving => None,
        }
    }
}

/// What became of creates that a pool could have answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    claimed: u64,
    missed: u64,
}

#[derive(Default)]
struct State {
    members: HashMap<SandboxId, Entry>,
    targets: Targets,
    counts: BTreeMap<Name, Counts>,
    /// What members are to be, by the last look at their templates.
    kinds: BTreeMap<Name, Kind>,
    /// The host is short of memory.
    pressed: bool,
}

/// All members, and how many there are to be.
pub(crate) struct Pool {
    state: Mutex<State>,
    /// Whoever looks after it has something to do.
    work: Notify,
    /// Changes when one that was leaving has left.
    left: watch::Sender<()>,
    /// One change of targets, which is also written down, at a time.
    changes: tokio::sync::Mutex<()>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            work: Notify::new(),
            left: watch::Sender::new(()),
            changes: tokio::sync::Mutex::default(),
        }
    }
}

/// A pool, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Its template's name.
    pub template: String,
    /// Its members' size.
    pub size: String,
    /// Members that can be claimed now.
    pub ready: u32,
    /// Members that were claimed since the daemon started.
    pub claimed: u64,
    /// Creates since then that it could have answered, had it had a member.
    pub missed: u64,
    /// How many members there are to be.
    pub target: u32,
    /// What its members may take, in MiB.
    pub memory_mb: u64,
}

fn ended(engine: &Arc<dyn Engine>) -> bool {
    engine.exited().now_or_never().is_some()
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    fn is_empty(&self) -> bool {
        self.state().members.is_empty()
    }

    /// Template, machine and base of all members that there are or are to be.
    pub(crate) fn stands_on(&self) -> Vec<(TemplateId, Machine, String)> {
        let state = self.state();
        let members = state.members.values().filter_map(Entry::member).map(|member| &member.kind);
        let kinds = members.chain(state.kinds.values());
        kinds.map(|kind| (kind.template.clone(), kind.machine, kind.base.clone())).collect()
    }

    /// Gives out the id of a ready member that fits.
    fn reserve(&self, kind: &Kind, repeats: Repeats) -> Option<SandboxId> {
        let mut state = self.state();
        let fitting = state.members.iter_mut().filter(
            |(_, entry)| matches!(&entry.stage, Stage::Ready(member) if member.kind == *kind && !ended(&member.engine)),
        );
        let (id, entry) = fitting.min_by_key(|(_, entry)| entry.since)?;
        let Stage::Ready(member) = &entry.stage else { return None };
        entry.stage = Stage::Reserved { member: member.clone(), until: Instant::now() + RESERVED, repeats };
        Some(id.clone())
    }

    /// Its id was given out, and nobody kept it: it can be given to another.
    pub(crate) fn unused(&self, id: &SandboxId) {
        let mut state = self.state();
        if let Some(entry) = state.members.get_mut(id)
            && let Stage::Reserved { member, .. } = &entry.stage
        {
            entry.stage = Stage::Ready(member.clone());
        }
    }

    /// The create that got its id was refused. If the id is stored somewhere, it leaves.
    pub(crate) fn refused(&self, id: &SandboxId) {
        let mut state = self.state();
        let Some(entry) = state.members.get_mut(id) else { return };
        match &mut entry.stage {
            Stage::Reserved { member, repeats: Repeats::Never, .. } => entry.stage = Stage::Ready(member.clone()),
            Stage::Reserved { until, repeats: Repeats::ByKey, .. } => {
                *until = Instant::now();
                self.work.notify_one();
            }
            Stage::Making | Stage::Ready(_) | Stage::Leaving => {}
        }
    }

    /// Takes the member out whose place this is: from here on it is a sandbox's. Whatever else is there is gone when this
    /// returns.
    ///
    /// # Errors
    /// If it does not go.
    pub(crate) async fn claim(&self, id: &SandboxId) -> Result<Option<Member>, Error> {
        let mut left = self.left.subscribe();
        let deadline = Instant::now() + LEAVES;
        loop {
            {
                let mut state = self.state();
                match state.members.get(id) {
                    None => return Ok(None),
                    Some(entry) => {
                        if let Some(member) = entry.member().cloned() {
                            state.members.remove(id);
                            return Ok(Some(member));
                        }
                    }
                }
            }
            if tokio::time::timeout_at(deadline, left.changed()).await.is_err() {
                return Err(Error::Busy(id.clone()));
            }
        }
    }

    /// A member is a sandbox now; another can be made.
    pub(crate) fn hit(&self, name: &Name) {
        self.state().counts.entry(name.clone()).or_default().claimed += 1;
        self.work.notify_one();
    }

    /// A sandbox was made otherwise. That counts if there is a pool that should have had one.
    pub(crate) fn missed(&self, kind: &Kind) {
        let mut state = self.state();
        let name = state.kinds.iter().find_map(|(name, its)| (its == kind).then(|| name.clone()));
        if let Some(name) = name {
            state.counts.entry(name).or_default().missed += 1;
        }
    }

    /// One is being made from here on; its memory counts.
    fn begin(&self, id: &SandboxId, name: &Name, memory_mb: u32) {
        let entry = Entry { name: name.clone(), memory_mb, stage: Stage::Making, since: Instant::now() };
        self.state().members.insert(id.clone(), entry);
    }

    /// It can be claimed from here on.
    fn made(&self, id: &SandboxId, member: Member) {
        if let Some(entry) = self.state().members.get_mut(id) {
            entry.stage = Stage::Ready(member);
        }
    }

    /// Guest memory of all members, save the one whose place this is.
    fn memory_mb(&self, but: Option<&SandboxId>) -> u64 {
        let state = self.state();
        let counted = state.members.iter().filter(|(id, _)| Some(*id) != but);
        counted.map(|(_, entry)| u64::from(entry.memory_mb)).sum()
    }

    /// Marks one as leaving that whoever needs its memory may have: one that nobody reserved, if there is one.
    fn yield_one(&self, but: Option<&SandboxId>) -> Option<SandboxId> {
        let mut state = self.state();
        let candidates = state.members.iter_mut().filter(|(id, entry)| entry.member().is_some() && Some(*id) != but);
        let (id, entry) = candidates
            .min_by_key(|(_, entry)| (matches!(entry.stage, Stage::Reserved { .. }), std::cmp::Reverse(entry.since)))?;
        entry.stage = Stage::Leaving;
        Some(id.clone())
    }

    /// Marks those as leaving that nobody reserved and `unwanted` names.
    fn leave(&self, mut unwanted: impl FnMut(&Entry, &Member) -> bool) -> Vec<SandboxId> {
        let mut state = self.state();
        let mut leaving = Vec::new();
        for (id, entry) in &mut state.members {
            if let Stage::Ready(member) = &entry.stage
                && unwanted(entry, member)
            {
                entry.stage = Stage::Leaving;
                leaving.push(id.clone());
            }
        }
        leaving
    }

    /// Marks those as leaving whose ids were given out and not used in time.
    fn leave_late(&self) -> Vec<SandboxId> {
        let (now, mut state) = (Instant::now(), self.state());
        let mut leaving = Vec::new();
        for (id, entry) in &mut state.members {
            if matches!(entry.stage, Stage::Reserved { until, .. } if until <= now) {
                entry.stage = Stage::Leaving;
                leaving.push(id.clone());
            }
        }
        leaving
    }

    fn forget(&self, id: &SandboxId) {
        self.state().members.remove(id);
        self.left.send_replace(());
    }

    /// All pools that there are or were, and what of them `of` names.
    fn views(&self, of: impl Fn(&Name) -> bool) -> Vec<(Name, PoolView)> {
        let state = self.state();
        let mut names: BTreeMap<Name, u32> = state.targets.all();
        for name in state.counts.keys().chain(state.members.values().map(|entry| &entry.name)) {
            names.entry(name.clone()).or_default();
        }
        let views = names.into_iter().filter(|(name, _)| of(name)).map(|(name, target)| {
            let members = || state.members.values().filter(|entry| entry.name == name);
            let ready = members().filter(|entry| matches!(entry.stage, Stage::Ready(_))).count();
            let counts = state.counts.get(&name).copied().unwrap_or_default();
            let view = PoolView {
                template: name.template.clone(),
                size: name.size.clone(),
                ready: u32::try_from(ready).unwrap_or(u32::MAX),
                claimed: counts.claimed,
                missed: counts.missed,
                target,
                memory_mb: members().map(|entry| u64::from(entry.memory_mb)).sum(),
            };
            (name, view)
        });
        views.collect()
    }

    /// For the figures: by template and size, whosever they are.
    pub(crate) fn figures(&self) -> Vec<PoolView> {
        self.views(|_| true).into_iter().map(|(_, view)| view).collect()
    }
}

impl Inner {
    /// Ends members that were marked as leaving, whatever becomes of the caller.
    async fn dismiss(self: &Arc<Self>, leaving: Vec<SandboxId>) {
        let all: Vec<_> = leaving
            .into_iter()
            .map(|id| {
                let inner = Arc::clone(self);
                self.tasks.spawn(async move {
                    if let Err(error) = inner.clear_place(&id, None).await {
                        error!(sandbox_id = %id, error = error_chain(&error), "could not remove a member of the pool; the next start does");
                    }
                    inner.pool.forget(&id);
                })
            })
            .collect();
        for one in all {
            // A panic is logged where it happens, and there is nothing more to do.
            let _ = one.await;
        }
    }

    /// Takes away as many members as are in the way of a guest of this size, which has been found to fit without them.
    pub(crate) async fn make_room(self: &Arc<Self>, memory_mb: u64, of: Option<&SandboxId>) {
        let Some(limit) = self.defaults.limit_memory_mb else { return };
        while self.memory_used() + memory_mb + self.pool.memory_mb(of) > limit {
            let Some(id) = self.pool.yield_one(of) else { return };
            info!(sandbox_id = %id, "a member of the pool gives its memory to a sandbox");
            self.dismiss(vec![id]).await;
        }
    }

    /// The host is short of memory, or is so no longer. Whether members went for it.
    pub(crate) async fn press_pool(self: &Arc<Self>, pressed: bool) -> bool {
        self.pool.state().pressed = pressed;
        if !pressed {
            return false;
        }
        let leaving = self.pool.leave(|_, _| true);
        if leaving.is_empty() {
            return false;
        }
        info!(members = leaving.len(), "the pool gives its memory back");
        self.dismiss(leaving).await;
        true
    }
}

impl Lifecycle {
    /// The id for a sandbox that is about to be made: that of a member of the pool that fits, which is then kept for it,
    /// or a new one. To be used once, by [`create_as`](Self::create_as), or to be [given back](Self::unused_id).
    pub async fn id_for(&self, new: &NewSandbox, repeats: Repeats) -> SandboxId {
        let snapshot = new.template.starts_with(SnapshotId::PREFIX);
        if snapshot || self.inner.pool.is_empty() || self.is_draining() {
            return SandboxId::random();
        }
        let fitting = async {
            // What is wrong with the request is told by the create.
            let content = ops::create::of_template(&self.inner, new).await.ok()?;
            let driver = self.inner.drivers.named(&content.runtime).await.ok()?;
            self.inner.pool.reserve(&Kind::of(&Recipe::of_content(&content), driver.engine()), repeats)
        };
        fitting.await.unwrap_or_else(SandboxId::random)
    }

    /// An id of [`id_for`](Self::id_for) that was stored nowhere and will not be used.
    pub fn unused_id(&self, id: &SandboxId) {
        self.inner.pool.unused(id);
    }

    /// The pools that a tenant's sandboxes come from: of its own templates and the shared ones.
    #[must_use]
    pub fn pools(&self, tenant: &str) -> Vec<PoolView> {
        let views = self.inner.pool.views(|name| name.tenant == tenant || name.tenant == DEFAULT_TENANT);
        views.into_iter().map(|(_, view)| view).collect()
    }
}
