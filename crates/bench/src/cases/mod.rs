//! One file per kind of case; here is what they share.

mod burst;
mod compute;
mod create;
mod exec;
mod fork;
mod image;
mod network;
mod pool;
mod sleep;
mod sleepers;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wakeful_client::Client;
use wakeful_client::types::{Command, DurationText, ExecuteRequest, ForkRequest};
use wakeful_model::TemplateStatus;

use crate::bare::{Bare, gvisor, qemu};
use crate::runtime::Ran;
use crate::server::Server;
use crate::{Case, Error, Options, Row, Runtime};

/// How long a golden snapshot may take to be made beside the first sandbox of its size.
const GOLDEN: Duration = Duration::from_secs(120);

/// A run.
pub(crate) struct Bench<'a> {
    options: &'a Options,
    tell: &'a dyn Fn(&str, f32),
    server: Server,
    client: Client,
    template: String,
    runtime: Ran,
    /// Names for bare sandboxes.
    count: Cell<u32>,
}

pub(crate) async fn run(options: &Options, tell: &dyn Fn(&str, f32)) -> Result<Vec<Row>, Error> {
    let mut runtimes = options.runtimes.clone();
    if runtimes.is_empty() {
        runtimes.push(Bench::open(options, None, tell).await?.runtime.runtime);
    }
    runtimes.sort_unstable();
    runtimes.dedup();
    let mut rows = Vec::new();
    for runtime in runtimes {
        let named = |case: Case| options.cases.is_empty() || options.cases.contains(&case);
        let wanted = |case: Case| named(case) && case.is_for(runtime);
        let mut found = Vec::new();
        if Case::ALL.into_iter().any(|case| wanted(case) && !Case::NETWORK.contains(&case)) {
            found.extend(local(options, runtime, tell, &wanted).await?);
        }
        let network: Vec<Case> = Case::NETWORK.into_iter().filter(|case| wanted(*case)).collect();
        if !network.is_empty() {
            found.extend(network::measure(options, tell, network).await?);
        }
        let ran = Ran { runtime, accel: "-".to_owned() };
        let others = options.cases.iter().filter(|case| !case.is_for(runtime));
        found.extend(others.map(|case| Row::skipped(*case, &ran, "it is not about this runtime")));
        found.sort_by_key(|row| row.case);
        rows.extend(found);
    }
    Ok(rows)
}

/// What needs no network.
async fn local(
    options: &Options,
    runtime: Runtime,
    tell: &dyn Fn(&str, f32),
    wanted: &dyn Fn(Case) -> bool,
) -> Result<Vec<Row>, Error> {
    let bench = Bench::open(options, Some(runtime), tell).await?;
    let mut rows = Vec::new();
    if wanted(Case::CreateClone) {
        rows.push(create::clone(&bench).await?);
    }
    rows.extend(pool::pool(&bench, wanted).await?);
    if wanted(Case::DiskPrepare) {
        rows.push(create::disk(&bench).await?);
    }
    if wanted(Case::ImageBase200) {
        rows.push(image::base(&bench).await?);
    }
    if wanted(Case::ExecTrue) {
        rows.push(exec::true_(&bench).await?);
    }
    rows.extend(sleep::idle(&bench, wanted).await?);
    rows.extend(sleep::dirty(&bench, wanted).await?);
    if wanted(Case::ForkStop) {
        rows.push(fork::stop(&bench).await?);
    }
    if wanted(Case::Burst100) {
        rows.push(burst::burst(&bench).await?);
    }
    if wanted(Case::Suspended1000) {
        rows.push(sleepers::suspended(&bench).await?);
    }
    rows.extend(compute::compute(&bench, wanted).await?);
    Ok(rows)
}

