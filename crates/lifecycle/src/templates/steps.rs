//! A Dockerfile, carried out: each stage on a machine of ours, each step's disk kept under the key of all that decided it.
//!
//! ```text
//!   stage   base or another stage's disk ─▶ step ─▶ step ─▶ …      a step whose key is known is not run
//!                                             │ workbench, booted at the first step that is
//!                                             ▼
//!                                        layers/<key>             disk after it
//!   target  its last disk ─▶ the tree of a machine booted from it ─▶ base
//! ```
//!
//! What a step reads of another stage or image is fetched from a machine booted from its disk, which stays for the next.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use wakeful_dockerfile::{
    Action, Base, Context, CopyStep, Digest, Dockerfile, ImageConfig, InlineFile, Instruction, Key, Mount, MountKind,
    Options, Origin, Placement, Plan, PlannedStage, RunStep, State, WorkdirStep,
};
use wakeful_guest_client::{ExecEvent, UnpackOptions};
use wakeful_guest_proto::process::{ProcessConfig, StartRequest};
use wakeful_images::Draft;
use wakeful_model::{BuildError, Template, TemplateSource};

use super::build::{Product, failed, of_step};
use super::cache::{self, Known, Layer};
use super::record::Record;
use super::transfer::{PutError, fetch_named, guest_error, put};
use super::workbench::{Disk, Workbench};
use crate::Error;
use crate::lifecycle::Inner;

/// Last lines of a step that failed, which its error tells.
const TAIL: usize = 20;

/// Carries out the Dockerfile of a template.
pub(super) async fn build(
    inner: &Arc<Inner>,
    template: &Template,
    work: &Path,
    record: &Arc<Record>,
) -> Result<Product, BuildError> {
    let TemplateSource::Dockerfile { dockerfile, target, build_args, .. } = &template.source else {
        return Err(failed("dockerfile", "not of a Dockerfile"));
    };
    // Holds the context, and what is fetched of other stages; it goes when this does.
    let draft = Draft::begin(work).map_err(of_step("context"))?;
    let done = async {
        record.add("context", None, None);
        unpack_context(inner, &inner.source_of(&template.id), &draft.root()).await?;
        let options = Options { build_args: build_args.clone(), target: target.clone() };
        let (file, context) = open(&draft.root(), dockerfile)?;
        let driver = inner.driver_for(None, template).await.map_err(of_step("check"))?;
        let mut build = Build {
            inner,
            record,
            tenant: &template.tenant,
            runtime: driver.engine().runtime.clone(),
            work,
            fetched: draft.dir().join("fetched"),
            context: Arc::new(context),
            done: HashMap::new(),
            images: HashMap::new(),
            sources: HashMap::new(),
            step: (0, 0),
        };
        let made = build.all(file, &options).await;
        build.end().await;
        made
    };
    let done = done.await;
    draft.abandon().await;
    done
}

async fn unpack_context(inner: &Inner, source: &Path, root: &Path) -> Result<(), BuildError> {
    const STEP: &str = "context";
    let options = wakeful_tree::Unpack { limits: inner.tree_limits(), ..wakeful_tree::Unpack::default() };
    let (source, root) = (source.to_owned(), root.to_owned());
    let unpacked = tokio::task::spawn_blocking(move || {
        let file = std::fs::File::open(&source).map_err(of_step(STEP))?;
        let mut reader = wakeful_oci::decompressed(file).map_err(of_step(STEP))?;
        wakeful_tree::unpack(&mut reader, &root, &options).map(drop).map_err(of_step(STEP))
    });
    unpacked.await.map_err(of_step(STEP))?
}

fn open(root: &Path, dockerfile: &str) -> Result<(Dockerfile, Context), BuildError> {
    const STEP: &str = "dockerfile";
    let text = read_within(root, dockerfile)
        .map_err(|error| failed(STEP, format!("could not read {dockerfile} in the context: {error}")))?;
    let file = wakeful_dockerfile::parse(&text).map_err(at_line(STEP))?;
    let context = Context::open(root, Path::new(dockerfile)).map_err(at_line(STEP))?;
    Ok((file, context))
}

