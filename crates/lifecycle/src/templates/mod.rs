//! Templates: what sandboxes are made from. Rows, builds and their logs, and what becomes of the files of old ones.
//!
//! ```text
//!   mod        rows: make, find, build again, cancel, delete        workbench  a machine that steps run on
//!   build      a build as a job; every source into a base           cache      steps' disks and bases by what decided them
//!   steps      a Dockerfile, carried out                            uploads    bytes that a build needs
//!   record     a build's log                                        transfer   trees into a machine and out of it
//!   settings   what a build may cost                                collect    what nobody needs any more
//! ```

mod build;
pub(crate) mod cache;
mod collect;
mod record;
mod settings;
mod steps;
mod transfer;
mod uploads;
mod workbench;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use wakeful_model::{
    Code, DEFAULT_TENANT, SandboxId, Size, SnapshotId, Template, TemplateId, TemplateSource, TemplateStatus, UploadId,
    preset,
};
use wakeful_store::Swap;

use self::record::Record;
use crate::lifecycle::Inner;
use crate::ops::Cut;
use crate::ops::create::check_io;
use crate::owner::Ask;
use crate::runtimes::AUTO;
use crate::{Error, Lifecycle, NewTemplate, files};

pub use self::collect::Pruned;
pub use self::record::{BuildLayer, BuildLine, BuildLog};
pub use self::settings::BuildSettings;
pub use self::uploads::Upload;

/// Who runs commands in a template of Debian packages.
const USER: &str = "user";
/// Most tags of one template.
const MOST_TAGS: usize = 32;
const LONGEST_DESCRIPTION: usize = 1000;

fn debian_spec(source: &TemplateSource) -> Option<wakeful_images::DebianSpec> {
    let TemplateSource::Debian { suite, packages } = source else { return None };
    Some(wakeful_images::DebianSpec { suite: suite.clone(), packages: packages.clone(), user: USER.to_owned() })
}

/// Builds under way.
pub(crate) struct Builds {
    running: Mutex<HashMap<TemplateId, Arc<Record>>>,
    turn: Semaphore,
    pub(crate) settings: BuildSettings,
    /// Whoever removes what nobody needs does so alone.
    collecting: tokio::sync::Mutex<()>,
}

impl Builds {
    pub(crate) fn new(settings: BuildSettings) -> Self {
        let turn = Semaphore::new(settings.at_once.max(1));
        Self { running: Mutex::default(), turn, settings, collecting: tokio::sync::Mutex::default() }
    }

    fn under_way(&self, id: &TemplateId) -> Option<Arc<Record>> {
        self.running.lock().expect("no panic while it is held").get(id).cloned()
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

/// Whether a registry's name says that it is on this host or in its own network. A name that only resolves to such an
/// address is not found out.
pub(super) fn is_inside(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(address)) => {
            address.is_loopback() || address.is_private() || address.is_link_local() || address.is_unspecified()
        }
        Ok(std::net::IpAddr::V6(address)) => {
            address.is_loopback() || address.is_unique_local() || address.is_unspecified()
        }
        Err(_) => !host.contains('.') || host.ends_with(".localhost") || host.ends_with(".internal"),
    }
}

/// A tag, as registries have them.
fn check_tag(tag: &str) -> Result<(), Error> {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let first = tag.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    if first && tag.len() <= 128 && tag.bytes().all(good) {
        return Ok(());
    }
    let tag: String = tag.chars().take(80).collect();
    Err(Error::invalid(Code::InvalidField, "tags", format!("{tag:?} is not a tag: 1 to 128 of A-Z a-z 0-9 . - _")))
}

/// Whether all tenants may use a template: those that `setup` builds for everyone. Others see only their own.
#[must_use]
pub fn is_shared(tenant: &str, name: &str) -> bool {
    tenant == DEFAULT_TENANT && wakeful_images::BUILTINS.contains(&name)
}

