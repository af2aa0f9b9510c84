//! One life, step by step, beside the model of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use wakeful_driver_sim::{Fault, Point};
use wakeful_lifecycle::{Access, Error, Patch, Use};
use wakeful_model::{Bootable, Cause, Code, Memory, Op, Sandbox, SandboxId, State};
use wakeful_store::Store as _;

use crate::model::{self, Ask, Model, New};
use crate::world::{PATIENCE, TENANT, World, at, request};

/// How often something is looked at that comes by itself.
const LOOK: Duration = Duration::from_micros(200);

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Several ask at once, in this order.
    Ask(Vec<Ask>),
    /// Uses it, and does not stop.
    Use,
    /// Those who use it stop.
    LetGo,
    /// All who wait hang up.
    HangUp,
    Hold(Point),
    /// Nobody is held any more.
    Release,
    Fail(Point, Fault),
    /// Seconds pass.
    Pass(u64),
    /// The engine dies.
    Kill,
    /// The checkpoint's files rot.
    Damage,
    /// The daemon dies and comes back.
    Restart {
        /// The engine dies meanwhile.
        kill: bool,
        /// What the new daemon does to end it is held.
        hold: bool,
        /// So many seconds pass meanwhile.
        down: u64,
    },
}

/// A life to be: what is wrong or held before it begins, how it begins, and what happens then.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) new: New,
    pub(crate) before: Vec<Step>,
    pub(crate) steps: Vec<Step>,
}

/// What became of an ask.
enum Heard {
    Done,
    Access(Box<Access>),
    No(Code, String),
}

impl<T> From<Result<T, Error>> for Heard {
    fn from(result: Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(error) => Self::No(error.code(), error.to_string()),
        }
    }
}

struct Walk<'a> {
    world: &'a mut World,
    id: SandboxId,
    model: Model,
    /// Who waits for an answer; whoever uses it then stays.
    asked: BTreeMap<usize, (JoinHandle<Heard>, bool)>,
    using: Vec<Access>,
    count: usize,
}

/// Lives it, and tells at which step the world and the model part.
pub(crate) fn live(world: &mut World, life: &Life) -> Result<(), String> {
    let model = Model::new(world.now, life.new);
    let mut walk = Walk { id: SandboxId::random(), model, asked: BTreeMap::new(), using: Vec::new(), count: 0, world };
    let told = |step: &dyn std::fmt::Debug| {
        let step = format!("{step:?}");
        move |wrong: String| format!("after {step}: {wrong}")
    };
    life.before.iter().for_each(|step| walk.arrange(step));
    walk.create(life.new).map_err(told(&"the create"))?;
    for step in &life.steps {
        walk.take(step).map_err(told(step))?;
    }
    walk.end().map_err(told(&"the end"))
}

