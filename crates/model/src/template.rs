//! Templates: what a sandbox is made from.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Egress, TemplateId};

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
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TemplateSource {
    /// Debian packages.
    Debian {
        /// The release.
        suite: String,
        /// Packages beyond the base.
        packages: Vec<String>,
    },
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
    /// Digest of its base image, once built.
    pub base: Option<String>,
    /// What the base takes on disk.
    pub disk_bytes: u64,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it was ready.
    pub built_at: Option<Timestamp>,
}
