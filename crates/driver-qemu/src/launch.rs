//! From a source to an engine that is loaded or running.
//!
//! ```text
//!   check the image, open or make the files            nothing has happened yet
//!   run directory, lock, sockets, account, spawn       from here on: dropped or failed = killed and removed
//!   monitor answers  ‖  pages are injected             the diff goes in while the engine is still starting
//!   device state is loaded                             a state that does not fit ends the engine; nothing is spent
//!   the account gets its start time                    from here on a later daemon adopts it
//! ```

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use wakeful_confine::blocking;
use wakeful_confine::files;
use wakeful_driver::{Card, Error, Image, Machine, MemoryBase, Place, Source};
use wakeful_sys::{copy, pages, pidfd, spawn};

use crate::boot::{self, Accelerator, Arguments, Start};
use crate::control::{Failure, Incoming, Qmp};
use crate::diff::Diff;
use crate::engine::{QemuEngine, explain};
use crate::engines::Pinned;
use crate::host::Host;
use crate::initramfs;
use crate::jail::{Jail, World};
use crate::place::{self, Memory, Record};
use crate::snapshot::{self, Detail, Made, OVERLAY};
use wakeful_confine::cgroup::{Cgroup, Reach};
use wakeful_confine::process::Process;

/// From the spawn to the first word of the monitor; a burst of launches on few cores takes its time.
const START: Duration = Duration::from_secs(60);

/// [`Source`], owned, for a thread that may block.
enum Job {
    Golden { secret: [u8; 32] },
    Clone { golden: PathBuf, image: Image },
    Wake { checkpoint: PathBuf, image: Image },
    Boot { secret: [u8; 32] },
}

impl From<Source<'_>> for Job {
    fn from(source: Source<'_>) -> Self {
        match source {
            Source::Golden { secret } => Self::Golden { secret },
            Source::Clone { golden, image } => Self::Clone { golden: golden.to_owned(), image: image.clone() },
            Source::Wake { checkpoint, image } => {
                Self::Wake { checkpoint: checkpoint.to_owned(), image: image.clone() }
            }
            Source::First { secret } | Source::Boot { secret } => Self::Boot { secret },
        }
    }
}

/// All that an engine is given.
struct Prepared {
    engine: Pinned,
    memory: Memory,
    memory_file: File,
    /// Of an own base.
    memory_digest: Option<String>,
    base: File,
    overlay: File,
    /// The disk's size as far as the guest knows.
    known_disk_mb: u32,
    from: Origin,
    /// What was made for it, to be removed if it fails.
    made: Made,
}

enum Origin {
    Kernel { kernel: File, initramfs: File },
    State { state: File, pages: Option<Diff> },
}

pub(crate) async fn launch(
    host: &Arc<Host>,
    place: &Place,
    machine: Machine,
    base: &Path,
    card: Card,
    source: Source<'_>,
) -> Result<Arc<QemuEngine>, Error> {
    let mut made = Made::default();
    if matches!(source, Source::Golden { .. } | Source::First { .. }) {
        make_overlay(&mut made, &place.data.join(OVERLAY), machine.disk_mb).await?;
    }
    let (job, owned) = (Job::from(source), (host.clone(), place.clone(), base.to_owned()));
    let started = blocking(move || {
        let (host, place, base) = owned;
        let prepared = prepare(&host, &place, machine, &base, job, made)?;
        start(&host, &place, machine, &card, prepared)
    })
    .await?;
    let Started { mut starting, record, from, cgroup } = started;
    match finish(host, place, &starting.process, record, from, cgroup).await {
        Ok(engine) => {
            starting.keep();
            Ok(Arc::new(engine))
        }
        Err(error) => {
            starting.abandon().await;
            Err(error)
        }
    }
}

