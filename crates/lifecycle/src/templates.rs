//! Templates: rows, builds and their logs, and what becomes of the files of deleted ones.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tracing::{error, info, warn};
use wakeful_driver::Machine;
use wakeful_model::{BuildError, Code, DEFAULT_TENANT, Template, TemplateId, TemplateSource, TemplateStatus, preset};
use wakeful_store::Swap;

use crate::lifecycle::{Inner, error_chain};
use crate::{Clock, Error, Lifecycle, NewTemplate, files};

/// Lines of a build that are kept; a build that says more is cut in the middle of nothing important.
const MOST_LINES: usize = 20_000;

/// Who runs commands in a template of ours.
const USER: &str = "user";

fn debian_spec(source: &TemplateSource, user: &str) -> Option<wakeful_images::DebianSpec> {
    let TemplateSource::Debian { suite, packages } = source else { return None };
    Some(wakeful_images::DebianSpec { suite: suite.clone(), packages: packages.clone(), user: user.to_owned() })
}

/// One line of a build's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuildLine {
    /// When.
    pub at: Timestamp,
    /// Which step.
    pub step: String,
    /// How far the step is, where that is known.
    pub fraction: Option<f32>,
    /// What it said.
    pub line: Option<String>,
}

/// A build's log, line by line; ends when the build has ended (or at its last line, if it is not followed).
pub type BuildLog = ReceiverStream<BuildLine>;

/// A build under way.
struct Record {
    lines: Mutex<Vec<BuildLine>>,
    /// Number of lines; closed when the build ends.
    count: watch::Sender<usize>,
    file: Mutex<Option<std::fs::File>>,
}

impl Record {
    fn add(&self, step: &str, fraction: Option<f32>, line: Option<&str>) {
        let entry =
            BuildLine { at: Clock::default().now(), step: step.to_owned(), fraction, line: line.map(str::to_owned) };
        let count = {
            let mut lines = self.lines.lock().expect("no panic while it is held");
            if lines.len() >= MOST_LINES {
                return;
            }
            if let (Some(file), Ok(text)) =
                (&mut *self.file.lock().expect("no panic while it is held"), serde_json::to_string(&entry))
            {
                // A log that cannot be written is no reason to fail the build.
                let _ = writeln!(file, "{text}");
            }
            lines.push(entry);
            lines.len()
        };
        self.count.send_replace(count);
    }
}

/// Builds under way, one at a time: they are bound by the disk and the processor.
pub(crate) struct Builds {
    running: Mutex<HashMap<TemplateId, Arc<Record>>>,
    turn: Semaphore,
}

impl Default for Builds {
    fn default() -> Self {
        Self { running: Mutex::default(), turn: Semaphore::new(1) }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if first && name.len() <= 63 && name.bytes().all(good) {
        Ok(())
    } else {
        Err(Error::invalid(
            Code::InvalidName,
            "name",
            format!("{name:?} is not a name: 1 to 63 of a-z 0-9 - _, the first a letter or digit"),
        ))
    }
}

/// Whether all tenants may use a template: those that `setup` builds for everyone. Others see only their own.
#[must_use]
pub fn is_shared(tenant: &str, name: &str) -> bool {
    tenant == DEFAULT_TENANT && wakeful_images::BUILTINS.contains(&name)
}

impl Inner {
    /// A tenant's own or a shared one, by name, `name:tag` (only `latest` exists yet) or id.
    pub(crate) async fn find_template(&self, tenant: &str, name: &str) -> Result<Template, Error> {
        let not_found = || Error::TemplateNotFound(name.chars().take(100).collect());
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        if let Some(template) = self.store.template_by_name(tenant, plain).await? {
            return Ok(template);
        }
        if is_shared(DEFAULT_TENANT, plain)
            && let Some(template) = self.store.template_by_name(DEFAULT_TENANT, plain).await?
        {
            return Ok(template);
        }
        let id: TemplateId = name.parse().map_err(|_| not_found())?;
        let template = self.store.template(&id).await?;
        template
            .filter(|t| t.tenant == tenant || is_shared(&t.tenant, &t.name))
            .filter(|t| t.status != TemplateStatus::Deleted)
            .ok_or_else(not_found)
    }

