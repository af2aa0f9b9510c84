//! One simulated engine: what a process and its guest would be.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use wakeful_driver::{Exit, IoLimits, MemoryBase};

use crate::host::Host;

/// All that a guest remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Which boot or clone this is.
    pub born: u64,
    /// How often it has ticked since.
    pub ticks: u64,
    /// What its agent signs hellos with.
    pub secret: [u8; 32],
}

/// A guest's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The size that its guest was told of, in MiB.
    pub told_mb: u32,
    /// The size that its agent has made the file system, in MiB.
    pub grown_mb: u32,
    /// What the guest may ask of it.
    pub limits: IoLimits,
}

/// What the vCPUs do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Stopped,
    Running,
    Ended(Exit),
}

pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// Where its memory comes from, for the account of what it saves.
    pub(crate) base: Option<MemoryBase>,
    /// Engines know their host, the host keeps the engines.
    pub(crate) host: Weak<Host>,
    life: watch::Sender<Life>,
    memory: Mutex<Memory>,
    disk: Mutex<Disk>,
    /// Images that hold this very memory: worth nothing once it runs.
    images: Mutex<Vec<u64>>,
    /// Sessions of the agent; a real port carries one.
    pub(crate) sessions: watch::Sender<usize>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    pub(crate) fn new(
        host: &Arc<Host>,
        name: String,
        base: Option<MemoryBase>,
        memory: Memory,
        life: Life,
        loaded: Option<u64>,
        disk_mb: u32,
    ) -> Self {
        // Above every real process id.
        let pid = (1 << 30) + u32::try_from(host.number() % (1 << 29)).unwrap_or(0);
        Self {
            name,
            pid,
            base,
            host: Arc::downgrade(host),
            life: watch::Sender::new(life),
            memory: Mutex::new(memory),
            disk: Mutex::new(Disk { told_mb: disk_mb, grown_mb: disk_mb, limits: IoLimits::default() }),
            images: Mutex::new(loaded.into_iter().collect()),
            sessions: watch::Sender::new(0),
        }
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        match &*self.life.borrow() {
            Life::Ended(exit) => Some(exit.clone()),
            Life::Stopped | Life::Running => None,
        }
    }

    pub(crate) async fn ended(&self) -> Exit {
        let mut life = self.life.subscribe();
        // The sender is ours, so it is never closed.
        let _ = life.wait_for(|life| matches!(life, Life::Ended(_))).await;
        self.exit().unwrap_or(Exit { status: None, output: String::new(), out_of_memory: false })
    }

    /// Waits until the vCPUs run; a stopped guest does nothing.
    pub(crate) async fn runs(&self) {
        let _ = self.life.subscribe().wait_for(|life| *life == Life::Running).await;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.life.borrow() == Life::Stopped
    }

    /// Ends it; only the first way counts.
    pub(crate) fn end(&self, exit: Exit) {
        self.life.send_if_modified(|life| {
            let first = !matches!(life, Life::Ended(_));
            if first {
                *life = Life::Ended(exit);
            }
            first
        });
    }

    pub(crate) fn stop(&self) {
        self.turn(&Life::Running, Life::Stopped);
    }

    /// Whatever holds its memory is worth nothing from here on: the disk moves on.
    pub(crate) fn run(&self) {
        if let Some(host) = self.host.upgrade() {
            locked(&self.images).drain(..).for_each(|image| host.spoil(image));
        }
        self.turn(&Life::Stopped, Life::Running);
    }

    fn turn(&self, from: &Life, to: Life) {
        self.life.send_if_modified(|life| {
            let fits = *life == *from;
            if fits {
                *life = to;
            }
            fits
        });
    }

    pub(crate) fn saved(&self, image: u64) {
        locked(&self.images).push(image);
    }

    pub(crate) fn memory(&self) -> Memory {
        locked(&self.memory).clone()
    }

    pub(crate) fn disk(&self) -> Disk {
        *locked(&self.disk)
    }

    pub(crate) fn limit(&self, limits: IoLimits) {
        locked(&self.disk).limits = limits;
    }

    pub(crate) fn tell_disk(&self, disk_mb: u32) {
        locked(&self.disk).told_mb = disk_mb;
    }

    /// The file system becomes as large as the disk.
    pub(crate) fn grow(&self) -> u32 {
        let mut disk = locked(&self.disk);
        disk.grown_mb = disk.told_mb;
        disk.grown_mb
    }

    pub(crate) fn tick(&self) -> bool {
        let runs = *self.life.borrow() == Life::Running;
        if runs {
            locked(&self.memory).ticks += 1;
        }
        runs
    }

    pub(crate) fn secret(&self) -> [u8; 32] {
        locked(&self.memory).secret
    }

    pub(crate) fn rotate(&self, secret: [u8; 32]) {
        locked(&self.memory).secret = secret;
    }
}
