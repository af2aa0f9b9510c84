//! What each route needs: one table.
//!
//! It is asked where a route has matched, so that what leads nowhere stays 404 and 405. A route without a line here needs
//! `admin`: who forgets one locks a door and leaves none open, and the walk over all routes in the tests names it.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, Method};
use wakeful_model::{Code, Scope};

use crate::App;
use crate::caller::{Caller, unauthenticated};
use crate::problem::Problem;

pub(crate) const X_WAKEFUL_TENANT: HeaderName = HeaderName::from_static("x-wakeful-tenant");

/// What a caller must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing at all.
    Nothing,
    /// Any key.
    AnyKey,
    /// A key with this scope.
    Scope(Scope),
    /// Whatever the port needs: its handler asks.
    Preview,
}

impl Needs {
    /// Whether those who show no key get as far as the handler.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Nothing | Self::Preview)
    }
}

const READ: Needs = Needs::Scope(Scope::SandboxRead);
const WRITE: Needs = Needs::Scope(Scope::SandboxWrite);
const ADMIN: Needs = Needs::Scope(Scope::Admin);

/// Methods, route, need. What runs something in a sandbox writes, also where it is spelled GET.
const TABLE: &[(&str, &str, Needs)] = &[
    ("GET", "/healthz", Needs::Nothing),
    ("GET", "/openapi.json", Needs::Nothing),
    ("GET", "/metrics", ADMIN),
    ("GET", "/v1/info", Needs::AnyKey),
    ("GET", "/v1/sandboxes", READ),
    ("POST", "/v1/sandboxes", WRITE),
    ("GET", "/v1/sandboxes/{id}", READ),
    ("PATCH DELETE", "/v1/sandboxes/{id}", WRITE),
    ("POST", "/v1/sandboxes/{id}/keepalive", WRITE),
    ("POST", "/v1/sandboxes/{id}/suspend", WRITE),
    ("POST", "/v1/sandboxes/{id}/wake", WRITE),
    ("POST", "/v1/sandboxes/{id}/fork", WRITE),
    ("POST", "/v1/sandboxes/{id}/snapshots", WRITE),
    ("POST", "/v1/sandboxes/{id}/execute", WRITE),
    ("GET", "/v1/sandboxes/{id}/egress", READ),
    ("GET", "/v1/sandboxes/{id}/events", READ),
    ("GET", "/v1/sandboxes/{id}/files", READ),
    ("PUT POST DELETE", "/v1/sandboxes/{id}/files", WRITE),
    ("GET", "/v1/sandboxes/{id}/files/", READ),
    ("PUT POST DELETE", "/v1/sandboxes/{id}/files/", WRITE),
    ("GET", "/v1/sandboxes/{id}/files/{*path}", READ),
    ("PUT POST DELETE", "/v1/sandboxes/{id}/files/{*path}", WRITE),
    ("GET", "/v1/sandboxes/{id}/processes", READ),
    ("POST", "/v1/sandboxes/{id}/processes", WRITE),
    ("GET", "/v1/sandboxes/{id}/processes/{pid}", READ),
    ("GET", "/v1/sandboxes/{id}/processes/{pid}/output", READ),
    ("POST", "/v1/sandboxes/{id}/processes/{pid}/stdin", WRITE),
    ("POST", "/v1/sandboxes/{id}/processes/{pid}/signal", WRITE),
    ("POST", "/v1/sandboxes/{id}/processes/{pid}/resize", WRITE),
    ("GET", "/v1/sandboxes/{id}/pty", WRITE),
    ("GET", "/v1/sandboxes/{id}/ports", READ),
    ("GET", "/v1/sandboxes/{id}/ports/{port}", READ),
    ("PUT DELETE", "/v1/sandboxes/{id}/ports/{port}", WRITE),
    ("POST", "/v1/sandboxes/{id}/ports/{port}/session", WRITE),
    ("*", "/v1/sandboxes/{id}/ports/{port}/", Needs::Preview),
    ("*", "/v1/sandboxes/{id}/ports/{port}/{*path}", Needs::Preview),
    ("GET", "/v1/sandboxes/{id}/ports/{port}/tcp", WRITE),
    ("GET", "/v1/snapshots", READ),
    ("GET", "/v1/snapshots/{id}", READ),
    ("DELETE", "/v1/snapshots/{id}", WRITE),
    ("GET", "/v1/templates", Needs::Scope(Scope::TemplateRead)),
    ("POST", "/v1/templates", Needs::Scope(Scope::TemplateWrite)),
    ("GET", "/v1/templates/{name}", Needs::Scope(Scope::TemplateRead)),
    ("DELETE", "/v1/templates/{name}", Needs::Scope(Scope::TemplateWrite)),
    ("POST", "/v1/templates/{name}/rebuild", Needs::Scope(Scope::TemplateWrite)),
    ("POST", "/v1/templates/{name}/cancel", Needs::Scope(Scope::TemplateWrite)),
    ("GET", "/v1/templates/{name}/logs", Needs::Scope(Scope::TemplateRead)),
    ("POST", "/v1/uploads", Needs::Scope(Scope::TemplateWrite)),
    ("POST", "/v1/prune", ADMIN),
    ("GET", "/v1/df", ADMIN),
    ("GET", "/v1/pool", ADMIN),
    ("PUT", "/v1/pool/{template}/{size}", ADMIN),
    ("GET POST", "/v1/keys", ADMIN),
    ("DELETE", "/v1/keys/{id}", ADMIN),
    ("GET POST", "/v1/tenants", ADMIN),
    ("GET PATCH DELETE", "/v1/tenants/{name}", ADMIN),
];