impl Walk<'_> {
    fn create(&mut self, new: New) -> Result<(), String> {
        let daemon = self.world.daemon();
        let (lifecycle, id) = (daemon.lifecycle.clone(), self.id.clone());
        let create = daemon.runtime.spawn(async move { lifecycle.create_as(id, request(new)).await.into() });
        self.asked.insert(0, (create, false));
        self.count = 1;
        self.model.ask(0, Ask::Create);
        self.model.settle();
        self.compare(0, false)
    }

    fn take(&mut self, step: &Step) -> Result<(), String> {
        let decided = self.world.seen.decided(&self.id);
        let mut deciding = 0;
        // Then whoever gets access keeps what he gets.
        let one = matches!(step, Step::Use) || matches!(step, Step::Ask(asks) if asks.len() == 1);
        let alone = self.asked.is_empty() && one;
        match step {
            Step::Ask(asks) => {
                for ask in asks {
                    deciding += self.ask(*ask, false);
                }
            }
            Step::Use => deciding += self.ask(Ask::Access, true),
            Step::LetGo => {
                if !std::mem::take(&mut self.using).is_empty() {
                    self.model.uses = 0;
                    self.model.active_at = self.model.now;
                }
            }
            Step::HangUp => std::mem::take(&mut self.asked).into_values().for_each(|(asking, _)| asking.abort()),
            Step::Hold(_) | Step::Fail(..) => self.arrange(step),
            Step::Release => {
                for point in std::mem::take(&mut self.model.held) {
                    self.world.host.release(point);
                }
            }
            Step::Pass(seconds) => {
                self.world.advance(*seconds);
                self.model.now += seconds;
            }
            Step::Kill => {
                // The owner itself clears up after an engine that ends by itself: held there, it could be asked nothing.
                if self.model.doing.is_none() && self.model.held.remove(&Point::Reap) {
                    self.world.host.release(Point::Reap);
                }
                let killed = self.world.host.kill(self.id.as_str());
                if killed != self.model.engine {
                    return Err(format!("there was {} engine", if killed { "an" } else { "no" }));
                }
                self.model.kill();
            }
            Step::Damage => self.damage()?,
            Step::Restart { kill, hold, down } => self.restart(*kill, *hold, *down)?,
        }
        self.model.settle();
        self.compare(decided + deciding, alone)
    }

    /// What hosts do to engines, when their time comes.
    fn arrange(&mut self, step: &Step) {
        match step {
            Step::Hold(point) => {
                self.world.host.hold(*point);
                self.model.held.insert(*point);
            }
            Step::Fail(point, fault) => {
                self.world.host.fail(*point, *fault);
                self.model.faults.insert(*point, *fault);
            }
            _ => unreachable!("{step:?} needs a sandbox"),
        }
    }

    /// Puts an ask before the lifecycle and the model. How many decisions of the owner it leads to at least.
    fn ask(&mut self, ask: Ask, stays: bool) -> usize {
        let number = self.count;
        self.count += 1;
        let gone = self.model.state == model::State::Destroyed && self.model.doing.is_none();
        let decides = !(gone || ask == Ask::Keepalive && self.model.persistent);
        let daemon = self.world.daemon();
        let (lifecycle, id) = (daemon.lifecycle.clone(), self.id.clone());
        let asking = async move {
            match ask {
                Ask::Create => unreachable!("it is made once"),
                Ask::Access => match lifecycle.access(TENANT, &id, Use::Exec).await {
                    Ok(access) => Heard::Access(Box::new(access)),
                    Err(error) => Heard::No(error.code(), error.to_string()),
                },
                Ask::Suspend { memory } => lifecycle.suspend(TENANT, &id, memory, true).await.into(),
                Ask::Wake { join } => lifecycle.wake(TENANT, &id, join).await.into(),
                Ask::Keepalive => lifecycle.keepalive(TENANT, &id, None).await.into(),
                Ask::Patch { auto_resume, hard_ttl } => {
                    let hard_ttl = hard_ttl.map(|ttl| ttl.map(Duration::from_secs));
                    let patch = Patch { auto_resume, hard_ttl, ..Patch::default() };
                    lifecycle.patch(TENANT, &id, patch, Cause::Api).await.into()
                }
                Ask::Destroy => lifecycle.destroy(TENANT, &id, Cause::Api).await.into(),
            }
        };
        // From inside: so several that ask at once stand in line before anything comes of the first.
        let asked = &mut self.asked;
        daemon.runtime.block_on(async {
            asked.insert(number, (daemon.runtime.spawn(asking), stays));
        });
        self.model.ask(number, ask);
        usize::from(decides)
    }

    fn damage(&mut self) -> Result<(), String> {
        if self.model.state == model::State::Suspended(model::Memory::Kept) && self.model.doing.is_none() {
            let dir = self.world.sandboxes_dir().join(self.id.as_str());
            let state = dir.join(format!("checkpoint-{}", self.model.generation)).join("dev.state");
            std::fs::write(state, "rot").map_err(|error| format!("no checkpoint: {error}"))?;
            self.model.damaged = true;
        }
        Ok(())
    }

    fn restart(&mut self, kill: bool, hold: bool, down: u64) -> Result<(), String> {
        self.activity_is_written()?;
        self.asked.clear();
        self.using.clear();
        self.world.crash();
        self.world.host.behave();
        if kill {
            self.world.host.kill(self.id.as_str());
            self.model.engine = false;
        }
        let destroying = matches!(&self.model.doing, Some(doing) if doing.op == model::Op::Destroy);
        let hold = hold && (destroying || self.model.state == model::State::Creating);
        if hold {
            self.world.host.hold(Point::Reap);
        }
        self.world.advance(down);
        self.model.now += down;
        self.model.restart();
        if hold {
            self.model.held.insert(Point::Reap);
        }
        self.world.start();
        Ok(())
    }

    /// A crash may lose the last seconds of activity; here it is to lose none, so that there is one truth.
    fn activity_is_written(&self) -> Result<(), String> {
        if self.model.state != model::State::Running {
            return Ok(());
        }
        self.until("activity is written down", |row| row.last_activity_at == at(self.model.active_at)).map(drop)
    }

    /// Reads the row until it is as it should be.
    fn until(&self, what: &str, mut fits: impl FnMut(&Sandbox) -> bool) -> Result<Sandbox, String> {
        let daemon = self.world.daemon();
        let began = Instant::now();
        daemon.runtime.block_on(async {
            loop {
                let row = daemon.store.sandbox(&self.id).await.map_err(|error| error.to_string())?;
                match row {
                    Some(row) if fits(&row) => return Ok(row),
                    row if began.elapsed() > PATIENCE => return Err(format!("{what}: {row:?}")),
                    _ => tokio::time::sleep(LOOK).await,
                }
            }
        })
    }

    // ---- the world and the model

    fn compare(&mut self, decided: usize, alone: bool) -> Result<(), String> {
        self.compare_answers(decided, alone)?;
        match &self.model.doing {
            Some(doing) => {
                let at = doing.at;
                let (daemon, host) = (self.world.daemon(), &self.world.host);
                let there =
                    daemon.runtime.block_on(async { tokio::time::timeout(PATIENCE, host.somebody_at(at)).await });
                there.map_err(|_| format!("nothing came to {at:?}; {:?}", self.model))?;
            }
            // Twice: what is due comes after what was asked.
            None => self.barrier().and_then(|()| self.barrier())?,
        }
        self.compare_rows()?;
        self.compare_engines()?;
        if self.model.doing.is_none() && self.world.host.tick(self.id.as_str()) {
            self.model.ticks += 1;
        }
        Ok(())
    }

    fn compare_answers(&mut self, decided: usize, alone: bool) -> Result<(), String> {
        let (model, world, id) = (&mut self.model, &self.world, &self.id);
        let daemon = world.daemon();
        let said: Vec<usize> = self.asked.keys().filter(|number| model.said.contains_key(number)).copied().collect();
        for number in said {
            let (asking, stays) = self.asked.remove(&number).expect("just found");
            let heard = daemon.runtime.block_on(async { tokio::time::timeout(PATIENCE, asking).await });
            let heard = heard.map_err(|_| format!("ask {number} is not answered"))?;
            let heard = heard.map_err(|ended| format!("ask {number} ended: {ended}"))?;
            match (&model.said[&number], heard) {
                (Ok(()), Heard::Done) => {}
                (Ok(()), Heard::Access(access)) => {
                    if alone && model.state == model::State::Running && model.doing.is_none() {
                        let healthy = daemon.runtime.block_on(access.health(PATIENCE));
                        healthy.map_err(|error| format!("access to a guest that does not answer: {error}"))?;
                    }
                    if stays {
                        model.uses += 1;
                        self.using.push(*access);
                    }
                }
                (Err(code), Heard::No(heard, _)) if *code == heard => {}
                (expected, Heard::Done | Heard::Access(_)) => {
                    return Err(format!("ask {number} was granted, not {expected:?}"));
                }
                (expected, Heard::No(code, why)) => {
                    return Err(format!("ask {number} was told {code} ({why}), not {expected:?}"));
                }
            }
        }
        // Whoever is left waits: the owner must know of all of them before anything else happens.
        if !self.asked.is_empty() {
            let known = daemon.runtime.block_on(async {
                let known = async {
                    while world.seen.decided(id) < decided {
                        tokio::time::sleep(LOOK).await;
                    }
                };
                tokio::time::timeout(PATIENCE, known).await
            });
            known.map_err(|_| "an ask did not reach its owner".to_owned())?;
        }
        match self.asked.iter().find(|(_, (asking, _))| asking.is_finished()) {
            Some((number, _)) => Err(format!("ask {number} was answered, and should wait")),
            None => Ok(()),
        }
    }

    /// Asks for nothing, and is answered when everything before is done.
    fn barrier(&self) -> Result<(), String> {
        let daemon = self.world.daemon();
        if self.model.state == model::State::Destroyed {
            self.compare_rows()?;
            // Its row says so a moment before its owner ends.
            let ended = daemon.lifecycle.destroy(TENANT, &self.id, Cause::Api);
            let ended = daemon.runtime.block_on(async { tokio::time::timeout(PATIENCE, ended).await });
            return ended.map_err(|_| "its owner hangs".to_owned())?.map_err(|error| error.to_string());
        }
        let began = Instant::now();
        daemon.runtime.block_on(async {
            loop {
                let nothing = daemon.lifecycle.patch(TENANT, &self.id, Patch::default(), Cause::Api);
                let view = tokio::time::timeout(PATIENCE, nothing).await.map_err(|_| "its owner hangs".to_owned())?;
                match view {
                    Ok(view) if self.fits(&view.row).is_ok() => return Ok(()),
                    // Deadlines come after asks.
                    _ if began.elapsed() < PATIENCE => tokio::time::sleep(LOOK).await,
                    Ok(view) => return self.fits(&view.row),
                    Err(error) => return Err(format!("it cannot be changed: {error}")),
                }
            }
        })
    }

    fn compare_rows(&self) -> Result<(), String> {
        let mut wrong = Ok(());
        // The answer to an ask may be there before the last write of what it led to.
        let row = self.until("the row is as it should be", |row| {
            wrong = self.fits(row);
            wrong.is_ok()
        });
        row.map(drop).map_err(|late| format!("{} ({late})", wrong.err().unwrap_or_default()))
    }

    fn fits(&self, row: &Sandbox) -> Result<(), String> {
        let model = &self.model;
        let state = match model.state {
            model::State::Creating => State::Creating,
            model::State::Running => State::Running,
            model::State::Suspended(model::Memory::Kept) => State::Suspended(Memory::Kept),
            model::State::Suspended(model::Memory::None) => State::Suspended(Memory::None),
            model::State::Suspended(model::Memory::Spent) => State::Suspended(Memory::Spent),
            model::State::Failed => State::Failed(Bootable::Yes),
            model::State::Destroyed => State::Destroyed,
        };
        let op = model.doing.as_ref().filter(|doing| doing.is_journalled()).map(|doing| match doing.op {
            model::Op::Create => Op::Create,
            model::Op::Suspend { .. } => Op::Suspend,
            model::Op::Wake => Op::Wake,
            model::Op::Destroy => Op::Destroy,
        });
        // What was undone in vain is still being created, as far as the journal goes.
        let op = if model.state == model::State::Creating { op.or(Some(Op::Create)) } else { op };
        let same = |what: &str, is: &dyn std::fmt::Debug, should: &dyn std::fmt::Debug| {
            let (is, should) = (format!("{is:?}"), format!("{should:?}"));
            if is == should { Ok(()) } else { Err(format!("{what} is {is}, not {should}")) }
        };
        same("state", &row.state, &state)?;
        same("transition", &row.transition.as_ref().map(|transition| transition.op), &op)?;
        same("generation", &row.runtime_generation, &model.generation)?;
        same("restored_memory", &row.restored_memory, &model.restored)?;
        same("auto_resume", &row.policy.auto_resume, &model.auto_resume)?;
        same("expires_at", &row.policy.expires_at, &model.expires_at.map(at))?;
        same("hard_expires_at", &row.policy.hard_expires_at, &model.hard_at.map(at))?;
        if state == State::Running && op.is_none() {
            same("started_at", &row.started_at, &Some(at(model.started_at)))?;
            same("last_activity_at", &row.last_activity_at, &at(model.active_at))?;
        }
        Ok(())
    }

    fn compare_engines(&self) -> Result<(), String> {
        let wrongs = self.world.host.wrongs();
        if !wrongs.is_empty() {
            return Err(wrongs.join("; "));
        }
        let engines = self.world.host.engines();
        if engines.iter().any(|name| name != self.id.as_str()) {
            return Err(format!("engines that nobody knows: {engines:?}"));
        }
        match (self.world.host.memory(self.id.as_str()), self.model.engine) {
            (Some(memory), true) => {
                let settled = self.model.doing.is_none();
                if settled && memory.ticks != self.model.ticks {
                    return Err(format!("its memory has {} ticks, not {}", memory.ticks, self.model.ticks));
                }
            }
            (None, false) => {}
            (found, _) => return Err(format!("its engine is {found:?}; {:?}", self.model)),
        }
        if self.model.state == model::State::Destroyed && self.model.doing.is_none() {
            let left = [self.world.sandboxes_dir().join(self.id.as_str()), self.world.run_dir().join(self.id.bare())];
            if let Some(left) = left.iter().find(|path| path.exists()) {
                return Err(format!("{} is left", left.display()));
            }
        }
        Ok(())
    }

    /// Whatever became of it, it can be ended, and nothing is left.
    fn end(&mut self) -> Result<(), String> {
        self.take(&Step::Release)?;
        self.world.host.behave();
        self.model.faults.clear();
        self.take(&Step::Ask(vec![Ask::Destroy]))?;
        if !self.asked.is_empty() {
            return Err(format!("{} still wait", self.asked.len()));
        }
        self.world.seen.forget(&self.id);
        for dir in [self.world.sandboxes_dir(), self.world.run_dir()] {
            let left = std::fs::read_dir(&dir).map_err(|error| error.to_string())?.count();
            if left > 0 {
                return Err(format!("{left} things are left in {}", dir.display()));
            }
        }
        match self.model.state {
            model::State::Destroyed => Ok(()),
            state => Err(format!("it ended as {state:?}")),
        }
    }
}