/// A file of the context, which may be a link, but not out of it.
fn read_within(root: &Path, name: &str) -> std::io::Result<String> {
    use std::io::Read as _;

    use rustix::fs::{Mode, OFlags, ResolveFlags};

    let open = |dir, path: &Path, flags| {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    };
    let dir = std::fs::File::open(root)?;
    let file = std::fs::File::from(open(&dir, Path::new(name), OFlags::RDONLY | OFlags::NONBLOCK)?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    let mut text = String::new();
    // One more than may be: the parser says that it is too long.
    file.take((1 << 20) + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// For `map_err`: with the line that is wrong.
fn at_line(step: &str) -> impl FnOnce(wakeful_dockerfile::Error) -> BuildError {
    move |error| BuildError { step: step.to_owned(), line: error.line(), detail: error.detail() }
}

/// A stage that is done.
struct Done {
    disk: Disk,
    state: State,
    key: Key,
}

/// Where something is copied from, if not from the context.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Elsewhere {
    Stage(usize),
    Image(String),
}

struct Image {
    disk: Disk,
    config: ImageConfig,
    digest: String,
}

struct Build<'a> {
    inner: &'a Arc<Inner>,
    record: &'a Arc<Record>,
    tenant: &'a str,
    /// What its steps run in, and whose disks they leave.
    runtime: String,
    work: &'a Path,
    fetched: PathBuf,
    context: Arc<Context>,
    done: HashMap<usize, Done>,
    images: HashMap<String, Image>,
    sources: HashMap<Elsewhere, Workbench>,
    /// Which of how many.
    step: (usize, usize),
}

impl Build<'_> {
    async fn all(&mut self, mut file: Dockerfile, options: &Options) -> Result<Product, BuildError> {
        let mut plan = wakeful_dockerfile::plan(&file, options).map_err(at_line("dockerfile"))?;
        for warning in file.warnings.iter().chain(&plan.warnings) {
            self.record.add("dockerfile", None, Some(&format!("warning: {warning}")));
        }
        self.step = (0, plan.stages.iter().map(|stage| stage.instructions.len()).sum());
        let order: Vec<usize> = plan.stages.iter().map(|stage| stage.index).collect();
        for index in order {
            let stage = find(&plan, index)?.clone();
            // What the base image wants done comes first, and may need stages and images of its own.
            if let Base::Image(reference) = &stage.base {
                let at = at_instruction("FROM", stage.line);
                let triggers = self.image(reference).await.map_err(at)?.config.onbuild.clone();
                if !triggers.is_empty() {
                    file = file.with_triggers(index, &triggers).map_err(at_line("dockerfile"))?;
                    plan = wakeful_dockerfile::plan(&file, options).map_err(at_line("dockerfile"))?;
                }
            }
            let stage = find(&plan, index)?.clone();
            let done = self.stage(&stage).await?;
            self.done.insert(index, done);
        }
        let target = plan.target().index;
        let done = self.done.get(&target).ok_or_else(|| failed("dockerfile", "the target was not built"))?;
        let (disk, config, key) = (done.disk.clone(), done.state.config().clone(), done.key);
        let known = self.base_of(&disk, &key.to_string()).await?;
        Ok(Product::of_config(known, &config))
    }

    /// Where the keys of a stage begin. Disks of one runtime mean nothing to another.
    fn root(&self, from: &str, config: &ImageConfig) -> Key {
        Key::root(&format!("{} {from}", self.runtime), config)
    }

    /// The base of a disk: its own if nothing lies over that, else one made of the whole tree.
    async fn base_of(&mut self, disk: &Disk, key: &str) -> Result<Known, BuildError> {
        const STEP: &str = "export";
        let layout = &self.inner.layout;
        if disk.layer.is_none() {
            let path = layout.base(&disk.base);
            let bytes = crate::files::blocks(&path);
            return Ok(Known { base: disk.base.clone(), bytes });
        }
        if let Some(known) = cache::known(layout, key).await.map_err(of_step(STEP))? {
            self.record.add(STEP, None, Some("was exported before"));
            return Ok(known);
        }
        let bench = Workbench::boot(self.inner, disk).await.map_err(of_step(STEP))?;
        let known = self.inner.export(&bench, self.work, self.record).await;
        bench.end().await;
        let known = known?;
        cache::remember(layout, key, &known).await.map_err(of_step(STEP))?;
        Ok(known)
    }

    async fn end(self) {
        for bench in self.sources.into_values() {
            bench.end().await;
        }
    }

    async fn stage(&mut self, stage: &PlannedStage) -> Result<Done, BuildError> {
        let disk_mb = self.inner.builds.settings.disk_mb;
        let (mut disk, mut state, mut key) = match &stage.base {
            Base::Scratch => {
                let (base, config) = (self.empty().await?, ImageConfig::default());
                let key = self.root("scratch", &config);
                (Disk { runtime: self.runtime.clone(), base, layer: None, disk_mb }, State::begin(stage, config), key)
            }
            Base::Image(reference) => {
                let at = at_instruction("FROM", stage.line);
                self.image(reference).await.map_err(at)?;
                let image = &self.images[reference];
                let key = self.root(&image.digest, &image.config);
                (image.disk.clone(), State::begin(stage, image.config.clone()), key)
            }
            Base::Stage(parent) => {
                let parent = self.done.get(parent).ok_or_else(|| failed("dockerfile", "stages out of order"))?;
                (parent.disk.clone(), State::begin_from(stage, &parent.state), parent.key)
            }
        };
        let mut bench: Option<Workbench> = None;
        let walked = async {
            for instruction in &stage.instructions {
                self.step.0 += 1;
                let title = format!("[{}/{}] {}", self.step.0, self.step.1, instruction.text);
                let at = |error| at_instruction(&instruction.text, instruction.line)(error);
                let lined =
                    |error: wakeful_dockerfile::Error| at_line(&instruction.text)(error.with_line(instruction.line));
                let action = state.step(instruction).map_err(lined)?;
                let share = self.step.0 as f32 / (self.step.1.max(1) + 1) as f32;
                if matches!(action, Action::Config) {
                    self.record.add(&title, Some(share), None);
                    continue;
                }
                let inputs = self.inputs(&action, instruction).await?;
                key = key.next(&action, &inputs);
                let name = key.to_string();
                if let Some((dir, layer)) =
                    cache::layer(&self.inner.layout, &name).await.map_err(of_step(&title)).map_err(at)?
                {
                    self.record.add(&title, Some(share), Some("cached"));
                    disk = Disk {
                        runtime: self.runtime.clone(),
                        base: layer.base,
                        layer: Some(dir),
                        disk_mb: layer.disk_mb,
                    };
                    continue;
                }
                self.record.add(&title, Some(share), None);
                let machine = match &mut bench {
                    Some(machine) => machine,
                    None => {
                        bench.insert(Workbench::boot(self.inner, &disk).await.map_err(of_step(&title)).map_err(at)?)
                    }
                };
                self.act(machine, &action, instruction, &title).await?;
                let kept = keep(self.inner, machine, &disk, &name, &instruction.text).await;
                disk.layer = Some(kept.map_err(of_step(&title)).map_err(at)?);
            }
            Ok(())
        };
        let walked: Result<(), BuildError> = walked.await;
        if let Some(bench) = bench {
            bench.end().await;
        }
        walked?;
        Ok(Done { disk, state, key })
    }

    /// Digests of what an action reads beside its own words.
    async fn inputs(&mut self, action: &Action, instruction: &Instruction) -> Result<Vec<Digest>, BuildError> {
        let at = |error| at_instruction(&instruction.text, instruction.line)(error);
        let lined = |error: wakeful_dockerfile::Error| at_line(&instruction.text)(error.with_line(instruction.line));
        let mut origins: Vec<&Origin> = Vec::new();
        let mut inputs = Vec::new();
        match action {
            Action::Config | Action::Workdir(_) => {}
            Action::Copy(copy) => match &copy.from {
                Origin::Context => {
                    let (context, copy) = (Arc::clone(&self.context), copy.clone());
                    let digest = tokio::task::spawn_blocking(move || context.digest(&context.select(&copy)?));
                    inputs.push(digest.await.map_err(of_step("context"))?.map_err(lined)?);
                }
                origin => origins.push(origin),
            },
            Action::Run(run) => {
                for mount in &run.mounts {
                    match &mount.kind {
                        MountKind::Bind { from: Origin::Context, source } => {
                            let (context, source) = (Arc::clone(&self.context), source.clone());
                            let digest = tokio::task::spawn_blocking(move || {
                                context.digest(&context.select_paths(&[source], &[])?)
                            });
                            inputs.push(digest.await.map_err(of_step("context"))?.map_err(lined)?);
                        }
                        MountKind::Bind { from, .. } => origins.push(from),
                        MountKind::Cache { .. } | MountKind::Tmpfs { .. } | MountKind::File { .. } => {}
                    }
                }
            }
        }
        for origin in origins {
            inputs.push(match origin {
                Origin::Context => continue,
                Origin::Stage(number) => {
                    let done = self.done.get(number).ok_or_else(|| failed("dockerfile", "stages out of order"))?;
                    done.key.with_config(done.state.config()).as_input()
                }
                Origin::Image(reference) => {
                    let image = self.image(reference).await.map_err(at)?;
                    Digest::of(image.digest.as_bytes())
                }
            });
        }
        Ok(inputs)
    }

    async fn act(
        &mut self,
        machine: &Workbench,
        action: &Action,
        instruction: &Instruction,
        title: &str,
    ) -> Result<(), BuildError> {
        let at = |error| at_instruction(&instruction.text, instruction.line)(error);
        match action {
            Action::Config => Ok(()),
            Action::Workdir(WorkdirStep { path, user }) => {
                let user = if user.is_empty() { "root" } else { user };
                make_directory(machine, path, user).await.map_err(of_step(title)).map_err(at)
            }
            Action::Copy(copy) => self.copy(machine, copy, instruction).await,
            Action::Run(run) => {
                let guest = machine.guest().map_err(of_step(title)).map_err(at)?;
                let mut made = Vec::new();
                for mount in &run.mounts {
                    // What the image has there stays.
                    if guest.stat(&mount.target).await.is_err() {
                        made.push(&mount.target);
                    }
                    self.mount(machine, mount, instruction).await?;
                }
                let ran = self.run(machine, run, title).await.map_err(at);
                // Whatever lies there now is not the step's.
                for target in made {
                    guest.remove(target).await.map_err(of_step(title)).map_err(at)?;
                }
                ran
            }
        }
    }

    async fn run(&self, machine: &Workbench, run: &RunStep, title: &str) -> Result<(), BuildError> {
        let Some((cmd, args)) = run.argv.split_first() else { return Err(failed(title, "there is no command")) };
        let process = ProcessConfig {
            cmd: cmd.clone(),
            args: args.to_vec(),
            envs: run.env.iter().chain(&run.proxy).cloned().collect(),
            cwd: Some(run.workdir.clone()),
        };
        let user = if run.user.is_empty() { "root" } else { &run.user };
        let start =
            StartRequest { process, stdin: Some(false), user: Some(user.to_owned()), ..StartRequest::default() };
        let guest = machine.guest().map_err(of_step(title))?;
        let mut events = guest.start(&start, None).await.map_err(of_step(title))?;
        let mut lines = Lines { record: self.record, title, open: Vec::new(), tail: Vec::new() };
        loop {
            match events.next().await.map_err(of_step(title))? {
                Some(ExecEvent::Output { data, .. }) => lines.feed(&data),
                Some(ExecEvent::Ended { end, .. }) => {
                    lines.end();
                    let status = match end.signal {
                        Some(signal) => format!("was ended by signal {signal}"),
                        None if end.exit_code == 0 => return Ok(()),
                        None => format!("ended with {}", end.exit_code),
                    };
                    let tail = lines.tail.join("\n");
                    return Err(failed(title, format!("the command {status}\n{tail}")));
                }
                Some(ExecEvent::Started { .. } | ExecEvent::Gap { .. } | ExecEvent::Keepalive) => {}
                None => return Err(failed(title, "the command's end is not known")),
            }
        }
    }

    /// What a step finds at a place for as long as it runs.
    async fn mount(&mut self, machine: &Workbench, mount: &Mount, at: &Instruction) -> Result<(), BuildError> {
        let target = &mount.target;
        match &mount.kind {
            MountKind::Cache { .. } | MountKind::Tmpfs { .. } => {
                make_directory(machine, target, "root").await.map_err(of_step(&at.text))
            }
            MountKind::Bind { from, source } => {
                let copy = CopyStep {
                    from: from.clone(),
                    sources: vec![source.clone()],
                    inline: Vec::new(),
                    dest: target.clone(),
                    chown: None,
                    chmod: None,
                    excludes: Vec::new(),
                    parents: false,
                    unpack_archives: false,
                };
                self.copy(machine, &copy, at).await
            }
            MountKind::File { content, mode } => {
                let name = target.rsplit('/').next().unwrap_or("script").to_owned();
                let files = vec![InlineFile { name, content: content.clone() }];
                let options = UnpackOptions { mode: Some(*mode), single: true, ..UnpackOptions::default() };
                let pack = move |writer: &mut dyn std::io::Write| wakeful_dockerfile::pack_inline(&files, writer);
                put(machine, target, &options, pack).await.map_err(put_failed(at))
            }
        }
    }

    async fn copy(&mut self, machine: &Workbench, copy: &CopyStep, at: &Instruction) -> Result<(), BuildError> {
        let lined = |error: wakeful_dockerfile::Error| at_line(&at.text)(error.with_line(at.line));
        let context = match &copy.from {
            Origin::Context => Arc::clone(&self.context),
            Origin::Stage(number) => self.elsewhere(Elsewhere::Stage(*number), copy, at).await?,
            Origin::Image(reference) => self.elsewhere(Elsewhere::Image(reference.clone()), copy, at).await?,
        };
        let (selecting, wanted) = (Arc::clone(&context), copy.clone());
        let selected = tokio::task::spawn_blocking(move || selecting.select(&wanted));
        let selected = selected.await.map_err(of_step(&at.text))?.map_err(lined)?;
        let single = matches!(copy.placement(&selected).map_err(lined)?, Placement::Single);
        let options = UnpackOptions { owner: copy.chown.clone(), mode: copy.chmod, single, keep_top: true };
        let inline = copy.inline.clone();
        let pack = move |writer: &mut dyn std::io::Write| context.pack(&selected, &inline, writer);
        put(machine, &copy.dest, &options, pack).await.map_err(put_failed(at))
    }

    /// What a copy needs of a stage or an image, in a directory of its own.
    async fn elsewhere(
        &mut self,
        from: Elsewhere,
        copy: &CopyStep,
        at: &Instruction,
    ) -> Result<Arc<Context>, BuildError> {
        let failed_at = |error| at_instruction(&at.text, at.line)(error);
        let lined = |error: wakeful_dockerfile::Error| at_line(&at.text)(error.with_line(at.line));
        let disk = match &from {
            Elsewhere::Stage(number) => {
                let done = self.done.get(number).ok_or_else(|| failed("dockerfile", "stages out of order"))?;
                done.disk.clone()
            }
            Elsewhere::Image(reference) => self.image(reference).await.map_err(failed_at)?.disk.clone(),
        };
        if !self.sources.contains_key(&from) {
            let bench = Workbench::boot(self.inner, &disk).await.map_err(of_step(&at.text)).map_err(failed_at)?;
            self.sources.insert(from.clone(), bench);
        }
        let bench = &self.sources[&from];
        let root = self.fetched.join(wakeful_model::SandboxId::random().bare());
        for source in &copy.sources {
            let path = literal(source);
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let into = root.join(parent.trim_start_matches('/'));
            let made = into.clone();
            crate::files::blocking("make room for another stage's files", move || std::fs::create_dir_all(made))
                .await
                .map_err(of_step(&at.text))?;
            fetch_named(self.inner, bench, &path, &into).await.map_err(of_step(&at.text)).map_err(failed_at)?;
        }
        let opened = tokio::task::spawn_blocking(move || Context::bare(&root));
        Ok(Arc::new(opened.await.map_err(of_step(&at.text))?.map_err(lined)?))
    }

    async fn image(&mut self, reference: &str) -> Result<&Image, BuildError> {
        if !self.images.contains_key(reference) {
            let pulled = self.inner.of_registry(self.tenant, reference, self.work, self.record).await?;
            let (known, config) = pulled.known;
            let (runtime, disk_mb) = (self.runtime.clone(), self.inner.builds.settings.disk_mb);
            let disk = Disk { runtime, base: known.base, layer: None, disk_mb };
            self.images.insert(reference.to_owned(), Image { disk, config, digest: pulled.digest });
        }
        Ok(&self.images[reference])
    }

    /// A base with nothing on it.
    async fn empty(&self) -> Result<String, BuildError> {
        const KEY: &str = "scratch";
        if let Some(known) = cache::known(&self.inner.layout, KEY).await.map_err(of_step(KEY))? {
            return Ok(known.base);
        }
        let draft = Draft::begin(self.work).map_err(of_step(KEY))?;
        let known = self.inner.finish(draft, self.record).await?;
        cache::remember(&self.inner.layout, KEY, &known).await.map_err(of_step(KEY))?;
        Ok(known.base)
    }
}

