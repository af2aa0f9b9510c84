//! Keys and tenants.

use std::borrow::Cow;

use serde_json::json;
use utoipa::openapi::schema::ObjectBuilder;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};
use wakeful_api_types::{ChangeTenant, CreateKey, CreateTenant, Key, KeyList, Tenant, TenantList};
use wakeful_model::Code;

use super::entry::{Entry, delete, get, patch, post, text};

/// A key with its secret.
struct CreatedKey;

impl PartialSchema for CreatedKey {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(Schema::Object(object)) = Key::schema() else { return Key::schema() };
        ObjectBuilder::from(object)
            .description(Some("A key, and the one time that its secret is shown"))
            .property("key", text().pattern(Some("^wkf_[0-9a-f]{40}$")).description(Some("The key itself")))
            .into()
    }
}

impl ToSchema for CreatedKey {
    fn name() -> Cow<'static, str> {
        "CreatedKey".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        Key::schemas(schemas);
    }
}

pub(super) fn entries() -> Vec<Entry> {
    let query = [Code::UnknownField, Code::InvalidField];
    vec![
        post("/v1/keys", "createKey", "Make a key")
            .about("From the first key on every call needs one, save from `/healthz` and this document.")
            .body::<CreateKey>(&json!({"name": "ci", "scopes": ["sandbox:*"]}))
            .answers::<CreatedKey>(201, "The key; its secret is never shown again")
            .located()
            .refuses(&[Code::MissingField, Code::InvalidName, Code::TenantNotFound]),
        get("/v1/keys", "listKeys", "List keys, without their secrets")
            .query("tenant", text(), "Of this tenant")
            .answers::<KeyList>(200, "Oldest first"),
        delete("/v1/keys/{id}", "deleteKey", "Delete a key")
            .about("It opens nothing from this moment on.")
            .empty(204, "It is gone")
            .refuses(&query)
            .refuses(&[Code::KeyNotFound, Code::LastKey]),
        post("/v1/tenants", "createTenant", "Make a tenant")
            .body::<CreateTenant>(&json!({"name": "acme", "limits": {"sandboxes": 20, "memory_mb": 8192}}))
            .answers::<Tenant>(201, "The tenant")
            .located()
            .refuses(&[Code::MissingField, Code::InvalidName, Code::NameTaken]),
        get("/v1/tenants", "listTenants", "List tenants").answers::<TenantList>(200, "By name").refuses(&query),
        get("/v1/tenants/{name}", "getTenant", "Look at a tenant")
            .answers::<Tenant>(200, "The tenant")
            .refuses(&query)
            .refuses(&[Code::TenantNotFound]),
        patch("/v1/tenants/{name}", "limitTenant", "Change the limits of a tenant")
            .about("A limit that is `null` is none; one that is left out stays. What is there already is left alone.")
            .body::<ChangeTenant>(&json!({"limits": {"sandboxes": 5, "disk_mb": null}}))
            .answers::<Tenant>(200, "The tenant, changed")
            .refuses(&[Code::MissingField, Code::TenantNotFound]),
        delete("/v1/tenants/{name}", "deleteTenant", "Delete a tenant that has nothing")
            .empty(204, "It is gone")
            .refuses(&query)
            .refuses(&[Code::TenantNotFound, Code::TenantInUse]),
    ]
}
