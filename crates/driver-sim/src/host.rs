//! The machine that engines run on, and the hand that a test has in it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::watch;
use wakeful_driver::{Error, Exit};
use wakeful_guest_proto::control::Obstacle;

use crate::process::{Disk, Memory, Process};

/// A place where an engine can be held or fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// Before there is an engine.
    Launch,
    /// There is one, but nobody was told.
    Launched,
    /// The line to the agent is opened.
    Connect,
    /// What it may ask of its disk is about to be limited.
    Limit,
    /// The guest is about to be told that its disk has grown.
    Grow,
    /// The vCPUs are about to run; failing here, the engine ends.
    Resume,
    /// The agent is told who it is; it can only fail.
    Contact,
    /// The state is about to be written.
    Save,
    /// The engine is about to be killed.
    Kill,
    /// What is left of it is about to be removed.
    Reap,
}

/// How a point fails, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The engine says no.
    Refused,
    /// The disk is full.
    DiskFull,
}

/// Where engines live. They and their agents run on a runtime that outlives every daemon's.
pub struct Host {
    runtime: Handle,
    processes: Mutex<HashMap<PathBuf, Arc<Process>>>,
    holds: watch::Sender<BTreeSet<Point>>,
    /// How many stand at each point that is held.
    standing: watch::Sender<BTreeMap<Point, usize>>,
    faults: Mutex<BTreeMap<Point, Fault>>,
    /// Images whose memory has run on: loading one would corrupt files.
    spoiled: Mutex<HashSet<u64>>,
    wrongs: Mutex<Vec<String>>,
    /// What guests hold that no image keeps, by the names of their engines.
    obstacles: Mutex<HashMap<String, Vec<Obstacle>>>,
    /// How often guests were asked for that.
    looks: AtomicU64,
    /// What engines were last launched over.
    bases: Mutex<HashMap<String, PathBuf>>,
    numbers: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// An empty machine whose guests run on `runtime`.
    #[must_use]
    pub fn new(runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            processes: Mutex::default(),
            holds: watch::Sender::new(BTreeSet::new()),
            standing: watch::Sender::new(BTreeMap::new()),
            faults: Mutex::default(),
            spoiled: Mutex::default(),
            wrongs: Mutex::default(),
            obstacles: Mutex::default(),
            looks: AtomicU64::new(0),
            bases: Mutex::default(),
            numbers: AtomicU64::new(1),
        })
    }

    // ---- the test's hand

    /// From now on whoever comes to this point stays there.
    pub fn hold(&self, point: Point) {
        self.holds.send_if_modified(|holds| holds.insert(point));
    }

    /// Lets go who stays there, and holds nobody any more.
    pub fn release(&self, point: Point) {
        self.holds.send_if_modified(|holds| holds.remove(&point));
    }

    /// The next to come to this point fails.
    pub fn fail(&self, point: Point, fault: Fault) {
        locked(&self.faults).insert(point, fault);
    }

    /// Holds nobody, fails nobody.
    pub fn behave(&self) {
        self.holds.send_modify(BTreeSet::clear);
        locked(&self.faults).clear();
    }

    /// Resolves when somebody stands at a point that is held.
    pub async fn somebody_at(&self, point: Point) {
        let mut standing = self.standing.subscribe();
        // The sender is ours, so it is never closed.
        let _ = standing.wait_for(|standing| standing.get(&point).is_some_and(|n| *n > 0)).await;
    }

    /// Kills the engine of this name as the host's kernel would; false if there is none.
    pub fn kill(&self, name: &str) -> bool {
        let Some(process) = self.alive(name) else { return false };
        process.end(Exit { status: Some("signal: 9".into()), output: String::new(), out_of_memory: false });
        true
    }

    /// The guest does something that only its memory knows of; false if it does not run.
    pub fn tick(&self, name: &str) -> bool {
        self.alive(name).is_some_and(|process| process.tick())
    }

    /// What is in the memory of the engine of this name.
    #[must_use]
    pub fn memory(&self, name: &str) -> Option<Memory> {
        self.alive(name).map(|process| process.memory())
    }

    /// The disk of the engine of this name.
    #[must_use]
    pub fn disk(&self, name: &str) -> Option<Disk> {
        self.alive(name).map(|process| process.disk())
    }

    /// Names of the engines that are alive.
    #[must_use]
    pub fn engines(&self) -> Vec<String> {
        locked(&self.processes).values().filter(|p| p.exit().is_none()).map(|p| p.name.clone()).collect()
    }

    /// From now on the guest of this engine holds these; nothing, if none are given.
    pub fn obstruct(&self, name: &str, held: Vec<Obstacle>) {
        locked(&self.obstacles).insert(name.to_owned(), held);
    }

    /// How often guests were asked what they hold.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// What the engine of this name was last launched over.
    #[must_use]
    pub fn base(&self, name: &str) -> Option<PathBuf> {
        locked(&self.bases).get(name).cloned()
    }

    /// What should never have been done, since this was last asked.
    #[must_use]
    pub fn wrongs(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.wrongs))
    }

    fn alive(&self, name: &str) -> Option<Arc<Process>> {
        let processes = locked(&self.processes);
        processes.values().find(|process| process.name == name && process.exit().is_none()).cloned()
    }

    // ---- for the driver

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn note_base(&self, name: &str, base: &Path) {
        locked(&self.bases).insert(name.to_owned(), base.to_owned());
    }

    pub(crate) fn held_by(&self, name: &str) -> Vec<Obstacle> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        locked(&self.obstacles).get(name).cloned().unwrap_or_default()
    }

    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn wrong(&self, what: String) {
        locked(&self.wrongs).push(what);
    }

    pub(crate) fn spoil(&self, image: u64) {
        locked(&self.spoiled).insert(image);
    }

    pub(crate) fn is_spoiled(&self, image: u64) -> bool {
        locked(&self.spoiled).contains(&image)
    }

    pub(crate) fn at(&self, run: &Path) -> Option<Arc<Process>> {
        locked(&self.processes).get(run).cloned()
    }

    pub(crate) fn add(&self, run: &Path, process: Arc<Process>) {
        if let Some(other) = locked(&self.processes).insert(run.to_owned(), process)
            && other.exit().is_none()
        {
            self.wrong(format!("{} got a second engine beside a living one", other.name));
        }
    }

    pub(crate) fn remove(&self, run: &Path) -> Option<Arc<Process>> {
        locked(&self.processes).remove(run)
    }

    /// The fault that is due at this point.
    pub(crate) fn fault(&self, point: Point) -> Option<Fault> {
        locked(&self.faults).remove(&point)
    }

    /// Stays at a point for as long as it is held, then fails there if that is due.
    pub(crate) async fn pass(&self, point: Point, doing: &'static str) -> Result<(), Error> {
        if self.holds.borrow().contains(&point) {
            let _here = Standing::new(self, point);
            let _ = self.holds.subscribe().wait_for(|holds| !holds.contains(&point)).await;
        }
        match self.fault(point) {
            None => Ok(()),
            Some(Fault::Refused) => Err(Error::Refused { doing, answer: "as the test wants it".into() }),
            Some(Fault::DiskFull) => Err(Error::DiskFull { doing }),
        }
    }
}

/// Counts one who stands at a point, until it goes or is dropped with its daemon.
struct Standing<'a>(&'a Host, Point);

impl<'a> Standing<'a> {
    fn new(host: &'a Host, point: Point) -> Self {
        host.standing.send_modify(|standing| *standing.entry(point).or_default() += 1);
        Self(host, point)
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.0.standing.send_modify(|standing| *standing.entry(self.1).or_default() -= 1);
    }
}
