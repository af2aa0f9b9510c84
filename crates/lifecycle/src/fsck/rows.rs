//! Rows whose files are not what they say.

use std::collections::HashSet;
use std::path::PathBuf;

use wakeful_driver::{Inspector, MemoryBase};
use wakeful_model::machine::Bootable;
use wakeful_model::{Cause, Event, EventType, Failure, Memory, Op, Sandbox, State};
use wakeful_store::Swap;

use super::images::{Damaged, fraction};
use super::{Check, Kind, Scope, discard, golden_of, now};
use crate::lifecycle::error_chain;
use crate::ops::{self, Checkpoint};
use crate::recover::{at_rest, children};
use crate::{Error, Layout, files};

impl Check<'_> {
    pub(super) async fn rows(&mut self, rows: Vec<Sandbox>, damaged: &Damaged) -> Result<(), Error> {
        const STEP: &str = "sandboxes";
        let all = rows.len();
        let (mut standing, mut awake) = (HashSet::new(), HashSet::new());
        for (nth, row) in rows.into_iter().enumerate() {
            self.step(STEP, fraction(nth, all), row.id.as_str());
            let row = self.row(row, damaged).await;
            standing.extend(golden_of(&row));
            awake.extend((!at_rest(&row)).then(|| row.id.bare().to_owned()));
            for path in stale_images(&self.scope.layout, &row).await? {
                self.discarded(Kind::StaleImage, &path, "its sandbox's row does not name it").await;
            }
        }
        // What was repaired needs less.
        (self.needed.golden, self.needed.awake) = (standing, awake);
        Ok(())
    }

    /// What is true of a row after all that was found has been repaired, if it is to be.
    async fn row(&mut self, row: Sandbox, damaged: &Damaged) -> Sandbox {
        let place = self.scope.layout.place(&row.id);
        let lives = match self.scope.lives(&place).await {
            Ok(lives) => lives,
            Err(error) => {
                let remedy = "is this run as root?";
                self.unrepaired(Kind::StrayEngine, &row.id, &error_chain(&error), remedy);
                return row;
            }
        };
        let op = row.transition.as_ref().map(|transition| transition.op);
        if let Some(op) = op {
            let detail = format!("its {op} was interrupted");
            self.note(Kind::Interrupted, &row.id, &detail, "the next start of the daemon finishes or undoes it");
        }
        // Both ends of these are the next start's to decide.
        let in_between =
            matches!(row.state, State::Creating) || op == Some(Op::Destroy) || (lives && op == Some(Op::Wake));
        if in_between {
            return row;
        }
        match (row.state, lives) {
            (State::Running, false) => {
                let remedy = "the next start of the daemon puts it to rest: what was in its memory is gone";
                self.note(Kind::EngineMissing, &row.id, "it is said to run, and has no engine", remedy);
            }
            (State::Suspended(_) | State::Failed(_), true) => {
                let (scope, detail) = (self.scope, "an engine of it runs although it is at rest");
                let fix = scope.reap(&place, Some(&row.runtime));
                self.found(Kind::StrayEngine, &row.id, detail, "it is ended", fix).await;
            }
            _ => {}
        }
        let Some(inspector) = self.scope.inspector(&row.runtime) else {
            let detail = format!("nobody here knows what {} wrote: its disk and memory were not checked", row.runtime);
            self.note(Kind::Unchecked, &row.id, &detail, "check it with a version that has this runtime");
            return row;
        };
        if !place.data.join(inspector.disk_file()).is_file() {
            return self.without_disk(row, lives).await;
        }
        match row.state {
            State::Suspended(Memory::Kept) => self.with_checkpoint(row, inspector, damaged).await,
            State::Creating
            | State::Running
            | State::Suspended(Memory::None | Memory::Spent)
            | State::Failed(_)
            | State::Destroyed => row,
        }
    }

    async fn without_disk(&mut self, row: Sandbox, lives: bool) -> Sandbox {
        let detail = "its disk is not there";
        match row.state {
            State::Failed(Bootable::No) => return row,
            State::Running if lives => {
                let remedy = "it is there for as long as it runs: save what is in it, then destroy it";
                self.unrepaired(Kind::DiskMissing, &row.id, detail, remedy);
                return row;
            }
            _ => {}
        }
        let mut failed = row.clone();
        failed.state = State::Failed(Bootable::No);
        failed.transition = None;
        failed.checkpoint = None;
        failed.started_at = None;
        failed.updated_at = now();
        let failure = Failure {
            code: "disk_missing".into(),
            detail: "its disk was not there when the data directory was checked".into(),
            at: failed.updated_at,
            bootable: false,
        };
        let event = ops::event(&failed, EventType::Failed, Cause::Recovery, None, Some(failure.detail.clone()));
        failed.failure = Some(failure);
        let (id, scope) = (row.id.clone(), self.scope);
        let mut written = row;
        let fix = async {
            written = write(scope, failed, &event).await?;
            Ok(())
        };
        self.found(Kind::DiskMissing, id, detail, "it has failed, and cannot be booted", fix).await;
        written
    }

    async fn with_checkpoint(&mut self, row: Sandbox, inspector: &dyn Inspector, damaged: &Damaged) -> Sandbox {
        let wrong = match self.verify(&row, inspector, damaged).await {
            Ok(bytes) => {
                self.report.checked.checkpoints += 1;
                self.report.checked.bytes += bytes;
                return row;
            }
            Err(wrong) => wrong,
        };
        let mut spent = row.clone();
        spent.state = State::Suspended(Memory::Spent);
        spent.checkpoint = None;
        spent.transition = None;
        spent.updated_at = now();
        let event = ops::event(&spent, EventType::CheckpointRejected, Cause::Recovery, None, Some(wrong.clone()));
        let (id, scope) = (row.id.clone(), self.scope);
        let mut written = row;
        let remedy = "its memory is given up, its disk is kept: the next wake boots it";
        let fix = async {
            written = write(scope, spent, &event).await?;
            Ok(())
        };
        self.found(Kind::Checkpoint, id, &wrong, remedy, fix).await;
        written
    }

    async fn verify(&self, row: &Sandbox, inspector: &dyn Inspector, damaged: &Damaged) -> Result<u64, String> {
        let checkpoint = Checkpoint::of(row).map_err(|error| error_chain(&error))?;
        let checkpoint = checkpoint.ok_or("its row names no checkpoint")?;
        if let Some(MemoryBase::Golden(dir)) = &checkpoint.image.base
            && let Some(reason) = damaged.get(dir)
        {
            return Err(format!("the golden snapshot that it stands on is damaged: {reason}"));
        }
        let dir = self.scope.layout.checkpoint(&row.id, checkpoint.generation);
        let data = self.scope.layout.sandbox(&row.id);
        let verified = inspector.verify(&data, &dir, &checkpoint.image).await;
        verified.map_err(|error| error_chain(&error))?;
        Ok(checkpoint.image.bytes())
    }
}