impl<'a> Bench<'a> {
    /// A private daemon of this runtime, or of the one that it picks.
    pub(crate) async fn open(
        options: &'a Options,
        runtime: Option<Runtime>,
        tell: &'a dyn Fn(&str, f32),
    ) -> Result<Self, Error> {
        tell("private daemon", 0.0);
        let mut server = Server::prepare(&options.data_dir, &options.program, runtime).await?;
        server.start().await?;
        let client = server.client()?;
        let templates = client.templates().await.map_err(Error::call("list the templates"))?;
        let ready = || templates.templates.iter().filter(|template| template.status == TemplateStatus::Ready);
        let template = ready().find(|template| template.name == "base").or_else(|| ready().next());
        let Some(template) = template.map(|template| template.name.clone()) else {
            return Err(Error::Unprepared { data_dir: options.data_dir.clone(), what: "no template is ready" });
        };
        // The first create loads what the next ones find; it also tells what they run on.
        let asked = runtime.map_or_else(|| json!({}), |runtime| json!({"runtime": runtime}));
        let made = create_sandbox(&client, &template, asked).await?;
        let word = |name: &str| made[name].as_str().unwrap_or("?").to_owned();
        let found = word("runtime").parse().map_err(|error| Error::engine("be compared with", error))?;
        let runtime = Ran { runtime: found, accel: word("accel") };
        let bench = Self { options, tell, server, client, template, runtime, count: Cell::new(0) };
        bench.destroy(id_of(&made)).await?;
        Ok(bench)
    }

    fn pairs(&self, case: Case) -> usize {
        case.pairs(self.options.effort)
    }

    fn tell(&self, case: Case, done: usize, of: usize) {
        #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
        (self.tell)(case.name(), done as f32 / of.max(1) as f32);
    }

    /// Whether there is a template of this name that sandboxes can be made of.
    async fn is_ready(&self, name: &str) -> Result<bool, Error> {
        let all = self.client.templates().await.map_err(Error::call("list the templates"))?.templates;
        Ok(all.iter().any(|template| template.name == name && template.status == TemplateStatus::Ready))
    }

    /// A sandbox through the API, awake until we say otherwise.
    async fn create(&self, more: Value) -> Result<Value, Error> {
        self.create_from(&self.template, more).await
    }

    async fn create_from(&self, template: &str, mut more: Value) -> Result<Value, Error> {
        more["runtime"] = json!(self.runtime.runtime);
        create_sandbox(&self.client, template, more).await
    }

    async fn destroy(&self, id: &str) -> Result<(), Error> {
        self.client.destroy_sandbox(id).await.map_err(Error::call("destroy a sandbox"))
    }

    async fn suspend(&self, id: &str) -> Result<(), Error> {
        self.client.suspend(id, true).await.map(drop).map_err(Error::call("suspend a sandbox"))
    }

    /// Makes one child; its id.
    async fn fork(&self, id: &str) -> Result<Vec<String>, Error> {
        let forked = self.client.fork(id, &ForkRequest::default()).await.map_err(Error::call("fork a sandbox"))?;
        Ok(forked.sandboxes.iter().map(|child| child.id.to_string()).collect())
    }

    /// Runs a program through the API, in a sandbox that may have to be woken for it.
    async fn execute(&self, id: &str, argv: &[&str]) -> Result<(), Error> {
        self.output(id, argv).await.map(drop)
    }

    /// The same, and what it printed.
    async fn output(&self, id: &str, argv: &[&str]) -> Result<String, Error> {
        let command = Command::Argv(argv.iter().map(|word| (*word).to_owned()).collect());
        let mut request = ExecuteRequest::new(command);
        request.timeout = Some(DurationText::Text("120s".to_owned()));
        let done = self.client.execute(id, &request).await.map_err(Error::call("run a command"))?;
        if done.exit_code == 0 {
            return Ok(done.stdout);
        }
        Err(Error::Command { command: argv.join(" "), exit_code: done.exit_code })
    }

    /// What bare sandboxes of this size are made from.
    async fn bare(&self, more: Value) -> Result<Bare, Error> {
        Ok(match self.runtime.runtime {
            Runtime::Qemu => Bare::Qemu(Box::new(self.qemu(more).await?)),
            Runtime::Gvisor => Bare::Gvisor(self.gvisor(more).await?),
        })
    }

