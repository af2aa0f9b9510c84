//! Create: admit → row and intent → golden snapshot → clone, stopped → limits of its disk → hello, `cont` → restore → start
//! command → commit. From a snapshot: its disk is copied and its memory loaded instead. A member of the pool is a clone that
//! was made before: its network is opened, then hello, `cont`, restore. Where there is no golden snapshot (yet), it boots.
//!
//! A crash anywhere before the commit leaves a `creating` row; `recover` destroys what it finds, since nobody was told
//! the id yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{error, warn};
use wakeful_driver::{Driver, MemoryBase, Part, Place, Source};
use wakeful_model::{
    Cause, Code, Content, Entry, EventType, Fact, Failure, IoLimits, Mode, OnExpiry, Op, OperationId, Outcome, Policy,
    Sandbox, SandboxId, Size, Snapshot, State, Transition, preset,
};

use super::{event, machine_of, swap};
use crate::crash::{Point, point, point_with};
use crate::entry::Began;
use crate::golden::{Golden, Recipe};
use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::{Inner, error_chain, own};
use crate::owner::{Finished, Held, Plan, Reply, Start};
use crate::patch::bounded;
use crate::pool::{Kind, Member};
use crate::runtimes::AUTO;
use crate::snapshots::Origin;
use crate::{Error, NewSandbox, disk, entry, files, tenants};

/// How long a fresh clone may take to answer.
const FIRST_ANSWER: Duration = Duration::from_secs(20);

/// How long a member of the pool may take, which needs milliseconds: a clone that is made instead should not come late.
const CLAIMED: Duration = Duration::from_secs(3);

/// How long a boot may take.
const BOOTED: Duration = Duration::from_secs(90);
/// Above every generation that a sandbox reaches by waking.
const FORKED: u64 = 1 << 32;

/// What every guest has in its environment of who it is.
pub(crate) const SANDBOX_ID: &str = "WAKEFUL_SANDBOX_ID";
pub(crate) const TEMPLATE: &str = "WAKEFUL_TEMPLATE";

/// What the asker of a create waits for.
pub(crate) type Answer = oneshot::Receiver<Result<Reply, Error>>;

/// Checks the request against template, defaults and limits, writes the row with its intent, and gives it an owner.
pub(crate) async fn admit(inner: &Arc<Inner>, id: SandboxId, new: NewSandbox) -> Result<(SandboxId, Answer), Error> {
    let from = inner.origin(&new.tenant, &new.template).await?;
    // Opened before anybody has to wait for it; whoever needs it says why it cannot be.
    let _ = match &from {
        Some(origin) => inner.drivers.named(&origin.snapshot.content.runtime).await,
        None => {
            let template = inner.find_template(&new.tenant, &new.template).await?;
            inner.driver_for(new.runtime.as_deref(), &template).await
        }
    };
    // Two that would fit one by one must not both see room; and no base goes between the look at its template and the row.
    let _turn = inner.admissions.lock().await;
    let content = match &from {
        Some(origin) => of_snapshot(&origin.snapshot, &new)?,
        None => of_template(inner, &new).await?,
    };
    let parent = from.as_ref().map(|origin| origin.snapshot.sandbox_id.clone());
    let row = resolve(inner, id, new, content, parent).await?;
    let id = row.id.clone();
    let (reply, answer) = oneshot::channel();
    inner.check_capacity(u64::from(row.memory_mb), u64::from(row.disk_mb))?;
    inner.make_room(u64::from(row.memory_mb), Some(&row.id)).await;
    tenants::admit(inner, &row).await?;
    point(Point::CreateAdmitted);
    own(inner, Start { row, held: Held::default(), first: Some((Plan::Create { from }, Some(reply))) });
    Ok((id, answer))
}

