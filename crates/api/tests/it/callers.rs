//! Every route with every kind of caller.
//!
//! The routes are the router's own, so a new one that has no line in [`TABLE`] fails here by name; what each line expects
//! is written down a second time, independent of the table in `authorize`.

use wakeful_lifecycle::{LimitsChange, NewKey, Registry};
use wakeful_model::Scope;

use crate::server::{ADMIN_TOKEN, Server};
use std::sync::Arc;

/// Who may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Everyone,
    AnyKey,
    SandboxRead,
    SandboxWrite,
    TemplateRead,
    TemplateWrite,
    Admin,
}
use Who::*;

/// What is asked and answered.
struct Line {
    route: &'static str,
    who: Who,
    /// Query and body of a request that gets as far as possible.
    more: &'static str,
    body: &'static str,
    /// The answers to those who may, one after the other; the last one repeats. Empty: anything but 401 and 403.
    right: &'static [u16],
    /// The answer to another tenant that could, if it were its own. 0: any refusal.
    foreign: u16,
}

const fn line(route: &'static str, who: Who, right: &'static [u16], foreign: u16) -> Line {
    Line { route, who, more: "", body: "", right, foreign }
}

const fn with(route: &'static str, who: Who, body: &'static str, right: &'static [u16], foreign: u16) -> Line {
    Line { route, who, more: "", body, right, foreign }
}

const COMMAND: &str = r#"{"command":"true"}"#;

