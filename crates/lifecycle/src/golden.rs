//! Golden snapshots: a template booted once per machine and engine, from which every create is a clone.
//!
//! It has the agent alone, so that no two clones have drawn the same random numbers; unless its template says that what it
//! starts is to be kept warm: then it is started, ready, and in every clone. Where a first start is as fast as a clone
//! ([`Capabilities::golden`](wakeful_driver::Capabilities)) there are warm ones only.
//!
//! It is made in a directory of its own that is renamed into place when it is complete, so that a crash leaves either
//! nothing or all of it. Two creates that need the same one make it once.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tracing::{debug, info};
use wakeful_driver::{Card, CardKind, Driver, Image, Machine, Place, Source};
use wakeful_guest_client::Exec;
use wakeful_model::{Content, Egress, Entry, Sandbox, SandboxId, Template, TemplateId};

use crate::guest::{self, Identity, Vcpus};
use crate::lifecycle::Inner;
use crate::ops::{create, machine_of};
use crate::{Error, Layout, entry, files};

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

/// What a golden snapshot is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) template: TemplateId,
    pub(crate) base: String,
    pub(crate) user: String,
    pub(crate) workdir: String,
    pub(crate) machine: Machine,
    /// What is started in it, with these variables, and ready before it is kept; else it has the agent alone.
    pub(crate) warm: Option<(Entry, BTreeMap<String, String>)>,
}

impl Recipe {
    /// What this sandbox could be a copy of.
    pub(crate) fn of(row: &Sandbox) -> Self {
        Self {
            template: row.template_id.clone(),
            base: row.base.clone(),
            user: row.user.clone(),
            workdir: row.workdir.clone(),
            machine: machine_of(row),
            warm: warm(row.entry.as_ref(), &row.env),
        }
    }

    /// The same of what a sandbox is going to be.
    pub(crate) fn of_content(content: &Content) -> Self {
        Self {
            template: content.template_id.clone(),
            base: content.base.clone(),
            user: content.user.clone(),
            workdir: content.workdir.clone(),
            machine: Machine { cpu: content.cpu, memory_mb: content.memory_mb, disk_mb: content.disk_mb },
            warm: warm(content.entry.as_ref(), &content.env),
        }
    }

    /// What sandboxes of a template begin with.
    pub(crate) fn of_template(template: &Template, base: &str, machine: Machine) -> Self {
        Self {
            template: template.id.clone(),
            base: base.to_owned(),
            user: template.user.clone(),
            workdir: template.workdir.clone(),
            machine,
            warm: warm(template.entry.as_ref(), &template.env),
        }
    }

    /// The same with nothing started.
    pub(crate) fn cold(&self) -> Self {
        Self { warm: None, ..self.clone() }
    }

    /// Tells one thing that is started from another; nothing if nothing is.
    pub(crate) fn warmth(&self) -> Option<String> {
        let (entry, env) = self.warm.as_ref()?;
        let text = serde_json::to_vec(&(entry, env, &self.user, &self.workdir)).expect("plain data");
        Some(blake3::hash(&text).to_hex()[..16].to_owned())
    }

    /// Where it lies, made by an engine of this key.
    pub(crate) fn dir(&self, layout: &Layout, golden_key: &str) -> PathBuf {
        let key = match self.warmth() {
            Some(warmth) => format!("{golden_key}-{warmth}"),
            None => golden_key.to_owned(),
        };
        layout.golden(&self.template, self.machine, &key, &self.base)
    }
}

fn warm(entry: Option<&Entry>, env: &BTreeMap<String, String>) -> Option<(Entry, BTreeMap<String, String>)> {
    let entry = entry.filter(|entry| entry.warm)?.clone();
    // Who a sandbox is, what it was started in cannot know.
    let env = env.iter().filter(|(name, _)| ![create::SANDBOX_ID, create::TEMPLATE].contains(&name.as_str()));
    Some((entry, env.map(|(name, value)| (name.clone(), value.clone())).collect()))
}

impl Inner {
    /// The golden snapshot of this recipe; made now if there is none.
    pub(crate) async fn golden(&self, driver: &Arc<dyn Driver>, recipe: &Recipe) -> Result<Arc<Golden>, Error> {
        let dir = recipe.dir(&self.layout, &driver.engine().golden_key);
        let cell = self.goldens.cell(&dir);
        let golden = cell
            .get_or_try_init(|| async {
                if let Some(golden) = read(&dir).await? {
                    return Ok::<_, Error>(Arc::new(golden));
                }
                let began = Instant::now();
                let golden = self.make_golden(driver, &dir, recipe).await?;
                let (template, machine, warm) = (&recipe.template, recipe.machine, recipe.warm.is_some());
                info!(template_id = %template, %machine, warm, took_ms = began.elapsed().as_millis(), "golden snapshot made");
                Ok(Arc::new(golden))
            })
            .await?;
        Ok(Arc::clone(golden))
    }

    async fn make_golden(&self, driver: &Arc<dyn Driver>, dir: &Path, recipe: &Recipe) -> Result<Golden, Error> {
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
            saved = self.boot_and_save(driver, &id, &place, recipe, secret) => saved,
            // Its engine must not go on alone. A build, which begins again at the next start, has its say first.
            () = async { self.draining.cancelled().await; tokio::task::yield_now().await } => Err(Error::ShuttingDown),
        };
        let reaped = driver.reap(&place).await;
        self.uplinks.unplug(&id).await;
        self.uplinks.forget(&id);
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

    async fn boot_and_save(
        &self,
        driver: &Arc<dyn Driver>,
        id: &SandboxId,
        place: &Place,
        recipe: &Recipe,
        secret: [u8; 32],
    ) -> Result<Image, Error> {
        let base = self.base_for(&**driver, &recipe.base).await?;
        // Nothing leaves it, and one that is not reached by its card needs none.
        let card = match driver.capabilities().card {
            CardKind::Tap => Card::Unplugged,
            CardKind::Veth => self.uplinks.plug_shut(id, &Egress::default(), &**driver).await?,
        };
        let engine = driver.launch(place, recipe.machine, &base, card, Source::Golden { secret }).await?;
        self.uplinks.settled(id).await?;
        let nothing = BTreeMap::new();
        let who = Identity {
            id,
            // As long as every clone's: so theirs can be written over it.
            hostname: id.bare(),
            env: recipe.warm.as_ref().map_or(&nothing, |(_, env)| env),
            user: &recipe.user,
            workdir: &recipe.workdir,
            generation: 0,
            secret: &secret,
        };
        let guest = guest::revive(&engine, &secret, Vcpus::Running, BOOT, &who).await?;
        for command in WARMING {
            let mut exec = Exec::new(command[0], command[1..].iter().copied());
            exec.timeout = Some(WARM);
            if let Err(error) = guest.exec(&exec).await {
                debug!(?command, %error, "not in this image, or not now");
            }
        }
        if let Some((entry, _)) = &recipe.warm {
            entry::warm(&who, entry, &guest).await?;
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
        // Every copy would have to be a whole one.
        if driver.worth_laying(&place.data, recipe.machine.disk_mb).await? {
            driver.lay(&place.data, recipe.machine.disk_mb).await?;
        }
        Ok(image)
    }
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
