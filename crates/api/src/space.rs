//! What lies in the data directory, and what of it can go. For admins: it is not any tenant's.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use wakeful_api_types::Pruned;

use crate::body::{Object, json};
use crate::fields::Fields;
use crate::problem::Problem;
use crate::query::Query;
use crate::{App, wire};

pub(crate) async fn prune(State(app): State<App>, uri: Uri, body: Object) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let unused = Fields::of(body.0, &["unused"])?.duration_or_zero("unused")?.unwrap_or(Duration::ZERO);
    let pruned = app.lifecycle.prune(unused).await?;
    Ok(json(StatusCode::OK, &Pruned { count: pruned.count, bytes: pruned.bytes }))
}

pub(crate) async fn df(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    Ok(json(StatusCode::OK, &wire::usage(app.lifecycle.usage().await?)))
}
