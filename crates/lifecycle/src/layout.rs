//! Where everything lies on the host. Every name is derived from an id, so that whoever knows the id finds all of it.

use std::path::{Path, PathBuf};

use wakeful_driver::{Machine, Place};
use wakeful_model::{SandboxId, SnapshotId, TemplateId};

/// The data directory and the directory for sockets.
#[derive(Clone, Debug)]
pub struct Layout {
    data: PathBuf,
    run: PathBuf,
}

impl Layout {
    /// `data` survives a reboot, `run` does not.
    #[must_use]
    pub fn new(data: PathBuf, run: PathBuf) -> Self {
        Self { data, run }
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The directory of all engines' sockets.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.run
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.data.join("sandboxes")
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    pub(crate) fn place(&self, id: &SandboxId) -> Place {
        Place { name: id.to_string(), run: self.run.join(id.bare()), data: self.sandbox(id) }
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.data.join("snapshots")
    }

    pub(crate) fn snapshot(&self, id: &SnapshotId) -> PathBuf {
        self.snapshots().join(id.as_str())
    }

    /// One directory per checkpoint, named by the generation that it ends: a new one never overwrites an old one.
    pub(crate) fn checkpoint(&self, id: &SandboxId, generation: u64) -> PathBuf {
        self.sandbox(id).join(format!("checkpoint-{generation}"))
    }

    pub(crate) fn bases(&self) -> PathBuf {
        self.data.join("bases")
    }

    pub(crate) fn base(&self, digest: &str) -> PathBuf {
        self.bases().join(digest).join("base.ext4")
    }

    pub(crate) fn golden_root(&self) -> PathBuf {
        self.data.join("golden")
    }

    pub(crate) fn golden_of(&self, template: &TemplateId) -> PathBuf {
        self.golden_root().join(template.as_str())
    }

    /// By what was booted, too: after a rebuild sandboxes of the old base still stand on theirs.
    pub(crate) fn golden(&self, template: &TemplateId, machine: Machine, key: &str, base: &str) -> PathBuf {
        self.golden_of(template).join(machine.to_string()).join(Self::golden_name(key, base))
    }

    /// Name of a golden snapshot's directory.
    pub(crate) fn golden_name(key: &str, base: &str) -> String {
        let short: String = base.chars().take(16).collect();
        format!("{key}-{short}")
    }

    pub(crate) fn build(&self, template: &TemplateId) -> PathBuf {
        self.builds().join(template.as_str())
    }

    pub(crate) fn builds(&self) -> PathBuf {
        self.data.join("builds")
    }

    /// Disks of builds' steps.
    pub(crate) fn layers(&self) -> PathBuf {
        self.data.join("layers")
    }

    /// Which base came of which image.
    pub(crate) fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    /// Layers of images as registries have them.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.data.join("blobs")
    }

    pub(crate) fn uploads(&self) -> PathBuf {
        self.data.join("uploads")
    }

    pub(crate) fn package_cache(&self) -> PathBuf {
        self.data.join("cache")
    }

    /// Which pools were asked for at run time.
    pub(crate) fn pool(&self) -> PathBuf {
        self.data.join("pool.json")
    }

    pub(crate) fn trash(&self) -> PathBuf {
        self.data.join("trash")
    }
}