/// By route, with the names of parameters left out: they are nobody's business but the handler's.
static BY_ROUTE: LazyLock<HashMap<String, Vec<(&str, Needs)>>> = LazyLock::new(|| {
    let mut map: HashMap<String, Vec<(&str, Needs)>> = HashMap::new();
    for (methods, route, needs) in TABLE {
        let lines = map.entry(nameless(route)).or_default();
        lines.extend(methods.split(' ').map(|method| (method, *needs)));
    }
    map
});

fn nameless(route: &str) -> String {
    let segments = route.split('/').map(|segment| match segment.as_bytes() {
        [b'{', b'*', ..] => "{*}",
        [b'{', ..] => "{}",
        _ => segment,
    });
    segments.collect::<Vec<_>>().join("/")
}

/// What a route needs.
pub(crate) fn needs(method: &Method, route: &str) -> Needs {
    // HEAD is served by whoever serves GET.
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    let lines = BY_ROUTE.get(&nameless(route)).map_or(&[][..], Vec::as_slice);
    lines.iter().find(|(listed, _)| *listed == method || *listed == "*").map_or(ADMIN, |(_, needs)| *needs)
}

/// The layer of each handler.
pub(crate) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let admitted = match admitted(&request) {
        Ok(Some(caller)) => act_for(&app, caller, request.headers().get(X_WAKEFUL_TENANT).cloned()).await.map(Some),
        other => other,
    };
    match admitted {
        Err(problem) => return problem.into_response(),
        Ok(Some(caller)) => drop(request.extensions_mut().insert(caller)),
        Ok(None) => {}
    }
    next.run(request).await
}

/// The caller, if it may; `None` where everyone may.
fn admitted(request: &Request) -> Result<Option<Caller>, Problem> {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let needs = needs(request.method(), route);
    let Some(caller) = request.extensions().get::<Caller>() else {
        // Whoever shows no key is here only because the route is open; should another layer ever let one through, no.
        return if needs.is_open() { Ok(None) } else { Err(unauthenticated()) };
    };
    match needs {
        Needs::Scope(scope) if !caller.allows(scope) => {
            Err(Problem::new(Code::Forbidden, format!("this needs a key with the scope {scope}")))
        }
        Needs::Nothing | Needs::AnyKey | Needs::Scope(_) | Needs::Preview => Ok(Some(caller.clone())),
    }
}

/// In another tenant, if it says so and may.
pub(crate) async fn act_for(app: &App, mut caller: Caller, wanted: Option<HeaderValue>) -> Result<Caller, Problem> {
    let Some(value) = wanted else { return Ok(caller) };
    let name = value.to_str().unwrap_or_default().trim();
    if name == &*caller.tenant {
        return Ok(caller);
    }
    if !caller.is_admin() {
        return Err(Problem::new(Code::Forbidden, "only an admin acts in another tenant than its own"));
    }
    caller.tenant = app.lifecycle.registry().tenant(name).await?.0.name.into();
    Ok(caller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_without_a_line_are_locked() {
        assert_eq!(needs(&Method::GET, "/v1/forgotten"), ADMIN);
        assert_eq!(needs(&Method::PUT, "/healthz"), ADMIN);
        assert_eq!(needs(&Method::GET, ""), ADMIN);
        assert_eq!(needs(&Method::GET, "/healthz"), Needs::Nothing);
        assert_eq!(needs(&Method::HEAD, "/v1/sandboxes/{id}/files/{*path}"), READ);
    }

    #[test]
    fn names_of_parameters_do_not_matter() {
        assert_eq!(needs(&Method::GET, "/v1/sandboxes/{sandbox}/processes/{process}"), READ);
        assert_eq!(needs(&Method::GET, "/v1/sandboxes/{sandbox}/files/{rest}"), ADMIN, "a wildcard is another route");
    }

    #[test]
    fn no_line_is_there_twice() {
        for (route, lines) in BY_ROUTE.iter() {
            for (at, (method, _)) in lines.iter().enumerate() {
                assert!(!lines[..at].iter().any(|(other, _)| other == method), "{method} {route}");
                assert!(matches!(*method, "GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "*"), "{method} {route}");
            }
        }
    }
}
