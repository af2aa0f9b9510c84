//! Snapshots: take, look, list, delete. A create begins with one that it names in the place of a template.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, Uri};
use wakeful_api_types::SnapshotList;
use wakeful_lifecycle::SnapshotView;
use wakeful_model::{Code, SnapshotId};

use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::idempotency::{self, Key};
use crate::path::{SnapshotTarget, Target};
use crate::problem::Problem;
use crate::query::Query;
use crate::{App, wire};

pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
    headers: HeaderMap,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let key = Key::of(&headers, &format!("POST /v1/sandboxes/{id}/snapshots"), &body.0)?;
    let name = Fields::of(body.0, &["name"])?.string("name", Code::InvalidName)?;
    let taken = |view: SnapshotView| {
        let location = format!("/v1/snapshots/{}", view.snapshot.id);
        idempotency::answer(StatusCode::CREATED, location, &wire::snapshot(view))
    };
    let (taking, finding) = (app.lifecycle.clone(), app.lifecycle.clone());
    let (tenant, theirs) = (Arc::clone(&caller.tenant), Arc::clone(&caller.tenant));
    let make = async move |snapshot| taken(taking.take_snapshot(&tenant, &id, snapshot, name).await?);
    let made = async move |snapshot: SnapshotId| match finding.snapshot(&theirs, &snapshot).await {
        Err(error) if error.code() == Code::SnapshotNotFound => Ok(None),
        found => taken(found?).map(Some),
    };
    idempotency::once(&app, &caller.tenant, key, SnapshotId::random, make, made).await
}

pub(crate) async fn list(State(app): State<App>, caller: Caller, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let snapshots = app.lifecycle.snapshots(&caller.tenant).await?;
    Ok(json(StatusCode::OK, &SnapshotList { snapshots: snapshots.into_iter().map(wire::snapshot).collect() }))
}

pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    SnapshotTarget(id): SnapshotTarget,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let snapshot = app.lifecycle.snapshot(&caller.tenant, &id).await?;
    Ok(json(StatusCode::OK, &wire::snapshot(snapshot)))
}

pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    SnapshotTarget(id): SnapshotTarget,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    app.lifecycle.delete_snapshot(&caller.tenant, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
