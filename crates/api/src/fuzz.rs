//! The readers of what callers send, open to any bytes. For `crates/fuzz` only.

use axum::extract::FromRequestParts as _;
use http::{Request, Uri};
use wakeful_model::Code;

use crate::path::{GuestPath, SnapshotTarget, Target, TemplateName};
use crate::problem::{Problem, status};
use crate::query::Query;
use crate::{body, create, fork, page, previews, sandboxes, templates};

/// A body, as every route that takes one reads it.
///
/// # Panics
/// If something is refused with a code that is no caller's fault.
pub fn request_body(bytes: &[u8]) {
    let Ok(object) = body::parse(bytes).map_err(|problem| callers_fault(&problem)) else { return };
    let _ = create::new_sandbox("default", object.clone()).map_err(|problem| callers_fault(&problem));
    let _ = fork::request(object.clone()).map_err(|problem| callers_fault(&problem));
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
        let _ = SnapshotTarget::from_request_parts(&mut parts, &()).await.map_err(|problem| callers_fault(&problem));
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

/// A request for a preview: its target in the first line, its headers in the others.
///
/// # Panics
/// If a ticket stays in an address, the address becomes one of another host, or a cookie of ours reaches a service.
pub fn preview_request(bytes: &[u8]) {
    let (target, rest) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    if let Ok(uri) = Uri::try_from(target)
        && let Some((_, without)) = previews::ticket(&uri)
    {
        assert!(without.starts_with('/') && !without.starts_with("//"), "{without:?}");
        let left = without.split_once('?').map_or("", |(_, query)| query);
        assert!(left.split('&').all(|pair| pair.split('=').next() != Some(previews::TICKET)), "{without:?}");
    }
    let mut headers = wakeful_gateway::fuzz::read_headers(rest);
    let _ = page::is_wanted(&headers);
    wakeful_gateway::without_cookie(&mut headers, wakeful_gateway::COOKIE);
    assert_eq!(previews::cookies(&headers).next(), None, "what is looked for among cookies is taken out");
}

/// A problem whose words are a stranger's.
///
/// # Panics
/// If the page has more elements than ours.
pub fn problem_page(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let plain = page::of(&Problem::new(Code::BadGateway, "x").hint("x").wire("x"));
    let page = page::of(&Problem::new(Code::BadGateway, text.as_ref()).hint(text.as_ref()).wire(&text));
    for mark in ['<', '>', '"', '\''] {
        assert_eq!(plain.matches(mark).count(), page.matches(mark).count(), "{mark} in {page}");
    }
}

fn callers_fault(problem: &Problem) {
    assert!(status(problem.code()).is_client_error(), "{problem:?}");
}
