//! API keys: make, list, delete. For admins.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use wakeful_api_types::{CreatedKey, KeyList};
use wakeful_lifecycle::{LastKey, NewKey};
use wakeful_model::{Code, KeyId, Scope};

use crate::App;
use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::path::third_segment;
use crate::problem::Problem;
use crate::query::Query;

/// Of a key that names none: everything within its tenant.
const SCOPES: [Scope; 2] = [Scope::Sandbox, Scope::Template];

pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let (key, secret) = app.lifecycle.registry().create_key(new_key(&caller.tenant, body.0)?).await?;
    let location = HeaderValue::try_from(format!("/v1/keys/{}", key.id)).ok();
    let mut response = json(StatusCode::CREATED, &CreatedKey { about: key.into(), secret });
    response.headers_mut().extend(location.map(|value| (header::LOCATION, value)));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn new_key(tenant: &str, body: Map<String, Value>) -> Result<NewKey, Problem> {
    let mut fields = Fields::of(body, &["name", "tenant", "scopes"])?;
    let name = fields
        .string("name", Code::InvalidName)?
        .ok_or_else(|| Problem::field(Code::MissingField, "name", "name is required"))?;
    let tenant = fields.string("tenant", Code::InvalidField)?.unwrap_or_else(|| tenant.to_owned());
    let scopes = if fields.has("scopes") {
        let texts = fields.strings("scopes", Code::InvalidField)?;
        texts.iter().map(|text| scope(text)).collect::<Result<_, _>>()?
    } else {
        SCOPES.to_vec()
    };
    Ok(NewKey { name, tenant, scopes })
}

fn scope(text: &str) -> Result<Scope, Problem> {
    text.parse().map_err(|error: wakeful_model::InvalidScope| {
        Problem::field(Code::InvalidField, "scopes", error.to_string())
            .hint(format!("scopes are {}", Scope::ALL.map(Scope::as_str).join(", ")))
    })
}

pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let tenant = Query::of(&uri, &["tenant"])?.take("tenant");
    let keys = app.lifecycle.registry().keys().into_iter();
    let wanted = keys.filter(|key| tenant.as_ref().is_none_or(|tenant| key.tenant == *tenant));
    Ok(json(StatusCode::OK, &KeyList { keys: wanted.map(Into::into).collect() }))
}

pub(crate) async fn delete(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let text = percent_decode_str(third_segment(&uri)).decode_utf8_lossy();
    let id: KeyId = text.parse().map_err(|_| {
        let text: String = text.chars().take(80).collect();
        Problem::new(Code::KeyNotFound, format!("there is no key {text:?}"))
    })?;
    let last = if app.config.exposed { LastKey::MustStay } else { LastKey::MayGo };
    app.lifecycle.registry().delete_key(&id, last).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<NewKey, Problem> {
        let Value::Object(map) = body else { panic!("an object") };
        new_key("acme", map)
    }

    #[test]
    fn requests() {
        let new = read(json!({"name": "ci"})).unwrap();
        assert_eq!((new.tenant.as_str(), new.scopes), ("acme", SCOPES.to_vec()));
        let new = read(json!({"name": "ci", "tenant": "other", "scopes": ["sandbox:read", "admin"]})).unwrap();
        assert_eq!((new.tenant.as_str(), new.scopes), ("other", vec![Scope::SandboxRead, Scope::Admin]));
        assert!(read(json!({"name": "ci", "scopes": []})).unwrap().scopes.is_empty(), "refused further in");
        for (body, code, field) in [
            (json!({}), Code::MissingField, "name"),
            (json!({"name": 1}), Code::InvalidName, "name"),
            (json!({"name": "ci", "tenant": 1}), Code::InvalidField, "tenant"),
            (json!({"name": "ci", "scopes": "admin"}), Code::InvalidField, "scopes"),
            (json!({"name": "ci", "scopes": ["sandbox:exec"]}), Code::InvalidField, "scopes"),
            (json!({"name": "ci", "scope": ["admin"]}), Code::UnknownField, "scope"),
        ] {
            let problem = read(body.clone()).map(|_| ()).unwrap_err();
            assert_eq!((problem.code(), problem.field_name()), (code, Some(field)), "{body}");
        }
    }
}
