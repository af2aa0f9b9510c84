//! One engine, seen through the trait.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use wakeful_confine::process::Process;
use wakeful_confine::{blocking, files, place as places};
use wakeful_driver::{ByteStream, Engine, Error, Exit, Image, IoLimits, Place};
use wakeful_sys::pidfd;

use crate::channel;
use crate::control::{Control, Failure, INDEX, PAGES, STATE};
use crate::engines::Pinned;
use crate::place::{self, Phase, Record};
use crate::snapshot::{self, Detail};
use crate::{Host, disk, launch};

/// Within which what is left of a killed engine must be gone.
const GONE: Duration = Duration::from_secs(10);

/// A sentry with its gofer.
#[derive(Debug)]
pub(crate) struct GvisorEngine {
    host: Arc<Host>,
    place: Place,
    process: Arc<Process>,
    control: Control,
    record: Mutex<Record>,
    /// The runsc that restores it, our child until it has; nobody of an engine that was adopted.
    restoring: Option<Process>,
    /// One at a time does something to it.
    turn: tokio::sync::Mutex<()>,
    /// Its disk is on the host's since it was stopped.
    synced: AtomicBool,
}

impl GvisorEngine {
    pub(crate) fn new(
        host: Arc<Host>,
        place: Place,
        process: Arc<Process>,
        record: Record,
        restoring: Option<Child>,
    ) -> Self {
        let program = Pinned::open(&host.data_dir, &record.engine).unwrap_or_else(|| host.engine.clone()).program();
        let control = Control {
            program,
            state: place::state(&place.run),
            log: place::log(&place.run),
            hardened: record.hardened,
        };
        let turn = tokio::sync::Mutex::default();
        let watched = |child: Child| pidfd::open(child.id()).and_then(|fd| Process::new(child.id(), fd)).ok();
        let (record, restoring) = (Mutex::new(record), restoring.and_then(watched));
        Self { host, place, process, control, record, restoring, turn, synced: AtomicBool::new(false) }
    }

    fn record(&self) -> Record {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, record: &Record) -> Result<(), Error> {
        place::write_record(&self.place.run, record)
            .map_err(|source| Error::io("write an engine's account", source))?;
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = record.clone();
        Ok(())
    }

    fn enter(&self, phase: Phase) -> Result<(), Error> {
        self.write(&Record { phase, ..self.record() })
    }

    fn output(&self) -> String {
        files::tail(&self.control.log, 0, 2000)
    }

    async fn ask(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Control) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Error> {
        let control = self.control.clone();
        let asked = blocking(move || Ok(work(&control))).await?;
        asked.map_err(|failure| self.explain(doing, failure))
    }

    fn explain(&self, doing: &'static str, failure: Failure) -> Error {
        match failure {
            _ if self.process.has_ended() => Error::Ended { doing, output: self.output() },
            Failure::Refused(answer) if answer.contains("no space left on device") => Error::DiskFull { doing },
            Failure::Refused(answer) => Error::Refused { doing, answer },
            Failure::Late(after) => Error::Late { doing, after },
            Failure::Unusable(source) => Error::io(doing, source),
        }
    }

    /// Brings an engine whose daemon died between two words of its account to a known phase: does its agent speak?
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        let path = self.place.data.join(disk::DISK);
        blocking(move || disk::thaw(&path).map_err(|source| Error::io("let a disk be written to", source))).await?;
        match self.record().phase {
            Phase::Stopping | Phase::Continuing => {}
            Phase::Waiting(_) | Phase::Running | Phase::Stopped => return Ok(()),
        }
        let speaks = channel::speaks(&self.record().gateway).await;
        tracing::warn!(name = self.place.name, speaks, "an engine's stop or start was cut off");
        self.enter(if speaks { Phase::Running } else { Phase::Stopped })
    }
}

#[async_trait]
impl Engine for GvisorEngine {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    async fn connect(&self) -> Result<Box<dyn ByteStream>, Error> {
        if self.process.has_ended() {
            return Err(Error::Ended { doing: "connect to the agent", output: self.output() });
        }
        let gateway =
            File::open(self.record().gateway).map_err(|source| Error::io("find the guest's network", source))?;
        let process = Arc::clone(&self.process);
        Ok(Box::new(channel::dial(gateway.into(), async move { drop(process.ended().await) })))
    }

    async fn disconnected(&self) -> Result<(), Error> {
        // Its network stack sees the end of a connection by itself, stopped or not.
        Ok(())
    }

    async fn limit_io(&self, limits: IoLimits) -> Result<(), Error> {
        if limits == IoLimits::default() {
            return Ok(());
        }
        Err(Error::Refused { doing: "limit what it asks of its disks", answer: "this runtime cannot".to_owned() })
    }

    fn disk_mb(&self) -> u32 {
        self.record().machine.disk_mb
    }

