//! Templates on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use wakeful_model::{TemplateId, TemplateSource, TemplateStatus, UploadId};

use crate::{Command, DurationText, Egress, EgressRequest, Instant, IoLimits, schema};

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
    /// It was started once, and sandboxes are copies of one in which it was ready.
    #[serde(default)]
    pub warm: bool,
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
    #[serde(serialize_with = "complete")]
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
    /// Runtime of a sandbox that names none; null is the daemon's default.
    pub runtime: Option<String>,
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

/// With `null` for what its maker did not say: in an answer nothing is left out.
fn complete<S: serde::Serializer>(source: &TemplateSource, serializer: S) -> Result<S::Ok, S::Error> {
    let optional: &[&str] = match source {
        TemplateSource::Debian { .. } | TemplateSource::Rootfs { .. } => &[],
        TemplateSource::Image { .. } => &["reference", "upload"],
        TemplateSource::Dockerfile { .. } => &["target", "build_args"],
        TemplateSource::Sandbox { .. } => &["sandbox_id", "snapshot_id"],
    };
    let mut value = serde_json::to_value(source).map_err(serde::ser::Error::custom)?;
    if let Some(map) = value.as_object_mut() {
        for name in optional {
            let nothing = if *name == "build_args" { serde_json::json!({}) } else { serde_json::Value::Null };
            map.entry(*name).or_insert(nothing);
        }
    }
    value.serialize(serializer)
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
    /// What else it answers to: `name:tag`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Size of sandboxes that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_size: Option<String>,
    /// Variables of all its sandboxes, over the source's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Egress of sandboxes that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressRequest>,
    /// Disk of sandboxes that name none, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    /// What sandboxes may ask of their disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoLimits>,
    /// Who runs commands, if not the source's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where, if not in the source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// What is started in every sandbox, if not the source's; an empty list starts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Command>,
    /// What ends with 0 once that works, if not the source's; an empty list waits for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Command>,
    /// How long that may take, from 1 s to 10 m; 30 s if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_timeout: Option<DurationText>,
    /// Start it once, and make sandboxes copies of one in which it is ready: they have it from their first moment. It has the
    /// template's variables; a sandbox that is given its own starts it itself. What it has drawn of random numbers by then is
    /// the same in every copy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// Runtime of sandboxes that name none, and of the build; the daemon's if absent or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
}

impl CreateTemplate {
    /// One that says no more than it must.
    #[must_use]
    pub fn new(name: &str, source: TemplateSource) -> Self {
        Self {
            name: name.to_owned(),
            source,
            tags: Vec::new(),
            description: None,
            default_size: None,
            env: BTreeMap::new(),
            egress: None,
            disk_mb: None,
            io: None,
            user: None,
            workdir: None,
            start: None,
            ready: None,
            ready_timeout: None,
            warm: false,
            runtime: None,
        }
    }
}

/// `POST /v1/templates/{name}/rebuild`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RebuildTemplate {
    /// Of this upload; of what it was built from before, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::UploadId>)]
    pub upload: Option<UploadId>,
}

/// `POST /v1/uploads`: bytes that a template is to be built from. Those that no template was built from are kept for a
/// day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upload {
    /// What a template's source calls them.
    #[schema(value_type = schema::UploadId)]
    pub id: UploadId,
    /// How many there are.
    pub bytes: u64,
    /// Their BLAKE3, in hex.
    pub digest: String,
}

/// How far one layer of an image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuildLayer {
    /// Which, from 1.
    pub number: u32,
    /// Of how many.
    pub count: u32,
    /// The beginning of its digest.
    pub digest: String,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
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
        /// How far one layer of an image is.
        #[serde(default)]
        layer: Option<BuildLayer>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_source_in_an_answer_leaves_nothing_out() {
        #[derive(Debug, Serialize, Deserialize)]
        struct Answer(#[serde(serialize_with = "complete")] TemplateSource);
        for (source, wanted) in [
            (
                json!({"kind": "debian", "suite": "s", "packages": []}),
                json!({"kind": "debian", "suite": "s", "packages": []}),
            ),
            (
                json!({"kind": "image", "reference": "a:1"}),
                json!({"kind": "image", "reference": "a:1", "upload": null}),
            ),
            (
                json!({"kind": "dockerfile", "upload": "upl_k3v7q2m5x6a4b2c7d5ef"}),
                json!({"kind": "dockerfile", "upload": "upl_k3v7q2m5x6a4b2c7d5ef", "dockerfile": "Dockerfile", "target": null, "build_args": {}}),
            ),
            (
                json!({"kind": "sandbox", "snapshot_id": "snp_k3v7q2m5x6a4b2c7d5ef"}),
                json!({"kind": "sandbox", "sandbox_id": null, "snapshot_id": "snp_k3v7q2m5x6a4b2c7d5ef"}),
            ),
        ] {
            let source: TemplateSource = serde_json::from_value(source).unwrap();
            let written = serde_json::to_value(Answer(source.clone())).unwrap();
            assert_eq!(written, wanted);
            assert_eq!(serde_json::from_value::<Answer>(written).unwrap().0, source);
        }
    }
}
