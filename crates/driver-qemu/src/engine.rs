//! One engine, seen through the trait.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::time::timeout;
use wakeful_driver::{ByteStream, Engine, Error, Exit, Image, IoLimits, Place};

use crate::boot;
use crate::control::{Failure, Qmp};
use crate::engines::Pinned;
use crate::host::Host;
use crate::place::{self, Record};
use crate::snapshot::{self, OVERLAY, Saving};
use wakeful_confine::blocking;
use wakeful_confine::files;
use wakeful_confine::process::Process;

/// Within which an engine must see that its stream was closed: under a millisecond, as a rule.
const HANG_UP: Duration = Duration::from_secs(5);
/// How much of what an engine printed is told.
const OUTPUT: u64 = 2000;

/// A QEMU process.
#[derive(Debug)]
pub(crate) struct QemuEngine {
    host: Arc<Host>,
    place: Place,
    process: Arc<Process>,
    qmp: Qmp,
    /// Changed only by a disk that grows.
    record: Mutex<Record>,
    /// Where its output begins in the console file.
    console_from: u64,
}

impl QemuEngine {
    pub(crate) fn new(host: Arc<Host>, place: Place, process: Arc<Process>, qmp: Qmp, record: Record) -> Self {
        let console_from = record.console_from;
        Self { host, place, process, qmp, record: Mutex::new(record), console_from }
    }

    pub(crate) fn qmp(&self) -> &Qmp {
        &self.qmp
    }

    async fn told<T>(&self, result: Result<T, Failure>, doing: &'static str) -> Result<T, Error> {
        match result {
            Ok(value) => Ok(value),
            Err(failure) => {
                let console = self.place.data.join("console.log");
                Err(explain(failure, doing, &self.process, (&console, self.console_from)).await)
            }
        }
    }

    fn output(&self) -> String {
        output(&self.place.data.join("console.log"), self.console_from)
    }

    fn record(&self) -> Record {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The last that an engine printed, without its warnings: a card that is connected to nothing is no reason for an end.
fn output(console: &Path, from: u64) -> String {
    let text = files::tail(console, from, OUTPUT);
    text.lines().filter(|line| !line.contains(": warning: ")).collect::<Vec<_>>().join("\n")
}

/// Why a command had no answer, in the caller's words: an engine that closed its monitor has ended, or is about to.
pub(crate) async fn explain(
    failure: Failure,
    doing: &'static str,
    process: &Process,
    (console, from): (&Path, u64),
) -> Error {
    match failure {
        Failure::Late(after) => Error::Late { doing, after },
        Failure::Refused(answer) => Error::Refused { doing, answer },
        Failure::Closed => {
            let status = timeout(Duration::from_secs(1), process.ended()).await;
            let mut output = output(console, from);
            if output.is_empty() {
                output = match status {
                    Ok(Some(status)) => status,
                    Ok(None) => "it printed nothing".to_owned(),
                    Err(_) => "it closed its monitor and lives on".to_owned(),
                };
            }
            Error::Ended { doing, output }
        }
    }
}

#[async_trait]
impl Engine for QemuEngine {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    async fn connect(&self) -> Result<Box<dyn ByteStream>, Error> {
        // The socket has been listening since before the engine was started: this never waits.
        match UnixStream::connect(self.place.run.join("agent")).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(_) if self.process.has_ended() => {
                Err(Error::Ended { doing: "connect to the agent", output: self.output() })
            }
            Err(source) => Err(Error::io("connect to the agent", source)),
        }
    }

    async fn disconnected(&self) -> Result<(), Error> {
        let seen = async {
            while !self.qmp.agent_disconnected().await? {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            Ok(())
        };
        let seen = timeout(HANG_UP, seen).await.unwrap_or(Err(Failure::Late(HANG_UP)));
        self.told(seen, "see that the stream was closed").await
    }

    async fn limit_io(&self, limits: IoLimits) -> Result<(), Error> {
        self.told(self.qmp.limit_io(limits).await, "limit what it asks of its disks").await
    }

    fn disk_mb(&self) -> u32 {
        self.record().machine.disk_mb
    }

    async fn grow_disk(&self, disk_mb: u32) -> Result<(), Error> {
        let mut record = self.record();
        if disk_mb < record.machine.disk_mb {
            let answer = format!("it has {} MiB", record.machine.disk_mb);
            return Err(Error::Refused { doing: "make its disk smaller", answer });
        }
        self.told(self.qmp.grow(boot::OVERLAY_NODE, u64::from(disk_mb) << 20).await, "grow its disk").await?;
        // After the deed: whoever adopts it meanwhile does it again, and that is fine.
        record.machine.disk_mb = disk_mb;
        place::write_record(&self.place.run, &record)
            .map_err(|source| Error::io("write an engine's account", source))?;
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = record;
        Ok(())
    }

    async fn resume(&self) -> Result<(), Error> {
        self.told(self.qmp.call("cont", json!({})).await.map(drop), "run").await
    }

    async fn pause(&self) -> Result<(), Error> {
        self.told(self.qmp.call("stop", json!({})).await.map(drop), "stop").await
    }

    async fn save(&self, into: &Path) -> Result<Image, Error> {
        const DOING: &str = "save the engine";
        let failed = |source| Error::io(DOING, source);
        if self.told(self.qmp.status().await, DOING).await? == "running" {
            return Err(Error::Refused { doing: DOING, answer: "it is running".to_owned() });
        }
        let overlay = self.place.data.join(OVERLAY);
        // The disk is cut in the same stopped window; its sync goes on beside the rest.
        let synced = blocking(move || {
            files::open_regular(&overlay, false)
                .and_then(|file| file.sync_all())
                .map_err(|source| Error::io("sync the disk", source))
        });
        let saved = async {
            let (state, writer) = snapshot::memory_file().map_err(failed)?;
            self.told(self.qmp.save_devices(writer.as_fd()).await, DOING).await?;
            let record = self.record();
            let engine = Pinned::open(&self.host.data_dir, &record.engine)
                .ok_or_else(|| Error::Missing { what: format!("the kept engine {}", record.engine) })?;
            let saving = Saving {
                process: self.process.clone(),
                record,
                data: self.place.data.clone(),
                into: into.to_owned(),
                state,
                jail: self.host.jail.clone(),
                engine,
            };
            blocking(move || saving.write()).await
        };
        let (synced, saved) = tokio::join!(synced, saved);
        let (made, image) = saved?;
        synced?;
        made.keep();
        Ok(image)
    }

    async fn exited(&self) -> Exit {
        let mut status = self.process.ended().await;
        // Its exit code is the same whatever the guest did.
        match self.qmp.shutdown().await.as_deref() {
            Some("guest-reset") => status = Some("its kernel panicked, or it was restarted from inside".to_owned()),
            Some("guest-shutdown") => status = Some("it was powered off from inside".to_owned()),
            _ => {}
        }
        Exit { status, output: self.output(), out_of_memory: self.host.jail.cgroups.out_of_memory(&self.place.run) }
    }

    async fn kill(&self) -> Result<(), Error> {
        self.process.kill().await
    }
}
