//! What templates are built from, on its way to the disk: counted by lifecycle, never held here.

use std::io::ErrorKind;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};
use wakeful_lifecycle::Error;
use wakeful_model::Code;

use crate::App;
use crate::body::json;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::query::Query;
use crate::upload::Upload;

pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    // How much it may be, lifecycle knows; here only a sender that stalls is cut off.
    let upload = Upload::new(&headers, body, u64::MAX)?;
    let fate = upload.fate();
    let kept = match app.lifecycle.upload(&caller.tenant, upload).await {
        Ok(kept) => kept,
        Err(error) => return Err(fate.problem().unwrap_or_else(|| refusal(error))),
    };
    let kept = wakeful_api_types::Upload { id: kept.id, bytes: kept.bytes, digest: kept.digest };
    Ok(json(StatusCode::CREATED, &kept))
}

fn refusal(error: Error) -> Problem {
    match &error {
        Error::Io { source, .. } if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            Problem::new(Code::DiskFull, "the host's disk is full").hint("POST /v1/prune removes what nobody needs")
        }
        _ => error.into(),
    }
}
