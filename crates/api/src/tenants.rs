//! Tenants: make, look, list, limit, delete. For admins.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, Uri, header};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use wakeful_api_types::{Tenant, TenantList};
use wakeful_lifecycle::LimitsChange;
use wakeful_model::Code;

use crate::App;
use crate::body::{Object, json};
use crate::fields::Fields;
use crate::path::third_segment;
use crate::problem::Problem;
use crate::query::Query;

fn name(uri: &Uri) -> String {
    percent_decode_str(third_segment(uri)).decode_utf8_lossy().into_owned()
}

fn missing(field: &str) -> Problem {
    Problem::field(Code::MissingField, field, format!("{field} is required"))
}

pub(crate) async fn create(State(app): State<App>, uri: Uri, body: Object) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let mut fields = Fields::of(body.0, &["name", "limits"])?;
    let name = fields.string("name", Code::InvalidName)?.ok_or_else(|| missing("name"))?;
    let limits = limits(&mut fields)?.unwrap_or_default();
    let tenant = Tenant::from(app.lifecycle.registry().create_tenant(&name, limits).await?);
    let location = HeaderValue::try_from(format!("/v1/tenants/{}", tenant.name)).ok();
    let mut response = json(StatusCode::CREATED, &tenant);
    response.headers_mut().extend(location.map(|value| (header::LOCATION, value)));
    Ok(response)
}

pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let tenants = app.lifecycle.registry().tenants().await?;
    Ok(json(StatusCode::OK, &TenantList { tenants: tenants.into_iter().map(Into::into).collect() }))
}

pub(crate) async fn get(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    Ok(json(StatusCode::OK, &Tenant::from(app.lifecycle.registry().tenant(&name(&uri)).await?)))
}

pub(crate) async fn change(State(app): State<App>, uri: Uri, body: Object) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let limits = limits(&mut Fields::of(body.0, &["limits"])?)?.ok_or_else(|| missing("limits"))?;
    Ok(json(StatusCode::OK, &Tenant::from(app.lifecycle.registry().limit_tenant(&name(&uri), limits).await?)))
}

pub(crate) async fn delete(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    app.lifecycle.registry().delete_tenant(&name(&uri)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Here `null` is a value of its own: no limit.
fn limits(fields: &mut Fields) -> Result<Option<LimitsChange>, Problem> {
    let map = match fields.take("limits") {
        None => return Ok(None),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(Problem::field(Code::InvalidField, "limits", "limits must be an object")),
    };
    let mut change = LimitsChange::default();
    for (name, value) in map {
        let place = match name.as_str() {
            "sandboxes" => &mut change.sandboxes,
            "memory_mb" => &mut change.memory_mb,
            "disk_mb" => &mut change.disk_mb,
            _ => {
                let name: String = format!("limits.{name}").chars().take(100).collect();
                return Err(Problem::field(Code::UnknownField, &name, format!("there is no field {name:?}"))
                    .hint("it takes sandboxes, memory_mb, disk_mb"));
            }
        };
        *place = match value {
            Value::Null => Some(None),
            value => {
                let should = format!("limits.{name} must be a whole number, or null for no limit");
                let number = value
                    .as_u64()
                    .ok_or_else(|| Problem::field(Code::InvalidField, format!("limits.{name}"), should))?;
                Some(Some(number))
            }
        };
    }
    Ok(Some(change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: &Value) -> Result<Option<LimitsChange>, Problem> {
        let Value::Object(map) = json!({"limits": body}) else { panic!("an object") };
        limits(&mut Fields::of(map, &["limits"]).unwrap())
    }

    #[test]
    fn limits_are_numbers_null_or_left_out() {
        let change = read(&json!({"sandboxes": 3, "memory_mb": null})).unwrap();
        assert_eq!(change, Some(LimitsChange { sandboxes: Some(Some(3)), memory_mb: Some(None), disk_mb: None }));
        assert_eq!(read(&json!(null)).unwrap(), None);
        for (body, code, field) in [
            (json!([]), Code::InvalidField, "limits"),
            (json!({"sandboxes": -1}), Code::InvalidField, "limits.sandboxes"),
            (json!({"disk_mb": 1.5}), Code::InvalidField, "limits.disk_mb"),
            (json!({"disk_mb": "1"}), Code::InvalidField, "limits.disk_mb"),
            (json!({"cpus": 1}), Code::UnknownField, "limits.cpus"),
        ] {
            let problem = read(&body).unwrap_err();
            assert_eq!((problem.code(), problem.field_name()), (code, Some(field)), "{body}");
        }
    }
}
