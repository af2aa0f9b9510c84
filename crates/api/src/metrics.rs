//! `GET /metrics`: what the daemon counts, for Prometheus. Labels are routes, methods, statuses and codes, never ids.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, Method, Uri, header};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use wakeful_lifecycle::Lifecycle;

use crate::App;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::query::Query;

/// The one text format that Prometheus and its kin all read.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRoute {
    route: String,
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAnswer {
    route: String,
    method: &'static str,
    status: u16,
}

/// What is counted of requests, and the book that everything is written into.
pub(crate) struct Metrics {
    requests: Family<OfAnswer, Counter>,
    latencies: Family<OfRoute, Histogram>,
    resident: Gauge,
    files: Gauge,
    registry: Registry,
}

impl Metrics {
    pub(crate) fn new(lifecycle: &Lifecycle, version: &str) -> Self {
        let metrics = Self {
            requests: Family::default(),
            // 0.5 ms to a minute; to the first byte of the answer.
            latencies: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_5, 2.0, 18))),
            resident: Gauge::default(),
            files: Gauge::default(),
            registry: Registry::default(),
        };
        let mut registry = Registry::default();
        let ours = registry.sub_registry_with_prefix("wakeful");
        ours.register("build", "The daemon's version", Info::new(vec![("version".to_owned(), version.to_owned())]));
        ours.register("http_requests", "Requests by how they were answered", metrics.requests.clone());
        ours.register("http_request_seconds", "Time to the first byte of an answer", metrics.latencies.clone());
        lifecycle.register_metrics(ours);
        let process = registry.sub_registry_with_prefix("process");
        process.register(
            "resident_memory_bytes",
            "Memory of the daemon, without its engines",
            metrics.resident.clone(),
        );
        process.register("open_fds", "Open files of the daemon", metrics.files.clone());
        Self { registry, ..metrics }
    }

    /// Looks at what is not counted as it happens.
    async fn refresh(&self, lifecycle: &Lifecycle) {
        lifecycle.refresh_metrics().await;
        // What cannot be read now keeps its last value.
        if let Some(bytes) = resident() {
            self.resident.set(bytes);
        }
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the directory itself.
            self.files.set(i64::try_from(entries.count()).unwrap_or(i64::MAX) - 1);
        }
    }
}

fn resident() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A caller can invent methods; a label must not be its to choose.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// Counts every answer, under `otherwise` where there is no route.
pub(crate) async fn count(
    State((metrics, otherwise)): State<(Arc<Metrics>, &'static str)>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or(otherwise, MatchedPath::as_str).to_owned();
    let method = method(request.method());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    metrics.requests.get_or_create(&OfAnswer { route: route.clone(), method, status }).inc();
    metrics.latencies.get_or_create(&OfRoute { route, method }).observe(began.elapsed().as_secs_f64());
    response
}

pub(crate) async fn metrics(State(app): State<App>, _caller: Caller, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    app.metrics.refresh(&app.lifecycle).await;
    let mut text = String::new();
    encode(&mut text, &app.metrics.registry)
        .map_err(|error| Problem::internal(format!("could not write metrics: {error}")))?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(OPENMETRICS));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_few() {
        assert_eq!(method(&Method::PATCH), "PATCH");
        assert_eq!(method(&Method::from_bytes(b"BREW").unwrap()), "other");
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident().is_some_and(|bytes| bytes > 1 << 20));
    }
}
