//! Sandboxes: create, look, list, keep alive, suspend, wake, destroy.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri};
use wakeful_api_types::SandboxList;
use wakeful_lifecycle::{Filter, Lifecycle, NewSandbox, Repeats, SandboxView};
use wakeful_model::{Code, SandboxId, State as SandboxState};

use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::idempotency::{self, Ids, Key};
use crate::path::Target;
use crate::problem::Problem;
use crate::query::{self, Query};
use crate::{App, create, wire};

const MOST_LISTED: u32 = 1000;
const LISTED: u32 = 100;

fn answer(status: StatusCode, view: SandboxView) -> Response {
    json(status, &wire::sandbox(view))
}

pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
    headers: HeaderMap,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let key = Key::of(&headers, "POST /v1/sandboxes", &body.0)?;
    let new = create::new_sandbox(&caller.tenant, body.0)?;
    if let Some(name) = &new.runtime {
        check_runtime(&app, name)?;
    }
    let created = |view: SandboxView| {
        let location = format!("/v1/sandboxes/{}", view.row.id);
        idempotency::answer(StatusCode::CREATED, location, &wire::sandbox(view))
    };
    let (making, finding, tenant) = (app.lifecycle.clone(), app.lifecycle.clone(), Arc::clone(&caller.tenant));
    let ids = Fitting { lifecycle: app.lifecycle.clone(), new: new.clone() };
    let make = async move |id| created(making.create_as(id, new).await?);
    let made = async move |id: SandboxId| finding.created(&tenant, &id).await?.map(created).transpose();
    idempotency::once(&app, &caller.tenant, key, ids, make, made).await
}

/// Ids of members of the pool that fit a request, as long as there are any.
struct Fitting {
    lifecycle: Lifecycle,
    new: NewSandbox,
}

impl Ids for Fitting {
    type Id = SandboxId;

    fn fresh(&self, repeats: Repeats) -> impl Future<Output = SandboxId> + Send {
        self.lifecycle.id_for(&self.new, repeats)
    }

    fn unused(&self, id: &SandboxId) {
        self.lifecycle.unused_id(id);
    }
}

/// A runtime that exists but cannot be used here is `lifecycle`'s to refuse.
pub(crate) fn check_runtime(app: &App, name: &str) -> Result<(), Problem> {
    const NAMES: [&str; 4] = ["auto", "qemu", "gvisor", "firecracker"];
    if NAMES.contains(&name) || app.lifecycle.runtimes().iter().any(|runtime| runtime.name == name) {
        return Ok(());
    }
    let name: String = name.chars().take(80).collect();
    Err(Problem::field(Code::InvalidField, "runtime", format!("there is no runtime {name:?}"))
        .hint("GET /v1/info lists the runtimes"))
}

pub(crate) async fn list(State(app): State<App>, caller: Caller, uri: Uri) -> Result<Response, Problem> {
    let filter = filter(&caller.tenant, &uri)?;
    let (views, next_cursor) = app.lifecycle.sandboxes(filter).await?;
    let sandboxes = views.into_iter().map(wire::sandbox).collect();
    Ok(json(StatusCode::OK, &SandboxList { sandboxes, next_cursor }))
}

pub(crate) fn filter(tenant: &str, uri: &Uri) -> Result<Filter, Problem> {
    let mut query = Query::of(uri, &["status", "mode", "template", "metadata.", "limit", "cursor"])?;
    let status = query.take("status");
    if status.as_deref().is_some_and(|status| !SandboxState::NAMES.contains(&status)) {
        return Err(query::invalid("status", &format!("is one of {}", SandboxState::NAMES.join(", "))));
    }
    let mode = match query.take("mode") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            Problem::field(Code::InvalidMode, "mode", "there is no such mode")
                .hint("modes are ephemeral and persistent")
        })?),
    };
    let limit = match query.take("limit") {
        None => LISTED,
        Some(text) => text
            .parse()
            .ok()
            .filter(|limit| (1..=MOST_LISTED).contains(limit))
            .ok_or_else(|| query::invalid("limit", "is a number from 1 to 1000"))?,
    };
    Ok(Filter {
        tenant: tenant.to_owned(),
        status,
        mode,
        template: query.take("template"),
        metadata: query.take_prefixed("metadata."),
        limit,
        cursor: query.take("cursor"),
    })
}

pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    Ok(answer(StatusCode::OK, app.lifecycle.sandbox(&caller.tenant, &id).await?))
}

pub(crate) async fn destroy(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    app.lifecycle.destroy(&caller.tenant, &id, caller.cause).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn keepalive(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let timeout = Fields::of(body.0, &["timeout"])?.duration("timeout")?;
    Ok(answer(StatusCode::OK, app.lifecycle.keepalive(&caller.tenant, &id, timeout).await?))
}

pub(crate) async fn suspend(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    let wait = Query::of(&uri, &["wait"])?.flag("wait")?.unwrap_or(true);
    let memory = Fields::of(body.0, &["memory"])?.boolean("memory")?.unwrap_or(true);
    let view = app.lifecycle.suspend(&caller.tenant, &id, memory, wait).await?;
    Ok(answer(if wait { StatusCode::OK } else { StatusCode::ACCEPTED }, view))
}

pub(crate) async fn wake(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    let join = Query::of(&uri, &["wait"])?.flag("wait")?.unwrap_or(false);
    Fields::of(body.0, &[])?;
    Ok(answer(StatusCode::OK, app.lifecycle.wake(&caller.tenant, &id, join).await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wakeful_model::Mode;

    fn read(query: &str) -> Result<Filter, Problem> {
        filter("default", &format!("/v1/sandboxes?{query}").parse().unwrap())
    }

    #[test]
    fn filters() {
        let all = read("").unwrap();
        assert_eq!((all.limit, all.status, all.mode), (100, None, None));
        let some = read(
            "status=suspended&mode=persistent&template=python&metadata.a=1&metadata.b.c=x%20y&limit=1000&cursor=z",
        );
        let some = some.unwrap();
        assert_eq!((some.limit, some.mode), (1000, Some(Mode::Persistent)));
        assert_eq!(some.metadata, [("a".into(), "1".into()), ("b.c".into(), "x y".into())]);
        for (bad, code) in [
            ("status=asleep", Code::InvalidField),
            ("mode=x", Code::InvalidMode),
            ("limit=0", Code::InvalidField),
            ("limit=1001", Code::InvalidField),
            ("limit=ten", Code::InvalidField),
            ("tempalte=python", Code::UnknownField),
        ] {
            assert_eq!(read(bad).unwrap_err().code(), code, "{bad}");
        }
    }
}
