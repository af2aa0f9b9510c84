//! Tenants on the wire.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use wakeful_model::{Limits, Usage};

use crate::{Instant, schema};

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// How much it may have; `null` for no limit.
    #[schema(value_type = schema::TenantLimits)]
    pub limits: Limits,
    /// How much it has.
    #[schema(value_type = schema::TenantUsage)]
    pub usage: Usage,
    /// Since when it exists.
    pub created_at: Instant,
}

impl From<(wakeful_model::Tenant, Usage)> for Tenant {
    fn from((tenant, usage): (wakeful_model::Tenant, Usage)) -> Self {
        Self { name: tenant.name, limits: tenant.limits, usage, created_at: tenant.created_at.into() }
    }
}

/// `GET /v1/tenants`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantList {
    /// By name.
    pub tenants: Vec<Tenant>,
}

/// Limits in a request: what is left out stays as it is (none, for a new tenant), `null` lifts a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// Sandboxes that are not destroyed.
    #[serde(default, deserialize_with = "there", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub sandboxes: Option<Option<u64>>,
    /// Memory of those that run, in MiB.
    #[serde(default, deserialize_with = "there", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub memory_mb: Option<Option<u64>>,
    /// Disk of all that are not destroyed, in MiB.
    #[serde(default, deserialize_with = "there", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub disk_mb: Option<Option<u64>>,
}

/// `null` is not the same as absent.
fn there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// `POST /v1/tenants`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTenant {
    /// Its name.
    pub name: String,
    /// How much it may have.
    #[serde(default)]
    pub limits: LimitsRequest,
}

/// `PATCH /v1/tenants/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeTenant {
    /// How much it may have from now on.
    pub limits: LimitsRequest,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_not_absent() {
        let change = LimitsRequest { sandboxes: Some(None), memory_mb: Some(Some(512)), disk_mb: None };
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(text, r#"{"sandboxes":null,"memory_mb":512}"#);
        assert_eq!(serde_json::from_str::<LimitsRequest>(&text).unwrap(), change);
    }
}
