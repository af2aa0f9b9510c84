//! From a source to an engine that runs, or is about to.
//!
//! ```text
//!   check the image, the disk at rest, longer if it grew         nothing has happened yet
//!   run directory, account, ids, cgroup                          from here on: dropped or failed = ended and removed
//!   a thread with the engine's mounts ─▶ runsc run               the agent runs
//!                                     └▶ runsc restore           the sentry waits for the image's index
//!   pid and start time are written down                          from here on a later daemon adopts it
//! ```
//!
//! A restore begins to run what it has loaded, but what is loaded must be marked as spent before it runs. So the image that
//! runsc is shown has a named pipe in the place of its index, which it opens when all else is prepared: it waits there, and
//! [`Engine::resume`](wakeful_driver::Engine::resume) is writing the index into the pipe. A daemon that dies leaves it waiting.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::Value;
use wakeful_confine::cgroup::{Cgroups, Limits, Reach};
use wakeful_confine::process::Process;
use wakeful_confine::{blocking, files, place as places, range};
use wakeful_driver::{Card, Error, Image, Machine, Place, Source, Veth};
use wakeful_sys::pidfd;

use crate::boot::{self, Bundle, CONTAINER, Flags};
use crate::control::{self, INDEX, PAGES, STATE};
use crate::engine::GvisorEngine;
use crate::engines::Pinned;
use crate::place::{self, Phase, Record};
use crate::snapshot::{self, Detail};
use crate::world::{self, World};
use crate::{Host, disk, layers, nap};

/// A burst of launches on few cores takes its time.
const START: Duration = Duration::from_secs(60);
/// From the word to go until the image's index is read.
const RELEASE: Duration = Duration::from_secs(20);
/// What a sentry needs beside the guest's memory.
const MEMORY_BESIDE: u64 = 128 << 20;
/// A backstop only: two threads for each process inside, and reaching it would end the sentry.
const TASKS: u32 = 20_000;

/// [`Source`], owned, for a thread that may block.
enum Job {
    Start { secret: [u8; 32], first: bool },
    Wake { checkpoint: PathBuf, image: Image, cloned: bool },
}

pub(crate) async fn launch(
    host: &Arc<Host>,
    place: &Place,
    machine: Machine,
    base: &Path,
    card: Card,
    source: Source<'_>,
) -> Result<GvisorEngine, Error> {
    let refused = |answer: &str| Error::Refused { doing: "start", answer: answer.to_owned() };
    let job = match source {
        Source::First { secret } | Source::Golden { secret } => Job::Start { secret, first: true },
        Source::Boot { secret } => Job::Start { secret, first: false },
        Source::Wake { checkpoint, image } => {
            Job::Wake { checkpoint: checkpoint.to_owned(), image: image.clone(), cloned: false }
        }
        Source::Clone { golden, image } => {
            Job::Wake { checkpoint: golden.to_owned(), image: image.clone(), cloned: true }
        }
    };
    let Card::Veth(veth) = card else { return Err(refused("it is reached by its network, and has none")) };
    let (host, place, base) = (Arc::clone(host), place.clone(), base.to_owned());
    let owned = (Arc::clone(&host), place.clone());
    let launched = blocking(move || {
        let (host, place) = owned;
        Launching::new(host, place).start(machine, &base, veth, &job)
    })
    .await?;
    let Launched { record, pid, pidfd, launching } = launched;
    let process = Process::new(pid, pidfd).map_err(|source| Error::io("watch an engine", source))?;
    Ok(GvisorEngine::new(host, place, Arc::new(process), record, launching.keep()))
}

struct Launched {
    record: Record,
    pid: u32,
    pidfd: OwnedFd,
    launching: Launching,
}

/// What is made on the way goes again, unless it comes to an end and somebody is still there to have it.
struct Launching {
    host: Arc<Host>,
    place: Place,
    made_disk: bool,
    made_run: bool,
    /// The runsc that restores; it ends when that is done.
    restoring: Option<Child>,
}

impl Drop for Launching {
    fn drop(&mut self) {
        if self.made_run
            && let Err(error) = places::remove(&self.place.run, &self.host.cgroups, None)
        {
            tracing::warn!(name = self.place.name, %error, "could not remove what a failed launch left");
        }
        if let Some(child) = &mut self.restoring {
            let _ = child.kill();
            let _ = child.wait();
        }
        if self.made_disk {
            for file in layers::of(&self.place.data).unwrap_or_default() {
                let _ = fs::remove_file(file);
            }
            let _ = fs::remove_file(self.place.data.join(disk::DISK));
        }
    }
}

impl Launching {
    fn new(host: Arc<Host>, place: Place) -> Self {
        Self { host, place, made_disk: false, made_run: false, restoring: None }
    }

