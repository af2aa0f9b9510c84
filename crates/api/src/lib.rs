//! The REST surface: turns requests into asks of `lifecycle`, and its answers into the contract's bodies.
//!
//! ```text
//!   request ─▶ request id ─▶ panics ─▶ caller, origin ─▶ route ─▶ scope ─▶ handler ─▶ Lifecycle
//!                  │                                                       │ Result<_, Problem>
//!   answer  ◀──────┴── problems get their body here ◀──────────────────────┘
//! ```
//!
//! Handlers hold no policy: they read, ask, and write. Every refusal is a `Problem` with a stable
//! code; only `problem.rs` knows status codes. What must outlive its caller, such as a command, runs in a task of
//! [`ApiConfig::tasks`].

mod authorize;
mod body;
mod caller;
mod create;
mod egress;
mod events;
mod execute;
mod fields;
mod files;
mod follow;
mod fork;
mod frames;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod idempotency;
mod keys;
mod linger;
mod meta;
mod metrics;
mod openapi;
mod origin;
mod page;
mod patch;
mod path;
mod pool;
mod ports;
mod previews;
mod problem;
mod processes;
mod query;
mod request_id;
mod routes;
mod sandboxes;
mod snapshots;
mod socket;
mod source;
mod space;
mod tcp;
mod templates;
mod tenants;
mod terminal;
mod upload;
mod uploads;
mod watch;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::{any, delete, get, post, put};
use secrecy::{ExposeSecret, SecretString};
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;
use wakeful_gateway::{Gateway, Sessions};
use wakeful_lifecycle::Lifecycle;

use crate::caller::Door;
use crate::routes::Routes;

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
    /// Who shows this is admin, whatever keys there are.
    pub admin_token: Option<SecretString>,
    /// Others than this machine reach the port: the last key must stay.
    pub exposed: bool,
    /// It is reached by TLS.
    pub secure: bool,
}

/// What the connection tells of who is at its other end. Whoever accepts connections puts it into each request's
/// extensions.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// From where.
    pub address: std::net::SocketAddr,
    /// By TLS.
    pub secure: bool,
}

/// What handlers work with.
#[derive(Clone)]
struct App {
    lifecycle: Lifecycle,
    config: Arc<ApiConfig>,
    metrics: Arc<metrics::Metrics>,
    door: Door,
    gateway: Gateway,
    sessions: Arc<Sessions>,
}

/// The routes of the native surface.
fn routes() -> Routes {
    let files = || get(files::get).put(files::put).delete(files::delete).post(files::post);
    Routes::new()
        .route("/healthz", get(meta::healthz))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .route("/v1/info", get(meta::info))
        .route("/v1/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/v1/sandboxes/{id}", get(sandboxes::get).patch(patch::patch).delete(sandboxes::destroy))
        .route("/v1/sandboxes/{id}/egress", get(egress::report))
        .route("/v1/sandboxes/{id}/events", get(events::events))
        .route("/v1/sandboxes/{id}/keepalive", post(sandboxes::keepalive))
        .route("/v1/sandboxes/{id}/suspend", post(sandboxes::suspend))
        .route("/v1/sandboxes/{id}/wake", post(sandboxes::wake))
        .route("/v1/sandboxes/{id}/fork", post(fork::fork))
        .route("/v1/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/v1/sandboxes/{id}/execute", post(execute::execute))
        .route("/v1/sandboxes/{id}/processes", get(processes::list).post(processes::start))
        .route("/v1/sandboxes/{id}/processes/{pid}", get(processes::get))
        .route("/v1/sandboxes/{id}/processes/{pid}/output", get(processes::output))
        .route("/v1/sandboxes/{id}/processes/{pid}/stdin", post(processes::stdin))
        .route("/v1/sandboxes/{id}/processes/{pid}/signal", post(processes::signal))
        .route("/v1/sandboxes/{id}/processes/{pid}/resize", post(processes::resize))
        .route("/v1/sandboxes/{id}/pty", get(terminal::open))
        .route("/v1/sandboxes/{id}/ports", get(ports::list))
        .route("/v1/sandboxes/{id}/ports/{port}", get(ports::get).put(ports::put).delete(ports::delete))
        .route("/v1/sandboxes/{id}/ports/{port}/session", post(ports::session))
        .route("/v1/sandboxes/{id}/ports/{port}/tcp", get(tcp::open))
        .preview("/v1/sandboxes/{id}/ports/{port}/", any(previews::by_path))
        .preview("/v1/sandboxes/{id}/ports/{port}/{*path}", any(previews::by_path))
        .route("/v1/sandboxes/{id}/files", files())
        .route("/v1/sandboxes/{id}/files/", files())
        .route("/v1/sandboxes/{id}/files/{*path}", files())
        .route("/v1/snapshots", get(snapshots::list))
        .route("/v1/snapshots/{id}", get(snapshots::get).delete(snapshots::delete))
        .route("/v1/templates", get(templates::list).post(templates::create))
        .route("/v1/templates/{name}", get(templates::get).delete(templates::delete))
        .route("/v1/templates/{name}/rebuild", post(templates::rebuild))
        .route("/v1/templates/{name}/cancel", post(templates::cancel))
        .route("/v1/templates/{name}/logs", get(templates::logs))
        .route("/v1/uploads", post(uploads::create))
        .route("/v1/prune", post(space::prune))
        .route("/v1/df", get(space::df))
        .route("/v1/pool", get(pool::list))
        .route("/v1/pool/{template}/{size}", put(pool::put))
        .route("/v1/keys", get(keys::list).post(keys::create))
        .route("/v1/keys/{id}", delete(keys::delete))
        .route("/v1/tenants", get(tenants::list).post(tenants::create))
        .route("/v1/tenants/{name}", get(tenants::get).patch(tenants::change).delete(tenants::delete))
}