    async fn grow_disk(&self, disk_mb: u32) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let mut record = self.record();
        if disk_mb < record.machine.disk_mb {
            let answer = format!("it has {} MiB", record.machine.disk_mb);
            return Err(Error::Refused { doing: "make its disk smaller", answer });
        }
        let path = self.place.data.join(disk::DISK);
        blocking(move || disk::grow(&path, disk_mb).map_err(|source| Error::io("grow its disk", source))).await?;
        // After the deed: whoever adopts it meanwhile does it again, and that is fine.
        record.machine.disk_mb = disk_mb;
        self.write(&record)
    }

    async fn resume(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        self.synced.store(false, Ordering::Relaxed);
        match self.record().phase {
            Phase::Running => Ok(()),
            Phase::Waiting(index) => {
                let run = self.place.run.clone();
                blocking(move || launch::release(&run, &index)).await?;
                self.enter(Phase::Running)
            }
            Phase::Stopped | Phase::Stopping | Phase::Continuing => {
                self.enter(Phase::Continuing)?;
                self.ask("run", Control::resume).await?;
                self.enter(Phase::Running)
            }
        }
    }

    async fn pause(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        match self.record().phase {
            Phase::Waiting(_) | Phase::Stopped => Ok(()),
            Phase::Running | Phase::Stopping | Phase::Continuing => {
                self.enter(Phase::Stopping)?;
                if let Err(error) = self.ask("stop", Control::pause).await {
                    self.enter(Phase::Running)?;
                    return Err(error);
                }
                self.enter(Phase::Stopped)
            }
        }
    }

    async fn save(&self, into: &Path) -> Result<Image, Error> {
        const DOING: &str = "save the engine";
        let _turn = self.turn.lock().await;
        let record = self.record();
        if record.phase != Phase::Stopped {
            let answer = if matches!(record.phase, Phase::Waiting(_)) { "it has not run yet" } else { "it is running" };
            return Err(Error::Refused { doing: DOING, answer: answer.to_owned() });
        }
        let (control, target, path) = (self.control.clone(), into.to_owned(), self.place.data.join(disk::DISK));
        let saved = blocking(move || {
            // What is there already is not ours, and does not go if this fails.
            let taken = |name: &&&str| target.join(name).symlink_metadata().is_ok();
            if let Some(name) = [STATE, INDEX, PAGES].iter().find(taken) {
                let reason = format!("{name} is there already");
                return Err(Error::io(DOING, std::io::Error::new(std::io::ErrorKind::AlreadyExists, reason)));
            }
            let made = Made(&target);
            let written = match control.checkpoint(&target) {
                Ok(written) => written,
                Err(failure) => return Ok(Err(failure)),
            };
            let failed = |source| Error::io(DOING, source);
            // The save has flushed the sentry's own caches: from here on the disk is what the memory expects. Digests are
            // taken from the page cache while the rest goes to the disk.
            let (synced, files) = std::thread::scope(|scope| {
                let syncing = scope.spawn(|| {
                    written.iter().try_for_each(File::sync_all)?;
                    disk::sync(&path)?;
                    files::sync_dir(&target)
                });
                let files = snapshot::account(&written);
                (syncing.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread ended early"))), files)
            });
            synced.map_err(failed)?;
            let files = files.map_err(failed)?;
            made.keep();
            Ok(Ok(files))
        });
        let files = saved.await?.map_err(|failure| self.explain(DOING, failure))?;
        self.synced.store(true, Ordering::Relaxed);
        let detail = Detail { engine: record.engine, machine: record.machine };
        let detail = serde_json::to_value(detail).map_err(|error| Error::io(DOING, error.into()))?;
        Ok(Image { engine: record.key, files, base: None, detail })
    }

    async fn exited(&self) -> Exit {
        // Taking note of its end leaves no zombie; if it failed, the engine ends too.
        if let Some(restoring) = &self.restoring {
            tokio::select! {
                _ = restoring.ended() => {}
                _ = self.process.ended() => {}
            }
        }
        let status = self.process.ended().await;
        Exit { status, output: self.output(), out_of_memory: self.host.cgroups.out_of_memory(&self.place.run) }
    }

    async fn kill(&self) -> Result<(), Error> {
        let (host, run, path) = (Arc::clone(&self.host), self.place.run.clone(), self.place.data.join(disk::DISK));
        let (synced, sentry) = (self.synced.load(Ordering::Relaxed), Arc::clone(&self.process));
        blocking(move || {
            let failed = |source| Error::io("end an engine", source);
            pidfd::kill(sentry.fd()).map_err(failed)?;
            // All at once: the gofer and the processes that run guest code take as long to go as the sentry does.
            let members = host.cgroups.members(&run);
            let others: Vec<_> = members.into_iter().filter_map(|pid| pidfd::open(pid).ok()).collect();
            for process in &others {
                // It may have gone by itself.
                let _ = pidfd::kill(process);
            }
            for process in others.iter().map(OwnedFd::as_fd).chain([sentry.fd()]) {
                if !pidfd::wait_ended(process, GONE).map_err(failed)? {
                    return Err(Error::Late { doing: "end after it was killed", after: GONE });
                }
            }
            // What it wrote last is in its file when the kernel has let go of it.
            if synced { Ok(()) } else { disk::at_rest(&path) }
        })
        .await
    }
}

/// A half-written image goes again.
struct Made<'a>(&'a Path);

impl Made<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        for name in [STATE, INDEX, PAGES] {
            let _ = files::remove_any(&self.0.join(name));
        }
    }
}

/// Finds the engine that an earlier daemon launched here.
pub(crate) async fn adopt(host: &Arc<Host>, place: &Place) -> Result<Option<GvisorEngine>, Error> {
    let failed = |source| Error::io("look for an engine", source);
    let Some(record) = place::record(&place.run) else { return Ok(None) };
    let (Some(pid), Some(started)) = (record.pid, record.started) else {
        // Its launch was never completed, so nobody relies on it.
        places::clear(&place.run, &host.cgroups, None).await?;
        return Ok(None);
    };
    let process = match pidfd::open(pid) {
        // The descriptor first, then the proof.
        Ok(fd) if pidfd::start_time(pid).is_ok_and(|now| now == started) => Process::new(pid, fd).map_err(failed)?,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if process.has_ended() {
        return Ok(None);
    }
    let engine = GvisorEngine::new(Arc::clone(host), place.clone(), Arc::new(process), record, None);
    engine.settle().await?;
    Ok(Some(engine))
}
