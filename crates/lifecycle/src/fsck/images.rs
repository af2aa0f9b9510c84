//! What all others stand on: golden snapshots and bases, read whole.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use wakeful_driver::MemoryBase;
use wakeful_model::{Sandbox, Snapshot, Template};

use super::{Check, Kind, discard, shown};
use crate::lifecycle::error_chain;
use crate::recover::{children, is_half_made};
use crate::snapshots::image_of;
use crate::{Error, files, golden};

/// Golden snapshots that cannot be trusted, and why.
pub(super) type Damaged = HashMap<PathBuf, String>;

impl Check<'_> {
    /// Compares every golden snapshot with its account. They are not removed yet: checkpoints that stand on them come first.
    pub(super) async fn golden_snapshots(&mut self) -> Result<Damaged, Error> {
        const STEP: &str = "golden snapshots";
        let root = self.scope.layout.golden_root();
        let (complete, half_made) = files::blocking("list golden snapshots", move || {
            // golden/<template>/<machine>/<key>
            let found = children(root).into_iter().flat_map(children).flat_map(children);
            Ok(found.partition::<Vec<_>, _>(|dir| !dir.file_name().is_some_and(is_half_made)))
        })
        .await?;
        for dir in half_made {
            self.discarded(Kind::HalfMade, &dir, "a golden snapshot that was being made").await;
        }
        let mut damaged = Damaged::new();
        for (nth, dir) in complete.iter().enumerate() {
            self.step(STEP, fraction(nth, complete.len()), &shown(&self.scope.layout, dir));
            match self.golden_snapshot(dir).await {
                Ok(bytes) => {
                    self.report.checked.golden_snapshots += 1;
                    self.report.checked.bytes += bytes;
                }
                Err(reason) => drop(damaged.insert(dir.clone(), reason)),
            }
        }
        Ok(damaged)
    }

    async fn golden_snapshot(&self, dir: &Path) -> Result<u64, String> {
        let golden = golden::read(dir).await.map_err(|error| error_chain(&error))?;
        let golden = golden.ok_or("it has no manifest")?;
        let first = self.scope.inspectors.first().map(|(_, inspector)| &**inspector);
        let inspector = golden.runtime.as_deref().map_or(first, |name| self.scope.inspector(name));
        let inspector = inspector.ok_or("nobody here knows the runtime that made it")?;
        let verified = inspector.verify(dir, dir, &golden.image).await;
        verified.map_err(|error| error_chain(&error))?;
        Ok(golden.image.bytes())
    }

    /// Those that no checkpoint stands on any more; the next create makes them anew.
    pub(super) async fn remove_golden_snapshots(&mut self, damaged: Damaged) -> Result<(), Error> {
        let damaged: BTreeMap<PathBuf, String> = damaged.into_iter().collect();
        for (dir, reason) in damaged {
            let name = shown(&self.scope.layout, &dir);
            if self.needed.golden.contains(&dir) && self.repair {
                let remedy = "a checkpoint stands on it that could not be given up";
                self.unrepaired(Kind::GoldenSnapshot, name, &reason, remedy);
            } else if !self.needed.awake.is_empty() {
                let remedy = "a running sandbox may stand on it: suspend all, then repair";
                self.unrepaired(Kind::GoldenSnapshot, name, &reason, remedy);
            } else {
                let remedy = "it is removed; the next create makes it anew";
                let fix = discard(&self.scope.layout, dir);
                self.found(Kind::GoldenSnapshot, name, &reason, remedy, fix).await;
            }
        }
        Ok(())
    }

    /// Compares every snapshot with its account. Only whoever took it can tell whether it may go.
    pub(super) async fn snapshots(&mut self, snapshots: &[Snapshot], damaged: &Damaged) -> Result<(), Error> {
        const STEP: &str = "snapshots";
        for (nth, snapshot) in snapshots.iter().enumerate() {
            self.step(STEP, fraction(nth, snapshots.len()), snapshot.id.as_str());
            match self.snapshot(snapshot, damaged).await {
                Ok(bytes) => {
                    self.report.checked.snapshots += 1;
                    self.report.checked.bytes += bytes;
                }
                Err(reason) => {
                    let remedy = "delete it; until then a create from it boots from its disk, if that is there";
                    self.unrepaired(Kind::Snapshot, &snapshot.id, &reason, remedy);
                }
            }
        }
        Ok(())
    }

    async fn snapshot(&self, snapshot: &Snapshot, damaged: &Damaged) -> Result<u64, String> {
        let dir = self.scope.layout.snapshot(&snapshot.id);
        let runtime = &snapshot.content.runtime;
        let inspector =
            self.scope.inspector(runtime).ok_or_else(|| format!("nobody here knows what {runtime} wrote"))?;
        if !dir.join(inspector.disk_file()).is_file() {
            return Err("its disk is not there".to_owned());
        }
        let Some(image) = image_of(snapshot).map_err(|error| error_chain(&error))? else { return Ok(0) };
        if let Some(MemoryBase::Golden(golden)) = &image.base
            && let Some(reason) = damaged.get(golden)
        {
            return Err(format!("the golden snapshot that it stands on is damaged: {reason}"));
        }
        inspector.verify(&dir, &dir, &image).await.map_err(|error| error_chain(&error))?;
        Ok(image.bytes())
    }

    /// Compares every base that somebody needs with its name, which is its digest.
    pub(super) async fn bases(&mut self, rows: &[Sandbox], templates: &[Template]) -> Result<(), Error> {
        const STEP: &str = "bases";
        let layout = self.scope.layout.clone();
        let half_made =
            files::blocking("look for half-made trees", move || Ok(crate::trees::half_made(&layout))).await?;
        for (_, path) in half_made {
            self.discarded(Kind::HalfMade, &path, "the tree of a base that was being made").await;
        }
        let mut bases: Vec<String> = self.needed.bases.iter().cloned().collect();
        bases.sort_unstable();
        for (nth, digest) in bases.iter().enumerate() {
            self.step(STEP, fraction(nth, bases.len()), digest);
            let (base, expected) = (self.scope.layout.base(digest), digest.clone());
            let read = files::blocking(format!("read {}", base.display()), move || {
                Ok((wakeful_images::is_intact(&base, &expected)?, std::fs::metadata(&base)?.len()))
            })
            .await;
            let wrong = match read {
                Ok((true, bytes)) => {
                    self.report.checked.bases += 1;
                    self.report.checked.bytes += bytes;
                    continue;
                }
                Ok((false, _)) => "its content is not what its name says".to_owned(),
                Err(error) => error_chain(&error),
            };
            let template = templates.iter().find(|template| template.base.as_ref() == Some(digest));
            let template = template.map_or("a template that was deleted", |template| &template.name);
            let users = rows.iter().filter(|row| row.base == *digest).count();
            let detail = format!("the base of {template}: {wrong}; {users} sandboxes stand on it");
            let remedy = "restore it from a copy, or destroy what stands on it and build the template again";
            self.unrepaired(Kind::Base, format!("bases/{digest}"), &detail, remedy);
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "it moves a bar")]
pub(super) fn fraction(done: usize, of: usize) -> Option<f32> {
    (of > 0).then(|| done as f32 / of as f32)
}