/// What a new sandbox gets from its template, in the size that was asked for.
pub(crate) async fn of_template(inner: &Inner, new: &NewSandbox) -> Result<Content, Error> {
    let template = inner.find_template(&new.tenant, &new.template).await?;
    // One that is being built again has its old base meanwhile.
    let Some(base) = template.base.clone() else {
        return Err(Error::TemplateNotReady { name: template.name, status: template.status.to_string() });
    };
    if new.size.is_some() && (new.cpu.is_some() || new.memory_mb.is_some()) {
        return Err(Error::invalid(Code::InvalidCombination, "size", "give either size or cpu and memory_mb"));
    }
    let fallback = preset(&template.default_size).unwrap_or(wakeful_model::SIZES[0]);
    let (size, cpu, memory_mb) = match (&new.size, new.cpu, new.memory_mb) {
        (Some(name), ..) => {
            let size = preset(name).map_err(|error| Error::invalid(Code::InvalidSize, "size", error.to_string()))?;
            (Some(size.name), size.cpu, size.memory_mb)
        }
        (None, None, None) => (Some(fallback.name), fallback.cpu, fallback.memory_mb),
        (None, cpu, memory) => (None, cpu.unwrap_or(fallback.cpu), memory.unwrap_or(fallback.memory_mb)),
    };
    let disk_mb = new.disk_mb.or(template.disk_mb).unwrap_or(inner.defaults.disk_mb);
    Size::check(cpu, memory_mb, disk_mb)
        .map_err(|error| Error::invalid(Code::InvalidSize, error.field(), error.to_string()))?;
    let engine = inner.driver_for(new.runtime.as_deref(), &template).await?.engine().clone();
    Ok(Content {
        template: template.name,
        template_id: template.id,
        base,
        size: size.map(str::to_owned),
        cpu,
        memory_mb,
        disk_mb,
        user: template.user,
        workdir: template.workdir,
        env: template.env,
        env_keys: Vec::new(),
        egress: template.egress,
        io: template.io,
        // One that is to see variables of this sandbox is started in it.
        entry: template.entry.map(|entry| Entry { warm: entry.warm && new.env.is_empty(), ..entry }),
        runtime: engine.runtime,
        accel: engine.accel,
        image: None,
        secret: [0; 32],
    })
}

/// What a new sandbox gets from a snapshot: all of it, its size and runtime included.
fn of_snapshot(snapshot: &Snapshot, new: &NewSandbox) -> Result<Content, Error> {
    let content = snapshot.content.clone();
    if new.runtime.as_ref().is_some_and(|name| name != AUTO && *name != content.runtime) {
        let detail = format!("a snapshot goes on where it was taken: in {}", content.runtime);
        return Err(Error::invalid(Code::InvalidCombination, "runtime", detail));
    }
    let other = [
        ("size", new.size.is_some() && new.size != content.size),
        ("cpu", new.cpu.is_some_and(|cpu| cpu != content.cpu)),
        ("memory_mb", new.memory_mb.is_some_and(|memory| memory != content.memory_mb)),
        ("disk_mb", new.disk_mb.is_some_and(|disk| disk != content.disk_mb)),
    ];
    match other.into_iter().find(|(_, other)| *other) {
        Some((field, _)) => {
            Err(Error::invalid(Code::InvalidCombination, field, "a snapshot has the size of what it was taken of"))
        }
        None => Ok(content),
    }
}