    async fn swap_template(&self, mut row: Template) -> Result<Template, Error> {
        match self.store.swap_template(&row).await? {
            Swap::Swapped(version) => {
                row.version = version;
                Ok(row)
            }
            Swap::Stale(other) => {
                Err(Error::Internal(format!("template {} was written by somebody else: {}", other.id, other.status)))
            }
            Swap::NotFound => Err(Error::TemplateNotFound(row.name)),
        }
    }

    /// Builds that a crash or a stop interrupted begin again.
    pub(crate) async fn resume_builds(self: &Arc<Self>) -> Result<(), Error> {
        for template in self.store.templates(None).await? {
            match template.status {
                TemplateStatus::Pending | TemplateStatus::Building => self.begin_build(template),
                TemplateStatus::Deleted => self.collect_template(&template.id).await?,
                TemplateStatus::Ready | TemplateStatus::Failed => {}
            }
        }
        Ok(())
    }

    fn begin_build(self: &Arc<Self>, template: Template) {
        let (inner, id) = (Arc::clone(self), template.id.clone());
        let (count, _) = watch::channel(0);
        let dir = self.layout.build(&id);
        let opened = files::make_private_dir(&dir).and_then(|()| std::fs::File::create(dir.join("log")));
        let file =
            opened.inspect_err(|error| warn!(template_id = %id, %error, "the build's log cannot be written")).ok();
        let record = Arc::new(Record { lines: Mutex::default(), count, file: Mutex::new(file) });
        self.builds.running.lock().expect("no panic while it is held").insert(id.clone(), Arc::clone(&record));
        self.tasks.spawn(async move {
            tokio::select! {
                // An interrupted build begins again at the next start.
                () = inner.draining.cancelled() => {}
                () = inner.build(template, &record) => {}
            }
            inner.builds.running.lock().expect("no panic while it is held").remove(&id);
        });
    }

    async fn build(self: &Arc<Self>, mut template: Template, record: &Arc<Record>) {
        record.add("wait", None, None);
        let Ok(_turn) = self.builds.turn.acquire().await else { return };
        template.status = TemplateStatus::Building;
        template = match self.swap_template(template).await {
            Ok(template) => template,
            Err(error) => {
                error!(error = error_chain(&error), "could not begin a build");
                return;
            }
        };
        let (id, name) = (template.id.clone(), template.name.clone());
        info!(template_id = %id, name, "build begins");
        match self.make(&mut template, record).await {
            Ok(()) => {
                template.status = TemplateStatus::Ready;
                template.built_at = Some(self.now());
                record.add("ready", Some(1.0), None);
            }
            Err(build_error) => {
                record.add(&build_error.step, None, Some(&format!("failed: {}", build_error.detail)));
                template.status = TemplateStatus::Failed;
                template.build_error = Some(build_error);
            }
        }
        match self.swap_template(template).await {
            Ok(template) => info!(template_id = %id, name, status = %template.status, "build ended"),
            // Deleted meanwhile: what was built goes with the next look at deleted templates.
            Err(error) => {
                warn!(template_id = %id, name, error = error_chain(&error), "the build's end could not be written");
                if let Err(error) = self.collect_template(&id).await {
                    error!(template_id = %id, error = error_chain(&error), "could not remove a deleted template's files");
                }
            }
        }
    }