    /// What a bare `runsc` needs, taken from one of ours.
    async fn gvisor(&self, more: Value) -> Result<gvisor::Bare, Error> {
        let made = self.create(more).await?;
        let (dir, run) = (self.server.scratch("bare")?, self.server.sockets()?);
        let base = self.server.tree(&self.template)?;
        let found = self.server.engine(id_of(&made)).and_then(|pid| gvisor::Blueprint::of(pid, base));
        self.destroy(id_of(&made)).await?;
        let disk_mb = made["disk_mb"].as_u64().unwrap_or(1024);
        gvisor::Bare::new(found?, disk_mb, dir, run, self.server.cgroup_prefix()).await
    }

    /// What a bare QEMU with this much memory needs, taken from one of ours: a clone, not the first of its size.
    pub(crate) async fn qemu(&self, more: Value) -> Result<qemu::Bare, Error> {
        let mut made = self.create(more.clone()).await?;
        if !self.is_golden(&made) {
            let began = Instant::now();
            while !self.is_golden(&made) && began.elapsed() < GOLDEN {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            self.destroy(id_of(&made)).await?;
            made = self.create(more).await?;
        }
        let found = self.server.engine(id_of(&made)).and_then(|pid| qemu::Blueprint::of(pid, &self.data()));
        let golden = found.as_ref().map(qemu::Blueprint::golden);
        self.destroy(id_of(&made)).await?;
        let golden = golden.unwrap_or_else(|_| Err(Error::engine("be understood", "it is not there")));
        let blueprint = found?;
        let (dir, run) = (self.server.scratch("bare")?, self.server.sockets()?);
        Ok(qemu::Bare { blueprint, golden: golden?, dir, run, tap: None })
    }

    /// Whether there is a golden snapshot of a machine like this sandbox's.
    fn is_golden(&self, made: &Value) -> bool {
        let machine = format!("c{}-m{}-d{}", made["cpu"], made["memory_mb"], made["disk_mb"]);
        let below = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let kept = below(self.data().join("golden")).flat_map(|template| below(template.join(&machine)));
        kept.into_iter().any(|dir| dir.join("manifest.json").exists())
    }

    /// The same of an engine that was booted: one that wakes from its disk alone.
    pub(crate) async fn booted(&self) -> Result<qemu::Blueprint, Error> {
        let made = self.create(json!({})).await?;
        let id = id_of(&made);
        self.client.suspend(id, false).await.map_err(Error::call("suspend a sandbox"))?;
        self.client.wake(id, true).await.map_err(Error::call("wake a sandbox"))?;
        self.server.engine(id).and_then(|pid| qemu::Blueprint::of(pid, &self.data()))
    }

    /// The private daemon's data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.server.data()
    }

    /// A fresh name for a bare sandbox.
    fn name(&self) -> String {
        self.count.set(self.count.get() + 1);
        format!("bare{}", self.count.get())
    }
}

async fn create_sandbox(client: &Client, template: &str, more: Value) -> Result<Value, Error> {
    let mut request = json!({"template": template, "mode": "persistent", "idle_timeout": "1h"});
    if let (Value::Object(request), Value::Object(more)) = (&mut request, more) {
        request.extend(more);
    }
    let request = serde_json::from_value(request).map_err(|error| Error::engine("be asked for", error))?;
    let made = client.create_sandbox(&request).await.map_err(Error::call("create a sandbox"))?;
    serde_json::to_value(made).map_err(|error| Error::engine("be described", error))
}

fn id_of(sandbox: &Value) -> &str {
    sandbox["id"].as_str().unwrap_or_default()
}

/// What comes out, and how many milliseconds that took.
async fn timed<T>(work: impl Future<Output = Result<T, Error>>) -> Result<(f64, T), Error> {
    let began = Instant::now();
    let out = work.await?;
    Ok((began.elapsed().as_secs_f64() * 1e3, out))
}