impl Inner {
    /// A tenant's own or a shared one, by name, `name:tag` (one of its tags, or `latest`) or id.
    pub(crate) async fn find_template(&self, tenant: &str, name: &str) -> Result<Template, Error> {
        let not_found = || Error::TemplateNotFound(name.chars().take(100).collect());
        let (plain, tag) = name.split_once(':').unwrap_or((name, "latest"));
        let tagged = |template: &Template| tag == "latest" || template.tags.iter().any(|known| known == tag);
        if let Some(template) = self.store.template_by_name(tenant, plain).await? {
            return Some(template).filter(tagged).ok_or_else(not_found);
        }
        if is_shared(DEFAULT_TENANT, plain)
            && let Some(template) = self.store.template_by_name(DEFAULT_TENANT, plain).await?
        {
            return Some(template).filter(tagged).ok_or_else(not_found);
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

    /// Checks that a source names what there is, and takes what was uploaded for it.
    async fn take_source(&self, tenant: &str, id: &TemplateId, source: &TemplateSource) -> Result<(), Error> {
        let wrong = |field: &str, detail: String| Err(Error::invalid(Code::InvalidField, field, detail));
        match source {
            TemplateSource::Debian { .. } => {
                if let Some(spec) = debian_spec(source)
                    && let Err(error) = spec.check()
                {
                    return wrong("source", error.to_string());
                }
            }
            TemplateSource::Image { reference: None, upload: None } => {
                return wrong("source.reference", "an image needs a reference or an upload".into());
            }
            TemplateSource::Image { reference: Some(reference), upload: None } => {
                let default = self.builds.settings.registries.default_registry.as_deref();
                match wakeful_oci::Reference::parse(reference, default) {
                    Ok(parsed) if tenant != DEFAULT_TENANT && is_inside(parsed.registry()) => {
                        return wrong(
                            "source.reference",
                            "registries of the host's own network are not for tenants".into(),
                        );
                    }
                    Ok(_) => {}
                    Err(error) => return wrong("source.reference", error.to_string()),
                }
            }
            TemplateSource::Sandbox { sandbox_id, snapshot_id } => match (sandbox_id, snapshot_id) {
                (Some(sandbox), None) => drop(self.find(tenant, sandbox).await?),
                (None, Some(snapshot)) => drop(self.origin(tenant, snapshot.as_str()).await?),
                _ => return wrong("source.sandbox_id", "give either sandbox_id or snapshot_id".into()),
            },
            TemplateSource::Image { .. } | TemplateSource::Dockerfile { .. } | TemplateSource::Rootfs { .. } => {}
        }
        match source.upload() {
            Some(upload) => self.take_upload(tenant, upload, id).await,
            None => Ok(()),
        }
    }

    /// A copy of a sandbox that only its maker knows, and that goes with it or at the next start.
    async fn copy_of(self: &Arc<Self>, tenant: &str, sandbox: &SandboxId) -> Result<SnapshotId, Error> {
        let this = Lifecycle { inner: Arc::clone(self) };
        this.find_live(tenant, sandbox).await?;
        let cut = Cut { id: SnapshotId::random(), name: None };
        this.ask(sandbox, Ask::Cut(cut.clone())).await?;
        Ok(cut.id)
    }

    async fn drop_copy(&self, id: &SnapshotId) -> Result<(), Error> {
        match self.store.snapshot(id).await? {
            Some(copy) => self.remove_snapshot(&copy).await,
            None => Ok(()),
        }
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
        self.refuse_if_draining()?;
        let inner = &self.inner;
        check_name(&new.name)?;
        new.tags.iter().try_for_each(|tag| check_tag(tag))?;
        if new.tags.len() > MOST_TAGS || new.description.chars().count() > LONGEST_DESCRIPTION {
            let detail = format!("at most {MOST_TAGS} tags, and a description of {LONGEST_DESCRIPTION} characters");
            return Err(Error::invalid(Code::InvalidField, "tags", detail));
        }
        new.io.check().map_err(|error| Error::invalid(Code::InvalidField, "io", error.to_string()))?;
        let default_size = new.default_size.unwrap_or_else(|| inner.defaults.template_size.clone());
        let size = preset(&default_size)
            .map_err(|error| Error::invalid(Code::InvalidSize, "default_size", error.to_string()))?;
        Size::check(size.cpu, size.memory_mb, new.disk_mb.unwrap_or(inner.defaults.disk_mb))
            .map_err(|error| Error::invalid(Code::InvalidSize, error.field(), error.to_string()))?;
        let mut asked = new.asked;
        asked.runtime = asked.runtime.filter(|name| name != AUTO);
        if let Some(name) = &asked.runtime {
            check_io(&*inner.drivers.named(name).await?, new.io)?;
        }
        // Found out before anything is taken; two at once are told apart by the store.
        if inner.store.template_by_name(&new.tenant, &new.name).await?.is_some() {
            return Err(Error::NameTaken(new.name));
        }
        inner.take_source(&new.tenant, &id, &new.source).await?;
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
            env: asked.env.clone(),
            asked,
            default_size,
            egress: new.egress.unwrap_or_default(),
            disk_mb: new.disk_mb,
            io: new.io,
            entry: None,
            base: None,
            disk_bytes: 0,
            created_at: inner.now(),
            built_at: None,
        };
        if !inner.store.insert_template(&template).await? {
            let (build, trash) = (inner.layout.build(&template.id), inner.layout.trash());
            files::blocking("remove an upload", move || files::discard_dir(&build, &trash)).await?;
            return Err(Error::NameTaken(template.name));
        }
        inner.begin_build(template.clone());
        Ok(template)
    }

    /// Builds a template again, of the same source or of another upload. Sandboxes keep the base that they began with, and
    /// new ones get the old base until the new one is ready.
    ///
    /// # Errors
    /// If there is none, or a build of it is under way.
    pub async fn rebuild_template(
        &self,
        tenant: &str,
        name: &str,
        upload: Option<UploadId>,
    ) -> Result<Template, Error> {
        self.refuse_if_draining()?;
        let inner = &self.inner;
        let mut template = inner.find_template(tenant, name).await?;
        if template.tenant != tenant {
            return Err(Error::SharedTemplate(template.name));
        }
        if matches!(template.status, TemplateStatus::Pending | TemplateStatus::Building) {
            return Err(Error::BuildInProgress(template.name));
        }
        if let Some(upload) = upload {
            let nothing = "a template of this kind is made of nothing uploaded";
            let source = template.source.clone().with_upload(upload);
            template.source = source.ok_or_else(|| Error::invalid(Code::InvalidField, "upload", nothing))?;
            inner.take_source(tenant, &template.id, &template.source).await?;
        }
        template.status = TemplateStatus::Pending;
        template.build_error = None;
        let template = inner.swap_template(template).await?;
        inner.begin_build(template.clone());
        Ok(template)
    }

    /// Ends a build that is under way, and waits for that.
    ///
    /// # Errors
    /// If there is no such template, or nothing is built.
    pub async fn cancel_build(&self, tenant: &str, name: &str) -> Result<Template, Error> {
        let template = self.inner.find_template(tenant, name).await?;
        if template.tenant != tenant {
            return Err(Error::SharedTemplate(template.name));
        }
        let record = self.inner.builds.under_way(&template.id);
        let record = record.ok_or_else(|| Error::NoBuild(template.name.clone()))?;
        record.cancelled.cancel();
        let mut log = record.read(true, &self.inner.tasks);
        while tokio_stream::StreamExt::next(&mut log).await.is_some() {}
        self.inner.find_template(tenant, template.id.as_str()).await
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

    /// Makes sure that the first sandbox of a ready template's default size need not wait: where sandboxes are clones, a new
    /// engine, kernel or agent needs a new golden snapshot; where they begin from a directory, it is made.
    ///
    /// # Errors
    /// If the template is not ready or cannot be booted.
    pub async fn prepare_template(&self, tenant: &str, name: &str) -> Result<(), Error> {
        let template = self.inner.find_template(tenant, name).await?;
        if template.base.is_none() {
            return Err(Error::TemplateNotReady { name: template.name, status: template.status.to_string() });
        }
        self.inner.make_ready(&template, &|_| ()).await.map_err(|(_, error)| error)
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
                Swap::Swapped(_) => {
                    // Its build, if one is under way, has nothing to build for any more.
                    if let Some(record) = self.inner.builds.under_way(&id) {
                        record.cancelled.cancel();
                    }
                    return self.inner.collect_template(&id).await;
                }
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
        match self.inner.builds.under_way(&template.id) {
            Some(record) => Ok(record.read(follow, &self.inner.tasks)),
            None => record::read_kept(&self.inner.layout.build(&template.id), &self.inner.tasks).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_of_the_own_network_are_known() {
        for inside in
            ["127.0.0.1:5000", "localhost", "10.1.2.3", "[::1]:443", "registry:5000", "a.internal", "169.254.169.254"]
        {
            assert!(is_inside(inside), "{inside}");
        }
        for outside in ["registry.example", "203.0.113.5:443", "[2001:db8::1]:443"] {
            assert!(!is_inside(outside), "{outside}");
        }
    }

    #[test]
    fn tags() {
        assert!(["1", "3.12-slim", "_x", "A"].iter().all(|tag| check_tag(tag).is_ok()));
        assert!(["", ".x", "-x", "a b", "a:b", &"x".repeat(129)].iter().all(|tag| check_tag(tag).is_err()));
    }
}
