//! A build: from whatever a template is made of to a base and what its runtime begins from (a golden snapshot, a tree), as a
//! job that nobody has to wait for.
//!
//! ```text
//!   debian ──mmdebstrap──────────────────────────┐
//!   image ──pull──▶ layers ──unpack──────────────┤
//!   rootfs ──unpack──────────────────────────────┼──▶ Draft ──▶ base ──▶ golden snapshot, tree ──▶ **row: ready**
//!   dockerfile ──steps on a workbench──▶ its tree┤
//!   sandbox, snapshot ──boot──▶ its tree─────────┘
//! ```
//!
//! One write makes the new base the template's; until then, and if the build fails, sandboxes are made from the old one. A
//! crash leaves a row that says `pending` or `building`, and the next start begins again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tracing::{error, info, warn};
use wakeful_driver::{DiskKind, Machine};
use wakeful_images::Draft;
use wakeful_model::{
    Asked, BuildError, Code, Content, DEFAULT_TENANT, Entry, SnapshotId, Template, TemplateId, TemplateSource,
    TemplateStatus, preset,
};

use super::cache::{self, Known};
use super::record::{BuildLayer, Record};
use super::workbench::{Disk, Workbench};
use super::{steps, transfer};
use crate::golden::Recipe;
use crate::lifecycle::{Inner, error_chain};
use crate::{Error, files};

/// Commands find their programs here if an image does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a source comes to.
#[derive(Clone, Debug, Default)]
pub(super) struct Product {
    pub(super) base: String,
    pub(super) bytes: u64,
    pub(super) user: String,
    pub(super) workdir: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) start: Vec<String>,
    pub(super) ready: Option<Vec<String>>,
}

pub(super) fn failed(step: &str, detail: impl Into<String>) -> BuildError {
    BuildError { step: step.to_owned(), line: None, detail: detail.into() }
}

/// For `map_err`: a failure of a step, with all of its reasons.
pub(super) fn of_step<E: std::error::Error + 'static>(step: &str) -> impl FnOnce(E) -> BuildError {
    move |error| failed(step, error_chain(&error))
}

impl Product {
    /// What an image's own account says, in the words of a template.
    pub(super) fn of_config(known: Known, config: &wakeful_dockerfile::ImageConfig) -> Self {
        let ready = config.healthcheck.as_ref().and_then(|check| match check.test.split_first() {
            Some((kind, command)) if kind == "CMD" => Some(command.to_vec()),
            Some((kind, command)) if kind == "CMD-SHELL" => {
                Some(["/bin/sh", "-c"].into_iter().map(str::to_owned).chain(command.iter().cloned()).collect())
            }
            _ => None,
        });
        let mut env: BTreeMap<String, String> = config.env.iter().cloned().collect();
        env.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
        let entrypoint = config.entrypoint.clone().unwrap_or_default();
        Self {
            base: known.base,
            bytes: known.bytes,
            user: some(&config.user).unwrap_or("root").to_owned(),
            workdir: some(&config.workdir).unwrap_or("/").to_owned(),
            env,
            start: entrypoint.into_iter().chain(config.cmd.clone().unwrap_or_default()).collect(),
            ready,
        }
    }

    /// What a template gets of it, and of what its maker asked for otherwise.
    fn apply(self, template: &mut Template) {
        let asked: &Asked = &template.asked;
        template.base = Some(self.base);
        template.disk_bytes = self.bytes;
        template.user = asked.user.clone().unwrap_or(self.user);
        template.workdir = asked.workdir.clone().unwrap_or(self.workdir);
        template.env = self.env;
        template.env.extend(asked.env.clone());
        let start = asked.start.clone().unwrap_or(self.start);
        let ready = asked.ready.clone().or(self.ready).filter(|command| !command.is_empty());
        let ready_seconds = asked.ready_seconds.unwrap_or(Entry::READY_SECONDS);
        template.entry = (!start.is_empty()).then_some(Entry { start, ready, ready_seconds, warm: asked.warm });
    }
}

