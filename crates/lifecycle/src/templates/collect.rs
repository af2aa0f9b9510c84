//! What nobody needs any more: bases of before a rebuild, golden snapshots of sizes that nobody asks for, what builds kept
//! for builds that never came.
//!
//! | what | stays while |
//! |---|---|
//! | base | a template, a sandbox, a snapshot or the cache names it |
//! | golden snapshot | a sandbox or snapshot stands on its template and base, or the pool has members of it; of a template's own base: its own size always, others for some days after their last use |
//! | step's disk, image's base, blob | it was used in the last days |
//!
//! Nothing is removed beside an admission: whoever is given a base has a row by then.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracing::info;
use wakeful_model::{TemplateId, TemplateStatus, preset};

use super::cache;
use crate::lifecycle::{Inner, error_chain};
use crate::recover::{children, is_half_made};
use crate::space::measure;
use crate::{Error, Layout, Lifecycle, files};

/// Downloads that nobody went on with.
const PARTIAL: Duration = Duration::from_secs(24 * 3600);

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// How many things.
    pub count: u64,
    /// What they took on disk.
    pub bytes: u64,
}

/// Which golden snapshots are needed.
struct Needed {
    bases: HashSet<String>,
    /// Template and name's end: all snapshots of that base.
    stood_on: HashSet<(String, String)>,
    /// Template, machine, and name's end: a template's own size.
    own: HashSet<(String, String, String)>,
    /// Template and name's end: of a template's own base, in any size.
    current: HashSet<(String, String)>,
}

fn end_of(base: &str) -> String {
    Layout::golden_name("", base)
}

impl Inner {
    /// Removes the files of a deleted template once no sandbox stands on them.
    pub(crate) async fn collect_template(&self, id: &TemplateId) -> Result<(), Error> {
        let Some(template) = self.store.template(id).await? else { return Ok(()) };
        if template.status != TemplateStatus::Deleted || self.store.template_users(id).await? > 0 {
            return Ok(());
        }
        let (golden, build, trash) = (self.layout.golden_of(id), self.layout.build(id), self.layout.trash());
        self.goldens.forget(&golden);
        self.clear_build(id).await?;
        files::blocking("remove a template's files", move || {
            [golden, build].iter().try_for_each(|dir| files::discard_dir(dir, &trash))
        })
        .await?;
        self.store.remove_template(id).await?;
        self.collect().await.map(drop)
    }

    /// After a sandbox or snapshot that stood on a base of a template is gone: it may have been the last one.
    pub(crate) async fn collect_after(&self, id: &TemplateId, base: &str) -> Result<(), Error> {
        match self.store.template(id).await? {
            // As every time.
            Some(template) if template.status != TemplateStatus::Deleted && template.base.as_deref() == Some(base) => {
                Ok(())
            }
            Some(template) if template.status == TemplateStatus::Deleted => self.collect_template(id).await,
            Some(_) | None => self.collect().await.map(drop),
        }
    }

    /// Removes every base and golden snapshot that nobody needs.
    pub(crate) async fn collect(&self) -> Result<Pruned, Error> {
        let _alone = self.builds.collecting.lock().await;
        // A build's new base has no row until it is done.
        if !self.builds.running.lock().expect("no panic while it is held").is_empty() {
            return Ok(Pruned::default());
        }
        // Nobody gets a base between the look and the deed.
        let _turn = self.admissions.lock().await;
        self.clear_trees().await?;
        let needed = self.needed().await?;
        let (layout, keep, goldens) = (self.layout.clone(), self.builds.settings.keep_golden, &self.goldens);
        let (pruned, gone) =
            files::blocking("remove what no template needs", move || sweep(&layout, &needed, keep)).await?;
        gone.iter().for_each(|dir| goldens.forget(dir));
        if pruned.count > 0 {
            info!(count = pruned.count, bytes = pruned.bytes, "removed bases and golden snapshots that nobody needs");
        }
        Ok(pruned)
    }

    async fn needed(&self) -> Result<Needed, Error> {
        let templates = self.store.templates(None).await?;
        let in_use = self.store.bases_in_use().await?;
        let mut bases: HashSet<String> = in_use.iter().map(|(_, base)| base.clone()).collect();
        let stood_on = in_use.iter().map(|(template, base)| (template.to_string(), end_of(base))).collect();
        let (mut own, mut current) = (HashSet::new(), HashSet::new());
        for template in templates.iter().filter(|template| template.status != TemplateStatus::Deleted) {
            let Some(base) = &template.base else { continue };
            bases.insert(base.clone());
            current.insert((template.id.to_string(), end_of(base)));
            if let Ok(size) = preset(&template.default_size) {
                let disk_mb = template.disk_mb.unwrap_or(self.defaults.disk_mb);
                let machine = wakeful_driver::Machine { cpu: size.cpu, memory_mb: size.memory_mb, disk_mb };
                own.insert((template.id.to_string(), machine.to_string(), end_of(base)));
            }
        }
        for (template, machine, base) in self.pool.stands_on() {
            own.insert((template.to_string(), machine.to_string(), end_of(&base)));
            bases.insert(base);
        }
        let layout = self.layout.clone();
        bases.extend(files::blocking("look at what builds keep", move || Ok(cache::bases(&layout))).await?);
        Ok(Needed { bases, stood_on, own, current })
    }