    async fn make(self: &Arc<Self>, template: &mut Template, record: &Arc<Record>) -> Result<(), BuildError> {
        let failed = |step: &str, detail: String| BuildError { step: step.to_owned(), line: None, detail };
        let spec = debian_spec(&template.source, &template.user)
            .ok_or_else(|| failed("check", "templates cannot be built from this yet".into()))?;
        let (work, bases, cache) =
            (self.layout.build(&template.id).join("work"), self.layout.bases(), self.layout.package_cache());
        // What a build left that a crash interrupted.
        let leftovers = work.clone();
        match tokio::task::spawn_blocking(move || wakeful_images::clear_leftovers(&leftovers)).await {
            Ok(cleared) => cleared.map_err(|error| failed("check", error_chain(&error)))?,
            Err(panic) => return Err(failed("check", panic.to_string())),
        }
        let places = wakeful_images::Places { work: &work, bases: &bases, cache: &cache };
        let log = {
            let record = Arc::clone(record);
            move |event: wakeful_images::Event<'_>| {
                record.add(event.step, event.fraction, Some(event.line).filter(|line| !line.is_empty()));
            }
        };
        let base = wakeful_images::build(&spec, &places, &log)
            .await
            .map_err(|error| failed(error.step().unwrap_or("check"), error_chain(&error)))?;
        template.base = Some(base.digest);
        template.disk_bytes = base.bytes;
        template.workdir = base.workdir;
        for (name, value) in base.env {
            template.env.entry(name).or_insert(value);
        }
        record.add("golden snapshot", None, None);
        self.golden_of_default_size(template).await.map_err(|error| failed("golden snapshot", error_chain(&error)))
    }

    async fn golden_of_default_size(&self, template: &Template) -> Result<(), Error> {
        let size = preset(&template.default_size)
            .map_err(|error| Error::invalid(Code::InvalidSize, "default_size", error.to_string()))?;
        let machine = Machine { cpu: size.cpu, memory_mb: size.memory_mb, disk_mb: self.defaults.disk_mb };
        let driver = self.driver().await?;
        let base = template.base.as_deref().unwrap_or_default();
        self.golden(&driver, &template.id, base, &template.user, &template.workdir, machine).await.map(drop)
    }

    /// Removes the files of a deleted template once no sandbox stands on them.
    pub(crate) async fn collect_template(&self, id: &TemplateId) -> Result<(), Error> {
        let Some(template) = self.store.template(id).await? else { return Ok(()) };
        if template.status != TemplateStatus::Deleted || self.store.template_users(id).await? > 0 {
            return Ok(());
        }
        let others = self.store.templates(None).await?;
        let shared = others.iter().any(|other| other.id != *id && other.base == template.base);
        let base = template.base.as_deref().filter(|_| !shared).map(|digest| self.layout.bases().join(digest));
        let (golden, build, trash) = (self.layout.golden_of(id), self.layout.build(id), self.layout.trash());
        self.goldens.forget(&golden);
        files::blocking("remove a template's files", move || {
            [Some(golden), Some(build), base].into_iter().flatten().try_for_each(|dir| files::discard_dir(&dir, &trash))
        })
        .await?;
        self.store.remove_template(id).await?;
        Ok(())
    }
}

impl Lifecycle {
    /// Begins to build a template.
    ///
    /// # Errors
    /// If its name is taken or no name.
    pub async fn create_template(&self, new: NewTemplate) -> Result<Template, Error> {
        self.create_template_as(TemplateId::random(), new).await
    }

    /// Begins to build a template with this id, which must be a new one.
    ///
    /// # Errors
    /// As [`create_template`](Self::create_template).
    pub async fn create_template_as(&self, id: TemplateId, new: NewTemplate) -> Result<Template, Error> {
        if self.is_draining() {
            return Err(Error::ShuttingDown);
        }
        check_name(&new.name)?;
        if let Some(spec) = debian_spec(&new.source, USER) {
            spec.check().map_err(|error| Error::invalid(Code::InvalidField, "source", error.to_string()))?;
        }
        let default_size = new.default_size.unwrap_or_else(|| self.inner.defaults.template_size.clone());
        preset(&default_size).map_err(|error| Error::invalid(Code::InvalidSize, "default_size", error.to_string()))?;
        let template = Template {
            id,
            version: 1,
            tenant: new.tenant,
            name: new.name,
            status: TemplateStatus::Pending,
            build_error: None,
            source: new.source,
            tags: new.tags,
            description: new.description,
            user: USER.into(),
            workdir: format!("/home/{USER}"),
            env: new.asked.env.clone(),
            asked: new.asked,
            default_size,
            egress: new.egress.unwrap_or_default(),
            disk_mb: new.disk_mb,
            io: new.io,
            entry: None,
            base: None,
            disk_bytes: 0,
            created_at: self.inner.now(),
            built_at: None,
        };
        if !self.inner.store.insert_template(&template).await? {
            return Err(Error::NameTaken(template.name));
        }
        self.inner.begin_build(template.clone());
        Ok(template)
    }