async fn make_overlay(made: &mut Made, path: &Path, disk_mb: u32) -> Result<(), Error> {
    let failed = |source| Error::io("make the disk", source);
    let file = made.create(path.to_owned()).map_err(failed)?;
    file.set_len(u64::from(disk_mb) << 20).map_err(failed)?;
    // A journal, because guests die; a small one, and nothing initialised that the guest can initialise itself. No room is
    // kept for growth: a kernel that grows it makes its group descriptors such as need none (`meta_bg`), up to any size.
    wakeful_debian::Program::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-O", "^resize_inode", "-J", "size=16", "-m", "0"])
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1"])
        .arg(path)
        .deadline(Duration::from_secs(60))
        .text()
        .await
        .map_err(|error| Error::Io {
            doing: "make the disk's file system".to_owned(),
            source: io::Error::other(error),
        })?;
    Ok(())
}

fn prepare(
    host: &Host,
    place: &Place,
    machine: Machine,
    base: &Path,
    job: Job,
    mut made: Made,
) -> Result<Prepared, Error> {
    let failed = |source| Error::io("open the files of an engine", source);
    let base = files::open_regular(base, false).map_err(failed)?;
    let overlay_path = place.data.join(OVERLAY);
    let boots = |secret: &[u8; 32]| -> Result<Origin, Error> {
        let kernel = File::open(host.kernel.path.join("vmlinux")).map_err(failed)?;
        Ok(Origin::Kernel { kernel, initramfs: initramfs::with_secret(&host.initramfs, secret).map_err(failed)? })
    };
    match job {
        Job::Golden { secret } => {
            let file = made.create(place.data.join("mem")).map_err(failed)?;
            file.set_len(u64::from(machine.memory_mb) << 20).map_err(failed)?;
            let overlay = files::open_regular(&overlay_path, true).map_err(failed)?;
            let (engine, from) = (host.engine.clone(), boots(&secret)?);
            Ok(Prepared {
                engine,
                memory: Memory::Shared,
                memory_file: file,
                memory_digest: None,
                base,
                overlay,
                known_disk_mb: machine.disk_mb,
                from,
                made,
            })
        }
        Job::Boot { secret } => {
            let overlay = files::open_regular(&overlay_path, true).map_err(failed)?;
            lengthen(&overlay, machine.disk_mb)?;
            let file = snapshot::fresh_base(&place.data, machine.memory_mb).map_err(failed)?;
            let (engine, from) = (host.engine.clone(), boots(&secret)?);
            let memory = Memory::Private(MemoryBase::Own);
            let memory_digest = Some(snapshot::digest_of_nothing());
            let known_disk_mb = machine.disk_mb;
            Ok(Prepared { engine, memory, memory_file: file, memory_digest, base, overlay, known_disk_mb, from, made })
        }
        Job::Clone { golden, image } => {
            let engine = fitting(host, &image, machine)?;
            if image.base.is_some() {
                return Err(Error::Unfit { reason: "a checkpoint is no golden snapshot".to_owned() });
            }
            let (memory_file, _) = snapshot::open_memory(&golden.join("mem"), machine.memory_mb)?;
            let state = snapshot::open_state(&golden, &image)?;
            let source = files::open_regular(&golden.join(OVERLAY), false).map_err(failed)?;
            let overlay = made.create(overlay_path).map_err(failed)?;
            copy::sparse_copy(&source, &overlay).map_err(failed)?;
            let memory = Memory::Private(MemoryBase::Golden(golden));
            Ok(Prepared {
                engine,
                memory,
                memory_file,
                memory_digest: None,
                base,
                overlay,
                known_disk_mb: machine.disk_mb,
                from: Origin::State { state, pages: None },
                made,
            })
        }
        Job::Wake { checkpoint, image } => {
            let engine = fitting(host, &image, machine)?;
            let Some(over) = image.base.clone() else {
                return Err(Error::Unfit { reason: "a golden snapshot is no checkpoint".to_owned() });
            };
            let memory = Memory::Private(over);
            let (memory_file, bytes) = snapshot::open_memory(&memory.path(&place.data), machine.memory_mb)?;
            let state = snapshot::open_state(&checkpoint, &image)?;
            let pages = snapshot::open_pages(&checkpoint, &image, bytes)?;
            let overlay = files::open_regular(&overlay_path, true).map_err(failed)?;
            lengthen(&overlay, machine.disk_mb)?;
            let Detail { own_base: memory_digest, machine: Machine { disk_mb: known_disk_mb, .. }, .. } =
                Detail::of(&image)?;
            let from = Origin::State { state, pages };
            Ok(Prepared { engine, memory, memory_file, memory_digest, base, overlay, known_disk_mb, from, made })
        }
    }
}