fn find(plan: &Plan, index: usize) -> Result<&PlannedStage, BuildError> {
    plan.stage(index).ok_or_else(|| failed("dockerfile", "a stage is gone"))
}

fn put_failed(at: &Instruction) -> impl FnOnce(PutError) -> BuildError {
    let (step, line) = (at.text.clone(), at.line);
    move |error| match error {
        PutError::Pack(error) => at_line(&step)(error.with_line(line)),
        PutError::Machine(error) => at_instruction(&step, line)(of_step(&step)(error)),
    }
}

/// For `map_err`: whatever failed did so at this line.
fn at_instruction(text: &str, line: u32) -> impl FnOnce(BuildError) -> BuildError {
    let step = text.to_owned();
    move |error| BuildError { step, line: error.line.or(Some(line)), detail: error.detail }
}

/// The part of a path before its first wildcard, as far as whole names go.
fn literal(source: &str) -> String {
    let absolute = format!("/{}", source.trim_start_matches('/'));
    let Some(wild) = absolute.find(['*', '?', '[']) else {
        return absolute.trim_end_matches('/').to_owned();
    };
    absolute[..wild].rsplit_once('/').map_or(String::new(), |(dir, _)| dir.to_owned())
}

/// Fine if there is one.
async fn make_directory(machine: &Workbench, path: &str, user: &str) -> Result<(), Error> {
    let guest = machine.guest()?;
    match guest.mkdir(path, Some(user)).await {
        Ok(_) => Ok(()),
        // It, or what a link leads to.
        Err(_) if guest.list(path).await.is_ok() => Ok(()),
        Err(error) => Err(guest_error(&error)),
    }
}

