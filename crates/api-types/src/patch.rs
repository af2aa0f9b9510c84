//! Changes of a sandbox that lives.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{DurationText, EgressRequest};

/// `PATCH /v1/sandboxes/{id}`. What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PatchSandbox {
    /// All labels: those that are not named go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// The whole egress policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressRequest>,
    /// Idleness before it sleeps; persistent only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<DurationText>,
    /// Destroyed this long after now, whatever else holds; `null`: not by itself.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "named")]
    #[schema(value_type = Option<DurationText>)]
    pub hard_ttl: Option<Option<DurationText>>,
    /// Access wakes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// A larger disk from its next start on, in MiB; only while it is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
}

/// A `null` that was named is not an absence.
fn named<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<DurationText>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_said_and_kept() {
        for (text, hard_ttl) in
            [("{}", None), ("{\"hard_ttl\":null}", Some(None)), ("{\"hard_ttl\":\"1h\"}", Some(Some("1h".into())))]
        {
            let patch: PatchSandbox = serde_json::from_str(text).unwrap();
            assert_eq!(patch.hard_ttl, hard_ttl);
            assert_eq!(serde_json::to_string(&patch).unwrap(), text);
        }
    }
}
