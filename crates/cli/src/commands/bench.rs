//! `wakeful bench`.

use std::cell::RefCell;
use std::path::PathBuf;

use clap::Args;
use wakeful_bench::{Case, Effort, Error, Options, Row, Runtime, stats::Summary};
use wakeful_daemon::config::Overrides;

use super::serve::Local;
use crate::args::Global;
use crate::failure::{Failure, REFUSED};
use crate::interrupt::or_interrupt;
use crate::output;
use crate::progress::{Steps, Verbose};
use crate::table;

/// Measure this machine: what the daemon adds to the bare engine
#[derive(Args, Debug)]
#[command(after_help = "\
Every case is measured in turns with the bare engine: the same technique with the same durability, without daemon,
HTTP or database. It runs a private daemon over hard links to the data directory, as root, and leaves nothing behind.
The cases compute_* run a program inside, in turns with the same on the host.

Examples:
  wakeful bench --quick
  wakeful bench --check --json > bench.json
  wakeful bench --runtime gvisor,qemu --quick
  wakeful bench --case exec_true --case create_clone
  wakeful bench --print-baseline > baseline.sh")]
pub(crate) struct Bench {
    /// The configuration file [default: WAKEFUL_CONFIG, then /etc/wakeful/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where everything is kept [default: WAKEFUL_DATA_DIR, then the file's, then /var/lib/wakeful]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// What to measure: qemu, gvisor or both [default: the one that a daemon picks here]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    runtime: Vec<Runtime>,
    /// Measure this case only (repeatable)
    #[arg(long, value_name = "NAME", num_args = 1..)]
    case: Vec<Case>,
    /// Less than a minute: fewer rounds, a report and no verdict
    #[arg(long, conflicts_with = "check")]
    quick: bool,
    /// End with 1 if a target is missed
    #[arg(long)]
    check: bool,
    /// Print the bare engine's commands, for a shell, and measure nothing
    #[arg(long, conflicts_with_all = ["case", "quick", "check", "runtime"])]
    print_baseline: bool,
}

impl Bench {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let loaded = Local::of(self.config, self.data_dir).load(Overrides::default())?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::refused(format!("could not find this program: {error}")))?;
        let options = Options {
            data_dir: loaded.config.data_dir.clone(),
            program,
            runtimes: self.runtime,
            cases: self.case,
            effort: if self.quick { Effort::Quick } else { Effort::Full },
        };
        let steps = RefCell::new(Steps::new(Verbose::No));
        let tell = |step: &str, done: f32| steps.borrow_mut().event(step, Some(done), None);
        if self.print_baseline {
            let work = async { wakeful_bench::baseline(&options, &tell).await.map_err(|error| refused(&error)) };
            let script = or_interrupt(work).await?;
            drop(steps);
            output::bytes(script.as_bytes())?;
            return Ok(0);
        }
        let rows =
            or_interrupt(async { wakeful_bench::run(&options, &tell).await.map_err(|error| refused(&error)) }).await?;
        drop(steps);
        if global.json {
            output::json(&rows)?;
        } else {
            output::line(&describe(&rows))?;
        }
        let missed = rows.iter().filter(|row| row.missed());
        let missed: Vec<String> = missed.map(|row| format!("{} ({})", row.case.name(), row.runtime)).collect();
        if self.check && !missed.is_empty() {
            output::say(&format!("missed: {}", missed.join(", ")));
            return Ok(REFUSED);
        }
        Ok(0)
    }
}

fn describe(rows: &[Row]) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let both = |summary: Option<Summary>| {
        summary.map_or_else(|| "-".to_owned(), |summary| format!("{:.1} / {:.1}", summary.p50, summary.p99))
    };
    let lines = rows.iter().map(|row| {
        let verdict = match (row.met, &row.skipped) {
            (_, Some(_)) => "skipped",
            (Some(true), _) => "met",
            (Some(false), _) => "missed",
            (None, _) => "-",
        };
        let more: Vec<String> = row.detail.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let note = row.skipped.clone().unwrap_or_else(|| more.join(", "));
        vec![
            row.case.name().to_owned(),
            row.runtime.clone(),
            row.n.to_string(),
            both(row.ours_ms),
            both(row.engine_ms),
            number(row.difference_ms),
            row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            row.target.clone().unwrap_or_else(|| "-".to_owned()),
            verdict.to_owned(),
            note,
        ]
    });
    let heads = ["CASE", "RUNTIME", "N", "OURS p50/p99 ms", "ENGINE p50/p99 ms", "+ms", "x", "TARGET", "", "NOTE"];
    table::of(&heads, lines)
}

fn refused(error: &Error) -> Failure {
    let failure = Failure::refused(Failure::chain(error));
    match error {
        Error::Unprepared { .. } => failure.hint("wakeful setup"),
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            failure.hint("sudo wakeful bench")
        }
        _ => failure,
    }
}