fn some(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// An image's config in the words of the Dockerfile crate, which both kinds of build speak.
pub(super) fn image_config(config: &wakeful_oci::Config) -> wakeful_dockerfile::ImageConfig {
    let words = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
    wakeful_dockerfile::ImageConfig {
        env: config.env.clone(),
        user: config.user.clone().unwrap_or_default(),
        workdir: config.workdir.clone().unwrap_or_default(),
        entrypoint: words(&config.entrypoint),
        cmd: words(&config.cmd),
        labels: config.labels.clone(),
        exposed: config.exposed_ports.iter().cloned().collect(),
        volumes: config.volumes.iter().cloned().collect(),
        shell: words(&config.shell),
        healthcheck: config.healthcheck.as_ref().map(|check| wakeful_dockerfile::Healthcheck {
            test: check.test.clone(),
            interval: check.interval,
            timeout: check.timeout,
            start_period: check.start_period,
            start_interval: check.start_interval,
            retries: check.retries,
        }),
        stop_signal: config.stop_signal.clone(),
        onbuild: config.onbuild.clone(),
        ..wakeful_dockerfile::ImageConfig::default()
    }
}

impl Inner {
    /// Builds that a crash or a stop interrupted begin again.
    pub(crate) async fn resume_builds(self: &Arc<Self>) -> Result<(), Error> {
        self.sweep_uploads(true, std::time::Duration::MAX).await?;
        for template in self.store.templates(None).await? {
            match template.status {
                TemplateStatus::Pending | TemplateStatus::Building => self.begin_build(template),
                TemplateStatus::Deleted => self.collect_template(&template.id).await?,
                TemplateStatus::Ready | TemplateStatus::Failed => {}
            }
        }
        Ok(())
    }

    pub(super) fn begin_build(self: &Arc<Self>, template: Template) {
        let (inner, id) = (Arc::clone(self), template.id.clone());
        let (record, opened) = Record::begin(&self.layout.build(&id));
        if let Err(error) = opened {
            warn!(template_id = %id, %error, "the build's log cannot be written");
        }
        self.builds.running.lock().expect("no panic while it is held").insert(id.clone(), Arc::clone(&record));
        self.tasks.spawn(async move {
            tokio::select! {
                // An interrupted build begins again at the next start.
                () = inner.draining.cancelled() => {}
                () = inner.build(template, &record) => {}
            }
            {
                let mut running = inner.builds.running.lock().expect("no panic while it is held");
                // A rebuild may have begun in its place.
                if running.get(&id).is_some_and(|now| Arc::ptr_eq(now, &record)) {
                    running.remove(&id);
                }
            }
            drop(record);
            if let Err(error) = inner.collect().await {
                warn!(error = error_chain(&error), "could not remove what no template needs any more");
            }
        });
    }

    async fn build(self: &Arc<Self>, mut template: Template, record: &Arc<Record>) {
        record.add("wait", None, None);
        let (id, name) = (template.id.clone(), template.name.clone());
        let turn = tokio::select! {
            turn = self.builds.turn.acquire() => turn.ok(),
            () = record.cancelled.cancelled() => None,
        };
        let made = match turn {
            None => Err(failed("wait", "cancelled")),
            Some(_turn) => {
                template.status = TemplateStatus::Building;
                template = match self.swap_template(template).await {
                    Ok(template) => template,
                    Err(error) => {
                        error!(template_id = %id, error = error_chain(&error), "could not begin a build");
                        return;
                    }
                };
                info!(template_id = %id, name, "build begins");
                let (timeout, mut candidate) = (self.builds.settings.timeout, template.clone());
                let made = tokio::select! {
                    made = tokio::time::timeout(timeout, self.make(&mut candidate, record).boxed()) => made
                        .unwrap_or_else(|_| Err(failed("build", format!("it took longer than {timeout:?}")))),
                    () = record.cancelled.cancelled() => Err(failed("build", "cancelled")),
                };
                made.map(|()| template = candidate)
            }
        };
        match made {
            Ok(()) => {
                template.status = TemplateStatus::Ready;
                template.build_error = None;
                template.built_at = Some(self.now());
                record.add("ready", Some(1.0), None);
            }
            Err(build_error) => {
                record.add(&build_error.step, None, Some(&format!("failed: {}", build_error.detail)));
                // What was built before can still be used.
                let usable = template.base.is_some();
                template.status = if usable { TemplateStatus::Ready } else { TemplateStatus::Failed };
                template.build_error = Some(build_error);
            }
        }
        match self.swap_template(template).await {
            Ok(template) => info!(template_id = %id, name, status = %template.status, "build ended"),
            // Deleted meanwhile: what was built goes with it.
            Err(error) => {
                info!(template_id = %id, name, error = error_chain(&error), "the build's end could not be written");
                if let Err(error) = self.collect_template(&id).await {
                    error!(template_id = %id, error = error_chain(&error), "could not remove a deleted template's files");
                }
            }
        }
    }

    async fn make(self: &Arc<Self>, template: &mut Template, record: &Arc<Record>) -> Result<(), BuildError> {
        let work = self.layout.build(&template.id).join("work");
        // What a build left that a crash interrupted.
        let leftovers = work.clone();
        match tokio::task::spawn_blocking(move || wakeful_images::clear_leftovers(&leftovers)).await {
            Ok(cleared) => cleared.map_err(of_step("check"))?,
            Err(panic) => return Err(failed("check", panic.to_string())),
        }
        let product = match &template.source {
            TemplateSource::Debian { .. } => self.of_debian(template, &work, record).await?,
            TemplateSource::Image { reference, upload: None } => {
                let reference = reference.as_deref().unwrap_or_default();
                let (known, config) = self.of_registry(&template.tenant, reference, &work, record).await?.known;
                Product::of_config(known, &config)
            }
            TemplateSource::Image { reference, upload: Some(_) } => {
                let source = self.source_of(&template.id);
                let (known, config) = self.of_archive(&source, reference.clone(), &work, record).await?;
                Product::of_config(known, &config)
            }
            TemplateSource::Rootfs { .. } => self.of_rootfs(&self.source_of(&template.id), &work, record).await?,
            TemplateSource::Dockerfile { .. } => steps::build(self, template, &work, record).boxed().await?,
            TemplateSource::Sandbox { .. } => self.of_sandbox(template, &work, record).await?,
        };
        product.apply(template);
        let ready = self.make_ready(template, &|step| record.add(step, None, None)).await;
        ready.map_err(|(step, error)| failed(step, error_chain(&error)))
    }

    /// Makes what the first sandbox would else have to wait for: what its engine begins from, and a golden snapshot where
    /// sandboxes are clones. A failure tells at which step.
    pub(super) async fn make_ready(
        &self,
        template: &Template,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), (&'static str, Error)> {
        const TREE: &str = "tree";
        const GOLDEN: &str = "golden snapshot";
        const WARM: &str = "start command";
        let driver = self.driver_for(None, template).await.map_err(|error| ("check", error))?;
        if driver.capabilities().disk == DiskKind::Directory {
            tell(TREE);
            let base = template.base.as_deref().unwrap_or_default();
            self.base_for(&*driver, base).await.map_err(|error| (TREE, error))?;
        }
        let recipe = self.recipe(template).map_err(|error| (GOLDEN, error))?;
        if driver.capabilities().golden {
            tell(GOLDEN);
            self.golden(&driver, &recipe.cold()).await.map_err(|error| (GOLDEN, error))?;
        }
        if recipe.warm.is_some() {
            tell(WARM);
            self.golden(&driver, &recipe).await.map_err(|error| (WARM, error))?;
        }
        Ok(())
    }

    async fn of_debian(&self, template: &Template, work: &Path, record: &Arc<Record>) -> Result<Product, BuildError> {
        let spec = super::debian_spec(&template.source).ok_or_else(|| failed("check", "not of packages"))?;
        let (bases, cache) = (self.layout.bases(), self.layout.package_cache());
        let places = wakeful_images::Places { work, bases: &bases, cache: &cache };
        let base = wakeful_images::build(&spec, &places, &log(record, Share::Whole))
            .await
            .map_err(|error| failed(error.step().unwrap_or("check"), error_chain(&error)))?;
        let env = wakeful_images::DEBIAN_ENV.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Ok(Product {
            base: base.digest,
            bytes: base.bytes,
            workdir: spec.workdir(),
            user: spec.user,
            env: env.collect(),
            ..Product::default()
        })
    }

    /// The base of an image that a registry has, and its config; quick if it was made before.
    pub(super) async fn of_registry(
        self: &Arc<Self>,
        tenant: &str,
        reference: &str,
        work: &Path,
        record: &Arc<Record>,
    ) -> Result<Pulled, BuildError> {
        const STEP: &str = "pull";
        record.add(STEP, None, Some(reference));
        let mut settings = self.builds.settings.registries.clone();
        if tenant != DEFAULT_TENANT {
            // The credentials are the operator's, and what they open is not for everybody.
            (settings.credentials, settings.docker_config) = (None, None);
        }
        let parsed =
            wakeful_oci::Reference::parse(reference, settings.default_registry.as_deref()).map_err(of_step(STEP))?;
        if tenant != DEFAULT_TENANT && super::is_inside(parsed.registry()) {
            return Err(failed(
                STEP,
                format!("{}: registries of the host's own network are not for tenants", parsed.registry()),
            ));
        }
        let cache = self.blobs().map_err(of_step(STEP))?;
        let progress = LayerLog(Arc::clone(record));
        let image = wakeful_oci::pull(&parsed, &settings, &cache, &wakeful_oci::Platform::default(), &progress)
            .await
            .map_err(of_step(STEP))?;
        let digest = image.digest.to_string();
        Ok(Pulled { known: self.of_image(image, cache, work, record).await?, digest })
    }

    async fn of_archive(
        self: &Arc<Self>,
        source: &Path,
        tag: Option<String>,
        work: &Path,
        record: &Arc<Record>,
    ) -> Result<(Known, wakeful_dockerfile::ImageConfig), BuildError> {
        const STEP: &str = "archive";
        record.add(STEP, None, None);
        let cache = self.blobs().map_err(of_step(STEP))?;
        let (source, reading, limits) = (source.to_owned(), cache.clone(), self.builds.settings.registries.limits);
        let progress = LayerLog(Arc::clone(record));
        let read = tokio::task::spawn_blocking(move || {
            let platform = wakeful_oci::Platform::default();
            wakeful_oci::open_archive(&source, tag.as_deref(), &reading, &limits, &platform, &progress)
        });
        let image = read.await.map_err(of_step(STEP))?.map_err(of_step(STEP))?;
        self.of_image(image, cache, work, record).await
    }

    async fn of_image(
        self: &Arc<Self>,
        image: wakeful_oci::Image,
        cache: wakeful_oci::Cache,
        work: &Path,
        record: &Arc<Record>,
    ) -> Result<(Known, wakeful_dockerfile::ImageConfig), BuildError> {
        const STEP: &str = "unpack";
        let (key, config) = (image.digest.hex().to_owned(), image_config(&image.config));
        if let Some(known) = cache::known(&self.layout, &key).await.map_err(of_step(STEP))? {
            record.add(STEP, None, Some(&format!("{} was unpacked before", image.digest)));
            return Ok((known, config));
        }
        let limits = self.tree_limits();
        let draft = Draft::begin(work).map_err(of_step(STEP))?;
        let (root, progress) = (draft.root(), LayerLog(Arc::clone(record)));
        let unpacked =
            tokio::task::spawn_blocking(move || wakeful_oci::unpack(&image, &cache, &root, limits, &progress));
        match unpacked.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                draft.abandon().await;
                return Err(of_step(STEP)(error));
            }
            Err(panic) => return Err(failed(STEP, panic.to_string())),
        }
        let known = self.finish(draft, record).await?;
        cache::remember(&self.layout, &key, &known).await.map_err(of_step(STEP))?;
        Ok((known, config))
    }

    async fn of_rootfs(
        self: &Arc<Self>,
        source: &Path,
        work: &Path,
        record: &Arc<Record>,
    ) -> Result<Product, BuildError> {
        const STEP: &str = "unpack";
        record.add(STEP, None, None);
        let draft = Draft::begin(work).map_err(of_step(STEP))?;
        let (source, root) = (source.to_owned(), draft.root());
        let options = wakeful_tree::Unpack { limits: self.tree_limits(), ..wakeful_tree::Unpack::default() };
        let unpacked = tokio::task::spawn_blocking(move || {
            let file = std::fs::File::open(&source).map_err(of_step(STEP))?;
            let mut reader = wakeful_oci::decompressed(file).map_err(of_step(STEP))?;
            wakeful_tree::unpack(&mut reader, &root, &options).map_err(of_step(STEP))
        });
        match unpacked.await.map_err(of_step(STEP)) {
            Ok(Ok(_)) => {}
            Ok(Err(error)) | Err(error) => {
                draft.abandon().await;
                return Err(error);
            }
        }
        let known = self.finish(draft, record).await?;
        Ok(Product::of_config(known, &wakeful_dockerfile::ImageConfig::default()))
    }

    async fn of_sandbox(
        self: &Arc<Self>,
        template: &Template,
        work: &Path,
        record: &Arc<Record>,
    ) -> Result<Product, BuildError> {
        const STEP: &str = "copy";
        let TemplateSource::Sandbox { sandbox_id, snapshot_id } = &template.source else {
            return Err(failed(STEP, "not of a sandbox"));
        };
        record.add(STEP, None, None);
        let (snapshot, own) = match (sandbox_id, snapshot_id) {
            (_, Some(snapshot)) => (snapshot.clone(), false),
            (Some(sandbox), None) => (self.copy_of(&template.tenant, sandbox).await.map_err(of_step(STEP))?, true),
            (None, None) => return Err(failed(STEP, "neither a sandbox nor a snapshot")),
        };
        let made = self.of_snapshot(&template.tenant, &snapshot, work, record).await;
        if own && let Err(error) = self.drop_copy(&snapshot).await {
            warn!(snapshot_id = %snapshot, error = error_chain(&error), "could not remove a copy, the next start will");
        }
        let (known, content) = made?;
        // What its caller gave is that sandbox's own business.
        let given = |name: &String| content.env_keys.contains(name) || name.starts_with("WAKEFUL_");
        Ok(Product {
            base: known.base,
            bytes: known.bytes,
            env: content.env.clone().into_iter().filter(|(name, _)| !given(name)).collect(),
            user: content.user,
            workdir: content.workdir,
            start: content.entry.as_ref().map(|entry| entry.start.clone()).unwrap_or_default(),
            ready: content.entry.and_then(|entry| entry.ready),
        })
    }

    async fn of_snapshot(
        self: &Arc<Self>,
        tenant: &str,
        snapshot: &SnapshotId,
        work: &Path,
        record: &Arc<Record>,
    ) -> Result<(Known, Content), BuildError> {
        const STEP: &str = "copy";
        let origin = self.origin(tenant, snapshot.as_str()).await.map_err(of_step(STEP))?;
        let origin = origin.ok_or_else(|| failed(STEP, format!("there is no snapshot {snapshot}")))?;
        let content = origin.snapshot.content.clone();
        let layer = Some(self.layout.snapshot(snapshot));
        let (runtime, base) = (content.runtime.clone(), content.base.clone());
        let disk = Disk { runtime, base, layer, disk_mb: content.disk_mb };
        let bench = Workbench::boot(self, &disk).await.map_err(of_step(STEP))?;
        let known = self.export(&bench, work, record).await;
        bench.end().await;
        Ok((known?, content))
    }

    /// Makes a base of the whole tree of a machine.
    pub(super) async fn export(
        &self,
        bench: &Workbench,
        work: &Path,
        record: &Arc<Record>,
    ) -> Result<Known, BuildError> {
        const STEP: &str = "export";
        record.add(STEP, None, None);
        let draft = Draft::begin(work).map_err(of_step(STEP))?;
        let options = wakeful_tree::Unpack { limits: self.tree_limits(), ..wakeful_tree::Unpack::default() };
        match transfer::fetch(bench, "/", true, draft.root(), options).await {
            Ok(()) => self.finish(draft, record).await,
            Err(error) => {
                draft.abandon().await;
                Err(of_step(STEP)(error))
            }
        }
    }

    pub(super) async fn finish(&self, draft: Draft, record: &Arc<Record>) -> Result<Known, BuildError> {
        let base = draft
            .finish(&self.layout.bases(), &log(record, Share::Part))
            .await
            .map_err(|error| failed(error.step().unwrap_or("image"), error_chain(&error)))?;
        Ok(Known { base: base.digest, bytes: base.bytes })
    }

    pub(super) fn tree_limits(&self) -> wakeful_tree::Limits {
        let settings = &self.builds.settings;
        wakeful_tree::Limits { bytes: settings.image_bytes, entries: settings.image_files }
    }

    pub(crate) fn blobs(&self) -> Result<wakeful_oci::Cache, wakeful_oci::Error> {
        wakeful_oci::Cache::open(&self.layout.blobs())
    }

    /// What a sandbox of the template's own size begins with.
    fn recipe(&self, template: &Template) -> Result<Recipe, Error> {
        let size = preset(&template.default_size)
            .map_err(|error| Error::invalid(Code::InvalidSize, "default_size", error.to_string()))?;
        let disk_mb = template.disk_mb.unwrap_or(self.defaults.disk_mb);
        let machine = Machine { cpu: size.cpu, memory_mb: size.memory_mb, disk_mb };
        Ok(Recipe::of_template(template, template.base.as_deref().unwrap_or_default(), machine))
    }

    /// Removes what a build has in its directory beside its log and its source.
    pub(super) async fn clear_build(&self, id: &TemplateId) -> Result<(), Error> {
        let work = self.layout.build(id).join("work");
        files::blocking("clear what a build left", move || {
            wakeful_images::clear_leftovers(&work).map_err(std::io::Error::other)
        })
        .await
    }
}

