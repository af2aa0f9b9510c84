//! The warm pool: look, set. For admins.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use percent_encoding::percent_decode_str;
use wakeful_api_types::{Pool, PoolList};
use wakeful_lifecycle::PoolView;
use wakeful_model::Code;

use crate::App;
use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::path::TemplateName;
use crate::problem::Problem;
use crate::query::Query;

fn wire(view: PoolView) -> Pool {
    let PoolView { template, size, ready, claimed, missed: _, target, memory_mb } = view;
    Pool { template, size, ready, claimed, target, memory_mb }
}

pub(crate) async fn list(State(app): State<App>, caller: Caller, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let pools = app.lifecycle.pools(&caller.tenant).into_iter().map(wire).collect();
    Ok(json(StatusCode::OK, &PoolList { pools }))
}

pub(crate) async fn put(
    State(app): State<App>,
    caller: Caller,
    TemplateName(template): TemplateName,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let size = percent_decode_str(uri.path().split('/').nth(4).unwrap_or("")).decode_utf8_lossy();
    let target = Fields::of(body.0, &["target"])?
        .number("target", Code::InvalidField)?
        .ok_or_else(|| Problem::field(Code::MissingField, "target", "target is required"))?;
    let view = app.lifecycle.set_pool(&caller.tenant, &template, &size, target).await?;
    Ok(json(StatusCode::OK, &wire(view)))
}