    /// It has come to an end, and somebody has it; gives the runsc that restores.
    fn keep(mut self) -> Option<Child> {
        (self.made_run, self.made_disk) = (false, false);
        self.restoring.take()
    }

    fn start(mut self, machine: Machine, base: &Path, veth: Veth, job: &Job) -> Result<Launched, Error> {
        let (host, run) = (Arc::clone(&self.host), self.place.run.clone());
        let (host, run) = (&*host, run.as_path());
        let failed = |source| Error::io("start an engine", source);
        let path = self.place.data.join(disk::DISK);
        if run.exists() {
            if is_taken(host, run) {
                return Err(Error::Refused { doing: "start", answer: "an engine lives in its place".to_owned() });
            }
            // Of one that has ended.
            places::remove(run, &host.cgroups, None)?;
        }
        let (engine, index) = match job {
            Job::Start { .. } => (host.engine.clone(), None),
            Job::Wake { checkpoint, image, .. } => {
                let engine = fitting(host, image, machine)?;
                (engine, Some(snapshot::check(checkpoint, image)?))
            }
        };
        let missing = |_| Error::Missing { what: format!("the template's directory {}", base.display()) };
        let base = base.canonicalize().map_err(missing)?;
        match job {
            Job::Start { first: true, .. } => {
                disk::make(&host.data_dir, &path, machine.disk_mb)?;
                self.made_disk = true;
            }
            Job::Wake { checkpoint: golden, cloned: true, .. } => {
                self.made_disk = true;
                crate::copy_disk(golden, &self.place.data)?;
            }
            Job::Start { first: false, .. } | Job::Wake { cloned: false, .. } => {
                disk::at_rest(&path)?;
                disk::enlarge(&path, machine.disk_mb).map_err(|source| Error::io("grow the disk", source))?;
            }
        }
        fs::create_dir_all(run.parent().unwrap_or(run)).map_err(failed)?;
        fs::create_dir(run).map_err(failed)?;
        self.made_run = true;
        for dir in [place::state(run), run.join("bundle"), place::image(run)] {
            files::make_dir(&dir, 0o700).map_err(failed)?;
        }
        let phase = match (job, &index) {
            (Job::Wake { checkpoint, .. }, Some(_)) => Phase::Waiting(checkpoint.join(INDEX)),
            _ => Phase::Running,
        };
        let mut record = Record {
            engine: engine.name.clone(),
            key: host.key(&engine),
            hardened: host.hardened,
            machine,
            gateway: veth.gateway,
            first_id: range::take(Path::new(range::RANGES), run).map_err(failed)?,
            phase,
            pid: None,
            started: None,
        };
        place::write_record(run, &record).map_err(failed)?;
        host.cgroups.create(run, &limits(machine), Reach::Everywhere).map_err(failed)?;
        let world = World {
            base,
            disk: path,
            layers: layers::of(&self.place.data).map_err(failed)?,
            agent: engine.agent(),
            card: veth.card,
            first_id: record.first_id,
            cover: host.cover,
        };
        self.restoring = self.start_runsc(&engine, &world, job)?;
        let (pid, started) = sentry(run)?;
        let pidfd = pidfd::open(pid).map_err(failed)?;
        if pidfd::start_time(pid).map_err(failed)? != started {
            return Err(Error::Ended { doing: "start", output: control::complaint(&place::log(run), 0) });
        }
        // As every engine has it.
        fs::write(run.join("pid"), format!("{pid}\n")).map_err(failed)?;
        record.pid = Some(pid);
        record.started = Some(started);
        place::write_record(run, &record).map_err(failed)?;
        Ok(Launched { record, pid, pidfd, launching: self })
    }

