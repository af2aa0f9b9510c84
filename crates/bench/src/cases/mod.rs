//! One file per kind of case; here is what they share.

mod burst;
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

use crate::bare::{Bare, Blueprint};
use crate::server::Server;
use crate::{Case, Error, Options, Row};

/// How long a golden snapshot may take to be made beside the first sandbox of its size.
const GOLDEN: Duration = Duration::from_secs(120);

/// A run.
pub(crate) struct Bench<'a> {
    options: &'a Options,
    tell: &'a dyn Fn(&str, f32),
    server: Server,
    client: Client,
    template: String,
    runtime: String,
    /// Names for bare sandboxes.
    count: Cell<u32>,
}

pub(crate) async fn run(options: &Options, tell: &dyn Fn(&str, f32)) -> Result<Vec<Row>, Error> {
    let wanted = |case: Case| options.cases.is_empty() || options.cases.contains(&case);
    let mut rows = Vec::new();
    if Case::ALL.into_iter().any(|case| wanted(case) && !Case::NETWORK.contains(&case)) {
        rows.extend(local(options, tell, &wanted).await?);
    }
    let network: Vec<Case> = Case::NETWORK.into_iter().filter(|case| wanted(*case)).collect();
    if !network.is_empty() {
        rows.extend(network::measure(options, tell, network).await?);
    }
    rows.sort_by_key(|row| row.case);
    Ok(rows)
}

/// What needs no network.
async fn local(options: &Options, tell: &dyn Fn(&str, f32), wanted: &dyn Fn(Case) -> bool) -> Result<Vec<Row>, Error> {
    let bench = Bench::open(options, tell).await?;
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
    Ok(rows)
}

impl<'a> Bench<'a> {
    pub(crate) async fn open(options: &'a Options, tell: &'a dyn Fn(&str, f32)) -> Result<Self, Error> {
        tell("private daemon", 0.0);
        let mut server = Server::prepare(&options.data_dir, &options.program).await?;
        server.start().await?;
        let client = server.client()?;
        let templates = client.templates().await.map_err(Error::call("list the templates"))?;
        let ready = || templates.templates.iter().filter(|template| template.status == TemplateStatus::Ready);
        let template = ready().find(|template| template.name == "base").or_else(|| ready().next());
        let Some(template) = template.map(|template| template.name.clone()) else {
            return Err(Error::Unprepared { data_dir: options.data_dir.clone(), what: "no template is ready" });
        };
        let mut bench = Self { options, tell, server, client, template, runtime: String::new(), count: Cell::new(0) };
        // The first create loads what the next ones find; it also tells what they run on.
        let made = bench.create(json!({})).await?;
        bench.runtime =
            format!("{}/{}", made["runtime"].as_str().unwrap_or("?"), made["accel"].as_str().unwrap_or("?"));
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

    /// A sandbox through the API, awake until we say otherwise.
    async fn create(&self, more: Value) -> Result<Value, Error> {
        create_sandbox(&self.client, &self.template, more).await
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

    /// What a bare engine with this much memory needs, taken from one of ours: a clone, not the first of its size.
    pub(crate) async fn bare(&self, more: Value) -> Result<Bare, Error> {
        let mut made = self.create(more.clone()).await?;
        if !self.is_golden(&made) {
            let began = Instant::now();
            while !self.is_golden(&made) && began.elapsed() < GOLDEN {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            self.destroy(id_of(&made)).await?;
            made = self.create(more).await?;
        }
        let found = self.server.engine(id_of(&made)).and_then(|pid| Blueprint::of(pid, &self.data()));
        let golden = found.as_ref().map(Blueprint::golden);
        self.destroy(id_of(&made)).await?;
        let golden = golden.unwrap_or_else(|_| Err(Error::engine("be understood", "it is not there")));
        let blueprint = found?;
        let (dir, run) = (self.server.scratch("bare")?, self.server.sockets()?);
        Ok(Bare { blueprint, golden: golden?, dir, run, tap: None })
    }

    /// Whether there is a golden snapshot of a machine like this sandbox's.
    fn is_golden(&self, made: &Value) -> bool {
        let machine = format!("c{}-m{}-d{}", made["cpu"], made["memory_mb"], made["disk_mb"]);
        let below = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let kept = below(self.data().join("golden")).flat_map(|template| below(template.join(&machine)));
        kept.into_iter().any(|dir| dir.join("manifest.json").exists())
    }

    /// The same of an engine that was booted: one that wakes from its disk alone.
    pub(crate) async fn booted(&self) -> Result<Blueprint, Error> {
        let made = self.create(json!({})).await?;
        let id = id_of(&made);
        self.client.suspend(id, false).await.map_err(Error::call("suspend a sandbox"))?;
        self.client.wake(id, true).await.map_err(Error::call("wake a sandbox"))?;
        self.server.engine(id).and_then(|pid| Blueprint::of(pid, &self.data()))
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
