//! Templates: build, look, list, delete, and the log of a build.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde_json::{Map, Value};
use wakeful_api_types::{BuildEvent, NDJSON, TemplateList};
use wakeful_lifecycle::{NewTemplate, is_shared};
use wakeful_model::{Asked, Code, Template, TemplateId, TemplateSource};

use crate::body::{Object, json};
use crate::caller::Caller;
use crate::create;
use crate::fields::Fields;
use crate::idempotency::{self, Key};
use crate::path::TemplateName;
use crate::problem::Problem;
use crate::query::Query;
use crate::{App, wire};

pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
    headers: HeaderMap,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let key = Key::of(&headers, "POST /v1/templates", &body.0)?;
    let new = new_template(&caller.tenant, body.0)?;
    only_admins_share(&caller, &new.tenant, &new.name)?;
    let accepted = |template: Template| {
        let location = format!("/v1/templates/{}", template.name);
        idempotency::answer(StatusCode::ACCEPTED, location, &wire::template(template))
    };
    let (making, finding, tenant) = (app.lifecycle.clone(), app.lifecycle.clone(), Arc::clone(&caller.tenant));
    let make = async move |id| accepted(making.create_template_as(id, new).await?);
    let made = async move |id: TemplateId| match finding.template(&tenant, id.as_str()).await {
        Err(error) if error.code() == Code::TemplateNotFound => Ok(None),
        found => accepted(found?).map(Some),
    };
    idempotency::once(&app, &caller.tenant, key, TemplateId::random, make, made).await
}

/// What every tenant runs is not for one of them to replace, not even for the one it lies in.
fn only_admins_share(caller: &Caller, tenant: &str, name: &str) -> Result<(), Problem> {
    if caller.is_admin() || !is_shared(tenant, name) {
        return Ok(());
    }
    Err(Problem::new(
        Code::Forbidden,
        format!("template {name:?} is shared by all tenants: it is for admins to change"),
    ))
}

pub(crate) fn new_template(tenant: &str, body: Map<String, Value>) -> Result<NewTemplate, Problem> {
    let missing = |field: &str| Problem::field(Code::MissingField, field, format!("{field} is required"));
    let mut fields = Fields::of(body, &["name", "source", "default_size", "env", "egress"])?;
    let name = fields.string("name", Code::InvalidName)?.ok_or_else(|| missing("name"))?;
    let mut source = fields
        .object("source", Code::InvalidField, &["kind", "suite", "packages"])?
        .ok_or_else(|| missing("source"))?;
    let source = match source.string("kind", Code::InvalidField)?.as_deref() {
        None => return Err(missing("source.kind")),
        Some("debian") => TemplateSource::Debian {
            suite: source.string("suite", Code::InvalidField)?.ok_or_else(|| missing("source.suite"))?,
            packages: source.strings("packages", Code::InvalidField)?,
        },
        Some(other) => {
            let other: String = other.chars().take(80).collect();
            let detail = format!("templates cannot be built from {other:?} yet");
            return Err(Problem::field(Code::InvalidField, "source.kind", detail).hint("source.kind is debian"));
        }
    };
    Ok(NewTemplate {
        default_size: fields.string("default_size", Code::InvalidSize)?,
        asked: Asked { env: fields.env()?, ..Asked::default() },
        egress: create::egress(&mut fields)?,
        ..NewTemplate::new(tenant, &name, source)
    })
}

pub(crate) async fn list(State(app): State<App>, caller: Caller, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let templates = app.lifecycle.templates(&caller.tenant).await?;
    Ok(json(StatusCode::OK, &TemplateList { templates: templates.into_iter().map(wire::template).collect() }))
}

pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    TemplateName(name): TemplateName,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let template = app.lifecycle.template(&caller.tenant, &name).await?;
    Ok(json(StatusCode::OK, &wire::template(template)))
}

pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    TemplateName(name): TemplateName,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let template = app.lifecycle.template(&caller.tenant, &name).await?;
    only_admins_share(&caller, &template.tenant, &template.name)?;
    // By id: the name may be another's by now.
    app.lifecycle.delete_template(&caller.tenant, template.id.as_str()).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// One JSON object a line, the last of which tells how the build stands.
pub(crate) async fn logs(
    State(app): State<App>,
    caller: Caller,
    TemplateName(name): TemplateName,
    uri: Uri,
) -> Result<Response, Problem> {
    let follow = Query::of(&uri, &["follow"])?.flag("follow")?.unwrap_or(false);
    // By id from here on: another template may get the name while we follow.
    let id = app.lifecycle.template(&caller.tenant, &name).await?.id;
    let log = app.lifecycle.template_log(&caller.tenant, id.as_str(), follow).await?;
    let end = stream::once(async move {
        // A template that was deleted meanwhile has no end to tell; the log breaks off.
        app.lifecycle.template(&caller.tenant, id.as_str()).await.map(wire::build_end).map_err(std::io::Error::other)
    });
    let lines = log.map(|line| Ok(wire::build_line(line))).chain(end).map(|event| event.and_then(|e| line(&e)));
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    Ok(response)
}

fn line(event: &BuildEvent) -> Result<Bytes, std::io::Error> {
    let mut text = serde_json::to_vec(event)?;
    text.push(b'\n');
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<NewTemplate, Problem> {
        let Value::Object(map) = body else { panic!("an object") };
        new_template("default", map)
    }

    #[test]
    fn requests() {
        let new =
            read(json!({"name": "py", "source": {"kind": "debian", "suite": "bookworm", "packages": ["python3"]}}));
        let TemplateSource::Debian { suite, packages } = new.unwrap().source else { panic!("of packages") };
        assert_eq!((suite.as_str(), packages), ("bookworm", vec!["python3".to_owned()]));
        for (body, code, field) in [
            (json!({}), Code::MissingField, "name"),
            (json!({"name": 1}), Code::InvalidName, "name"),
            (json!({"name": "x"}), Code::MissingField, "source"),
            (json!({"name": "x", "source": "debian"}), Code::InvalidField, "source"),
            (json!({"name": "x", "source": {}}), Code::MissingField, "source.kind"),
            (json!({"name": "x", "source": {"kind": "image"}}), Code::InvalidField, "source.kind"),
            (json!({"name": "x", "source": {"kind": "debian"}}), Code::MissingField, "source.suite"),
            (
                json!({"name": "x", "source": {"kind": "debian", "suite": "s", "packages": "a,b"}}),
                Code::InvalidField,
                "source.packages",
            ),
            (json!({"name": "x", "source": {"kind": "debian", "image": "s"}}), Code::UnknownField, "source.image"),
        ] {
            let problem = read(body.clone()).map(|_| ()).unwrap_err();
            assert_eq!((problem.code(), problem.field_name()), (code, Some(field)), "{body}");
        }
    }
}
