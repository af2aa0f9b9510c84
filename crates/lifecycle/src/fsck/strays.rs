//! Whatever nobody names: directories, engines, their limits and uids, network slots, trash.

use std::collections::HashSet;
use std::path::PathBuf;

use wakeful_driver::{Inspector, Place, Stray, StrayKind};
use wakeful_model::SandboxId;
use wakeful_net::{Limits, Network, Options};

use super::{Check, Kind, Scope, discard, shown};
use crate::lifecycle::error_chain;
use crate::recover::{children, is_place};
use crate::{Error, files};

impl Check<'_> {
    pub(super) async fn strays(&mut self) -> Result<(), Error> {
        const STEP: &str = "what nobody names";
        self.step(STEP, None, "engines");
        self.run_directories().await?;
        self.left_by_engines().await?;
        self.step(STEP, None, "network");
        self.network().await?;
        self.step(STEP, None, "files");
        self.directories().await?;
        self.trash().await
    }

    async fn directories(&mut self) -> Result<(), Error> {
        let layout = &self.scope.layout;
        let all_at_rest = self.needed.awake.is_empty();
        for (dir, kind, detail) in [
            (layout.sandboxes(), Kind::StraySandbox, "a directory of no sandbox"),
            (layout.snapshots(), Kind::StraySnapshot, "a directory of no snapshot"),
            (layout.golden_root(), Kind::StrayGoldenSnapshot, "golden snapshots of no template"),
            (layout.bases(), Kind::StrayBase, "a base of no template and no sandbox"),
            (layout.builds(), Kind::StrayBuild, "a build of no template"),
        ] {
            for path in listed(dir).await? {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let needed = match kind {
                    Kind::StraySandbox => self.needed.sandboxes.contains(&name),
                    Kind::StraySnapshot => self.needed.snapshots.contains(&name),
                    Kind::StrayBase => self.needed.bases.contains(&name),
                    Kind::StrayGoldenSnapshot => {
                        self.needed.templates.contains(&name)
                            || self.needed.golden.iter().any(|golden| golden.starts_with(&path))
                    }
                    _ => self.needed.templates.contains(&name),
                };
                match kind {
                    _ if needed => {}
                    Kind::StrayGoldenSnapshot if !all_at_rest => {
                        let remedy = "a running sandbox may stand on them: suspend all, then repair";
                        self.unrepaired(kind, shown(layout, &path), detail, remedy);
                    }
                    // What a build left may have mounts in it.
                    Kind::StrayBuild => {
                        let fix = async { discard(layout, cleared(path.clone()).await?).await };
                        self.found(kind, shown(layout, &path), detail, "it is removed", fix).await;
                    }
                    _ => self.discarded(kind, &path, detail).await,
                }
            }
        }
        Ok(())
    }

    async fn run_directories(&mut self) -> Result<(), Error> {
        let scope = self.scope;
        for path in listed(scope.layout.run().to_owned()).await? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(id) = name.parse::<SandboxId>().ok().filter(|_| is_place(&name)) else { continue };
            let place = Place { name: name.clone(), run: path.clone(), data: scope.layout.sandbox(&id) };
            let lives = scope.lives(&place).await.unwrap_or(true);
            let fix = scope.reap(&place, None);
            let (known, awake) = (self.needed.sandboxes.contains(id.as_str()), self.needed.awake.contains(id.bare()));
            match (lives, known, awake) {
                (true, false, _) => {
                    let detail = "an engine of no sandbox";
                    self.found(Kind::StrayEngine, path.display(), detail, "it is ended", fix).await;
                }
                (false, _, false) => {
                    let detail = "a run directory of no sandbox that runs";
                    self.found(Kind::StrayRunDirectory, path.display(), detail, "it is removed", fix).await;
                }
                // One of a sandbox at rest was found with its row.
                (true, true, _) | (false, _, true) => {}
            }
        }
        Ok(())
    }

    async fn left_by_engines(&mut self) -> Result<(), Error> {
        let scope = self.scope;
        let mut strays: Vec<(&dyn Inspector, Stray)> = Vec::new();
        for (_, inspector) in &scope.inspectors {
            for stray in inspector.strays(scope.layout.run()).await? {
                // They share uids and limits, and see each other's.
                if strays.iter().all(|(_, known)| *known != stray) {
                    strays.push((&**inspector, stray));
                }
            }
        }
        for (inspector, stray) in strays {
            let (kind, detail) = match stray.kind {
                StrayKind::Cgroup => (Kind::StrayCgroup, "limits of an engine that has no run directory"),
                StrayKind::Uid => (Kind::StrayUid, "a uid that no engine runs under"),
                StrayKind::HalfMade => (Kind::HalfMade, "a copy that was being made"),
            };
            if stray.kind == StrayKind::Uid && !self.repair {
                // All daemons of a host share them, and whoever opens its engines next clears them up.
                self.note(kind, stray.path.display(), detail, "the next start of any daemon removes it");
                continue;
            }
            let fix = async { Ok(inspector.remove(&stray).await?) };
            self.found(kind, stray.path.display(), detail, "it is removed", fix).await;
        }
        Ok(())
    }

    /// A slot is named by a sandbox that may run; whoever is at rest has none.
    async fn network(&mut self) -> Result<(), Error> {
        let scope = self.scope;
        let (run_dir, tag) = (scope.layout.run().join("net"), &scope.network_tag);
        let traces = match wakeful_net::survey(&run_dir, tag).await {
            Ok(traces) => traces,
            Err(error) => {
                self.unrepaired(Kind::StraySlot, run_dir.display(), &error_chain(&error), "is this run as root?");
                return Ok(());
            }
        };
        let keep = self.needed.awake.clone();
        let mut left: Vec<(String, String)> = Vec::new();
        for (number, owner) in &traces.slots {
            let path = run_dir.join(number.to_string()).display().to_string();
            match owner {
                Some(owner) if keep.contains(owner) => {}
                Some(owner) => left.push((path, format!("a network slot of {owner}, which does not run"))),
                None => left.push((path, "a network slot of nobody".to_owned())),
            }
        }
        left.extend(traces.links.iter().map(|link| (link.clone(), "a link to no network slot".to_owned())));
        if let Some(table) = traces.table.filter(|_| traces.slots.is_empty()) {
            left.push((format!("table inet {table}"), "rules for no network slot".to_owned()));
        }
        // All of them go in one sweep.
        let swept = if self.repair && !left.is_empty() { sweep(scope, run_dir, &keep).await } else { Ok(()) };
        let swept = swept.map_err(|error| error_chain(&error));
        for (subject, detail) in left {
            let fix = async { swept.clone().map_err(Error::Internal) };
            self.found(Kind::StraySlot, subject, &detail, "it is removed", fix).await;
        }
        Ok(())
    }

    async fn trash(&mut self) -> Result<(), Error> {
        for path in listed(self.scope.layout.trash()).await? {
            let (name, gone) = (shown(&self.scope.layout, &path), path.clone());
            let fix = files::blocking(format!("remove {name}"), move || {
                if gone.is_dir() { std::fs::remove_dir_all(gone) } else { std::fs::remove_file(gone) }
            });
            self.found(Kind::Trash, name, "it was on its way out", "it is removed", fix).await;
        }
        Ok(())
    }
}

async fn listed(dir: PathBuf) -> Result<Vec<PathBuf>, Error> {
    files::blocking(format!("list {}", dir.display()), move || {
        let mut found = children(dir);
        found.sort_unstable();
        Ok(found)
    })
    .await
}

/// A build's directory with nothing mounted in it.
async fn cleared(build: PathBuf) -> Result<PathBuf, Error> {
    files::blocking("clear what a build left", move || {
        wakeful_images::clear_leftovers(&build.join("work")).map_err(std::io::Error::other)?;
        Ok(build)
    })
    .await
}

async fn sweep(scope: &Scope, run_dir: PathBuf, keep: &HashSet<String>) -> Result<(), Error> {
    let options = Options {
        run_dir: run_dir.clone(),
        tag: scope.network_tag.clone(),
        pool: None,
        allow_private: Vec::new(),
        ready: 0,
        kind: wakeful_net::Kind::default(),
        limits: Limits::default(),
    };
    let network = Network::open(options).await?;
    network.sweep(|owner| keep.contains(owner)).await?;
    network.close().await;
    // Empty, if nobody is left.
    let _ = std::fs::remove_dir(run_dir);
    Ok(())
}