    /// All templates that a tenant may use, by name: its own and the shared ones.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn templates(&self, tenant: &str) -> Result<Vec<Template>, Error> {
        let mut all = self.inner.store.templates(Some(tenant)).await?;
        if tenant != DEFAULT_TENANT {
            let own: HashSet<String> = all.iter().map(|template| template.name.clone()).collect();
            let shared = self.inner.store.templates(Some(DEFAULT_TENANT)).await?;
            // One of its own hides a shared one of that name.
            all.extend(shared.into_iter().filter(|t| is_shared(&t.tenant, &t.name) && !own.contains(&t.name)));
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Ok(all)
    }

    /// One template, by name or id.
    ///
    /// # Errors
    /// If there is none.
    pub async fn template(&self, tenant: &str, name: &str) -> Result<Template, Error> {
        self.inner.find_template(tenant, name).await
    }

    /// Makes sure that sandboxes of a ready template's default size are clones: a new engine, kernel or agent needs a new
    /// golden snapshot, which the first create would else have to wait for.
    ///
    /// # Errors
    /// If the template is not ready or cannot be booted.
    pub async fn prepare_template(&self, tenant: &str, name: &str) -> Result<(), Error> {
        let template = self.inner.find_template(tenant, name).await?;
        if template.status != TemplateStatus::Ready {
            return Err(Error::TemplateNotReady { name: template.name, status: template.status.to_string() });
        }
        self.inner.golden_of_default_size(&template).await
    }

    /// Deletes a template. Sandboxes made from it live on; its files go with the last of them.
    ///
    /// # Errors
    /// If there is none.
    pub async fn delete_template(&self, tenant: &str, name: &str) -> Result<(), Error> {
        loop {
            let mut template = self.inner.find_template(tenant, name).await?;
            if template.tenant != tenant {
                return Err(Error::SharedTemplate(template.name));
            }
            let id = template.id.clone();
            template.status = TemplateStatus::Deleted;
            match self.inner.store.swap_template(&template).await? {
                Swap::Swapped(_) => return self.inner.collect_template(&id).await,
                Swap::Stale(_) => {}
                Swap::NotFound => return Err(Error::TemplateNotFound(template.name)),
            }
        }
    }

    /// The log of a template's build.
    ///
    /// # Errors
    /// If there is no such template.
    pub async fn template_log(&self, tenant: &str, name: &str, follow: bool) -> Result<BuildLog, Error> {
        let template = self.inner.find_template(tenant, name).await?;
        let record = self.inner.builds.running.lock().expect("no panic while it is held").get(&template.id).cloned();
        let (send, receive) = mpsc::channel(64);
        match record {
            Some(record) => {
                self.inner.tasks.spawn(async move {
                    let mut count = record.count.subscribe();
                    let weak = Arc::downgrade(&record);
                    drop(record);
                    let mut next = 0;
                    loop {
                        let fresh = match weak.upgrade() {
                            Some(record) => record.lines.lock().expect("no panic while it is held")[next..].to_vec(),
                            None => return,
                        };
                        next += fresh.len();
                        for line in fresh {
                            if send.send(line).await.is_err() {
                                return;
                            }
                        }
                        if !follow || count.changed().await.is_err() {
                            return;
                        }
                    }
                });
            }
            None => {
                let path = self.inner.layout.build(&template.id).join("log");
                let text = files::blocking("read a build's log", move || match std::fs::read_to_string(path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
                    other => other,
                })
                .await?;
                self.inner.tasks.spawn(async move {
                    for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
                        if send.send(line).await.is_err() {
                            return;
                        }
                    }
                });
            }
        }
        Ok(ReceiverStream::new(receive))
    }
}
