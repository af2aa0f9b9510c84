//! Checks a data directory while no daemon has it, and repairs what can be repaired.
//!
//! A start removes what no row names and undoes what was under way, but it trusts what it does not use: nobody reads a
//! sleeper's pages before its wake, and not even then all of them. Here all of it is read.
//!
//! ```text
//!   database ─▶ golden snapshots, bases ─▶ rows: disk, checkpoint, engine ─▶ whatever nobody names ─▶ trash
//! ```
//!
//! Nothing is changed unless a repair is asked for. A repair gives up memory that cannot be trusted and keeps the disk
//! beside it; it removes only what no row needs, and the way the daemon does it: renamed to the trash, then removed. With a
//! database that is not sound nothing is repaired, since nobody knows then what a row needs. Engines that run on without
//! their daemon are left alone.

mod images;
mod rows;
mod strays;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use wakeful_driver::{Inspector, MemoryBase, Place};
use wakeful_model::{Sandbox, Snapshot, Template};
use wakeful_store::Store;

use crate::lifecycle::error_chain;
use crate::ops::Checkpoint;
use crate::recover::at_rest;
use crate::snapshots::image_of;
use crate::{Clock, Error, Layout, files};

/// What is checked. Whoever calls holds the data directory.
pub struct Scope {
    /// Where files are.
    pub layout: Layout,
    /// The committed truth.
    pub store: Arc<dyn Store>,
    /// What is wrong with the file that the store is in.
    pub database: Vec<String>,
    /// Who knows what engines wrote and left, by the names of their runtimes. The first is the one whose images do not say
    /// whose they are.
    pub inspectors: Vec<(String, Arc<dyn Inspector>)>,
    /// What tells this daemon's links and tables from another's.
    pub network_tag: String,
}

impl Scope {
    /// Who knows the images and disks of a runtime.
    fn inspector(&self, runtime: &str) -> Option<&dyn Inspector> {
        self.inspectors.iter().find(|(name, _)| name == runtime).map(|(_, inspector)| &**inspector)
    }

    /// Whether an engine lives in a place; all of them know a place in the same way, so whoever says yes is right.
    async fn lives(&self, place: &Place) -> Result<bool, wakeful_driver::Error> {
        for (_, inspector) in &self.inspectors {
            if inspector.lives(place).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Any of them can clear any place; the one whose it is comes first.
    async fn reap(&self, place: &Place, runtime: Option<&str>) -> Result<(), Error> {
        let own = runtime.and_then(|name| self.inspector(name));
        let inspector = own.or_else(|| self.inspectors.first().map(|(_, first)| &**first));
        let inspector = inspector.ok_or_else(|| Error::Internal("nobody knows engines".into()))?;
        Ok(inspector.reap(place).await?)
    }
}

/// Whether what is found is also repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// As far as it can be.
    Yes,
    /// It is only told.
    No,
}

/// What kind of thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// The database is not sound.
    Database,
    /// A crash came between; the next start finishes or undoes it.
    Interrupted,
    /// A running sandbox has no engine; the next start puts it to rest.
    EngineMissing,
    /// A sandbox has no disk.
    DiskMissing,
    /// A checkpoint is not there or not what it was.
    Checkpoint,
    /// A snapshot is not there or not what it was.
    Snapshot,
    /// A golden snapshot is not what it was.
    GoldenSnapshot,
    /// A template's base is not there or not what it was.
    Base,
    /// A checkpoint or memory base that its sandbox's row does not name.
    StaleImage,
    /// A sandbox's directory without a row.
    StraySandbox,
    /// A snapshot's directory without a row.
    StraySnapshot,
    /// Golden snapshots of no template.
    StrayGoldenSnapshot,
    /// Something of a runtime that this version does not know.
    Unchecked,
    /// A base of no template and no sandbox.
    StrayBase,
    /// A build of no template.
    StrayBuild,
    /// Something that was being made.
    HalfMade,
    /// An engine that no row has.
    StrayEngine,
    /// An engine's run directory without an engine or a row.
    StrayRunDirectory,
    /// An engine's limits without a run directory.
    StrayCgroup,
    /// A uid that nobody runs under.
    StrayUid,
    /// A network slot, or what is left of one.
    StraySlot,
    /// What was on its way out.
    Trash,
}

