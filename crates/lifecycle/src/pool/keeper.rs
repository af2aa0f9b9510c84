//! Whoever looks after the pool: takes away what is stale and makes what is missing, one at a time, when nobody waits for a
//! sandbox. It is woken by a claim and by the clock, and each time reads everything anew.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};
use wakeful_driver::{Driver, Machine};
use wakeful_model::{Code, DEFAULT_TENANT, SandboxId, Template, TemplateStatus, preset};

use super::{Kind, MOST_MEMBERS, Name, PoolView, Stage, ended, targets::Targets};
use crate::golden::Recipe;
use crate::lifecycle::{Inner, error_chain};
use crate::{Error, Lifecycle, files};

/// How long it gives way to creates.
const GIVES_WAY: Duration = Duration::from_secs(10);
/// After a failure, doubled with every further one.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// What the configuration says.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Whether its targets count.
    pub enabled: bool,
    /// How often it is looked after, at least.
    pub interval: Duration,
    /// The size of its members.
    pub size: String,
    /// How many for which template of the default tenant.
    pub targets: BTreeMap<String, u32>,
}

/// What is to be there.
struct Wanted {
    template: Template,
    kind: Kind,
    target: u32,
}

#[derive(Default)]
struct Keeper {
    /// Pools whose last member could not be made: not before then, and how long after the next failure.
    failing: HashMap<Name, (Instant, Duration)>,
    /// Templates that were said not to be there.
    told: HashSet<Name>,
    /// Those whose runtime was said not to be there.
    unusable: HashSet<Name>,
}

impl Lifecycle {
    /// Fills the pool and keeps it filled until the daemon drains, when its members go.
    pub async fn keep_pool(&self, options: PoolOptions) {
        let configured = options.targets.iter().filter(|_| options.enabled).map(|(template, target)| {
            let (template, size, tenant) = (template.clone(), options.size.clone(), DEFAULT_TENANT.to_owned());
            (Name { template, size, tenant }, (*target).min(MOST_MEMBERS))
        });
        let mut targets = Targets::new(configured.collect());
        let path = self.inner.layout.pool();
        let read = files::blocking("read the pool's targets", move || {
            let before = targets.clone();
            let read = targets.read(&path);
            Ok(read.map(|()| targets).map_err(|error| (before, error)))
        });
        let targets = match read.await {
            Ok(Ok(targets)) => targets,
            Ok(Err((configured, error))) => {
                warn!(%error, "could not read which pools were asked for at run time");
                configured
            }
            Err(error) => {
                warn!(error = error_chain(&error), "could not read which pools were asked for at run time");
                Targets::default()
            }
        };
        self.inner.pool.state().targets = targets;
        let inner = Arc::clone(&self.inner);
        self.inner.tasks.spawn(async move {
            let mut keeper = Keeper::default();
            while !inner.draining.is_cancelled() {
                if keeper.look(&inner).await {
                    continue;
                }
                tokio::select! {
                    () = inner.draining.cancelled() => {}
                    () = inner.pool.work.notified() => {}
                    () = tokio::time::sleep(options.interval) => {}
                }
            }
            inner.empty_pool().await;
        });
    }

    /// Sets how many members a pool is to have, also for later daemons; 0 takes it away. The size is a preset's name.
    ///
    /// # Errors
    /// If there is no such template or size, or it is too many.
    pub async fn set_pool(&self, tenant: &str, template: &str, size: &str, target: u32) -> Result<PoolView, Error> {
        self.refuse_if_draining()?;
        let template = self.inner.find_template(tenant, template).await?;
        let size = preset(size).map_err(|error| Error::invalid(Code::InvalidSize, "size", error.to_string()))?;
        if target > MOST_MEMBERS {
            let detail = format!("a pool has at most {MOST_MEMBERS} members");
            return Err(Error::invalid(Code::InvalidField, "target", detail));
        }
        let name = Name { template: template.name, size: size.name.to_owned(), tenant: template.tenant };
        let (inner, its) = (Arc::clone(&self.inner), name.clone());
        // Done whole, also if the caller hangs up.
        let done = self.inner.tasks.spawn(async move {
            let _turn = inner.pool.changes.lock().await;
            let mut targets = inner.pool.state().targets.clone();
            targets.say(its.clone(), target);
            let (path, written) = (inner.layout.pool(), targets.clone());
            files::blocking("write the pool's targets", move || written.write(&path)).await?;
            inner.pool.state().targets = targets;
            info!(template = its.template, size = its.size, target, "pool set");
            inner.pool.work.notify_one();
            Ok(())
        });
        done.await.unwrap_or_else(|panic| Err(Error::Internal(format!("setting a pool: {panic}"))))?;
        let none = PoolView {
            template: name.template.clone(),
            size: name.size.clone(),
            ready: 0,
            claimed: 0,
            missed: 0,
            target,
            memory_mb: 0,
        };
        Ok(self.inner.pool.views(|other| *other == name).pop().map_or(none, |(_, view)| view))
    }
}

