//! Templates on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wakeful_model::{TemplateId, TemplateSource, TemplateStatus};

use crate::{Egress, EgressRequest, Instant, IoLimits, schema};

/// Why a build failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildError {
    /// The step.
    pub step: String,
    /// Its line in a build file, where there is one.
    pub line: Option<u32>,
    /// What went wrong.
    pub detail: String,
}

/// What runs in a sandbox from its first moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// What is started.
    pub start: Vec<String>,
    /// What ends with 0 once it is ready to be used; a create waits for that.
    pub ready: Option<Vec<String>>,
    /// How long a create waits for it.
    pub ready_seconds: u32,
}

/// A template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Its id.
    #[schema(value_type = schema::TemplateId)]
    pub id: TemplateId,
    /// Its name.
    pub name: String,
    /// What else it answers to: `name:tag`.
    pub tags: Vec<String>,
    /// What it is for.
    pub description: String,
    /// How far it is.
    #[schema(value_type = schema::TemplateStatus)]
    pub status: TemplateStatus,
    /// Why it failed.
    pub build_error: Option<BuildError>,
    /// Where it comes from.
    #[schema(value_type = schema::TemplateSource)]
    pub source: TemplateSource,
    /// Commands run as this user.
    pub user: String,
    /// And here.
    pub workdir: String,
    /// Names of its variables.
    pub env_keys: Vec<String>,
    /// Size of a sandbox that names none.
    pub default_size: String,
    /// Egress of a sandbox that names none.
    pub egress: Egress,
    /// Disk of a sandbox that names none, in MiB; null is the daemon's default.
    pub disk_mb: Option<u32>,
    /// What a sandbox may ask of its disk.
    pub io: IoLimits,
    /// What runs in a sandbox from its first moment.
    pub entry: Option<Entry>,
    /// Digest of the base that new sandboxes get.
    pub base: Option<String>,
    /// What it takes on disk.
    pub disk_bytes: u64,
    /// When it was asked for.
    pub created_at: Instant,
    /// When it was ready.
    pub built_at: Option<Instant>,
}

/// `GET /v1/templates`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    /// By name.
    pub templates: Vec<Template>,
}

/// `POST /v1/templates`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTemplate {
    /// Its name.
    pub name: String,
    /// From what.
    #[schema(value_type = schema::TemplateSource)]
    pub source: TemplateSource,
    /// Size of sandboxes that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_size: Option<String>,
    /// Variables of all its sandboxes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Egress of sandboxes that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressRequest>,
}

/// One line of `GET /v1/templates/{name}/logs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BuildEvent {
    /// The build went on.
    Progress {
        /// When.
        at: Instant,
        /// Where it is.
        step: String,
        /// How much of the step is done, from 0 to 1, where that is known.
        fraction: Option<f32>,
        /// What the step said.
        line: Option<String>,
    },
    /// The last line: how the build stands.
    End {
        /// How far the template is.
        #[schema(value_type = schema::TemplateStatus)]
        status: TemplateStatus,
        /// Why it failed.
        build_error: Option<BuildError>,
    },
}