/// What became of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Status {
    /// Good to know; the next start sees to it.
    Note,
    /// A problem that is still there.
    Found,
    /// A problem that was.
    Repaired,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// What became of it.
    pub status: Status,
    /// Which: an id, a path, a name.
    pub subject: String,
    /// What is wrong.
    pub detail: String,
    /// What a repair does, or whoever can do more.
    pub remedy: String,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Checked {
    /// Rows that are not destroyed.
    pub sandboxes: u64,
    /// Checkpoints whose digests were compared.
    pub checkpoints: u64,
    /// Snapshots likewise.
    pub snapshots: u64,
    /// Golden snapshots likewise.
    pub golden_snapshots: u64,
    /// Bases likewise.
    pub bases: u64,
    /// Bytes of these, holes included.
    pub bytes: u64,
}

/// All that came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// How much was looked at.
    pub checked: Checked,
    /// What was found.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Problems that are still there.
    #[must_use]
    pub fn problems(&self) -> usize {
        self.findings.iter().filter(|finding| finding.status == Status::Found).count()
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The step.
    pub step: &'a str,
    /// How much of it is done, from 0 to 1.
    pub fraction: Option<f32>,
    /// What is being looked at.
    pub line: Option<&'a str>,
}

/// Where [`Progress`] goes.
pub type Listener<'a> = &'a (dyn Fn(Progress<'_>) + Send + Sync);

/// Checks all of it.
///
/// # Errors
/// If the store cannot be read; what cannot be looked at otherwise is a finding.
///
/// # Cancel safety
/// It can be dropped at any point and run again.
pub async fn check(scope: &Scope, repair: Repair, tell: Listener<'_>) -> Result<Report, Error> {
    let rows = scope.store.live_sandboxes().await?;
    let templates = scope.store.templates(None).await?;
    let snapshots = scope.store.snapshots(None).await?;
    let repair = repair == Repair::Yes && scope.database.is_empty();
    let mut needed = Needed::of(&rows, &templates, &snapshots);
    let layout = scope.layout.clone();
    let cached =
        files::blocking("look at what builds keep", move || Ok(crate::templates::cache::bases(&layout))).await?;
    let there = |base: &String| scope.layout.base(base).is_file();
    needed.bases.extend(cached.into_iter().filter(there));
    let mut check = Check { scope, repair, tell, report: Report::default(), needed };
    check.report.checked.sandboxes = rows.len() as u64;
    for wrong in &scope.database {
        let remedy = "restore it from a copy; nothing else is repaired until it is sound";
        check.unrepaired(Kind::Database, "wakeful.db", wrong, remedy);
    }
    let damaged = check.golden_snapshots().await?;
    check.bases(&rows, &templates).await?;
    check.rows(rows, &damaged).await?;
    check.snapshots(&snapshots, &damaged).await?;
    // After the rows: what a checkpoint that was given up had stood on can go now.
    check.remove_golden_snapshots(damaged).await?;
    check.strays().await?;
    Ok(check.report)
}

/// What the rows need, by which everything else is judged.
struct Needed {
    /// Ids of sandboxes that are not destroyed.
    sandboxes: HashSet<String>,
    /// Ids of snapshots.
    snapshots: HashSet<String>,
    /// Ids of templates that there are, and of those that sandboxes and snapshots stand on.
    templates: HashSet<String>,
    /// Digests of bases.
    bases: HashSet<String>,
    /// Directories of golden snapshots that a checkpoint or snapshot stands on.
    golden: HashSet<PathBuf>,
    /// Bare ids of sandboxes that may have an engine and what belongs to one. What that maps is in no row: while there are
    /// any, no golden snapshot goes.
    awake: HashSet<String>,
}

impl Needed {
    fn of(rows: &[Sandbox], templates: &[Template], snapshots: &[Snapshot]) -> Self {
        let ids = templates.iter().map(|template| template.id.to_string());
        let bases = templates.iter().filter_map(|template| template.base.clone());
        Self {
            sandboxes: rows.iter().map(|row| row.id.to_string()).collect(),
            snapshots: snapshots.iter().map(|snapshot| snapshot.id.to_string()).collect(),
            templates: ids
                .chain(rows.iter().map(|row| row.template_id.to_string()))
                .chain(snapshots.iter().map(|snapshot| snapshot.content.template_id.to_string()))
                .collect(),
            bases: bases
                .chain(rows.iter().map(|row| row.base.clone()))
                .chain(snapshots.iter().map(|snapshot| snapshot.content.base.clone()))
                .collect(),
            golden: rows.iter().filter_map(golden_of).chain(snapshots.iter().filter_map(golden_under)).collect(),
            awake: rows.iter().filter(|row| !at_rest(row)).map(|row| row.id.bare().to_owned()).collect(),
        }
    }
}

fn golden_of(row: &Sandbox) -> Option<PathBuf> {
    match Checkpoint::of(row).ok().flatten()?.image.base? {
        MemoryBase::Golden(dir) => Some(dir),
        MemoryBase::Own => None,
    }
}

fn golden_under(snapshot: &Snapshot) -> Option<PathBuf> {
    match image_of(snapshot).ok().flatten()?.base? {
        MemoryBase::Golden(dir) => Some(dir),
        MemoryBase::Own => None,
    }
}

struct Check<'a> {
    scope: &'a Scope,
    repair: bool,
    tell: Listener<'a>,
    report: Report,
    needed: Needed,
}

impl<'a> Check<'a> {
    fn step(&self, step: &str, fraction: Option<f32>, line: &str) {
        (self.tell)(Progress { step, fraction, line: Some(line) });
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers give what they have: ids, paths, texts")]
    fn add(&mut self, kind: Kind, status: Status, subject: impl ToString, detail: &str, remedy: &str) {
        let (subject, detail, remedy) = (subject.to_string(), detail.to_owned(), remedy.to_owned());
        self.report.findings.push(Finding { kind, status, subject, detail, remedy });
    }

    /// Something that the next start sees to.
    fn note(&mut self, kind: Kind, subject: impl ToString, detail: &str, remedy: &str) {
        self.add(kind, Status::Note, subject, detail, remedy);
    }

    /// Something that only people can repair, or not now.
    fn unrepaired(&mut self, kind: Kind, subject: impl ToString, detail: &str, remedy: &str) {
        self.add(kind, Status::Found, subject, detail, remedy);
    }

    /// Something that `fix` repairs, if that is wanted. Whether it is repaired now.
    async fn found(
        &mut self,
        kind: Kind,
        subject: impl ToString,
        detail: &str,
        remedy: &str,
        fix: impl Future<Output = Result<(), Error>>,
    ) -> bool {
        if !self.repair {
            self.add(kind, Status::Found, subject, detail, remedy);
            return false;
        }
        match fix.await {
            Ok(()) => self.add(kind, Status::Repaired, subject, detail, remedy),
            Err(error) => {
                let detail = format!("{detail}; could not be repaired: {}", error_chain(&error));
                self.add(kind, Status::Found, subject, &detail, remedy);
                return false;
            }
        }
        true
    }

    /// As [`found`](Self::found), for what goes away.
    async fn discarded(&mut self, kind: Kind, path: &Path, detail: &str) {
        let layout = &self.scope.layout;
        let shown = shown(layout, path);
        self.found(kind, shown, detail, "it is removed", discard(layout, path.to_owned())).await;
    }
}

/// A path as people find it.
fn shown(layout: &Layout, path: &Path) -> String {
    path.strip_prefix(layout.data()).unwrap_or(path).display().to_string()
}

/// The way everything goes: renamed to the trash, then removed.
async fn discard(layout: &Layout, path: PathBuf) -> Result<(), Error> {
    let trash = layout.trash();
    files::blocking(format!("remove {}", path.display()), move || match files::to_trash(&path, &trash)? {
        Some(gone) if gone.is_dir() => std::fs::remove_dir_all(gone),
        Some(gone) => std::fs::remove_file(gone),
        None => Ok(()),
    })
    .await
}

fn now() -> jiff::Timestamp {
    Clock::default().now()
}
