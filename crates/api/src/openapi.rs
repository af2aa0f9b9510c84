//! `GET /openapi.json`: the contract for programs.
//!
//! The document is made of one table of operations, in the modules below, and of the wire types themselves. Tests compare
//! it with the copy under `openapi/` and with the routes that the router has, so that none of the three can differ.

mod entry;
mod files;
mod pool;
mod processes;
mod sandboxes;
mod snapshots;
mod templates;
mod tenants;

use std::sync::LazyLock;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, Uri, header};
use serde_json::{Value, json};
use strum::IntoEnumIterator;
use utoipa::ToSchema;
use utoipa::openapi::path::{PathItem, PathsBuilder};
use utoipa::openapi::schema::{ComponentsBuilder, Schema};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{InfoBuilder, License, OpenApi, OpenApiBuilder, RefOr};
use wakeful_model::Code;

use crate::problem::Problem;
use crate::query::Query;

static TEXT: LazyLock<String> = LazyLock::new(text);

pub(crate) async fn openapi(uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let mut response = Response::new(Body::from(TEXT.as_str()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// As it is served and checked in.
fn text() -> String {
    let mut text = document().to_pretty_json().expect("the document is JSON");
    text.push('\n');
    text
}

fn document() -> OpenApi {
    let entries = [
        sandboxes::entries(),
        snapshots::entries(),
        processes::entries(),
        files::entries(),
        templates::entries(),
        pool::entries(),
        tenants::entries(),
    ];
    let mut paths = PathsBuilder::new();
    let mut schemas = vec![("Problem".to_owned(), problem()), ("Frame".to_owned(), processes::frame())];
    line::<wakeful_api_types::FileEvent>(&mut schemas);
    line::<wakeful_api_types::BuildEvent>(&mut schemas);
    let mut requests = Vec::new();
    for mut entry in entries.into_iter().flatten() {
        let (method, path) = (entry.method.clone(), entry.path);
        requests.append(&mut entry.requests);
        let (operation, mut used) = entry.finish();
        schemas.append(&mut used);
        paths = paths.path(path, PathItem::new(method, operation));
    }
    let mut components = ComponentsBuilder::new();
    for (name, schema) in schemas {
        // A frame's bytes are in one of two fields.
        let whole = !requests.contains(&name) && name != "Frame";
        let schema = if whole { complete(schema) } else { schema };
        components = components.schema(name, schema);
    }
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("wkf_ and 40 hex digits").build();
    let components = components
        .security_scheme("bearer", SecurityScheme::Http(bearer))
        .security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key"))));
    let no_scopes = <[&str; 0]>::default();
    let info = InfoBuilder::new()
        .title("Wakeful")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(License::new("Apache-2.0")));
    OpenApiBuilder::new()
        .info(info)
        .tags(Some(TAGS.map(|(name, about)| TagBuilder::new().name(name).description(Some(about)).build())))
        .security(Some([
            SecurityRequirement::new("bearer", no_scopes),
            SecurityRequirement::new("api_key", no_scopes),
            // As long as there is no key, loopback needs none.
            SecurityRequirement::default(),
        ]))
        .paths(paths)
        .components(Some(components.build()))
        .build()
}

const ABOUT: &str = "Sandboxes that sleep when nobody uses them and wake where they left off.\n\n\
    Bodies are JSON whatever their `Content-Type`; an empty one is `{}`; unknown fields and parameters are refused. \
    Instants are RFC 3339 in UTC. In answers a value that does not apply is `null` and never absent. Every refusal is an \
    RFC 9457 problem with a stable `code`. An access to a sandbox that sleeps wakes it. \
    An admin acts in another tenant with the header `X-Wakeful-Tenant`.";

const TAGS: [(&str, &str); 10] = [
    ("sandboxes", "Their life"),
    ("processes", "Commands in them"),
    ("files", "Files in them"),
    ("ports", "Ports in them"),
    ("snapshots", "Copies of them that are kept"),
    ("templates", "What they are made from"),
    ("pool", "Sandboxes that are made before they are asked for; for admins"),
    ("keys", "Who may do what; for admins"),
    ("tenants", "Whose sandboxes there are, and how many; for admins"),
    ("server", "About the server"),
];

/// What a stream has in each line: no call answers with it alone.
fn line<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

/// In an answer nothing is left out.
fn complete(schema: RefOr<Schema>) -> RefOr<Schema> {
    match schema {
        RefOr::T(Schema::Object(mut object)) => {
            object.required = object.properties.keys().cloned().collect();
            RefOr::T(Schema::Object(object))
        }
        RefOr::T(Schema::OneOf(mut variants)) => {
            variants.items = variants.items.into_iter().map(complete).collect();
            RefOr::T(Schema::OneOf(variants))
        }
        other => other,
    }
}

/// By hand: its codes are a list that the type does not have, and some problems say more.
fn problem() -> RefOr<Schema> {
    let nullable = |about: &str| json!({"type": ["string", "null"], "description": about});
    let codes: Vec<Value> = Code::iter().map(|code| json!(code.as_str())).collect();
    let schema = json!({
        "type": "object",
        "description": "RFC 9457. Some problems have more fields: `fits`, or `pid` and `seq`.",
        "required": ["type", "title", "status", "code", "detail", "hint", "field", "request_id"],
        "properties": {
            "type": {"type": "string", "description": "Always `about:blank`: the code tells problems apart"},
            "title": {"type": "string", "description": "The status in words"},
            "status": {"type": "integer", "description": "The status"},
            "code": {"type": "string", "enum": codes, "description": "Which problem; never renamed"},
            "detail": {"type": "string", "description": "What was wrong, for people"},
            "hint": nullable("What to do about it"),
            "field": nullable("The request field that is wrong"),
            "request_id": {"type": "string", "description": "To be found in the server's log"},
        },
        "example": {
            "type": "about:blank", "title": "Conflict", "status": 409, "code": "sandbox_suspended",
            "detail": "sbx_k3v7q2m5x6a4b2c7d5ef: it is suspended and auto_resume is off",
            "hint": "POST /v1/sandboxes/sbx_k3v7q2m5x6a4b2c7d5ef/wake", "field": null,
            "request_id": "req_k3v7q2m5x6a4b2c7d5ef",
        },
    });
    serde_json::from_value(schema).expect("it is a schema")
}

#[cfg(test)]
mod tests;