/// The sandbox is destroyed, so what needs it running ends in 409; no engine is usable, so a create ends in 503.
const TABLE: &[Line] = &[
    line("GET /healthz", Everyone, &[200], 200),
    line("GET /openapi.json", Everyone, &[200], 200),
    line("GET /metrics", Admin, &[200], 0),
    line("GET /v1/info", AnyKey, &[200], 200),
    line("GET /v1/sandboxes", SandboxRead, &[200], 200),
    with("POST /v1/sandboxes", SandboxWrite, r#"{"template":"TEMPLATE"}"#, &[503], 404),
    line("GET /v1/sandboxes/{id}", SandboxRead, &[200], 403),
    with("PATCH /v1/sandboxes/{id}", SandboxWrite, r#"{"metadata":{}}"#, &[], 0),
    line("DELETE /v1/sandboxes/{id}", SandboxWrite, &[204], 403),
    line("POST /v1/sandboxes/{id}/keepalive", SandboxWrite, &[409], 403),
    line("POST /v1/sandboxes/{id}/suspend", SandboxWrite, &[409], 403),
    line("POST /v1/sandboxes/{id}/wake", SandboxWrite, &[409], 403),
    with("POST /v1/sandboxes/{id}/fork", SandboxWrite, r#"{"count":2}"#, &[409], 403),
    with("POST /v1/sandboxes/{id}/snapshots", SandboxWrite, r#"{"name":"kept"}"#, &[409], 403),
    line("GET /v1/snapshots", SandboxRead, &[200], 200),
    line("GET /v1/snapshots/{id}", SandboxRead, &[200], 404),
    // After everything that looks at it.
    line("DELETE /v1/snapshots/{id}", SandboxWrite, &[204, 404], 404),
    with("POST /v1/sandboxes/{id}/execute", SandboxWrite, COMMAND, &[409], 403),
    line("GET /v1/sandboxes/{id}/egress", SandboxRead, &[200], 403),
    line("GET /v1/sandboxes/{id}/events", SandboxRead, &[], 0),
    line("GET /v1/sandboxes/{id}/files", SandboxRead, &[], 0),
    line("PUT /v1/sandboxes/{id}/files", SandboxWrite, &[], 0),
    line("POST /v1/sandboxes/{id}/files", SandboxWrite, &[], 0),
    line("DELETE /v1/sandboxes/{id}/files", SandboxWrite, &[], 0),
    line("GET /v1/sandboxes/{id}/files/", SandboxRead, &[], 0),
    line("PUT /v1/sandboxes/{id}/files/", SandboxWrite, &[], 0),
    line("POST /v1/sandboxes/{id}/files/", SandboxWrite, &[], 0),
    line("DELETE /v1/sandboxes/{id}/files/", SandboxWrite, &[], 0),
    line("GET /v1/sandboxes/{id}/files/{*path}", SandboxRead, &[409], 403),
    line("PUT /v1/sandboxes/{id}/files/{*path}", SandboxWrite, &[409], 403),
    Line { more: "?mkdir=true", ..line("POST /v1/sandboxes/{id}/files/{*path}", SandboxWrite, &[409], 403) },
    line("DELETE /v1/sandboxes/{id}/files/{*path}", SandboxWrite, &[409], 403),
    line("GET /v1/sandboxes/{id}/processes", SandboxRead, &[], 0),
    with("POST /v1/sandboxes/{id}/processes", SandboxWrite, COMMAND, &[], 0),
    line("GET /v1/sandboxes/{id}/processes/{pid}", SandboxRead, &[], 0),
    line("GET /v1/sandboxes/{id}/processes/{pid}/output", SandboxRead, &[], 0),
    line("POST /v1/sandboxes/{id}/processes/{pid}/stdin", SandboxWrite, &[], 0),
    line("POST /v1/sandboxes/{id}/processes/{pid}/signal", SandboxWrite, &[], 0),
    line("POST /v1/sandboxes/{id}/processes/{pid}/resize", SandboxWrite, &[], 0),
    line("GET /v1/sandboxes/{id}/pty", SandboxWrite, &[], 0),
    line("GET /v1/sandboxes/{id}/ports", SandboxRead, &[409], 403),
    line("GET /v1/sandboxes/{id}/ports/{port}", SandboxRead, &[409], 403),
    with("PUT /v1/sandboxes/{id}/ports/{port}", SandboxWrite, r#"{"public":true}"#, &[409], 403),
    line("DELETE /v1/sandboxes/{id}/ports/{port}", SandboxWrite, &[409], 403),
    line("POST /v1/sandboxes/{id}/ports/{port}/session", SandboxWrite, &[409], 403),
    line("GET /v1/sandboxes/{id}/ports/{port}/tcp", SandboxWrite, &[], 0),
    line("GET /v1/templates", TemplateRead, &[200], 200),
    with(
        "POST /v1/templates",
        TemplateWrite,
        r#"{"name":"No Name","source":{"kind":"debian","suite":"bookworm"}}"#,
        &[400],
        400,
    ),
    line("GET /v1/templates/{name}", TemplateRead, &[200], 404),
    line("GET /v1/templates/{name}/logs", TemplateRead, &[200], 404),
    // It is made of packages: another upload is refused, and nothing is built here.
    with("POST /v1/templates/{name}/rebuild", TemplateWrite, r#"{"upload":"upl_aaaaaaaaaaaaaaaaaaaa"}"#, &[400], 404),
    line("POST /v1/templates/{name}/cancel", TemplateWrite, &[409], 404),
    with("POST /v1/uploads", TemplateWrite, "bytes", &[201], 201),
    // After everything that looks at it.
    line("DELETE /v1/templates/{name}", TemplateWrite, &[204, 404], 404),
    with("POST /v1/prune", Admin, r#"{"unused":"1d"}"#, &[200], 0),
    line("GET /v1/df", Admin, &[200], 0),
    line("GET /v1/pool", Admin, &[], 0),
    line("PUT /v1/pool/{template}/{size}", Admin, &[], 0),
    line("GET /v1/keys", Admin, &[200], 0),
    with("POST /v1/keys", Admin, r#"{"name":"nothing","scopes":[]}"#, &[400], 0),
    line("DELETE /v1/keys/{id}", Admin, &[404], 0),
    line("GET /v1/tenants", Admin, &[200], 0),
    with("POST /v1/tenants", Admin, r#"{"name":"acme"}"#, &[409], 0),
    line("GET /v1/tenants/{name}", Admin, &[200], 0),
    with("PATCH /v1/tenants/{name}", Admin, r#"{"limits":{"sandboxes":9}}"#, &[200], 0),
    line("DELETE /v1/tenants/{name}", Admin, &[409], 0),
];

/// The router's routes, with the methods that each says it takes, in the order of the table.
async fn routes(server: &Server) -> Vec<&'static Line> {
    let admin = format!("Bearer {ADMIN_TOKEN}");
    let mut found = Vec::new();
    for path in wakeful_api::paths() {
        let line = format!("BREW {}", concrete(path, server.gone.as_str(), "python"));
        let (status, code, head) = server.call(&line, &[("Authorization", &admin)], "").await;
        assert_eq!((status, code.as_str()), (405, "method_not_allowed"), "{line}");
        let allow = head.lines().find_map(|line| line.strip_prefix("allow: ")).expect("a list").to_uppercase();
        for method in allow.split(',').map(str::trim).filter(|method| *method != "HEAD") {
            found.push(format!("{method} {path}"));
        }
    }
    for route in &found {
        assert!(TABLE.iter().any(|line| same(line.route, route)), "{route} has no line in this test's table");
    }
    TABLE.iter().filter(|line| found.iter().any(|route| same(line.route, route))).collect()
}

/// The same but for the names of parameters.
fn same(one: &str, other: &str) -> bool {
    concrete(one, "x", "x") == concrete(other, "x", "x")
}

/// A path with something in the place of each parameter.
fn concrete(route: &str, sandbox: &str, template: &str) -> String {
    let mut before = "";
    let segments = route.split('/').map(|segment| {
        let value = match (segment.starts_with("{*"), segment.starts_with('{'), before) {
            (true, ..) => "a/b",
            (_, true, "sandboxes") => sandbox,
            // The server's snapshots are named after their sandboxes.
            (_, true, "snapshots") => sandbox.strip_prefix("sbx_").unwrap_or(sandbox),
            (_, true, "templates") => template,
            (_, true, "tenants") => "acme",
            (_, true, "keys") => "key_aaaaaaaaaaaaaaaaaaaa",
            (_, true, _) => "80",
            _ => segment,
        };
        before = segment;
        value.to_owned()
    });
    segments.collect::<Vec<_>>().join("/")
}

async fn key(registry: &Arc<Registry>, tenant: &str, scopes: &[Scope]) -> (String, wakeful_model::KeyId) {
    use secrecy::ExposeSecret;
    let new = NewKey { name: "test".into(), tenant: tenant.into(), scopes: scopes.to_vec() };
    let (key, secret) = registry.create_key(new).await.unwrap();
    (secret.expose_secret().to_owned(), key.id)
}

#[tokio::test]
async fn every_route_with_every_caller() {
    let server = Server::start().await;
    let registry = server.lifecycle.registry();
    for tenant in ["acme", "other"] {
        registry.create_tenant(tenant, LimitsChange::default()).await.unwrap();
    }
    let all = [Scope::Sandbox, Scope::Template];
    let (right, _) = key(registry, "acme", &all).await;
    let (foreign, _) = key(registry, "other", &all).await;
    let (reader, _) = key(registry, "acme", &[Scope::SandboxRead, Scope::TemplateRead]).await;
    let (writer, _) = key(registry, "acme", &[Scope::SandboxWrite, Scope::TemplateWrite]).await;
    let (boxes, _) = key(registry, "acme", &[Scope::Sandbox]).await;
    let (admin, _) = key(registry, "default", &[Scope::Admin]).await;
    let (deleted, id) = key(registry, "acme", &all).await;
    registry.delete_key(&id, wakeful_lifecycle::LastKey::MustStay).await.unwrap();
    let bearer = |key: &str| vec![("Authorization", format!("Bearer {key}"))];
    let acting = |key: &str, tenant: &str| [bearer(key), vec![("X-Wakeful-Tenant", tenant.to_owned())]].concat();
    let as_e2b = vec![("X-API-Key", right.replace("wkf_", "e2b_"))];
    let wrong = format!("wkf_{}", "0".repeat(40));
    let of = |who: &[Who]| who.to_vec();
    let (reads, writes) = (of(&[SandboxRead, TemplateRead]), of(&[SandboxWrite, TemplateWrite]));
    let sandboxes = of(&[SandboxRead, SandboxWrite]);
    let own = [reads.clone(), writes.clone()].concat();
    let everything = [own.clone(), of(&[Admin])].concat();

    // Name, what it shows, what it may beyond what any key may; `None` if it is nobody.
    let callers = [
        ("no key", vec![], None),
        ("a wrong key", bearer(&wrong), None),
        ("no such key", bearer("hello"), None),
        ("a wrong token", bearer(&ADMIN_TOKEN.replace("00", "01")), None),
        ("another scheme", vec![("Authorization", format!("Basic {right}"))], None),
        ("a deleted key", bearer(&deleted), None),
        ("a reader", bearer(&reader), Some(reads)),
        ("a writer", bearer(&writer), Some(writes)),
        ("one for sandboxes", bearer(&boxes), Some(sandboxes)),
        ("the right key", bearer(&right), Some(own.clone())),
        ("the same as older SDKs show it", as_e2b, Some(own)),
        ("an admin's key", acting(&admin, "acme"), Some(everything.clone())),
        ("the admin token", acting(ADMIN_TOKEN, "acme"), Some(everything)),
    ];
    for line in routes(&server).await {
        let request = format!("{}{}", concrete(line.route, server.theirs.as_str(), "tools"), line.more);
        let body = line.body.replace("TEMPLATE", "tools");
        let call = async |headers: &[(&'static str, String)]| {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let (status, code, head) = server.call(&request, &headers, &body).await;
            assert!(head.contains("\r\naccess-control-allow-origin: *"), "{request}: {head}");
            assert_eq!(head.contains("\r\nwww-authenticate: bearer"), status == 401, "{request}: {head}");
            (status, code)
        };
        let denied = |status: u16, code: &str, who: &str| {
            assert_eq!((status, code), (403, "forbidden"), "{request} by {who}");
        };

        // Another tenant, and an admin that does not say for whom it acts.
        for (name, headers) in [("another tenant", bearer(&foreign)), ("an admin elsewhere", bearer(&admin))] {
            let (status, code) = call(&headers).await;
            match (line.who, line.foreign) {
                (Admin, _) if name == "another tenant" => denied(status, &code, name),
                (Admin, _) => assert!(![401, 403].contains(&status), "{request} by {name}: {status} {code}"),
                (_, 0) => assert!(status >= 400, "{request} by {name}: {status}"),
                (_, 403) => assert_eq!((status, code.as_str()), (403, "wrong_tenant"), "{request} by {name}"),
                (_, wanted) => assert_eq!(status, wanted, "{request} by {name}: {code}"),
            }
        }
        // Nobody but an admin acts for others.
        let (status, code) = call(&acting(&right, "other")).await;
        if line.who != Everyone {
            denied(status, &code, "one who acts for another tenant");
        }
        let mut answers = line.right.iter().copied();
        let mut wanted = None;
        for (name, headers, may) in &callers {
            let (status, code) = call(headers).await;
            let allowed = match (line.who, may) {
                (Everyone, _) => true,
                (_, None) => {
                    assert_eq!((status, code.as_str()), (401, "unauthenticated"), "{request} by {name}");
                    continue;
                }
                (AnyKey, Some(_)) => true,
                (who, Some(may)) => may.contains(&who),
            };
            if !allowed {
                denied(status, &code, name);
                continue;
            }
            wanted = answers.next().or(wanted);
            match wanted {
                Some(wanted) => assert_eq!(status, wanted, "{request} by {name}: {code}"),
                None => assert!(![401, 403].contains(&status), "{request} by {name}: {status} {code}"),
            }
        }
    }
    // What leads nowhere tells so only to those who may call.
    for (headers, wanted) in [(bearer(&wrong), 401), (bearer(&reader), 404)] {
        assert_eq!(server.call("GET /v1/nowhere", &[("Authorization", &headers[0].1)], "").await.0, wanted);
    }
    let key = format!("Bearer {reader}");
    assert_eq!(server.call("PUT /v1/sandboxes", &[("Authorization", &key)], "").await.0, 405);
    let nobody = [("Authorization", format!("Bearer {ADMIN_TOKEN}")), ("X-Wakeful-Tenant", "nobody".into())];
    let nobody = nobody.each_ref().map(|(name, value)| (*name, value.as_str()));
    let (status, code, _) = server.call("GET /v1/sandboxes", &nobody, "").await;
    assert_eq!((status, code.as_str()), (404, "tenant_not_found"));
}

#[tokio::test]
async fn every_route_without_keys() {
    let server = Server::start().await;
    server.lifecycle.registry().create_tenant("acme", LimitsChange::default()).await.unwrap();
    let wrong = format!("Bearer wkf_{}", "0".repeat(40));
    for line in routes(&server).await {
        let request = format!("{}{}", concrete(line.route, server.gone.as_str(), "python"), line.more);
        let body = line.body.replace("TEMPLATE", "python");
        for stranger in [
            ("Origin", "http://evil.example"),
            ("Origin", "null"),
            ("Origin", "http://localhost:1"),
            ("Host", "evil.example"),
            ("Host", "evil.example:8080"),
        ] {
            let (status, code, head) = server.call(&request, &[stranger], &body).await;
            assert_eq!((status, code.as_str()), (403, "foreign_origin"), "{request} by {stranger:?}");
            assert!(!head.contains("access-control"), "{request}: {head}");
        }
        let mut answers = line.right.iter().copied();
        let mut wanted = None;
        // Whatever is shown is accepted.
        for headers in [&[][..], &[("Authorization", wrong.as_str())], &[("X-API-Key", "e2b_anything")]] {
            let (status, code, head) = server.call(&request, headers, &body).await;
            wanted = answers.next().or(wanted);
            match wanted {
                Some(wanted) => assert_eq!(status, wanted, "{request} with {headers:?}: {code}"),
                None => assert!(![401, 403].contains(&status), "{request} with {headers:?}: {status} {code}"),
            }
            assert!(!head.contains("access-control"), "{request}: {head}");
        }
    }
}

#[tokio::test]
async fn browsers_ask_first() {
    let server = Server::start().await;
    let ask = [
        ("Origin", "https://app.example"),
        ("Access-Control-Request-Method", "PATCH"),
        ("Access-Control-Request-Headers", "authorization,x-own"),
    ];
    let (status, code, _) = server.call("OPTIONS /v1/sandboxes", &ask, "").await;
    assert_eq!((status, code.as_str()), (403, "foreign_origin"), "not without keys");
    let (right, _) = key(server.lifecycle.registry(), "default", &[Scope::Sandbox]).await;
    let (status, _, head) = server.call("OPTIONS /v1/sandboxes", &ask, "").await;
    assert_eq!(status, 204, "{head}");
    for part in [
        "access-control-allow-origin: *",
        "access-control-allow-headers: authorization,x-own",
        "access-control-allow-methods: get, head, post, put, patch, delete",
    ] {
        assert!(head.contains(part), "{part}: {head}");
    }
    assert!(!head.contains("access-control-allow-credentials"), "{head}");
    // Then the page calls, from its origin, by whatever name it knows us.
    let bearer = format!("Bearer {right}");
    let call = [("Origin", "https://app.example"), ("Host", "sandboxes.example"), ("Authorization", &bearer)];
    let (status, _, head) = server.call("GET /v1/sandboxes", &call, "").await;
    assert!(status == 200 && head.contains("access-control-allow-origin: *"), "{head}");
    let (status, code, _) = server.call("OPTIONS /v1/sandboxes", &[("Origin", "https://app.example")], "").await;
    assert_eq!((status, code.as_str()), (401, "unauthenticated"), "that was no question of a browser");
}