/// Checkpoints and memory bases that the row does not name. What its engine may map stays.
async fn stale_images(layout: &Layout, row: &Sandbox) -> Result<Vec<PathBuf>, Error> {
    let Ok(checkpoint) = Checkpoint::of(row) else { return Ok(Vec::new()) };
    let keep = checkpoint.as_ref().map(|checkpoint| layout.checkpoint(&row.id, checkpoint.generation));
    let keep_base = match (&checkpoint, row.state) {
        (Some(checkpoint), _) => checkpoint.image.base == Some(MemoryBase::Own),
        // What is under way may have mapped it.
        (None, state) => state.has_engine() || row.transition.is_some(),
    };
    let dir = layout.sandbox(&row.id);
    files::blocking("list a sandbox's files", move || {
        let stale = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("checkpoint-") && keep.as_ref() != Some(path)
                || name.starts_with("mem.base") && (!keep_base || name != "mem.base")
        };
        Ok(children(dir).into_iter().filter(stale).collect())
    })
    .await
}

/// One write, as an owner makes it; then what the row no longer names goes.
async fn write(scope: &Scope, mut row: Sandbox, event: &Event) -> Result<Sandbox, Error> {
    match scope.store.swap_sandbox(&row, Some(event)).await? {
        Swap::Swapped(version) => row.version = version,
        Swap::Stale(other) => return Err(Error::Internal(format!("{} was written by somebody else", other.id))),
        Swap::NotFound => return Err(Error::SandboxNotFound(row.id.to_string())),
    }
    for path in stale_images(&scope.layout, &row).await? {
        discard(&scope.layout, path).await?;
    }
    Ok(row)
}
