//! `wakeful doctor`.

use clap::Args;
use wakeful_daemon::config::Overrides;
use wakeful_daemon::doctor::{Report, examine};

use super::serve::Local;
use crate::args::Global;
use crate::failure::{Failure, REFUSED};
use crate::interrupt::or_interrupt;
use crate::output;

/// Tell what works on this machine, what does not, and what would help
#[derive(Args, Debug)]
#[command(after_help = "\
The exit code is 0 if sandboxes can run here, else 1.

Examples:
  wakeful doctor
  wakeful doctor --json | jq '.runtimes'")]
pub(crate) struct Doctor {
    #[command(flatten)]
    local: Local,
}

impl Doctor {
    pub(crate) async fn run(self, global: &Global) -> Result<u8, Failure> {
        let loaded = self.local.load(Overrides::default())?;
        let report = or_interrupt(async { Ok(examine(&loaded.config).await) }).await?;
        if global.json {
            output::json(&report)?;
        } else {
            output::line(&describe(&report))?;
        }
        Ok(if report.selected_runtime.is_some() { 0 } else { REFUSED })
    }
}

fn describe(report: &Report) -> String {
    let mut lines = Vec::new();
    let mut add = |word: &str, name: &str, detail: &str, fix: Option<&str>| {
        lines.push(format!("{}  {name:<16}{detail}", output::verdict(word)));
        if let Some(fix) = fix {
            lines.push(format!("      fix: {fix}"));
        }
    };
    for check in &report.checks {
        add(check.status.as_str(), check.name, &check.detail, check.fix.as_deref());
    }
    for runtime in &report.runtimes {
        let version = runtime.version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
        let name = format!("{}/{}", runtime.name, runtime.accel);
        if runtime.available {
            add("ok", &name, &format!("available{version}"), None);
        } else {
            let why = runtime.reason.as_deref().unwrap_or("not available");
            add("warn", &name, why, runtime.fix.as_deref());
        }
    }
    match &report.selected_runtime {
        Some(name) => add("ok", "selected", &format!("new sandboxes run on {name}"), None),
        None => add("fail", "selected", "no runtime is usable", Some("wakeful setup")),
    }
    lines.join("\n")
}
