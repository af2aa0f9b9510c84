//! The readers of what callers send, open to any bytes. For `crates/fuzz` only.

use axum::extract::FromRequestParts as _;
use http::{Request, Uri};

use crate::path::{GuestPath, Target, TemplateName};
use crate::problem::{Problem, status};
use crate::query::Query;
use crate::{body, create, sandboxes, templates};

/// A body, as every route that takes one reads it.
///
/// # Panics
/// If something is refused with a code that is no caller's fault.
pub fn request_body(bytes: &[u8]) {
    let Ok(object) = body::parse(bytes).map_err(|problem| callers_fault(&problem)) else { return };
    let _ = create::new_sandbox("default", object.clone()).map_err(|problem| callers_fault(&problem));
    let _ = templates::new_template("default", object).map_err(|problem| callers_fault(&problem));
}

/// A target: path and query, as the extractors read them.
///
/// # Panics
/// If a path leaves the guest's root, or something is refused with a code that is no caller's fault.
pub fn request_target(bytes: &[u8]) {
    let Ok(uri) = Uri::try_from(bytes) else { return };
    let known = ["status", "mode", "template", "metadata.", "limit", "cursor", "from", "follow"];
    let _ = Query::of(&uri, &known).map_err(|problem| callers_fault(&problem));
    let _ = sandboxes::filter("default", &uri).map_err(|problem| callers_fault(&problem));
    let Ok(request) = Request::builder().uri(uri).body(()) else { return };
    let (mut parts, ()) = request.into_parts();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let _ = Target::from_request_parts(&mut parts, &()).await.map_err(|problem| callers_fault(&problem));
        let _ = TemplateName::from_request_parts(&mut parts, &()).await.map_err(|problem| callers_fault(&problem));
        match GuestPath::from_request_parts(&mut parts, &()).await {
            Ok(GuestPath(path)) => {
                assert!(path.starts_with('/') && !path.contains('\0'), "{path:?}");
                assert!(path.split('/').all(|segment| segment != ".."), "{path:?}");
            }
            Err(problem) => callers_fault(&problem),
        }
    });
}

fn callers_fault(problem: &Problem) {
    assert!(status(problem.code()).is_client_error(), "{problem:?}");
}
