//! Whether KVM works, by trying it.
//!
//! `/dev/kvm` being there proves nothing: on some hosts it opens, and stock kernels stop under it, or the engine aborts.
//! So a guest is booted under it, and only one that has opened the agent's port (it has reached user space, loaded its
//! drivers and mounted its disks) within a deadline counts. The answer is kept for this boot of the host, this engine
//! and this kernel. What can be seen without trying (no device, no right to open it) is looked at anew each time.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use wakeful_confine::files;
use wakeful_driver::{Card, Engine, Error, Machine, Place, Source};

use crate::boot::Accelerator;
use crate::host::Host;
use crate::{launch, place};

/// Within which the guest must reach user space.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// How often it is looked whether another probe has ended.
const TURN: Duration = Duration::from_millis(50);
const MACHINE: Machine = Machine { cpu: 1, memory_mb: 128, disk_mb: 64 };

/// One way to run sandboxes, as `doctor` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Runtime {
    /// Name of the runtime.
    pub name: String,
    /// How guest code is run.
    pub accel: String,
    /// It can be used.
    pub available: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The one command that would change that.
    pub fix: Option<String>,
    /// Version of the engine.
    pub version: Option<String>,
    /// When it was tried, if it was.
    pub probed_at: Option<String>,
}

/// What came out of a try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    boot_id: String,
    engine: String,
    kernel: String,
    /// `None` if it works.
    pub(crate) reason: Option<String>,
    pub(crate) fix: Option<String>,
    pub(crate) probed_at: Option<String>,
}

impl Outcome {
    pub(crate) fn works(&self) -> bool {
        self.reason.is_none()
    }

    pub(crate) fn runtime(&self, version: &str) -> Runtime {
        Runtime {
            name: "qemu".to_owned(),
            accel: Accelerator::Kvm.name().to_owned(),
            available: self.works(),
            reason: self.reason.clone(),
            fix: self.fix.clone(),
            version: Some(version.to_owned()),
            probed_at: self.probed_at.clone(),
        }
    }
}

/// Whether KVM works for engines of this host: as it was found before, or by trying it now.
pub(crate) async fn kvm(host: &Host, run_dir: &Path) -> Result<Outcome, Error> {
    let failed = |source| Error::io("probe kvm", source);
    let mut outcome = Outcome {
        boot_id: files::boot_id().map_err(failed)?,
        engine: host.engine.digest.clone(),
        kernel: host.kernel.digest.clone(),
        reason: None,
        fix: None,
        probed_at: None,
    };
    if let Some((reason, fix)) = refused(host) {
        (outcome.reason, outcome.fix) = (Some(reason), fix);
        return Ok(outcome);
    }
    let cache = run_dir.parent().unwrap_or(run_dir).join("kvm-probe.json");
    if let Some(known) = files::read_json::<Outcome>(&cache)
        && (&known.boot_id, &known.engine, &known.kernel) == (&outcome.boot_id, &outcome.engine, &outcome.kernel)
    {
        return Ok(known);
    }
    let host = Arc::new(Host { accelerator: Accelerator::Kvm, ..host.clone() });
    outcome.reason = attempt(&host, run_dir, DEADLINE).await?;
    outcome.probed_at = Some(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string());
    files::write_json(&cache, &outcome).map_err(failed)?;
    tracing::info!(works = outcome.works(), reason = outcome.reason, "kvm probed");
    Ok(outcome)
}

/// What forbids it without a try: the reason, and the command that helps.
fn refused(host: &Host) -> Option<(String, Option<String>)> {
    let Ok(meta) = std::fs::metadata("/dev/kvm") else {
        return Some(("there is no /dev/kvm".to_owned(), Some("modprobe kvm_intel || modprobe kvm_amd".to_owned())));
    };
    if !host.jail.switches() {
        return None; // the engine is who we are; opening it will tell
    }
    let (mode, allowed) = (meta.mode(), launch::kvm_groups(Accelerator::Kvm).contains(&meta.gid()));
    if mode & 0o006 == 0o006 || allowed {
        return None;
    }
    let fix = "groupadd -rf kvm && chgrp kvm /dev/kvm && chmod 660 /dev/kvm";
    Some(("/dev/kvm is open to root only, and engines are not root".to_owned(), Some(fix.to_owned())))
}

/// Boots a guest; gives the reason why it is not good enough. One at a time; what a killed daemon left of its own
/// attempt is ended first.
pub(crate) async fn attempt(host: &Arc<Host>, run_dir: &Path, deadline: Duration) -> Result<Option<String>, Error> {
    let failed = |source| Error::io("prepare a probe guest", source);
    let _turn = turn(run_dir).await?;
    let run = run_dir.join("probe");
    place::clear(&run, &host.jail).await?;
    // Not under /run: a guest's memory may be more than there is room.
    let dir = tempfile::Builder::new().prefix(files::NEW).tempdir_in(host.data_dir.join("engines")).map_err(failed)?;
    let place = Place { name: "probe".to_owned(), run, data: dir.path().join("data") };
    files::make_dir(&place.data, 0o700).map_err(failed)?;
    let base = empty_base(dir.path()).await?;
    let outcome =
        match launch::launch(host, &place, MACHINE, &base, Card::Unplugged, Source::Golden { secret: [0; 32] }).await {
            Ok(engine) => {
                let outcome = match timeout(deadline, engine.qmp().port_opened()).await {
                    Ok(true) => None,
                    Ok(false) => {
                        let output = engine.exited().await.output;
                        Some(format!("the probe guest's engine ended: {}", last_line(&output)))
                    }
                    Err(_) => Some(format!("probe guest did not reach user space in {} s", deadline.as_secs())),
                };
                engine.kill().await?;
                outcome
            }
            Err(Error::Ended { output, .. }) => Some(format!("the probe guest's engine ended: {}", last_line(&output))),
            Err(Error::Late { .. }) => Some("the probe guest's engine did not start".to_owned()),
            Err(error) => return Err(error),
        };
    place::clear(&place.run, &host.jail).await?;
    Ok(outcome)
}

/// The daemon and a `doctor` may want to know at the same time.
async fn turn(run_dir: &Path) -> Result<File, Error> {
    let failed = |source| Error::io("take turns at probing", source);
    let file = File::create(run_dir.join("probe.lock")).map_err(failed)?;
    let tries = 2 * (DEADLINE.as_millis() / TURN.as_millis());
    for _ in 0..tries {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => tokio::time::sleep(TURN).await,
            Err(errno) => return Err(failed(errno.into())),
        }
    }
    Err(Error::Late { doing: "let another probe end", after: 2 * DEADLINE })
}

fn last_line(output: &str) -> &str {
    output.lines().last().unwrap_or("it printed nothing")
}

/// A root file system with the directories that an init needs and nothing in them.
pub(crate) async fn empty_base(dir: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::io("make a probe's disk", source);
    let (tree, base) = (dir.join("tree"), dir.join("base.ext4"));
    for name in ["dev", "proc", "sys", "run", "tmp", "etc", "root", "var", "home"] {
        files::make_dir(&tree.join(name), 0o755).map_err(failed)?;
    }
    files::create_new(&base).and_then(|file| file.set_len(16 << 20)).map_err(failed)?;
    wakeful_debian::Program::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"])
        .arg(&tree)
        .arg(&base)
        .deadline(Duration::from_secs(60))
        .text()
        .await
        .map_err(|error| failed(std::io::Error::other(error)))?;
    Ok(base)
}