impl Keeper {
    /// Takes away what must not be there and makes one member, if one is missing. Whether there may be more to do.
    async fn look(&mut self, inner: &Arc<Inner>) -> bool {
        inner.dismiss(inner.pool.leave_late()).await;
        let wanted = match self.wanted(inner).await {
            Ok(wanted) => wanted,
            Err(error) => {
                warn!(error = error_chain(&error), "could not look after the pool");
                return false;
            }
        };
        inner.pool.state().kinds = wanted.iter().map(|(name, wanted)| (name.clone(), wanted.kind.clone())).collect();
        let mut counted: HashMap<Name, u32> = HashMap::new();
        let stale = inner.pool.leave(|entry, member| {
            let Some(wanted) = wanted.get(&entry.name).filter(|wanted| wanted.kind == member.kind) else { return true };
            let count = counted.entry(entry.name.clone()).or_default();
            *count += 1;
            *count > wanted.target || ended(&member.engine)
        });
        if !stale.is_empty() {
            info!(members = stale.len(), "members of the pool that are not wanted any more go");
            inner.dismiss(stale).await;
        }
        // One that was being made when a sandbox took its room.
        inner.make_room(0, None).await;
        let Some((name, next)) = self.missing(inner, &wanted) else { return false };
        let give_way = inner.creates.quiet(GIVES_WAY);
        if inner.draining.run_until_cancelled(give_way).await.is_none() {
            return false;
        }
        let id = SandboxId::random();
        if !inner.admit_member(&id, name, next.kind.machine).await {
            return false;
        }
        match inner.make_member(&id, name, &next.template, next.kind.clone()).await {
            Ok(member) => {
                self.failing.remove(name);
                debug!(sandbox_id = %id, template = name.template, size = name.size, "a member of the pool is ready");
                inner.pool.made(&id, member);
                true
            }
            Err(error) => {
                inner.dismiss(vec![id]).await;
                if matches!(error, Error::ShuttingDown) {
                    return false;
                }
                let wait = self.failing.get(name).map_or(FIRST_RETRY, |(_, wait)| (*wait * 2).min(LAST_RETRY));
                self.failing.insert(name.clone(), (Instant::now() + wait, wait));
                warn!(template = name.template, size = name.size, retry_in = ?wait, error = error_chain(&error), "could not make a member of the pool");
                false
            }
        }
    }

    /// What the targets come to, by what templates are now. Those that are not ready have no members.
    async fn wanted(&mut self, inner: &Arc<Inner>) -> Result<BTreeMap<Name, Wanted>, Error> {
        let (targets, configured) = {
            let state = inner.pool.state();
            (state.targets.wanted(), state.targets.clone())
        };
        let mut wanted = BTreeMap::new();
        if targets.is_empty() {
            return Ok(wanted);
        }
        for (name, target) in targets {
            let Some(template) = inner.store.template_by_name(&name.tenant, &name.template).await? else {
                if configured.is_configured(&name) && self.told.insert(name.clone()) {
                    warn!(template = name.template, "the pool's template is not there; it is used once it is");
                }
                continue;
            };
            self.told.remove(&name);
            let driver = match inner.driver_for(None, &template).await {
                Ok(driver) => driver,
                // Others have another.
                Err(error) => {
                    if self.unusable.insert(name.clone()) {
                        warn!(
                            template = name.template,
                            error = error_chain(&error),
                            "the pool's runtime cannot be used"
                        );
                    }
                    continue;
                }
            };
            self.unusable.remove(&name);
            if let Some(kind) = kind_of(inner, &*driver, &template, &name.size) {
                wanted.insert(name, Wanted { template, kind, target });
            }
        }
        Ok(wanted)
    }

    /// A pool that has fewer members than it is to have, and whose last one did not fail just now.
    fn missing<'a>(&mut self, inner: &Inner, wanted: &'a BTreeMap<Name, Wanted>) -> Option<(&'a Name, &'a Wanted)> {
        self.failing.retain(|name, _| wanted.contains_key(name));
        let (state, now) = (inner.pool.state(), Instant::now());
        if state.pressed {
            return None;
        }
        let have = |name: &Name| {
            let its = state.members.values().filter(|entry| entry.name == *name);
            its.filter(|entry| !matches!(entry.stage, Stage::Leaving)).count()
        };
        let missing = wanted.iter().filter(|(name, wanted)| have(name) < wanted.target as usize);
        // The emptiest first, so that none waits for another to be full.
        missing
            .filter(|(name, _)| self.failing.get(name).is_none_or(|(until, _)| *until <= now))
            .min_by_key(|(name, _)| have(name))
    }
}

fn kind_of(inner: &Inner, driver: &dyn Driver, template: &Template, size: &str) -> Option<Kind> {
    let (base, size) = (template.base.clone()?, preset(size).ok()?);
    let disk_mb = template.disk_mb.unwrap_or(inner.defaults.disk_mb);
    // One that is being built again has its old base meanwhile.
    let machine = Machine { cpu: size.cpu, memory_mb: size.memory_mb, disk_mb };
    let recipe = Recipe::of_template(template, &base, machine);
    (template.status != TemplateStatus::Deleted).then(|| Kind::of(&recipe, driver.engine()))
}

impl Inner {
    /// Takes the memory of a member that is to be made, if nobody has it.
    async fn admit_member(&self, id: &SandboxId, name: &Name, machine: Machine) -> bool {
        let _turn = self.admissions.lock().await;
        let used = self.memory_used() + self.pool.memory_mb(None) + u64::from(machine.memory_mb);
        if self.defaults.limit_memory_mb.is_some_and(|limit| used > limit) {
            return false;
        }
        self.pool.begin(id, name, machine.memory_mb);
        true
    }

    /// The daemon ends: nobody will claim them any more, and they would stand there until the next one starts.
    async fn empty_pool(self: &Arc<Self>) {
        if self.pool.is_empty() {
            return;
        }
        self.creates.quiet(GIVES_WAY).await;
        let mut leaving = Vec::new();
        while let Some(id) = self.pool.yield_one(None) {
            leaving.push(id);
        }
        self.dismiss(leaving).await;
    }
}
