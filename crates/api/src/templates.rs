//! Templates: build, build again, cancel, look, list, delete, and the log of a build.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde_json::{Map, Value};
use wakeful_api_types::{BuildEvent, NDJSON, TemplateList};
use wakeful_lifecycle::{NewTemplate, is_shared};
use wakeful_model::{Asked, Code, Template, TemplateId};

use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::idempotency::{self, Key};
use crate::path::TemplateName;
use crate::problem::Problem;
use crate::query::Query;
use crate::sandboxes::check_runtime;
use crate::{App, create, source, wire};

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
    if let Some(name) = &new.asked.runtime {
        check_runtime(&app, name)?;
    }
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

const FIELDS: [&str; 16] = [
    "name",
    "source",
    "tags",
    "description",
    "default_size",
    "env",
    "egress",
    "disk_mb",
    "io",
    "user",
    "workdir",
    "start",
    "ready",
    "ready_timeout",
    "warm",
    "runtime",
];
/// How long a create may have to wait for what a template starts.
const READY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);

pub(crate) fn new_template(tenant: &str, body: Map<String, Value>) -> Result<NewTemplate, Problem> {
    let mut fields = Fields::of(body, &FIELDS)?;
    let name = fields
        .string("name", Code::InvalidName)?
        .ok_or_else(|| Problem::field(Code::MissingField, "name", "name is required"))?;
    let source = source::source(&mut fields)?;
    Ok(NewTemplate {
        tags: fields.strings("tags", Code::InvalidField)?,
        description: fields.string("description", Code::InvalidField)?.unwrap_or_default(),
        asked: asked(&mut fields)?,
        default_size: fields.string("default_size", Code::InvalidSize)?,
        egress: create::egress(&mut fields)?,
        disk_mb: fields.number("disk_mb", Code::InvalidSize)?,
        io: create::io(&mut fields)?.unwrap_or_default(),
        ..NewTemplate::new(tenant, &name, source)
    })
}

