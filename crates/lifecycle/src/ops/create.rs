//! Create: admit → row and intent → golden snapshot → clone, stopped → hello, `cont` → restore → commit.
//!
//! A crash anywhere before the commit leaves a `creating` row; `recover` destroys what it finds, since nobody was told
//! the id yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::error;
use wakeful_driver::Source;
use wakeful_model::{
    Cause, Code, EventType, Fact, Failure, Mode, OnExpiry, Op, OperationId, Outcome, Policy, Sandbox, SandboxId, Size,
    State, TemplateStatus, Transition, observe, preset,
};

use super::{event, machine_of, swap};
use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::{Inner, error_chain, own};
use crate::owner::{Finished, Held, Plan, Reply, Start};
use crate::patch::bounded;
use crate::{Error, NewSandbox, crash, files, tenants};

/// How long a fresh clone may take to answer.
const FIRST_ANSWER: Duration = Duration::from_secs(20);

/// What the asker of a create waits for.
pub(crate) type Answer = oneshot::Receiver<Result<Reply, Error>>;

/// Checks the request against template, defaults and limits, writes the row with its intent, and gives it an owner.
pub(crate) async fn admit(inner: &Arc<Inner>, id: SandboxId, new: NewSandbox) -> Result<(SandboxId, Answer), Error> {
    let row = resolve(inner, id, new).await?;
    tenants::admit(inner, &row).await?;
    let id = row.id.clone();
    let (reply, answer) = oneshot::channel();
    own(inner, Start { row, held: Held::default(), first: Some((Plan::Create, Some(reply))) });
    Ok((id, answer))
}

async fn resolve(inner: &Inner, id: SandboxId, new: NewSandbox) -> Result<Sandbox, Error> {
    let template = inner.find_template(&new.tenant, &new.template).await?;
    let base = match (template.status, &template.base) {
        (TemplateStatus::Ready, Some(base)) => base.clone(),
        (status, _) => return Err(Error::TemplateNotReady { name: template.name, status: status.to_string() }),
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
    let disk_mb = new.disk_mb.unwrap_or(inner.defaults.disk_mb);
    Size::check(cpu, memory_mb, disk_mb)
        .map_err(|error| Error::invalid(Code::InvalidSize, error.field(), error.to_string()))?;
    inner.check_capacity(u64::from(memory_mb))?;

    let driver = inner.driver().await?;
    let engine = driver.engine();
    if let Some(wanted) = new.runtime.as_deref().filter(|wanted| *wanted != "auto" && *wanted != engine.runtime) {
        return Err(Error::RuntimeUnavailable(format!(
            "{wanted} is not the runtime of this daemon, which is {}",
            engine.runtime
        )));
    }

    let now = inner.now();
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret).map_err(|error| Error::Internal(format!("no random bytes: {error}")))?;
    let mut env = template.env.clone();
    env.extend(new.env.clone());
    env.insert("WAKEFUL_SANDBOX_ID".into(), id.to_string());
    env.insert("WAKEFUL_TEMPLATE".into(), template.name.clone());
    Ok(Sandbox {
        version: 1,
        tenant: new.tenant.clone(),
        state: State::Creating,
        transition: Some(Transition { id: OperationId::random(), op: Op::Create, since: now, automatic: false }),
        template: template.name,
        template_id: template.id,
        base,
        size: size.map(str::to_owned),
        cpu,
        memory_mb,
        disk_mb,
        user: template.user,
        workdir: template.workdir,
        env,
        env_keys: new.env.keys().cloned().collect(),
        egress: new.egress.clone().unwrap_or(template.egress),
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
        parent_id: None,
        failure: None,
        id,
    })
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
    /// Whether a guest of this size may run beside those that run now.
    pub(crate) fn check_capacity(&self, memory_mb: u64) -> Result<(), Error> {
        let (count, used) = {
            let owners = self.owners.lock().expect("no panic while it is held");
            let running = owners.values().map(|handle| handle.live.borrow());
            running.fold((0u64, 0u64), |(count, used), live| {
                let memory = if live.row.state.has_engine() { u64::from(live.row.memory_mb) } else { 0 };
                (count + 1, used + memory)
            })
        };
        if let Some(limit) = self.defaults.limit_sandboxes.filter(|limit| count >= *limit) {
            return Err(Error::InsufficientCapacity {
                detail: format!("this host may have {limit} sandboxes, and has them"),
                fits: None,
            });
        }
        let Some(limit) = self.defaults.limit_memory_mb else { return Ok(()) };
        let left = limit.saturating_sub(used);
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

pub(super) async fn run(inner: &Arc<Inner>, row: Sandbox) -> Finished {
    let began = Instant::now();
    match clone(inner, &row).await {
        Ok(held) => match commit(inner, row.clone(), began).await {
            Ok(row) => Finished { row, held, result: Ok(()) },
            Err(error) => undo(inner, row, held, error).await,
        },
        Err(error) => undo(inner, row, Held::default(), error).await,
    }
}

async fn clone(inner: &Arc<Inner>, row: &Sandbox) -> Result<Held, Error> {
    let driver = inner.driver().await?;
    let machine = machine_of(row);
    let golden = inner.golden(&driver, &row.template_id, &row.base, &row.user, &row.workdir, machine).await?;
    let place = inner.layout.place(&row.id);
    let dir = place.data.clone();
    files::blocking("make the sandbox's directory", move || files::make_private_dir(&dir)).await?;
    crash::point("create.directory");
    let source = Source::Clone { golden: &golden.dir, image: &golden.image };
    let card = inner.uplinks.plug(row).await?;
    crash::point("create.plugged");
    let engine = driver.launch(&place, machine, &inner.layout.base(&row.base), card, source).await?;
    crash::point("create.launched");
    inner.uplinks.settled(&row.id).await?;
    let who = Identity::of(row, row.runtime_generation);
    let guest = guest::revive(&engine, &golden.secret, Vcpus::Stopped, FIRST_ANSWER, &who).await?;
    crash::point("create.restored");
    Ok(Held { engine: Some(engine), guest: Some(guest) })
}

async fn commit(inner: &Inner, mut row: Sandbox, began: Instant) -> Result<Sandbox, Error> {
    let Outcome::Move(state) = observe(row.state, None, Fact::Created) else {
        return Err(Error::Internal(format!("a {} sandbox cannot have been created", row.state.name())));
    };
    row.state = state;
    row.transition = None;
    row.updated_at = inner.now();
    row.started_at = Some(row.updated_at);
    row.last_activity_at = row.updated_at;
    let event = event(&row, EventType::Created, Cause::Api, Some(began.elapsed()), None);
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