/// The paths of all routes, as patterns.
#[must_use]
pub fn paths() -> Vec<&'static str> {
    routes().paths
}

/// What a server would answer to someone who asked `lifecycle` directly.
#[must_use]
pub fn problem_of(error: wakeful_lifecycle::Error) -> wakeful_api_types::Problem {
    problem::Problem::from(error).wire("")
}

/// All routes of the native surface, complete with their layers.
pub fn router(lifecycle: Lifecycle, config: ApiConfig) -> Router {
    let config = Arc::new(config);
    let door = Door::new(Arc::clone(&config), Arc::clone(lifecycle.registry().keyring()));
    let metrics = Arc::new(metrics::Metrics::new(&lifecycle, &config.version));
    let gateway = Gateway::new(lifecycle.clone(), config.tasks.clone());
    let secret = config.admin_token.as_ref().map(|token| token.expose_secret().as_bytes());
    let sessions = Arc::new(Sessions::new(secret));
    let app = App { lifecycle, config, metrics: Arc::clone(&metrics), door: door.clone(), gateway, sessions };
    // Of handlers only: what leads nowhere needs no scope.
    let scopes = axum::middleware::from_fn_with_state(app.clone(), authorize::check);
    let count = |otherwise| axum::middleware::from_fn_with_state((Arc::clone(&metrics), otherwise), metrics::count);
    let api = dressed(routes().router.route_layer(scopes).with_state(app.clone()), door).layer(count("none"));
    let previews = Router::new()
        .fallback(previews::by_host)
        .layer(CatchPanicLayer::custom(problem::of_panic))
        .layer(axum::middleware::map_request_with_state(Arc::clone(&app.config), linger::read_on))
        .layer(axum::middleware::from_fn(request_id::give_id))
        .layer(count("preview"))
        .with_state(app.clone());
    // By host before anything else: what belongs to a guest must never reach the API, whatever its path.
    Router::new().fallback_service(tower::service_fn(move |request: Request| {
        let to = if previews::is_for(&app.config, &request) { previews.clone() } else { api.clone() };
        to.oneshot(request)
    }))
}

/// What every route has around it.
fn dressed(routes: Router, door: Door) -> Router {
    let config = Arc::clone(&door.config);
    routes
        .fallback(meta::no_route)
        .method_not_allowed_fallback(meta::no_method)
        .layer(axum::middleware::from_fn_with_state(door, caller::identify))
        .layer(CatchPanicLayer::custom(problem::of_panic))
        .layer(axum::middleware::map_request_with_state(config, linger::read_on))
        .layer(axum::middleware::from_fn(request_id::give_id))
}

#[cfg(test)]
mod tests;