/// A disk that has grown while nobody ran it. Never the other way: what is behind its end may be somebody's.
fn lengthen(overlay: &File, disk_mb: u32) -> Result<(), Error> {
    let (failed, wanted) = (|source| Error::io("grow the disk", source), u64::from(disk_mb) << 20);
    if overlay.metadata().map_err(failed)?.len() < wanted {
        overlay.set_len(wanted).map_err(failed)?;
    }
    Ok(())
}

/// The kept engine that wrote this image, if everything that it depends on is as it was.
fn fitting(host: &Host, image: &Image, machine: Machine) -> Result<Pinned, Error> {
    let detail = Detail::of(image)?;
    if !detail.machine.goes_on_in(machine) {
        return Err(Error::Unfit { reason: format!("it is not of a machine {machine}") });
    }
    let engine = Pinned::open(&host.data_dir, &detail.engine)
        .ok_or_else(|| Error::Unfit { reason: format!("the engine {} is not kept here", detail.engine) })?;
    if host.key(&engine) != image.engine {
        return Err(Error::Unfit {
            reason: format!("accelerator, processor or clock rate are not those of {}", detail.engine),
        });
    }
    Ok(engine)
}

struct Started {
    starting: Starting,
    record: Record,
    from: Origin,
    cgroup: Cgroup,
}

/// An engine that nobody is responsible for yet. Dropped, it is killed and all that was made for it is removed.
struct Starting {
    process: Arc<Process>,
    run: PathBuf,
    jail: Jail,
    made: Option<Made>,
    kept: bool,
}

impl Starting {
    fn keep(&mut self) {
        self.kept = true;
        if let Some(made) = self.made.take() {
            made.keep();
        }
    }

    async fn abandon(mut self) {
        if self.process.kill().await.is_ok() {
            let _ = place::remove(&self.run, &self.jail);
            self.kept = true;
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if !self.kept {
            self.process.kill_now();
            let _ = place::remove(&self.run, &self.jail);
        }
    }
}

/// Removes the run directory if the engine could not even be started.
struct RunDir<'a>(Option<(&'a Path, &'a Jail)>);

impl Drop for RunDir<'_> {
    fn drop(&mut self) {
        if let Some((run, jail)) = self.0 {
            let _ = place::remove(run, jail);
        }
    }
}