async fn resolve(
    inner: &Inner,
    id: SandboxId,
    new: NewSandbox,
    content: Content,
    parent_id: Option<SandboxId>,
) -> Result<Sandbox, Error> {
    inner.check_capacity(u64::from(content.memory_mb), u64::from(content.disk_mb))?;
    let driver = inner.drivers.named(&content.runtime).await?;
    let engine = driver.engine();
    let io = new.io.unwrap_or(content.io);
    check_io(&*driver, io)?;

    let now = inner.now();
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret).map_err(|error| Error::Internal(format!("no random bytes: {error}")))?;
    let mut env = content.env;
    env.extend(new.env.clone());
    env.insert(SANDBOX_ID.into(), id.to_string());
    env.insert(TEMPLATE.into(), content.template.clone());
    let mut env_keys = content.env_keys;
    env_keys.extend(new.env.keys().cloned());
    env_keys.sort_unstable();
    env_keys.dedup();
    Ok(Sandbox {
        version: 1,
        tenant: new.tenant.clone(),
        state: State::Creating,
        transition: Some(Transition { id: OperationId::random(), op: Op::Create, since: now, automatic: false }),
        template: content.template,
        template_id: content.template_id,
        base: content.base,
        size: content.size,
        cpu: content.cpu,
        memory_mb: content.memory_mb,
        disk_mb: content.disk_mb,
        user: content.user,
        workdir: content.workdir,
        env,
        env_keys,
        egress: new.egress.clone().unwrap_or(content.egress),
        io,
        entry: content.entry,
        runtime: engine.runtime.clone(),
        accel: engine.accel.clone(),
        runtime_generation: 1,
        restored_memory: None,
        policy: policy(inner, &new, now),
        metadata: new.metadata,
        checkpoint: None,
        secret,
        created_at: now,
        updated_at: now,
        started_at: None,
        suspended_at: None,
        destroyed_at: None,
        last_activity_at: now,
        parent_id,
        failure: None,
        id,
    })
}

/// Limits that nobody would keep are refused: whoever asks for them relies on them.
pub(crate) fn check_io(driver: &dyn Driver, io: IoLimits) -> Result<(), Error> {
    if !io.any() || driver.capabilities().io_limits {
        return Ok(());
    }
    let detail = format!("{} cannot limit what a sandbox asks of its disk", driver.engine().runtime);
    Err(Error::invalid(Code::UnsupportedByRuntime, "io", detail))
}

fn policy(inner: &Inner, new: &NewSandbox, now: jiff::Timestamp) -> Policy {
    let defaults = &inner.defaults;
    let hard_expires_at = new.hard_ttl.and_then(|ttl| now.checked_add(bounded(ttl)).ok());
    match new.mode {
        Mode::Ephemeral => {
            let timeout = new.timeout.unwrap_or(defaults.timeout).min(defaults.max_timeout);
            Policy {
                expires_at: now.checked_add(timeout).ok(),
                on_expiry: OnExpiry::Destroy,
                timeout: Some(bounded(timeout)),
                idle_timeout: None,
                hard_expires_at,
                auto_resume: new.auto_resume,
                resume_lease: None,
                suspend_memory: true,
            }
        }
        Mode::Persistent => Policy {
            expires_at: None,
            on_expiry: OnExpiry::Suspend,
            timeout: None,
            idle_timeout: Some(bounded(new.idle_timeout.unwrap_or(defaults.idle_timeout))),
            hard_expires_at,
            auto_resume: new.auto_resume,
            resume_lease: None,
            suspend_memory: true,
        },
    }
}

impl Inner {
    /// Whether one more sandbox of this size may be on this host.
    pub(crate) fn check_capacity(&self, memory_mb: u64, disk_mb: u64) -> Result<(), Error> {
        let count = self.owners.lock().expect("no panic while it is held").len() as u64;
        if let Some(limit) = self.defaults.limit_sandboxes.filter(|limit| count >= *limit) {
            let detail = format!("this host may have {limit} sandboxes, and has them");
            return Err(Error::InsufficientCapacity { detail, fits: None });
        }
        self.check_disk(disk_mb)?;
        self.check_memory(memory_mb)
    }

    /// Guest memory of all sandboxes that run.
    pub(crate) fn memory_used(&self) -> u64 {
        let owners = self.owners.lock().expect("no panic while it is held");
        let lives = owners.values().map(|handle| handle.live.borrow());
        let awake = lives.filter(|live| {
            let waking = live.row.transition.as_ref().is_some_and(|transition| transition.op == Op::Wake);
            live.row.state.has_engine() || waking
        });
        awake.map(|live| u64::from(live.row.memory_mb)).sum()
    }

