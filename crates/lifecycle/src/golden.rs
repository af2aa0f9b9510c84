//! Golden snapshots: a template booted once per machine and engine, from which every create is a clone.
//!
//! It is made in a directory of its own that is renamed into place when it is complete, so that a crash leaves either
//! nothing or all of it. Two creates that need the same one make it once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tracing::{debug, info};
use wakeful_driver::{Card, Driver, Image, Machine, Place, Source};
use wakeful_guest_client::Exec;
use wakeful_model::{SandboxId, TemplateId};

use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::Inner;
use crate::{Error, files};

/// A boot under emulation on a busy host.
const BOOT: Duration = Duration::from_secs(120);
/// One warming command.
const WARM: Duration = Duration::from_secs(30);
const QUIESCE: Duration = Duration::from_secs(20);

/// Run once before the snapshot, so that every clone finds the pages of shell and interpreter in its memory. What is not
/// in the image is skipped; no process is left behind, since a live interpreter would give every clone its random numbers.
const WARMING: [&[&str]; 3] =
    [&["/bin/sh", "-c", "true"], &["python3", "-c", "import json, socket, subprocess"], &["cat", "/etc/hostname"]];

/// Begins the name of a snapshot that is not complete.
pub(crate) const HALF_MADE: &str = "new-";

/// A golden snapshot, ready to be cloned.
#[derive(Debug)]
pub(crate) struct Golden {
    pub(crate) dir: PathBuf,
    pub(crate) image: Image,
    pub(crate) secret: [u8; 32],
    /// The runtime that made it; older ones do not say.
    pub(crate) runtime: Option<String>,
}

/// What `manifest.json` keeps.
#[derive(Serialize, Deserialize)]
struct Manifest {
    image: Image,
    /// Whose it is; older ones do not say.
    #[serde(default)]
    runtime: Option<String>,
    /// Known to every clone until its first contact, where it is rotated.
    secret: [u8; 32],
}

/// Those that have been looked at since the start, by directory.
#[derive(Default)]
pub(crate) struct Goldens {
    known: Mutex<HashMap<PathBuf, Arc<OnceCell<Arc<Golden>>>>>,
}

impl Goldens {
    fn cell(&self, dir: &Path) -> Arc<OnceCell<Arc<Golden>>> {
        let mut known = self.known.lock().expect("no panic while it is held");
        Arc::clone(known.entry(dir.to_owned()).or_default())
    }

    /// One that was looked at already.
    pub(crate) fn known(&self, dir: &Path) -> Option<Arc<Golden>> {
        let known = self.known.lock().expect("no panic while it is held");
        known.get(dir).and_then(|cell| cell.get().cloned())
    }

    /// One that was found where it belongs; somebody else may have found it first.
    pub(crate) fn remember(&self, dir: &Path, golden: Golden) -> Arc<Golden> {
        let (cell, golden) = (self.cell(dir), Arc::new(golden));
        let _ = cell.set(Arc::clone(&golden));
        golden
    }

    /// After a template's files are gone.
    pub(crate) fn forget(&self, template_dir: &Path) {
        self.known.lock().expect("no panic while it is held").retain(|dir, _| !dir.starts_with(template_dir));
    }
}

impl Inner {
    /// The golden snapshot for this template and machine; made now if there is none.
    pub(crate) async fn golden(
        &self,
        driver: &Arc<dyn Driver>,
        template: &TemplateId,
        base: &str,
        user: &str,
        workdir: &str,
        machine: Machine,
    ) -> Result<Arc<Golden>, Error> {
        let dir = self.layout.golden(template, machine, &driver.engine().golden_key, base);
        let cell = self.goldens.cell(&dir);
        let golden = cell
            .get_or_try_init(|| async {
                if let Some(golden) = read(&dir).await? {
                    return Ok::<_, Error>(Arc::new(golden));
                }
                let began = Instant::now();
                let base = self.base_for(&**driver, base).await?;
                let golden = self.make_golden(driver, &dir, &base, user, workdir, machine).await?;
                info!(template_id = %template, %machine, took_ms = began.elapsed().as_millis(), "golden snapshot made");
                Ok(Arc::new(golden))
            })
            .await?;
        Ok(Arc::clone(golden))
    }