/// What is wanted otherwise than the source has it.
fn asked(fields: &mut Fields) -> Result<Asked, Problem> {
    let wrong =
        |field: &str, should: &str| Err(Problem::field(Code::InvalidField, field, format!("{field} must be {should}")));
    let user = fields.string("user", Code::InvalidField)?;
    if user.as_ref().is_some_and(|user| user.is_empty() || user.len() > 255) {
        return wrong("user", "the name of a user");
    }
    let workdir = fields.string("workdir", Code::InvalidField)?;
    if workdir.as_ref().is_some_and(|path| !path.starts_with('/') || path.len() > 4096) {
        return wrong("workdir", "a path that begins with /");
    }
    let ready_timeout = fields.duration("ready_timeout")?;
    if ready_timeout.is_some_and(|timeout| !READY.contains(&timeout)) {
        let detail = "ready_timeout must be between 1s and 10m";
        return Err(Problem::field(Code::InvalidDuration, "ready_timeout", detail));
    }
    // Rounded up: nobody waits for less than was asked for.
    let ready_seconds =
        ready_timeout.map(|timeout| u32::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(u32::MAX));
    let (start, ready) = (fields.command("start")?, fields.command("ready")?);
    let runtime = fields.string("runtime", Code::InvalidField)?;
    let warm = fields.boolean("warm")?.unwrap_or_default();
    Ok(Asked { user, workdir, env: fields.env()?, start, ready, ready_seconds, warm, runtime })
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

/// Builds it again, of the same source or of another upload.
pub(crate) async fn rebuild(
    State(app): State<App>,
    caller: Caller,
    TemplateName(name): TemplateName,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let upload = source::id(&mut Fields::of(body.0, &["upload"])?, "upload")?;
    let template = app.lifecycle.template(&caller.tenant, &name).await?;
    only_admins_share(&caller, &template.tenant, &template.name)?;
    let begun = app.lifecycle.rebuild_template(&caller.tenant, template.id.as_str(), upload).await;
    // There it is a part of the source, here it is all that can be said.
    let begun = begun.map_err(|error| match error.field() {
        Some("source.upload") => Problem::field(error.code(), "upload", error.to_string()),
        _ => error.into(),
    })?;
    Ok(json(StatusCode::ACCEPTED, &wire::template(begun)))
}

/// Ends the build that is under way.
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    TemplateName(name): TemplateName,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    Fields::of(body.0, &[])?;
    let template = app.lifecycle.template(&caller.tenant, &name).await?;
    only_admins_share(&caller, &template.tenant, &template.name)?;
    let ended = app.lifecycle.cancel_build(&caller.tenant, template.id.as_str()).await?;
    Ok(json(StatusCode::OK, &wire::template(ended)))
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

    fn with(extra: &Value) -> Result<NewTemplate, Problem> {
        let mut body = json!({"name": "x", "source": {"kind": "debian", "suite": "s"}});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        read(body)
    }

    #[test]
    fn everything_that_can_be_said() {
        let new = read(json!({
            "name": "shop", "source": {"kind": "image", "reference": "shop:1"}, "tags": ["1", "web"],
            "description": "The shop", "default_size": "shared-cpu-2x", "env": {"A": "1"},
            "egress": {"mode": "deny_all"}, "disk_mb": 4096, "io": {"ops_per_sec": 100, "burst_ops": 200},
            "user": "app", "workdir": "/srv", "start": "serve --port 80", "ready": ["curl", "-f", "localhost"],
            "ready_timeout": "1500ms", "warm": true, "runtime": "qemu"
        }))
        .unwrap();
        assert_eq!((new.name.as_str(), new.tenant.as_str(), new.description.as_str()), ("shop", "default", "The shop"));
        assert_eq!((new.tags.len(), new.disk_mb, new.io.burst_ops), (2, Some(4096), Some(200)));
        assert_eq!(new.default_size.as_deref(), Some("shared-cpu-2x"));
        assert_eq!(new.egress.unwrap().mode, wakeful_model::EgressMode::DenyAll);
        let words = |list: &[&str]| Some(list.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(
            new.asked,
            Asked {
                user: Some("app".into()),
                workdir: Some("/srv".into()),
                env: [("A".to_owned(), "1".to_owned())].into(),
                start: words(&["/bin/sh", "-c", "serve --port 80"]),
                ready: words(&["curl", "-f", "localhost"]),
                ready_seconds: Some(2),
                warm: true,
                runtime: Some("qemu".into()),
            }
        );
    }

    #[test]
    fn nothing_need_be_said() {
        let new = with(&json!({"start": [], "tags": null})).unwrap();
        assert_eq!(new.asked, Asked { start: Some(Vec::new()), ..Asked::default() });
        assert!(new.tags.is_empty() && new.egress.is_none() && !new.io.any() && new.disk_mb.is_none());
    }

    #[test]
    fn requests() {
        for (body, code, field) in [
            (json!({}), Code::MissingField, "name"),
            (json!({"name": 1}), Code::InvalidName, "name"),
            (json!({"name": "x"}), Code::MissingField, "source"),
            (json!({"name": "x", "source": {"kind": "image"}}), Code::MissingField, "source.reference"),
            (json!({"name": "x", "source": {"kind": "debian", "image": "s"}}), Code::UnknownField, "source.image"),
        ] {
            let problem = read(body.clone()).map(|_| ()).unwrap_err();
            assert_eq!((problem.code(), problem.field_name()), (code, Some(field)), "{body}");
        }
        for (extra, code, field) in [
            (json!({"tags": "a"}), Code::InvalidField, "tags"),
            (json!({"tags": [1]}), Code::InvalidField, "tags"),
            (json!({"description": ["a"]}), Code::InvalidField, "description"),
            (json!({"default_size": 1}), Code::InvalidSize, "default_size"),
            (json!({"env": {"A-B": "x"}}), Code::InvalidField, "env"),
            (json!({"egress": {"mode": "maybe"}}), Code::InvalidEgress, "egress.mode"),
            (json!({"egress": {"ports": []}}), Code::UnknownField, "egress.ports"),
            (json!({"disk_mb": -1}), Code::InvalidSize, "disk_mb"),
            (json!({"disk_mb": "4G"}), Code::InvalidSize, "disk_mb"),
            (json!({"io": {"ops_per_sec": 0}}), Code::InvalidField, "io.ops_per_sec"),
            (json!({"io": {"burst_mbps": 1}}), Code::InvalidField, "io.burst_mbps"),
            (json!({"io": {"iops": 1}}), Code::UnknownField, "io.iops"),
            (json!({"user": ""}), Code::InvalidField, "user"),
            (json!({"user": 0}), Code::InvalidField, "user"),
            (json!({"workdir": "srv"}), Code::InvalidField, "workdir"),
            (json!({"workdir": ""}), Code::InvalidField, "workdir"),
            (json!({"start": ""}), Code::InvalidField, "start"),
            (json!({"start": {"cmd": "x"}}), Code::InvalidField, "start"),
            (json!({"ready": [1]}), Code::InvalidField, "ready"),
            (json!({"ready_timeout": "0s"}), Code::InvalidDuration, "ready_timeout"),
            (json!({"warm": "yes"}), Code::InvalidField, "warm"),
            (json!({"ready_timeout": "999ms"}), Code::InvalidDuration, "ready_timeout"),
            (json!({"ready_timeout": "601s"}), Code::InvalidDuration, "ready_timeout"),
            (json!({"ready_timeout": "soon"}), Code::InvalidDuration, "ready_timeout"),
            (json!({"runtime": 1}), Code::InvalidField, "runtime"),
            (json!({"colour": "red"}), Code::UnknownField, "colour"),
        ] {
            let problem = with(&extra).map(|_| ()).unwrap_err();
            assert_eq!((problem.code(), problem.field_name()), (code, Some(field)), "{extra}");
        }
        for good in [json!({"ready_timeout": "1s"}), json!({"ready_timeout": 600})] {
            assert!(with(&good).is_ok(), "{good}");
        }
    }
}
