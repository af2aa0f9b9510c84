//! Who answers what.
//!
//! ```text
//!   channel (HTTP/2, host only)     /_wakeful/*  control      CONNECT  tunnel      + everything below
//!   inside  (HTTP/1.1, loopback)    /process.Process/*   /filesystem.Filesystem/*   /files   /health /envs /metrics
//! ```
//!
//! **Invariant:** `/_wakeful/` is reachable through an authenticated channel only.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::body::{self, Body};
use crate::context::Context;
use crate::session::Session;
use crate::{control, files, metrics, process, tunnel};

/// A request that came through the host's channel.
pub(crate) async fn channel(
    context: Arc<Context>,
    session: Arc<Session>,
    request: Request<Incoming>,
) -> Response<Body> {
    if request.method() == Method::CONNECT {
        return tunnel::handle(&context, &session, request).await;
    }
    if request.uri().path().starts_with("/_wakeful/") {
        return control::handle(context, &session, request).await;
    }
    inside(context, request).await
}

/// A request of a program inside the sandbox, or one that needs no more rights than that.
pub(crate) async fn inside(context: Arc<Context>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    if path.starts_with("/process.Process/") {
        return process::handle(context, request).await;
    }
    if path.starts_with("/filesystem.Filesystem/") || path == "/files" {
        return files::handle(context, request).await;
    }
    match (request.method(), path) {
        (&Method::GET, "/health") => body::status(StatusCode::NO_CONTENT),
        (&Method::GET, "/envs") => body::json(StatusCode::OK, &*context.env()),
        (&Method::GET, "/metrics") => metrics::handle().await,
        (_, "/health" | "/envs" | "/metrics") => body::error(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"),
        _ => body::error(StatusCode::NOT_FOUND, "no such route"),
    }
}