/// An image as a build needs it.
pub(super) struct Pulled {
    pub(super) known: (Known, wakeful_dockerfile::ImageConfig),
    pub(super) digest: String,
}

/// Whether a step of the images crate is all of a build: then how far it is tells how far the build is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    Whole,
    Part,
}

/// Where the steps of the images crate tell how far they are.
fn log(record: &Arc<Record>, share: Share) -> impl wakeful_images::Log + use<> {
    let record = Arc::clone(record);
    move |event: wakeful_images::Event<'_>| {
        let fraction = event.fraction.filter(|_| share == Share::Whole);
        record.add(event.step, fraction, Some(event.line).filter(|line| !line.is_empty()));
    }
}

/// Tells how far each layer is.
struct LayerLog(Arc<Record>);

impl wakeful_oci::Progress for LayerLog {
    fn event(&self, event: wakeful_oci::Event<'_>) {
        let step = match event.phase {
            wakeful_oci::Phase::Pull => "pull",
            wakeful_oci::Phase::Unpack => "unpack",
        };
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let layer = BuildLayer {
            number: number(event.layer),
            count: number(event.layers),
            digest: event.digest.to_owned(),
            done: event.done,
            total: event.total,
        };
        self.0.layer(step, layer, event.cached);
    }

    fn cancelled(&self) -> bool {
        self.0.cancelled.is_cancelled()
    }
}