    /// Whether a guest of this size may run beside those that run now. Members of the pool are in nobody's way: they go.
    pub(crate) fn check_memory(&self, memory_mb: u64) -> Result<(), Error> {
        let Some(limit) = self.defaults.limit_memory_mb else { return Ok(()) };
        let left = limit.saturating_sub(self.memory_used());
        if memory_mb <= left {
            return Ok(());
        }
        let fits = wakeful_model::SIZES.iter().rev().find(|size| u64::from(size.memory_mb) <= left);
        Err(Error::InsufficientCapacity {
            detail: format!("{memory_mb} MiB of guest memory do not fit: {left} of {limit} MiB are left"),
            fits: fits.map(|size| size.name.to_owned()),
        })
    }
}

pub(super) async fn run(inner: &Arc<Inner>, mut row: Sandbox, from: Option<Arc<Origin>>) -> Finished {
    let began = Instant::now();
    let _create = inner.creates.begin();
    let begun = match &from {
        None => of_template_now(inner, &row).await,
        Some(origin) => go_on_from(inner, &mut row, origin).await.map(|held| Begun {
            held,
            // Memory that was loaded has it still.
            entry: row.restored_memory != Some(false),
            how: None,
        }),
    };
    let Begun { held, entry, how } = match begun {
        Ok(begun) => begun,
        Err(error) => return undo(inner, row, Held::default(), error).await,
    };
    let finished = async {
        if !entry {
            begin_entry(&row, &held).await?;
        }
        commit(inner, row.clone(), began, how).await
    };
    match finished.await {
        Ok(row) => {
            point(Point::CreateCommitted);
            Finished { row, held, result: Ok(()) }
        }
        Err(error) => undo(inner, row, held, error).await,
    }
}

async fn begin_entry(row: &Sandbox, held: &Held) -> Result<(), Error> {
    let Some(guest) = &held.guest else { return Ok(()) };
    entry::begin(row, guest, Began::Create).await
}

async fn make_place(inner: &Inner, row: &Sandbox) -> Result<Place, Error> {
    let place = inner.layout.place(&row.id);
    let dir = place.data.clone();
    files::blocking("make the sandbox's directory", move || files::make_private_dir(&dir)).await?;
    point(Point::CreateDirectory);
    Ok(place)
}

/// One that has answered.
struct Begun {
    held: Held,
    /// What its template starts is running in it already.
    entry: bool,
    /// Which way it came, if it was not the usual one of its runtime.
    how: Option<&'static str>,
}

/// What a template gives by the shortest way there is: a member of the pool, a clone, a boot.
async fn of_template_now(inner: &Arc<Inner>, row: &Sandbox) -> Result<Begun, Error> {
    let driver = inner.driver_of(row).await?;
    let recipe = Recipe::of(row);
    let kind = Kind::of(&recipe, driver.engine());
    match inner.pool.claim(&row.id).await? {
        Some(member) => match claim(inner, &*driver, row, &kind, &member).await {
            Ok(held) => {
                inner.pool.hit(&member.name);
                return Ok(Begun { held, entry: recipe.warm.is_some(), how: Some("claimed from the pool") });
            }
            Err(error) => {
                warn!(sandbox_id = %row.id, error = error_chain(&error), "a member of the pool is of no use, making another");
                inner.clear_place(&row.id, Some(&row.runtime)).await?;
            }
        },
        None => inner.pool.missed(&kind),
    }
    if recipe.warm.is_some() {
        if let Some(golden) = inner.golden_at_hand(&driver, &recipe).await? {
            let held = clone(inner, &driver, row, &golden).await?;
            return Ok(Begun { held, entry: true, how: Some("with its start command running") });
        }
        inner.golden_later(&driver, recipe.clone());
    }
    let (entry, recipe) = (false, recipe.cold());
    if !driver.capabilities().golden {
        return Ok(Begun { held: boot(inner, &driver, row).await?, entry, how: None });
    }
    match inner.golden_at_hand(&driver, &recipe).await? {
        Some(golden) => Ok(Begun { held: clone(inner, &driver, row, &golden).await?, entry, how: None }),
        None => {
            inner.golden_later(&driver, recipe);
            let how = Some("booted, while its golden snapshot is made");
            Ok(Begun { held: boot(inner, &driver, row).await?, entry, how })
        }
    }
}

