//! Whether runsc works on this host, by trying it.
//!
//! A sandbox with nothing but the agent is started, stopped, saved, ended and restored; it counts when the agent answers
//! before and after. Debian's build of 2024 takes every network for the host's own on kernels from 6.11 on; a part of `/proc`
//! that is covered in the engine's own mounts puts that right, and it is covered only where the plain way has failed. The
//! answer is kept for this boot of the host and this engine.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use wakeful_confine::{blocking, files, place as places};
use wakeful_driver::{Card, Engine as _, Error, Machine, Place, Source, Veth};
use wakeful_guest_proto::card::{GATEWAY, GUEST, PREFIX};
use wakeful_sys::net;

use crate::{Host, channel, disk, launch};

const MACHINE: Machine = Machine { cpu: 1, memory_mb: 128, disk_mb: 64 };
const IP: Duration = Duration::from_secs(10);

/// Whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    /// It can.
    pub available: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The one command that would change that.
    pub fix: Option<String>,
    /// Version of the engine.
    pub version: Option<String>,
}

/// What came out of a try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    boot_id: String,
    engine: String,
    hardened: bool,
    /// It works with a part of `/proc` covered.
    pub(crate) cover: bool,
    /// `None` if it works.
    pub(crate) reason: Option<String>,
}

impl Outcome {
    pub(crate) fn availability(self, version: String) -> Availability {
        Availability { available: self.reason.is_none(), reason: self.reason, fix: None, version: Some(version) }
    }
}

/// As it was found before, or by trying it now.
pub(crate) async fn outcome(host: &Host, run_dir: &Path) -> Result<Outcome, Error> {
    let failed = |source| Error::io("try runsc", source);
    let cache = run_dir.parent().unwrap_or(run_dir).join("gvisor-probe.json");
    let asked = Outcome {
        boot_id: files::boot_id().map_err(failed)?,
        engine: host.engine.digest.clone(),
        hardened: host.hardened,
        cover: false,
        reason: None,
    };
    let known = || {
        let known = files::read_json::<Outcome>(&cache)?;
        let same = (&known.boot_id, &known.engine, known.hardened) == (&asked.boot_id, &asked.engine, asked.hardened);
        (same && known.reason.is_none()).then_some(known)
    };
    if let Some(known) = known() {
        return Ok(known);
    }
    // Several daemons may start at once: one tries.
    let lock = cache.with_extension("lock");
    let _turn = blocking(move || {
        let file = File::options().create(true).truncate(false).write(true).open(lock).map_err(failed)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        Ok(file)
    })
    .await?;
    if let Some(known) = known() {
        return Ok(known);
    }
    let mut found = asked;
    for cover in [false, true] {
        let host = Arc::new(Host { cover, ..host.clone() });
        found.cover = cover;
        found.reason = attempt(&host, run_dir).await.err().map(|error| error.to_string());
        if found.reason.is_none() {
            break;
        }
    }
    files::write_json(&cache, &found).map_err(failed)?;
    tracing::info!(works = found.reason.is_none(), reason = found.reason, cover = found.cover, "runsc tried");
    Ok(found)
}

async fn attempt(host: &Arc<Host>, run_dir: &Path) -> Result<(), Error> {
    let failed = |source| Error::io("try runsc", source);
    let dir = tempfile::Builder::new().prefix(files::NEW).tempdir_in(host.data_dir.join("engines")).map_err(failed)?;
    let (base, data, image) = (dir.path().join("base"), dir.path().join("data"), dir.path().join("image"));
    for dir in [&base, &data, &image] {
        files::make_dir(dir, 0o755).map_err(failed)?;
    }
    let name =
        format!("probe-{}", dir.path().file_name().unwrap_or_default().to_string_lossy().trim_start_matches('.'));
    let place = Place { run: run_dir.join(&name), name, data };
    let slots =
        blocking(|| Slots::make().map_err(|source| Error::io("make a network to try runsc in", source))).await?;
    let tried = try_out(host, &place, &base, &image, &slots).await;
    places::clear(&place.run, &host.cgroups, None).await?;
    let path = place.data.join(disk::DISK);
    blocking(move || disk::at_rest(&path)).await?;
    tried
}

async fn try_out(host: &Arc<Host>, place: &Place, base: &Path, image: &Path, slots: &Slots) -> Result<(), Error> {
    let mute = |when: &str| Error::Refused { doing: "run", answer: format!("nobody answers {when}") };
    let veth = || Card::Veth(slots.veth());
    let first = launch::launch(host, place, MACHINE, base, veth(), Source::First { secret: [0; 32] }).await?;
    if !channel::speaks(&slots.veth().gateway).await {
        return Err(mute("after a start"));
    }
    first.pause().await?;
    let saved = first.save(image).await?;
    first.kill().await?;
    places::clear(&place.run, &host.cgroups, None).await?;
    let slots =
        blocking(|| Slots::make().map_err(|source| Error::io("make a network to try runsc in", source))).await?;
    let source = Source::Wake { checkpoint: image, image: &saved };
    let again = launch::launch(host, place, MACHINE, base, Card::Veth(slots.veth()), source).await?;
    again.resume().await?;
    if !channel::speaks(&slots.veth().gateway).await {
        return Err(mute("after a restore"));
    }
    again.kill().await
}

/// Two namespaces, for as long as this exists: each is that of a thread that waits.
struct Slots {
    card: Parked,
    gateway: Parked,
}

struct Parked {
    path: PathBuf,
    /// Ends the thread when it is dropped.
    _stay: mpsc::Sender<()>,
}

impl Slots {
    fn make() -> io::Result<Self> {
        let (card, gateway) = (Parked::new()?, Parked::new()?);
        let peer = card.path.display();
        let set_up = [
            format!("link add g0 type veth peer name eth0 netns {peer}"),
            format!("addr add {GATEWAY}/{PREFIX} dev g0"),
            "link set g0 up".to_owned(),
        ];
        gateway.ip(&set_up)?;
        let address =
            ["link set lo up".to_owned(), format!("addr add {GUEST}/{PREFIX} dev eth0"), "link set eth0 up".to_owned()];
        card.ip(&address)?;
        card.ip(&[format!("route add default via {GATEWAY}")])?;
        Ok(Self { card, gateway })
    }

    fn veth(&self) -> Veth {
        Veth { card: self.card.path.clone(), gateway: self.gateway.path.clone() }
    }
}

impl Parked {
    fn new() -> io::Result<Self> {
        let (stay, stays) = mpsc::channel();
        let (told, tell) = mpsc::channel();
        std::thread::Builder::new().name("namespace".to_owned()).spawn(move || {
            let left = net::leave_network().map(|()| rustix::thread::gettid().as_raw_nonzero());
            let _ = told.send(left);
            let _ = stays.recv();
        })?;
        let thread = tell.recv().map_err(io::Error::other)??;
        let path = PathBuf::from(format!("/proc/{}/task/{thread}/ns/net", std::process::id()));
        Ok(Self { path, _stay: stay })
    }

    fn ip(&self, lines: &[String]) -> io::Result<()> {
        let namespace = File::open(&self.path)?;
        for line in lines {
            std::thread::scope(|scope| {
                let running = scope.spawn(|| {
                    net::enter_network(std::os::fd::AsFd::as_fd(&namespace))?;
                    let mut command = Command::new("ip");
                    command.args(line.split(' ')).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                    match crate::control::wait(&mut command.spawn()?, IP)? {
                        Some(status) if status.success() => Ok(()),
                        _ => Err(io::Error::other(format!("ip {line} failed"))),
                    }
                });
                running.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
            })?;
        }
        Ok(())
    }
}
