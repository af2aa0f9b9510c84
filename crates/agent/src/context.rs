//! What every route may need: the sandbox's defaults, its environment, the process table, the reaper.
//!
//! Locks are plain and short; none is held across an await.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio_util::task::TaskTracker;

use crate::files::Watchers;
use crate::lease::Leases;
use crate::process;
use crate::reaper::Reaper;
use crate::tunnel;

/// What the agent may do to the machine that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Powers {
    /// It is the guest's init: clock, entropy, host name and power are its own.
    Machine,
    /// It is the init of a container: host name and power are its own, and the files in `/etc` that name the machine. Clock
    /// and random pool are the host's, and right; cards, mounts and limits are the engine's.
    Container,
    /// It is an ordinary process on somebody's machine: all of these are left alone.
    Process,
}

/// Shared by all sessions; lives as long as the agent.
pub(crate) struct Context {
    /// Whether the machine is ours.
    pub(crate) powers: Powers,
    /// Every process that was started through the agent.
    pub(crate) processes: process::Table,
    /// Watched directories.
    pub(crate) watchers: Watchers,
    /// Who does not want to be put to sleep.
    pub(crate) leases: Leases,
    /// Tunnels that outlive their session.
    pub(crate) tunnels: tunnel::Kept,
    /// The one place where children are waited for.
    pub(crate) reaper: Reaper,
    /// For work that must outlive the session and the request that began it.
    pub(crate) tasks: TaskTracker,
    /// Where the clone hooks are, if any are to be run.
    pub(crate) hooks: Option<PathBuf>,
    /// There were none when the guest was quiesced, so that the restore need not look.
    no_hooks: AtomicBool,
    defaults: RwLock<Defaults>,
    secret: Mutex<[u8; 32]>,
}

#[derive(Clone)]
struct Defaults {
    user: String,
    workdir: Option<String>,
    env: Arc<BTreeMap<String, String>>,
    clone_generation: u64,
    /// A sleep lies behind, and nobody has looked yet what it cut.
    woken: bool,
}

impl Context {
    pub(crate) fn new(powers: Powers, secret: [u8; 32], reaper: Reaper, hooks: Option<PathBuf>) -> Self {
        let defaults =
            Defaults { user: "root".to_owned(), workdir: None, env: Arc::default(), clone_generation: 0, woken: false };
        Self {
            powers,
            processes: process::Table::default(),
            watchers: Watchers::default(),
            leases: Leases::default(),
            tunnels: tunnel::Kept::default(),
            reaper,
            tasks: TaskTracker::new(),
            hooks,
            no_hooks: AtomicBool::new(false),
            defaults: RwLock::new(defaults),
            secret: Mutex::new(secret),
        }
    }

    /// Who runs a command when the request names nobody.
    pub(crate) fn default_user(&self) -> String {
        self.read(|d| d.user.clone())
    }

    /// Where a command runs when the request names no directory; the user's home if this is `None`.
    pub(crate) fn default_workdir(&self) -> Option<String> {
        self.read(|d| d.workdir.clone())
    }

    /// The sandbox's environment; a request's own variables go on top.
    pub(crate) fn env(&self) -> Arc<BTreeMap<String, String>> {
        self.read(|d| Arc::clone(&d.env))
    }

    pub(crate) fn set_default_user(&self, user: String) {
        self.write(|d| d.user = user);
    }

    pub(crate) fn set_default_workdir(&self, workdir: String) {
        self.write(|d| d.workdir = if workdir.is_empty() { None } else { Some(workdir) });
    }

    pub(crate) fn replace_env(&self, env: BTreeMap<String, String>) {
        self.write(|d| d.env = Arc::new(env));
    }

    /// Stores the host's count; true if it differs from what was known.
    pub(crate) fn set_clone_generation(&self, generation: u64) -> bool {
        self.write(|d| {
            let before = std::mem::replace(&mut d.clone_generation, generation);
            // The first one is that of a fresh clone, which has slept but was nobody before.
            d.woken |= before != 0 && before != generation;
            before != generation
        })
    }

    /// Whether it has slept since this was asked last.
    pub(crate) fn has_woken(&self) -> bool {
        self.write(|d| std::mem::take(&mut d.woken))
    }

    /// Whether nobody has told it yet which sandbox it is in: it is about to be a golden snapshot.
    pub(crate) fn is_nobody(&self) -> bool {
        self.read(|d| d.clone_generation == 0)
    }

    /// Looks for hooks now, for the restore that follows a quiesce: a restored guest runs cold code, and the way to a
    /// directory that is mostly not there is a long one.
    pub(crate) fn look_for_hooks(&self) {
        let none = self.hooks.as_ref().is_none_or(|directory| !directory.is_dir());
        self.no_hooks.store(none, Ordering::Relaxed);
    }

    /// The directory of the hooks, if there is one. What was seen at the last quiesce holds once.
    pub(crate) fn hooks_to_run(&self) -> Option<&PathBuf> {
        if self.no_hooks.swap(false, Ordering::Relaxed) {
            return None;
        }
        self.hooks.as_ref().filter(|directory| directory.is_dir())
    }

    /// What the next hello must be signed with.
    pub(crate) fn secret(&self) -> [u8; 32] {
        *self.secret.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_secret(&self, secret: [u8; 32]) {
        *self.secret.lock().unwrap_or_else(PoisonError::into_inner) = secret;
    }

    fn read<T>(&self, f: impl FnOnce(&Defaults) -> T) -> T {
        f(&self.defaults.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, f: impl FnOnce(&mut Defaults) -> T) -> T {
        f(&mut self.defaults.write().unwrap_or_else(PoisonError::into_inner))
    }
}
