//! What the server says about itself, and about requests that lead nowhere.

use axum::extract::State;
use axum::response::Response;
use http::{Method, StatusCode, Uri};
use wakeful_api_types::{Health, Info};
use wakeful_model::Code;

use crate::body::json;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::{App, wire};

pub(crate) async fn healthz(State(app): State<App>) -> Result<Response, Problem> {
    if app.lifecycle.is_draining() {
        return Err(Problem::new(Code::ShuttingDown, "the daemon is shutting down"));
    }
    let version = app.config.version.clone();
    Ok(json(StatusCode::OK, &Health { status: "ok".into(), version, runtime: app.lifecycle.selected_runtime() }))
}

pub(crate) async fn info(State(app): State<App>, caller: Caller) -> Response {
    let defaults = app.lifecycle.defaults();
    let info = Info {
        version: app.config.version.clone(),
        selected_runtime: app.lifecycle.selected_runtime(),
        runtimes: app.lifecycle.runtimes().into_iter().map(wire::runtime).collect(),
        capabilities: app
            .lifecycle
            .capabilities()
            .into_iter()
            .map(|(name, can)| (name, wire::capabilities(&can)))
            .collect(),
        sizes: wire::sizes(),
        limits: wire::limits(defaults),
        defaults: wire::defaults(defaults),
        tenant: caller.tenant.to_string(),
    };
    json(StatusCode::OK, &info)
}

fn shortened(uri: &Uri) -> String {
    uri.path().chars().take(200).collect()
}

pub(crate) async fn no_route(uri: Uri) -> Problem {
    Problem::new(Code::RouteNotFound, format!("there is nothing at {}", shortened(&uri)))
}

pub(crate) async fn no_method(method: Method, uri: Uri) -> Problem {
    Problem::new(Code::MethodNotAllowed, format!("{} does not take {method}", shortened(&uri)))
        .hint("the Allow header lists what it takes")
}
