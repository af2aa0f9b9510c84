//! Ports of a sandbox: who may reach them, where their previews are, and how a browser comes in.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, Uri, header};
use jiff::Timestamp;
use wakeful_api_types::{Port as Wire, PortList, PortSession};
use wakeful_gateway::Grant;
use wakeful_model::{Code, Port, SandboxId};

use crate::body::{Object, json};
use crate::caller::Caller;
use crate::fields::Fields;
use crate::path::Target;
use crate::problem::Problem;
use crate::query::Query;
use crate::tcp::Port as Number;
use crate::{ApiConfig, App};

/// Where a port's preview is.
pub(crate) fn url(config: &ApiConfig, id: &SandboxId, port: u16) -> String {
    let (scheme, usual) = if config.secure { ("https", 443) } else { ("http", 80) };
    let listening = config.ports.first().copied().filter(|port| *port != usual);
    let listening = listening.map_or_else(String::new, |port| format!(":{port}"));
    format!("{scheme}://{port}-{}.{}{listening}/", id.bare(), config.domain)
}

fn wire(app: &App, id: &SandboxId, port: Port) -> Wire {
    Wire { port: port.port, public: port.public, url: url(&app.config, id, port.port) }
}

pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let ports = app.lifecycle.ports(&caller.tenant, &id).await?;
    Ok(json(StatusCode::OK, &PortList { ports: ports.into_iter().map(|port| wire(&app, &id, port)).collect() }))
}

pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Number(port): Number,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let port = app.lifecycle.port(&caller.tenant, &id, port).await?;
    Ok(json(StatusCode::OK, &wire(&app, &id, port)))
}

pub(crate) async fn put(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Number(port): Number,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let public = Fields::of(body.0, &["public"])?.boolean("public")?;
    let public = public.ok_or_else(|| Problem::field(Code::MissingField, "public", "public is required"))?;
    let port = Port { port, public };
    app.lifecycle.put_port(&caller.tenant, &id, port).await?;
    Ok(json(StatusCode::OK, &wire(&app, &id, port)))
}

pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Number(port): Number,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    app.lifecycle.forget_port(&caller.tenant, &id, port).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn session(
    State(app): State<App>,
    caller: Caller,
    Target(id): Target,
    Number(port): Number,
    uri: Uri,
    body: Object,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    Fields::of(body.0, &[])?;
    app.lifecycle.port(&caller.tenant, &id, port).await?;
    let (ticket, end) = app.sessions.ticket(Grant { id: id.clone(), port, by: app.door.word_of(&caller) });
    let expires_at = i64::try_from(end).ok().and_then(|end| Timestamp::from_second(end).ok()).unwrap_or_default();
    let url = format!("{}?{}={ticket}", url(&app.config, &id, port), crate::previews::TICKET);
    let mut response = json(StatusCode::OK, &PortSession { url, expires_at: expires_at.into() });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let id: SandboxId = "sbx_k3v7q2m5x6a4b2c7d5ef".parse().unwrap();
        for (secure, listening, wanted) in [
            (false, 8080, "http://3000-k3v7q2m5x6a4b2c7d5ef.localhost:8080/"),
            (false, 80, "http://3000-k3v7q2m5x6a4b2c7d5ef.localhost/"),
            (true, 443, "https://3000-k3v7q2m5x6a4b2c7d5ef.localhost/"),
            (true, 80, "https://3000-k3v7q2m5x6a4b2c7d5ef.localhost:80/"),
        ] {
            let config =
                ApiConfig { domain: "localhost".into(), ports: vec![listening], secure, ..ApiConfig::default() };
            assert_eq!(url(&config, &id, 3000), wanted);
        }
    }
}