    /// Removes what builds keep and nobody used for so long.
    pub(crate) async fn sweep_cache(&self, unused: Duration) -> Result<Pruned, Error> {
        let (layout, blobs) = (self.layout.clone(), self.blobs());
        let swept = files::blocking("remove what builds kept", move || cache::sweep(&layout, unused)).await?;
        let mut pruned = Pruned { count: swept.count, bytes: swept.bytes };
        let blobs = blobs.map_err(|error| Error::Internal(error_chain(&error)))?;
        let partials = PARTIAL.min(unused);
        let swept = tokio::task::spawn_blocking(move || blobs.sweep(partials, unused)).await;
        let swept = swept.map_err(|panic| Error::Internal(panic.to_string()))?;
        let swept = swept.map_err(|error| Error::Internal(error_chain(&error)))?;
        pruned.count += swept.files;
        pruned.bytes += swept.bytes;
        Ok(pruned)
    }

    /// What is done now and then.
    pub(crate) async fn tidy(&self) -> Result<(), Error> {
        self.sweep_uploads(false, Duration::MAX).await?;
        if self.builds.running.lock().expect("no panic while it is held").is_empty() {
            self.sweep_cache(self.builds.settings.keep_cache).await?;
        }
        self.collect().await.map(drop)
    }
}

/// Blocks.
fn sweep(layout: &Layout, needed: &Needed, keep: Duration) -> std::io::Result<(Pruned, Vec<PathBuf>)> {
    let (mut pruned, mut gone, trash) = (Pruned::default(), Vec::new(), layout.trash());
    for template in children(layout.golden_root()) {
        for machine in children(template.clone()) {
            for golden in children(machine.clone()) {
                if is_golden_needed(needed, &template, &machine, &golden, keep) {
                    continue;
                }
                pruned.count += 1;
                pruned.bytes += files::blocks(&golden);
                files::discard_dir(&golden, &trash)?;
                gone.push(golden);
            }
        }
    }
    for base in children(layout.bases()) {
        if !base.file_name().is_some_and(|name| needed.bases.contains(&*name.to_string_lossy())) {
            pruned.count += 1;
            pruned.bytes += measure(&base, &mut HashSet::new()).0;
            files::discard_dir(&base, &trash)?;
        }
    }
    Ok((pruned, gone))
}

fn is_golden_needed(needed: &Needed, template: &Path, machine: &Path, golden: &Path, keep: Duration) -> bool {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if golden.file_name().is_some_and(is_half_made) {
        return true;
    }
    let (template, machine, golden_name) = (name(template), name(machine), name(golden));
    // One of before bases were told apart: `forget_unused` decides.
    let Some((_, base)) = golden_name.rsplit_once('-') else { return true };
    let end = format!("-{base}");
    let pair = (template.clone(), end.clone());
    if needed.stood_on.contains(&pair) || needed.own.contains(&(template, machine, end)) {
        return true;
    }
    let used = std::fs::metadata(golden.join("manifest.json")).and_then(|meta| meta.modified());
    let fresh = used.is_ok_and(|used| SystemTime::now().duration_since(used).unwrap_or_default() < keep);
    needed.current.contains(&pair) && fresh
}

impl Lifecycle {
    /// Removes what builds keep for the next, uploads, and everything that nobody needs.
    ///
    /// # Errors
    /// If a build is under way: what it needs would be gone under it.
    pub async fn prune(&self, unused: Duration) -> Result<Pruned, Error> {
        let inner = &self.inner;
        if let Some(id) = inner.builds.running.lock().expect("no panic while it is held").keys().next() {
            return Err(Error::BuildInProgress(id.to_string()));
        }
        let cache = inner.sweep_cache(unused).await?;
        inner.sweep_uploads(false, unused).await?;
        let rest = inner.collect().await?;
        Ok(Pruned { count: cache.count + rest.count, bytes: cache.bytes + rest.bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_golden_snapshot_stays_while_someone_needs_it() {
        let dir = tempfile::tempdir().expect("can be made");
        let golden = |template: &str, machine: &str, base: &str| {
            let (template, machine) = (dir.path().join(template), dir.path().join(template).join(machine));
            let golden = machine.join(Layout::golden_name("key", base));
            std::fs::create_dir_all(&golden).expect("made");
            std::fs::write(golden.join("manifest.json"), "{}").expect("written");
            (template, machine, golden)
        };
        let (old, new) = ("a".repeat(64), "b".repeat(64));
        let needed = Needed {
            bases: HashSet::new(),
            stood_on: HashSet::from([("tpl_x".to_owned(), end_of(&old))]),
            own: HashSet::from([("tpl_x".to_owned(), "own".to_owned(), end_of(&new))]),
            current: HashSet::from([("tpl_x".to_owned(), end_of(&new))]),
        };
        let day = Duration::from_secs(86_400);
        let is = |(template, machine, golden): (PathBuf, PathBuf, PathBuf), keep| {
            is_golden_needed(&needed, &template, &machine, &golden, keep)
        };
        assert!(is(golden("tpl_x", "any", &old), Duration::ZERO), "a sandbox stands on it");
        assert!(is(golden("tpl_x", "own", &new), Duration::ZERO), "the template's own size");
        assert!(is(golden("tpl_x", "other", &new), day), "used lately");
        assert!(!is(golden("tpl_x", "other", &new), Duration::ZERO), "not used lately");
        assert!(!is(golden("tpl_y", "own", &new), day), "of no template");
    }
}
