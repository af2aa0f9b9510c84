//! What programs inside cost, beside the same on the host: one small program in Python, in turns.
//!
//! The host's is the template's own Python, in a chroot of the template's directory under an overlay of the run's own;
//! where the template is no directory, it is the Python of the host. It runs in a cgroup like the sandbox's, so that what
//! else the machine does takes as much from both.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, PoisonError};
use std::thread;

use serde::Deserialize;
use serde_json::json;
use wakeful_sys::mounts::private_mounts;

use super::{Bench, id_of};
use crate::bare::gvisor::{Cgroup, overlay};
use crate::bare::{SPAWN, blocking};
use crate::report::Pairs;
use crate::stats::rounded;
use crate::{Case, Error, Row};

const PROGRAM: &str = include_str!("compute.py");
/// The template that has one, as `wakeful setup` makes it.
const TEMPLATE: &str = "python";
/// Where there is a disk, on every engine; `/tmp` may be memory.
const ON_DISK: &str = "/var/tmp";

/// Goes into the cgroups that it is given, and becomes what follows.
const ENTER: &str = r#"while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@""#;

/// One run of the program.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Took {
    python: f64,
    #[serde(rename = "loop")]
    cpu: f64,
    stat: f64,
    write_64: f64,
    files: u64,
}

impl Took {
    fn read(printed: &str) -> Result<Self, Error> {
        serde_json::from_str(printed.trim()).map_err(|error| Error::engine("be timed", error))
    }

    fn of(&self, case: Case) -> f64 {
        match case {
            Case::ComputePython => self.python,
            Case::ComputeLoop => self.cpu,
            Case::ComputeStat => self.stat,
            _ => self.write_64,
        }
    }
}

/// Where the host's program runs.
#[derive(Clone)]
enum Host {
    /// In the template's directory, under an overlay that is kept here.
    Template { tree: PathBuf, over: PathBuf },
    /// In the host's own, with files here.
    Own { dir: PathBuf },
}

pub(super) async fn compute(bench: &Bench<'_>, wanted: &dyn Fn(Case) -> bool) -> Result<Vec<Row>, Error> {
    let cases: Vec<Case> = Case::COMPUTE.into_iter().filter(|case| wanted(*case)).collect();
    let Some(first) = cases.first().copied() else { return Ok(Vec::new()) };
    let n = bench.pairs(first);
    bench.tell(first, 0, n);
    let template = if bench.is_ready(TEMPLATE).await? { TEMPLATE } else { bench.template.as_str() };
    let made = bench.create_from(template, json!({})).await?;
    let id = id_of(&made);
    if bench.execute(id, &["sh", "-c", "command -v python3"]).await.is_err() {
        bench.destroy(id).await?;
        let skip = |case: &Case| Row::skipped(*case, &bench.runtime, "no template has a python3");
        return Ok(cases.iter().map(skip).collect());
    }
    let dir = bench.server.scratch("host")?;
    let host = match bench.server.tree(template) {
        Ok(tree) => Host::Template { tree, over: dir.clone() },
        Err(_) => Host::Own { dir: dir.clone() },
    };
    let pid = bench.server.engine(id)?;
    let cgroup = Arc::new(Cgroup::like(pid, &format!("{}.host", bench.server.cgroup_prefix()))?);
    let inside = async || Took::read(&bench.output(id, &["python3", "-c", PROGRAM, ON_DISK]).await?);
    let outside = async || {
        let (host, cgroup) = (host.clone(), Arc::clone(&cgroup));
        blocking(move || host.run(cgroup.dirs())).await
    };
    // What was never read before is read from the disk: that is another figure.
    let cold = (inside().await?, outside().await?);
    let mut rounds = Vec::new();
    for round in 0..n {
        bench.tell(first, round, n);
        rounds.push((inside().await?, outside().await?));
    }
    bench.destroy(id).await?;
    drop(cgroup);
    let _ = fs::remove_dir_all(dir);
    let row = |case: &Case| {
        let (ours, engine) =
            rounds.iter().map(|(inside, outside): &(Took, Took)| (inside.of(*case), outside.of(*case))).unzip();
        let row = Row::of(*case, &bench.runtime, &Pairs { ours, engine });
        let row = row
            .with("beside", host.name())
            .with("first_ms", json!([rounded(cold.0.of(*case)), rounded(cold.1.of(*case))]));
        if *case == Case::ComputeStat { row.with("files", json!([cold.0.files, cold.1.files])) } else { row }
    };
    Ok(cases.iter().map(row).collect())
}

impl Host {
    fn name(&self) -> &'static str {
        match self {
            Self::Template { .. } => "the template on the host",
            Self::Own { .. } => "the host's own python3",
        }
    }

    fn run(&self, cgroups: &[PathBuf]) -> Result<Took, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "sh"]).args(cgroups).arg("--");
        let done = match self {
            Self::Template { tree, over } => chroot(command, tree, over),
            Self::Own { dir } => output(command.args(["python3", "-c", PROGRAM]).arg(dir)),
        };
        let done = done.map_err(Error::io("run a program on the host"))?;
        if !done.status.success() {
            return Err(Error::engine("be compared with the host", String::from_utf8_lossy(&done.stderr).trim()));
        }
        Took::read(&String::from_utf8_lossy(&done.stdout))
    }
}

/// Runs the program in a tree that it does not change, with mounts that nobody else sees.
fn chroot(mut command: Command, tree: &Path, over: &Path) -> io::Result<Output> {
    let run = || {
        private_mounts()?;
        for name in ["upper", "work", "root"] {
            fs::create_dir_all(over.join(name))?;
        }
        let root = over.join("root");
        overlay(tree, over, &root)?;
        command.arg("chroot").arg(root).args(["python3", "-c", PROGRAM, ON_DISK]).current_dir("/").env_clear();
        output(command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/root"))
    };
    let done = thread::scope(|scope| scope.spawn(run).join());
    done.unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
}

fn output(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _turn = SPAWN.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn()?
    };
    child.wait_with_output()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_tells_four_times() {
        let dir = tempfile::tempdir().expect("a directory");
        let took = Host::Own { dir: dir.path().to_owned() }.run(&[]).expect("tests have a python3");
        for case in Case::COMPUTE {
            assert!(took.of(case) > 0.0, "{}", case.name());
        }
        assert!(took.files > 0);
        assert_eq!(fs::read_dir(dir.path()).expect("is there").count(), 0, "it leaves nothing");
    }
}
