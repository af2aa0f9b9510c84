//! `wakeful fsck`.

use std::sync::Mutex;

use clap::Args;
use wakeful_daemon::config::Overrides;
use wakeful_daemon::fsck::{self, Error, Progress, Repair, Report, Status};
use wakeful_daemon::{paths, wire};

use super::serve::Local;
use crate::args::Global;
use crate::failure::{Failure, REFUSED};
use crate::interrupt::or_interrupt;
use crate::progress::{Steps, Verbose};
use crate::{output, table};

/// Check the data directory while no daemon has it, and repair it
#[derive(Args, Debug)]
#[command(after_help = "\
All checkpoints, golden snapshots and template bases are read and compared with their digests,
and what no sandbox needs is looked for: files, engines, cgroups, network slots. Sandboxes that
run on without their daemon are left alone. Nothing is changed without --repair; with it, memory
that is damaged is given up and its disk is kept, and what nobody needs is removed.

The exit code is 0 if all is well or was repaired, 1 if a problem is left.

Examples:
  wakeful fsck
  wakeful fsck --repair
  wakeful fsck --json | jq '.findings[] | select(.status == \"found\")'")]
pub(crate) struct Fsck {
    #[command(flatten)]
    local: Local,
    /// Repair what can be repaired
    #[arg(long)]
    repair: bool,
}

impl Fsck {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let loaded = self.local.load(Overrides::default())?;
        let repair = if self.repair { Repair::Yes } else { Repair::No };
        let steps = Mutex::new(Steps::new(Verbose::No));
        let told = |event: Progress<'_>| {
            steps.lock().expect("no panic while it is held").event(event.step, event.fraction, event.line);
        };
        let work = async { fsck::fsck(&loaded.config, repair, &told).await.map_err(|error| refused(&error)) };
        let report = or_interrupt(work).await?;
        steps.lock().expect("no panic while it is held").done(&summary(&report));
        if global.json {
            output::json(&report)?;
        } else if !report.found.findings.is_empty() {
            output::line(&table::findings(&report.found.findings))?;
        }
        let problems = report.found.problems();
        if problems > 0 && !self.repair {
            output::say("nothing was changed: `wakeful fsck --repair` repairs what can be repaired");
        }
        Ok(if problems == 0 { 0 } else { REFUSED })
    }
}

fn summary(report: &Report) -> String {
    let checked = &report.found.checked;
    let count = |status| report.found.findings.iter().filter(|finding| finding.status == status).count();
    let (found, repaired) = (count(Status::Found), count(Status::Repaired));
    let verdict = match (found, repaired) {
        (0, 0) => "no problems".to_owned(),
        (0, repaired) => format!("{repaired} repaired, no problem left"),
        (found, 0) => format!("{found} problems"),
        (found, repaired) => format!("{repaired} repaired, {found} problems left"),
    };
    format!(
        "{}: {} sandboxes, {} checkpoints, {} golden snapshots, {} bases, {} compared: {verdict}",
        report.data_dir.display(),
        checked.sandboxes,
        checked.checkpoints,
        checked.golden_snapshots,
        checked.bases,
        table::bytes(checked.bytes),
    )
}

fn refused(error: &Error) -> Failure {
    let failure = Failure::refused(Failure::chain(error));
    match error {
        Error::Nothing(_) => failure.hint("name another with --data-dir"),
        Error::Wire(wire::Error::Paths(paths::Error::Held { .. })) => {
            failure.hint("stop it first: its sandboxes run on without it, and the next start finds them")
        }
        Error::Wire(wire::Error::Paths(paths::Error::Io { .. })) => failure.hint("it must run as root"),
        Error::Wire(wire::Error::Store { .. }) | Error::Database(_) => failure.hint("restore it from a copy"),
        Error::Wire(_) | Error::Check { .. } => failure,
    }
}