fn start(host: &Host, place: &Place, machine: Machine, card: &Card, prepared: Prepared) -> Result<Started, Error> {
    let failed = |source| Error::io("start an engine", source);
    let Prepared { engine, memory, memory_file, memory_digest, base, overlay, known_disk_mb, from, made } = prepared;
    let run = &place.run;
    if place::is_locked(run).map_err(failed)? {
        return Err(Error::Refused { doing: "start where an engine lives", answer: place.name.clone() });
    }
    place::remove(run, &host.jail)?;
    files::make_dir(run, 0o700).map_err(failed)?;
    // The directory is there first: what is named after it is found by it.
    let mut run_dir = RunDir(Some((run, &host.jail)));

    let claim = host.jail.claim(&place.name).map_err(failed)?;
    let limits = host.jail.limits(machine, host.accelerator);
    let cgroup = host.jail.cgroups.create(run, &limits, Reach::Limits).map_err(failed)?;
    let cradle = cgroup.cradle().map_err(failed)?;
    let lock = place::lock(run).map_err(failed)?;
    let pid_file = files::create_new(&run.join("pid")).map_err(failed)?;
    let (monitor, agent) = (listen(&run.join("qmp")).map_err(failed)?, listen(&run.join("agent")).map_err(failed)?);
    let console = files::open_log(&place.data.join("console.log")).map_err(failed)?;
    host.jail.grant(&memory_file, &memory, claim.as_ref(), &engine).map_err(failed)?;
    let identity = claim.as_ref().map(|claim| host.jail.identity(claim, &host.groups(), &memory, &engine));
    let meta = memory_file.metadata().map_err(failed)?;
    let record = Record {
        key: host.key(&engine),
        engine: engine.name.clone(),
        accel: host.accelerator.name().to_owned(),
        machine: Machine { disk_mb: known_disk_mb, ..machine },
        memory,
        memory_inode: meta.ino(),
        memory_bytes: meta.len(),
        memory_digest,
        console_from: console.metadata().map_err(failed)?.len(),
        started: None,
        uid: claim.as_ref().map(|claim| claim.uid),
    };
    // Before the engine exists: who finds it must know what it is.
    place::write_record(run, &record).map_err(failed)?;

    let engine_lock = engine.enter().map_err(failed)?;
    let world = host.jail.world(&engine, host.accelerator).map_err(failed)?;
    let engine_dir = if world.is_none() { Some(engine.open_dir().map_err(failed)?) } else { None };
    let command_line = boot::kernel_command_line(host.accelerator, host.tsc_khz);
    let start = match &from {
        Origin::Kernel { kernel, initramfs } => {
            Start::Kernel { kernel: kernel.as_fd(), initramfs: initramfs.as_fd(), command_line: &command_line }
        }
        Origin::State { .. } => Start::Incoming,
    };
    let tap = match card {
        Card::Tap(tap) => Some(tap.as_fd()),
        Card::Unplugged => None,
        Card::Veth(_) => return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "its card is a TAP"))),
    };
    let arguments = Arguments {
        engine: &engine,
        engine_dir: engine_dir.as_ref().map(AsFd::as_fd),
        accelerator: host.accelerator,
        machine,
        memory: memory_file.as_fd(),
        shared: record.memory == Memory::Shared,
        base: base.as_fd(),
        overlay: overlay.as_fd(),
        agent: agent.as_fd(),
        monitor: monitor.as_fd(),
        tap,
        start,
    };
    let mut inherit = vec![
        lock.as_fd(),
        engine_lock.as_fd(),
        memory_file.as_fd(),
        base.as_fd(),
        overlay.as_fd(),
        agent.as_fd(),
        monitor.as_fd(),
    ];
    if let Origin::Kernel { kernel, initramfs } = &from {
        inherit.extend([kernel.as_fd(), initramfs.as_fd()]);
    }
    inherit.extend(engine_dir.as_ref().map(AsFd::as_fd));
    inherit.extend(tap);
    inherit.extend(claim.as_ref().map(|claim| claim.lock.as_fd()));
    let child = World::with(world.as_ref(), |walls| {
        spawn::spawn(&spawn::Spec {
            program: &arguments.program(),
            args: &arguments.list(),
            env: &arguments.environment(),
            inherit: &inherit,
            output: &console,
            pid_file: pid_file.as_fd(),
            identity,
            walls,
            cgroup: cradle.as_ref().map(AsFd::as_fd),
            longest_file: Some(Jail::longest_file(machine)),
            filter: host.jail.filter(),
        })
    })
    .map_err(failed)?;
    if let Some(claim) = claim {
        claim.keep();
    }
    let process = Process::new(child.pid, child.pidfd).map_err(failed)?;
    run_dir.0 = None;
    let (run, jail) = (run.clone(), host.jail.clone());
    let starting = Starting { process: Arc::new(process), run, jail, made: Some(made), kept: false };
    Ok(Started { starting, record, from, cgroup })
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    UnixListener::bind(path)
}

async fn finish(
    host: &Arc<Host>,
    place: &Place,
    process: &Arc<Process>,
    mut record: Record,
    from: Origin,
    cgroup: Cgroup,
) -> Result<QemuEngine, Error> {
    // Beside the start, which it would hold up; but no engine counts before it is where its limits are.
    let confined = process.clone();
    let join = blocking(move || {
        cgroup.join(confined.pid()).map_err(|source| Error::io("put an engine into its cgroup", source))
    });
    let (qmp, joined) = tokio::join!(load(host, place, process, &record, from), join);
    let qmp = qmp?;
    joined?;
    let failed = |source| Error::io("write an engine's account", source);
    record.started = Some(pidfd::start_time(process.pid()).map_err(failed)?);
    place::write_record(&place.run, &record).map_err(failed)?;
    Ok(QemuEngine::new(host.clone(), place.clone(), process.clone(), qmp, record))
}

