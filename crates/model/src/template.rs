//! Templates: what a sandbox is made from.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Egress, IoLimits, SandboxId, SnapshotId, TemplateId, UploadId};

/// How far a template is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::EnumString)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum TemplateStatus {
    /// Waits for its build.
    Pending,
    /// Is being built.
    Building,
    /// Can be used.
    Ready,
    /// The build failed.
    Failed,
    /// Deleted, but sandboxes still stand on its files.
    Deleted,
}

/// Where a template comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TemplateSource {
    /// Debian packages.
    Debian {
        /// The release.
        suite: String,
        /// Packages beyond the base.
        packages: Vec<String>,
    },
    /// An image of a registry, or of an archive that was uploaded.
    Image {
        /// Its name in the registry; in an archive, which of its images is meant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reference: Option<String>,
        /// The archive: of `docker save`, or an OCI layout.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        upload: Option<UploadId>,
    },
    /// A build file, with what it copies from.
    Dockerfile {
        /// Its context, as a tar.
        upload: UploadId,
        /// Where the file is in it.
        #[serde(default = "dockerfile")]
        dockerfile: String,
        /// The stage that is wanted; the last if none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// Values of its `ARG`s.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        build_args: BTreeMap<String, String>,
    },
    /// A root file system.
    Rootfs {
        /// A tar of it.
        upload: UploadId,
    },
    /// The disk of a sandbox or a snapshot, as it was when the build began.
    Sandbox {
        /// Of a sandbox,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox_id: Option<SandboxId>,
        /// or of a snapshot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot_id: Option<SnapshotId>,
    },
}

fn dockerfile() -> String {
    "Dockerfile".to_owned()
}

impl TemplateSource {
    /// What was uploaded for it.
    #[must_use]
    pub fn upload(&self) -> Option<&UploadId> {
        match self {
            Self::Image { upload, .. } => upload.as_ref(),
            Self::Dockerfile { upload, .. } | Self::Rootfs { upload } => Some(upload),
            Self::Debian { .. } | Self::Sandbox { .. } => None,
        }
    }

    /// The same, of another upload; nothing if it is of none.
    #[must_use]
    pub fn with_upload(mut self, new: UploadId) -> Option<Self> {
        match &mut self {
            Self::Image { upload: Some(upload), .. } | Self::Dockerfile { upload, .. } | Self::Rootfs { upload } => {
                *upload = new;
            }
            Self::Image { upload: None, .. } | Self::Debian { .. } | Self::Sandbox { .. } => return None,
        }
        Some(self)
    }
}

/// What runs in a sandbox from its first moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What is started.
    pub start: Vec<String>,
    /// What ends with 0 once it is ready to be used; a create waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Vec<String>>,
    /// How long a create waits, in seconds.
    pub ready_seconds: u32,
    /// It is started once, and sandboxes are copies of one in which it is ready, instead of each starting it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
}

impl Entry {
    /// How long a create waits unless somebody says otherwise.
    pub const READY_SECONDS: u32 = 30;
}

/// What a caller wants otherwise than the source has it. Kept apart from what came of it, so that a rebuild begins from
/// the source again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// Who runs commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// With these variables.
    pub env: BTreeMap<String, String>,
    /// What is started; an empty list starts nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    /// What tells that it is ready; an empty list waits for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Vec<String>>,
    /// How long that may take, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_seconds: Option<u32>,
    /// Whether sandboxes are copies of one in which it is ready.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// The runtime of sandboxes that name none, and of its build; the daemon's if it says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
}

/// Why a build failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildError {
    /// The step.
    pub step: String,
    /// Its line in a build file, where there is one.
    pub line: Option<u32>,
    /// What went wrong.
    pub detail: String,
}

/// A template's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Its id.
    pub id: TemplateId,
    /// Compare-and-swap.
    pub version: i64,
    /// Its tenant.
    pub tenant: String,
    /// Its name, one per tenant while it is not deleted.
    pub name: String,
    /// How far it is.
    pub status: TemplateStatus,
    /// Why it failed.
    pub build_error: Option<BuildError>,
    /// Where it comes from.
    pub source: TemplateSource,
    /// What else it answers to, behind its name: `name:tag`.
    pub tags: Vec<String>,
    /// What it is for, in its maker's words.
    pub description: String,
    /// What its maker wants otherwise than the source.
    pub asked: Asked,
    /// Commands run as this user.
    pub user: String,
    /// And here.
    pub workdir: String,
    /// With these variables.
    pub env: BTreeMap<String, String>,
    /// Size of a sandbox that names none.
    pub default_size: String,
    /// Egress of a sandbox that names none.
    pub egress: Egress,
    /// Disk of a sandbox that names none, in MiB.
    pub disk_mb: Option<u32>,
    /// What a sandbox may ask of its disk.
    pub io: IoLimits,
    /// What runs in a sandbox from its first moment.
    pub entry: Option<Entry>,
    /// Digest of its base image, once built; while it is built again, the one that is still used.
    pub base: Option<String>,
    /// What the base takes on disk.
    pub disk_bytes: u64,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it was ready.
    pub built_at: Option<Timestamp>,
}