    /// In a thread that has the engine's mounts; until the agent was started, or the sentry waits for its index.
    fn start_runsc(&self, engine: &Pinned, world: &World, job: &Job) -> Result<Option<Child>, Error> {
        let run = self.place.run.as_path();
        let failed = |source| Error::io("start an engine", source);
        let (bundle, log) = (run.join("bundle"), place::log(run));
        let config = Bundle {
            root: &World::root(),
            agent: &World::agent(),
            card: &world.card,
            cgroup: &Cgroups::path(run),
            first_id: world.first_id,
        };
        files::write_json(&bundle.join("config.json"), &config.config()).map_err(failed)?;
        let flags = Flags { state: &place::state(run), log: &log, hardened: self.host.hardened };
        let mut arguments = flags.arguments();
        let input = match job {
            Job::Start { secret, .. } => {
                arguments.extend(boot::run(&bundle));
                Stdio::from(told(secret).map_err(failed)?)
            }
            Job::Wake { checkpoint, .. } => {
                let image = place::image(run);
                for name in [STATE, PAGES] {
                    symlink(checkpoint.join(name), image.join(name)).map_err(failed)?;
                }
                mkfifoat(CWD, image.join(INDEX), Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
                arguments.extend(boot::restore(&bundle, &image));
                Stdio::null()
            }
        };
        let program = engine.program();
        // From its first instruction, so that whoever ends what is in the cgroup ends this one too.
        let cradle = self.host.cgroups.door(run).map_err(failed)?;
        let started = std::thread::scope(|scope| {
            let starting = scope.spawn(|| {
                world.enter()?;
                world::start(&program, arguments, input, cradle)
            });
            starting.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
        });
        let mut child = started.map_err(failed)?;
        match job {
            Job::Start { .. } => match control::wait(&mut child, START).map_err(failed)? {
                Some(status) if status.success() => Ok(None),
                Some(_) => Err(Error::Ended { doing: "start", output: control::complaint(&log, 0) }),
                None => Err(Error::Late { doing: "start", after: START }),
            },
            Job::Wake { checkpoint, .. } => {
                if let Err(error) = await_reader(&mut child, &checkpoint.join(STATE), &log) {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(error);
                }
                Ok(Some(child))
            }
        }
    }
}

/// Whether an engine lives there.
fn is_taken(host: &Host, run: &Path) -> bool {
    let lives = |pid, started| {
        let process = pidfd::open(pid).ok().filter(|_| pidfd::start_time(pid).is_ok_and(|now| now == started));
        process.is_some_and(|process| !pidfd::wait_ended(&process, Duration::ZERO).unwrap_or(true))
    };
    let known = place::record(run).and_then(|record| Some((record.pid?, record.started?)));
    !host.cgroups.members(run).is_empty() || known.is_some_and(|(pid, started)| lives(pid, started))
}

/// The agent's secret, to be read once.
fn told(secret: &[u8; 32]) -> io::Result<OwnedFd> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    File::from(writer).write_all(secret)?;
    Ok(reader)
}

/// Until runsc has everything but the index: it opens the state just before, and then sleeps in the opening of the pipe.
/// (To open the other end, and see whether somebody reads, would wake it.)
fn await_reader(child: &mut Child, state: &Path, log: &Path) -> Result<(), Error> {
    let failed = |source| Error::io("start an engine", source);
    let (begun, state) = (Instant::now(), state.canonicalize().map_err(failed)?);
    while !has_open(child.id(), &state) {
        if child.try_wait().map_err(failed)?.is_some() {
            return Err(Error::Unfit { reason: control::complaint(log, 0) });
        }
        if begun.elapsed() > START {
            return Err(Error::Late { doing: "start", after: START });
        }
        nap(Duration::from_micros(500));
    }
    Ok(())
}

fn has_open(pid: u32, file: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path == file)
}

/// Gives the index to the runsc that waits for it. Blocks until it has been read, but for the last of it.
pub(crate) fn release(run: &Path, index: &Path) -> Result<(), Error> {
    let failed = |source| Error::io("let a restored engine run", source);
    let content = fs::read(index).map_err(failed)?;
    let pipe = place::image(run).join(INDEX);
    let (begun, flags) = (Instant::now(), (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed());
    let mut writer = loop {
        match File::options().write(true).custom_flags(flags).open(&pipe) {
            Ok(writer) => break writer,
            // Nobody reads yet: it is about to.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {}
            Err(error) => return Err(failed(error)),
        }
        if begun.elapsed() > RELEASE {
            return Err(Error::Late { doing: "read its image", after: RELEASE });
        }
        nap(Duration::from_micros(200));
    };
    rustix::fs::fcntl_setfl(&writer, OFlags::empty()).map_err(|errno| failed(errno.into()))?;
    writer.write_all(&content).map_err(failed)
}

pub(crate) fn limits(machine: Machine) -> Limits {
    Limits {
        memory_bytes: (u64::from(machine.memory_mb) << 20) + MEMORY_BESIDE,
        tasks: TASKS,
        cpus: machine.cpu,
        processors: machine.cpu,
        io: None,
    }
}

/// Pid and start time of the sentry, as runsc has written them down.
fn sentry(run: &Path) -> Result<(u32, u64), Error> {
    let failed = |source| Error::io("find a sentry", source);
    let path = place::state(run).join(format!("{CONTAINER}_sandbox:{CONTAINER}.state"));
    let state: Value = files::read_json(&path).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
    let pid = state.pointer("/sandbox/pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
    let pid = pid.filter(|pid| *pid > 1).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
    Ok((pid, pidfd::start_time(pid).map_err(failed)?))
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
        return Err(Error::Unfit { reason: format!("processor or settings are not those of {}", detail.engine) });
    }
    Ok(engine)
}