/// Keeps the disk of a machine under a key.
async fn keep(inner: &Inner, machine: &mut Workbench, disk: &Disk, key: &str, step: &str) -> Result<PathBuf, Error> {
    let half = cache::begin(&inner.layout, key).await?;
    machine.cut(&half).await?;
    let layer = Layer { base: disk.base.clone(), disk_mb: disk.disk_mb, step: step.to_owned() };
    cache::keep(&inner.layout, key, half, &layer).await
}

/// Output as whole lines, and the last of them.
struct Lines<'a> {
    record: &'a Arc<Record>,
    title: &'a str,
    open: Vec<u8>,
    tail: Vec<String>,
}

impl Lines<'_> {
    const LONGEST: usize = 4096;

    fn feed(&mut self, data: &Bytes) {
        for &byte in data {
            match byte {
                b'\n' => self.end(),
                b'\r' => {}
                byte if self.open.len() < Self::LONGEST => self.open.push(byte),
                _ => {}
            }
        }
    }

    fn end(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.open)).into_owned();
        self.record.add(self.title, None, Some(&line));
        if self.tail.len() == TAIL {
            self.tail.remove(0);
        }
        self.tail.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn what_is_fetched_of_a_pattern() {
        for (source, path) in [
            ("/app/dist", "/app/dist"),
            ("app/dist/", "/app/dist"),
            ("/", ""),
            ("/app/*.js", "/app"),
            ("/a*/b", ""),
            ("/usr/lib/x[0-9]/y", "/usr/lib"),
        ] {
            assert_eq!(literal(source), path, "{source}");
        }
    }
}