/// Until the monitor answers and what is to be loaded is loaded.
async fn load(host: &Host, place: &Place, process: &Arc<Process>, record: &Record, from: Origin) -> Result<Qmp, Error> {
    let monitor = place.run.join("qmp");
    let console = (place.data.join("console.log"), record.console_from);
    let tell = |failure, doing| explain(failure, doing, process, (&console.0, console.1));
    let qmp = match from {
        Origin::Kernel { .. } => match Qmp::connect(&monitor, START).await {
            Ok(qmp) => qmp,
            Err(failure) => return Err(tell(failure, "start").await),
        },
        Origin::State { state, pages } => {
            let (inode, bytes) = (record.memory_inode, record.memory_bytes);
            let inject = async {
                let Some(pages) = pages else { return Ok(()) };
                // The thread keeps the process: its pid stays taken until the last page is written.
                let process = process.clone();
                blocking(move || inject(&process, &pages, inode, bytes)).await
            };
            let (qmp, injected) = tokio::join!(Qmp::connect(&monitor, START), inject);
            let qmp = match qmp {
                Ok(qmp) => qmp,
                Err(failure) => return Err(tell(failure, "start").await),
            };
            injected?;
            let version = Pinned::open(&host.data_dir, &record.engine).map_or((0, 0), |engine| engine.numbers());
            let how = if version >= (9, 1) { Incoming::File } else { Incoming::Fd };
            match qmp.load_devices(state.as_fd(), how).await {
                Ok(()) => {}
                Err(Failure::Late(after)) => return Err(Error::Late { doing: "load device state", after }),
                Err(failure) => {
                    let reason = match tell(failure, "load device state").await {
                        Error::Ended { output, .. } => output,
                        other => other.to_string(),
                    };
                    return Err(Error::Unfit { reason: format!("the engine refused the state: {reason}") });
                }
            }
            qmp
        }
    };
    // Images of before there was a network have it pulled out.
    match qmp.call("set_link", json!({"name": boot::CARD, "up": true})).await {
        Ok(_) => Ok(qmp),
        Err(failure) => Err(tell(failure, "plug its network card in").await),
    }
}

/// Waits for the mapping, which is made early in an engine's start, and writes all pages. All must be in before the load.
fn inject(process: &Process, pages: &Diff, inode: u64, bytes: u64) -> Result<(), Error> {
    let failed = |source| Error::io("inject a checkpoint's pages", source);
    let begun = Instant::now();
    let mappings = loop {
        if let Some(mappings) = pages::private_mappings(process.pid(), inode, bytes).map_err(failed)? {
            break mappings;
        }
        let ended = pidfd::wait_ended(process.fd(), Duration::from_micros(500)).map_err(failed)?;
        if ended {
            return Err(Error::Ended { doing: "inject a checkpoint's pages", output: String::new() });
        }
        if begun.elapsed() > START {
            return Err(Error::Late { doing: "map its memory", after: START });
        }
    };
    let waited = begun.elapsed();
    pages.inject(process.pid(), &mappings).map_err(failed)?;
    tracing::debug!(pages = pages.len(), ?waited, took = ?begun.elapsed(), "pages injected");
    Ok(())
}

/// The groups that let an engine open `/dev/kvm`.
pub(crate) fn kvm_groups(accelerator: Accelerator) -> Vec<u32> {
    match (accelerator, fs::metadata("/dev/kvm")) {
        // Never the group of root: that would open far more than this one device.
        (Accelerator::Kvm, Ok(meta)) if meta.mode() & 0o060 == 0o060 && meta.gid() != 0 => vec![meta.gid()],
        _ => Vec::new(),
    }
}
