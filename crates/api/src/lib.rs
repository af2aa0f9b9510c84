//! The REST surface: turns requests into asks of `lifecycle`, and its answers into the contract's bodies.
//!
//! ```text
//!   request ─▶ request id ─▶ panics ─▶ origin ─▶ route ─▶ handler ─▶ Lifecycle
//!                  │                                        │ Result<_, Problem>
//!   answer  ◀──────┴── problems get their body here ◀───────┘
//! ```
//!
//! Handlers hold no policy: they read, ask, and write. Every refusal is a `Problem` with a stable
//! code; only `problem.rs` knows status codes. What must outlive its caller, such as a command, runs in a task of
//! [`ApiConfig::tasks`].

mod body;
mod caller;
mod create;
mod events;
mod execute;
mod fields;
mod files;
mod follow;
mod frames;
mod idempotency;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod linger;
mod meta;
mod metrics;
mod openapi;
mod origin;
mod patch;
mod path;
mod problem;
mod processes;
mod query;
mod request_id;
mod sandboxes;
mod socket;
mod tcp;
mod templates;
mod terminal;
mod upload;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tokio_util::task::TaskTracker;
use tower_http::catch_panic::CatchPanicLayer;
use wakeful_lifecycle::Lifecycle;

/// What the surface must know about the daemon.
#[derive(Clone, Debug, Default)]
pub struct ApiConfig {
    /// The daemon's version.
    pub version: String,
    /// Requests for this host name and those under it are ours.
    pub domain: String,
    /// The ports we listen on: pages from other ports of this host are strangers.
    pub ports: Vec<u16>,
    /// Commands whose callers may have hung up, and refused bodies that are still being sent. Close it and wait for it when the daemon ends.
    pub tasks: TaskTracker,
}

/// What handlers work with.
#[derive(Clone)]
struct App {
    lifecycle: Lifecycle,
    config: Arc<ApiConfig>,
    metrics: Arc<metrics::Metrics>,
}

/// All routes of the native surface, complete with their layers.
pub fn router(lifecycle: Lifecycle, config: ApiConfig) -> Router {
    let config = Arc::new(config);
    let metrics = Arc::new(metrics::Metrics::new(&lifecycle, &config.version));
    let files = || get(files::get).put(files::put).delete(files::delete).post(files::post);
    let routes = Router::new()
        .route("/healthz", get(meta::healthz))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .route("/v1/info", get(meta::info))
        .route("/v1/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/v1/sandboxes/{id}", get(sandboxes::get).patch(patch::patch).delete(sandboxes::destroy))
        .route("/v1/sandboxes/{id}/events", get(events::events))
        .route("/v1/sandboxes/{id}/keepalive", post(sandboxes::keepalive))
        .route("/v1/sandboxes/{id}/suspend", post(sandboxes::suspend))
        .route("/v1/sandboxes/{id}/wake", post(sandboxes::wake))
        .route("/v1/sandboxes/{id}/execute", post(execute::execute))
        .route("/v1/sandboxes/{id}/processes", get(processes::list).post(processes::start))
        .route("/v1/sandboxes/{id}/processes/{pid}", get(processes::get))
        .route("/v1/sandboxes/{id}/processes/{pid}/output", get(processes::output))
        .route("/v1/sandboxes/{id}/processes/{pid}/stdin", post(processes::stdin))
        .route("/v1/sandboxes/{id}/processes/{pid}/signal", post(processes::signal))
        .route("/v1/sandboxes/{id}/processes/{pid}/resize", post(processes::resize))
        .route("/v1/sandboxes/{id}/pty", get(terminal::open))
        .route("/v1/sandboxes/{id}/ports/{port}/tcp", get(tcp::open))
        .route("/v1/sandboxes/{id}/files", files())
        .route("/v1/sandboxes/{id}/files/", files())
        .route("/v1/sandboxes/{id}/files/{*path}", files())
        .route("/v1/templates", get(templates::list).post(templates::create))
        .route("/v1/templates/{name}", get(templates::get).delete(templates::delete))
        .route("/v1/templates/{name}/logs", get(templates::logs))
        .with_state(App { lifecycle, config: Arc::clone(&config), metrics: Arc::clone(&metrics) });
    dressed(routes, config).layer(axum::middleware::from_fn_with_state(metrics, metrics::count))
}

/// What every route has around it.
fn dressed(routes: Router, config: Arc<ApiConfig>) -> Router {
    routes
        .fallback(meta::no_route)
        .method_not_allowed_fallback(meta::no_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&config), origin::refuse_strangers))
        .layer(CatchPanicLayer::custom(problem::of_panic))
        .layer(axum::middleware::map_request_with_state(config, linger::read_on))
        .layer(axum::middleware::from_fn(request_id::give_id))
}

#[cfg(test)]
mod tests;