/// Makes a member of the pool the sandbox whose place it has.
async fn claim(
    inner: &Arc<Inner>,
    driver: &dyn Driver,
    row: &Sandbox,
    kind: &Kind,
    member: &Member,
) -> Result<Held, Error> {
    if member.kind != *kind {
        let detail = "the pool's member is of another template or size".into();
        return Err(Error::Unresponsive { id: row.id.clone(), detail });
    }
    let engine = Arc::clone(&member.engine);
    point_with(Point::CreateClaimed, &*engine);
    let claimed = async {
        // Before the guest runs: until now nothing could leave it.
        inner.uplinks.steer(row).await?;
        disk::prepare(driver, &engine, row).await?;
        let who = Identity::of(row, row.runtime_generation);
        guest::revive(&engine, &member.secret, Vcpus::Stopped, CLAIMED, &who).await
    };
    let late = || Error::Unresponsive { id: row.id.clone(), detail: format!("it did not answer within {CLAIMED:?}") };
    let guest = tokio::time::timeout(CLAIMED, claimed).await.unwrap_or_else(|_| Err(late()))?;
    point_with(Point::CreateRestored, &*engine);
    Ok(Held { engine: Some(engine), guest: Some(guest) })
}

/// The first of its size, or one of a runtime that clones nothing.
async fn boot(inner: &Arc<Inner>, driver: &Arc<dyn Driver>, row: &Sandbox) -> Result<Held, Error> {
    let base = inner.base_for(&**driver, &row.base).await?;
    let place = make_place(inner, row).await?;
    let card = inner.uplinks.plug(row, &**driver).await?;
    point(Point::CreatePlugged);
    let source = Source::First { secret: row.secret };
    let engine = driver.launch(&place, machine_of(row), &base, card, source).await?;
    point_with(Point::CreateLaunched, &*engine);
    inner.uplinks.settled(&row.id).await?;
    let who = Identity::of(row, row.runtime_generation);
    let guest = guest::revive(&engine, &row.secret, Vcpus::Running, BOOTED, &who).await?;
    disk::prepare(&**driver, &engine, row).await?;
    point_with(Point::CreateRestored, &*engine);
    Ok(Held { engine: Some(engine), guest: Some(guest) })
}

async fn clone(inner: &Arc<Inner>, driver: &Arc<dyn Driver>, row: &Sandbox, golden: &Golden) -> Result<Held, Error> {
    let machine = machine_of(row);
    let base = inner.base_for(&**driver, &row.base).await?;
    let place = make_place(inner, row).await?;
    let source = Source::Clone { golden: &golden.dir, image: &golden.image };
    let card = inner.uplinks.plug(row, &**driver).await?;
    point(Point::CreatePlugged);
    let engine = driver.launch(&place, machine, &base, card, source).await?;
    point_with(Point::CreateLaunched, &*engine);
    disk::prepare(&**driver, &engine, row).await?;
    inner.uplinks.settled(&row.id).await?;
    let who = Identity::of(row, row.runtime_generation);
    let guest = guest::revive(&engine, &golden.secret, Vcpus::Stopped, FIRST_ANSWER, &who).await?;
    point_with(Point::CreateRestored, &*engine);
    Ok(Held { engine: Some(engine), guest: Some(guest) })
}