    async fn make_golden(
        &self,
        driver: &Arc<dyn Driver>,
        dir: &Path,
        base: &Path,
        user: &str,
        workdir: &str,
        machine: Machine,
    ) -> Result<Golden, Error> {
        // An id of its own: a place that no row names, so that a start after a crash removes what it finds there.
        let id = SandboxId::random();
        let temporary = dir.with_file_name(format!("{HALF_MADE}{}", id.bare()));
        let place = Place {
            name: format!("golden {}", id.bare()),
            run: self.layout.run().join(id.bare()),
            data: temporary.clone(),
        };
        let made = temporary.clone();
        files::blocking("make the golden snapshot's directory", move || files::make_private_dir(&made)).await?;
        let mut secret = [0u8; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::Internal(format!("no random bytes: {error}")))?;
        let saved = tokio::select! {
            saved = boot_and_save(driver, &id, &place, base, secret, user, workdir, machine) => saved,
            // Its engine must not go on alone. A build, which begins again at the next start, has its say first.
            () = async { self.draining.cancelled().await; tokio::task::yield_now().await } => Err(Error::ShuttingDown),
        };
        let reaped = driver.reap(&place).await;
        let result = match (saved, reaped) {
            (Ok(image), Ok(())) => {
                let (from, to) = (temporary.clone(), dir.to_owned());
                let runtime = Some(driver.engine().runtime.clone());
                let manifest = Manifest { image: image.clone(), runtime: runtime.clone(), secret };
                let text = serde_json::to_vec_pretty(&manifest).expect("plain data");
                files::blocking("publish the golden snapshot", move || {
                    files::write_new(&from.join("manifest.json"), &text)?;
                    files::publish_dir(&from, &to)
                })
                .await
                .map(|()| Golden { dir: dir.to_owned(), image, secret, runtime })
            }
            (Err(error), _) => Err(error),
            (Ok(_), Err(error)) => Err(error.into()),
        };
        if result.is_err() {
            files::blocking("remove a partial golden snapshot", move || files::remove_dir(&temporary)).await?;
        }
        result
    }
}

#[expect(clippy::too_many_arguments, reason = "each is one fact of the boot, used once")]
async fn boot_and_save(
    driver: &Arc<dyn Driver>,
    id: &SandboxId,
    place: &Place,
    base: &Path,
    secret: [u8; 32],
    user: &str,
    workdir: &str,
    machine: Machine,
) -> Result<Image, Error> {
    let engine = driver.launch(place, machine, base, Card::Unplugged, Source::Golden { secret }).await?;
    let nothing = std::collections::BTreeMap::new();
    // A name as long as every clone's: so theirs can be written over it.
    let who = Identity { id, hostname: id.bare(), env: &nothing, user, workdir, generation: 0, secret: &secret };
    let guest = guest::revive(&engine, &secret, Vcpus::Running, BOOT, &who).await?;
    for command in WARMING {
        let mut exec = Exec::new(command[0], command[1..].iter().copied());
        exec.timeout = Some(WARM);
        if let Err(error) = guest.exec(&exec).await {
            debug!(?command, %error, "not in this image, or not now");
        }
    }
    let synced = guest.quiesce(QUIESCE).await;
    guest.close().await;
    if !matches!(synced, Ok(true)) {
        return Err(Error::Unresponsive {
            id: id.clone(),
            detail: "the template's guest did not sync its disk".into(),
        });
    }
    engine.disconnected().await?;
    engine.pause().await?;
    let image = engine.save(&place.data).await?;
    engine.kill().await?;
    Ok(image)
}

/// Remembers that it is used: the time of its manifest. Blocks.
pub(crate) fn note_use(dir: &Path) -> std::io::Result<()> {
    let manifest = std::fs::File::options().write(true).open(dir.join("manifest.json"))?;
    manifest.set_modified(std::time::SystemTime::now())
}

/// The one in this directory; `None` if it has no manifest.
pub(crate) async fn read(dir: &Path) -> Result<Option<Golden>, Error> {
    let path = dir.join("manifest.json");
    let text = files::blocking("read a golden snapshot's manifest", move || match std::fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    })
    .await?;
    let Some(text) = text else { return Ok(None) };
    let Manifest { image, runtime, secret } = serde_json::from_slice(&text)
        .map_err(|error| Error::Internal(format!("{} cannot be read: {error}", dir.join("manifest.json").display())))?;
    Ok(Some(Golden { dir: dir.to_owned(), image, secret, runtime }))
}

/// The runtime of the one in this directory, if it says. Blocks.
pub(crate) fn runtime_of(dir: &Path) -> Option<String> {
    serde_json::from_slice::<Manifest>(&std::fs::read(dir.join("manifest.json")).ok()?).ok()?.runtime
}