/// Goes on where a snapshot was taken, as somebody else. Memory that no engine here can load is left: it boots from the
/// disk and says so.
async fn go_on_from(inner: &Arc<Inner>, row: &mut Sandbox, origin: &Origin) -> Result<Held, Error> {
    let driver = inner.driver_of(row).await?;
    let (machine, base) = (machine_of(row), inner.base_for(&*driver, &row.base).await?);
    let place = make_place(inner, row).await?;
    let dir = inner.layout.snapshot(&origin.snapshot.id);
    driver.copy(Part::Disk, &dir, &place.data).await?;
    point(Point::ForkDisk);
    if let Some(image) = origin.image()? {
        if image.base == Some(MemoryBase::Own) {
            driver.copy(Part::Memory, &dir, &place.data).await?;
        }
        let card = inner.uplinks.plug(row, &*driver).await?;
        let source = Source::Wake { checkpoint: &dir, image: &image };
        match driver.launch(&place, machine, &base, card, source).await {
            Ok(engine) => {
                point_with(Point::ForkLaunched, &*engine);
                let follows = disk::prepare(&*driver, &engine, row).await?;
                inner.uplinks.settled(&row.id).await?;
                // A number that its agent has never heard, so that it knows itself for a copy.
                let who = Identity::of(row, FORKED + u64::from(random()?));
                let secret = origin.snapshot.content.secret;
                let guest = guest::revive(&engine, &secret, Vcpus::Stopped, FIRST_ANSWER, &who).await?;
                disk::follow(&guest, row, follows).await;
                point_with(Point::ForkRestored, &*engine);
                return Ok(Held { engine: Some(engine), guest: Some(guest) });
            }
            Err(rejected @ (wakeful_driver::Error::Unfit { .. } | wakeful_driver::Error::Damaged { .. })) => {
                warn!(sandbox_id = %row.id, error = error_chain(&rejected), "memory of a snapshot rejected, booting from its disk");
            }
            Err(error) => return Err(error.into()),
        }
    }
    row.restored_memory = Some(false);
    let card = inner.uplinks.plug(row, &*driver).await?;
    let engine = driver.launch(&place, machine, &base, card, Source::Boot { secret: row.secret }).await?;
    inner.uplinks.settled(&row.id).await?;
    let who = Identity::of(row, row.runtime_generation);
    let guest = guest::revive(&engine, &row.secret, Vcpus::Running, BOOTED, &who).await?;
    disk::prepare(&*driver, &engine, row).await?;
    Ok(Held { engine: Some(engine), guest: Some(guest) })
}

fn random() -> Result<u32, Error> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| Error::Internal(format!("no random bytes: {error}")))?;
    Ok(u32::from_le_bytes(bytes))
}

async fn commit(inner: &Inner, mut row: Sandbox, began: Instant, how: Option<&str>) -> Result<Sandbox, Error> {
    let Outcome::Move(state) = inner.observe(&row.id, row.state, None, Fact::Created) else {
        return Err(Error::Internal(format!("a {} sandbox cannot have been created", row.state.name())));
    };
    row.state = state;
    row.transition = None;
    row.updated_at = inner.now();
    row.started_at = Some(row.updated_at);
    row.last_activity_at = row.updated_at;
    let event = event(&row, EventType::Created, Cause::Api, Some(began.elapsed()), how.map(str::to_owned));
    swap(inner, row, Some(&event)).await
}

/// Nobody was told the id: everything goes, and the tombstone says why.
async fn undo(inner: &Arc<Inner>, mut row: Sandbox, held: Held, problem: Error) -> Finished {
    row.failure = Some(Failure {
        code: problem.code().as_str().to_owned(),
        detail: error_chain(&problem),
        at: inner.now(),
        bootable: false,
    });
    let undone = super::destroy::run(inner, row, held, Cause::Api).await;
    if let Err(error) = &undone.result {
        error!(sandbox_id = %undone.row.id, error = error_chain(error), "could not undo a create");
    }
    Finished { result: Err(problem), ..undone }
}
