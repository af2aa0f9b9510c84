//! What client libraries tidy away before it is sent.

use crate::server::Server;

#[tokio::test]
async fn paths_that_leave_their_place() {
    let server = Server::start().await;
    let long = "a".repeat(4097);
    for path in ["../etc/passwd", "home/../../etc", "%2e%2e/x", "a%2F..%2Fb", "/../x", "a%00b", "%ff", "..", &long] {
        for method in ["GET", "PUT", "DELETE", "HEAD"] {
            let line = format!("{method} /v1/sandboxes/{}/files/{path}", server.gone);
            let (status, code) = server.code(&line, "").await;
            let wanted = if method == "HEAD" { "" } else { "invalid_path" };
            assert_eq!((status, code.as_str()), (400, wanted), "{line}");
        }
    }
    let line = format!("POST /v1/sandboxes/{}/files/a?move_to=/b/../c", server.gone);
    assert_eq!(server.code(&line, "").await, (400, "invalid_path".into()));
}

#[tokio::test]
async fn routes_and_methods() {
    let server = Server::start().await;
    let id = &server.gone;
    for (line, wanted) in [
        ("GET /".to_owned(), (404, "route_not_found")),
        ("GET /v2/sandboxes".to_owned(), (404, "route_not_found")),
        (format!("GET /v1/sandboxes/{id}/processes"), (409, "sandbox_destroyed")),
        (format!("GET /v1/sandboxes/{id}/no-such-thing"), (404, "route_not_found")),
        (format!("PUT /v1/sandboxes/{id}"), (405, "method_not_allowed")),
        (format!("PATCH /v1/sandboxes/{id}"), (409, "sandbox_destroyed")),
        (format!("GET /v1/sandboxes/{id}/events?after=x"), (400, "invalid_field")),
        (format!("GET /v1/sandboxes/{id}/events?limit=0"), (400, "invalid_field")),
        (format!("GET /v1/sandboxes/{id}/events?limit=1001"), (400, "invalid_field")),
        ("GET /v1/sandboxes/aaaaaaaaaaaaaaaaaaaa/events".to_owned(), (404, "sandbox_not_found")),
        ("GET /metrics?name=x".to_owned(), (400, "unknown_field")),
        ("DELETE /v1/sandboxes".to_owned(), (405, "method_not_allowed")),
        (format!("GET /v1/sandboxes/{id}/execute"), (405, "method_not_allowed")),
        ("GET /v1/sandboxes/sbx_abc123".to_owned(), (404, "sandbox_not_found")),
        ("GET /v1/sandboxes/..".to_owned(), (404, "sandbox_not_found")),
        ("GET /v1/sandboxes/%ff".to_owned(), (404, "sandbox_not_found")),
        ("DELETE /v1/sandboxes/aaaaaaaaaaaaaaaaaaaa".to_owned(), (404, "sandbox_not_found")),
        ("GET /v1/sandboxes?status=asleep".to_owned(), (400, "invalid_field")),
        ("GET /v1/sandboxes?cursor=nonsense".to_owned(), (400, "invalid_field")),
        ("GET /v1/sandboxes?colour=red".to_owned(), (400, "unknown_field")),
        (format!("GET /v1/sandboxes/{id}/files/a?list=perhaps"), (400, "invalid_field")),
        (format!("POST /v1/sandboxes/{id}/files/a"), (400, "missing_field")),
        (format!("PUT /v1/sandboxes/{id}/files/"), (400, "is_directory")),
        (format!("PUT /v1/sandboxes/{id}/files/a?mode=rwx"), (400, "invalid_field")),
        (format!("DELETE /v1/sandboxes/{id}/files/"), (400, "invalid_path")),
        (format!("GET /v1/sandboxes/{id}/processes/7/output?from=-1"), (400, "invalid_field")),
        (format!("GET /v1/sandboxes/{id}/processes/7/output?follow=true"), (409, "sandbox_destroyed")),
        (format!("GET /v1/sandboxes/{id}/pty"), (426, "invalid_field")),
        (format!("GET /v1/sandboxes/{id}/ports/0/tcp"), (400, "invalid_field")),
        (format!("GET /v1/sandboxes/{id}/ports/80/tcp"), (426, "invalid_field")),
        (format!("DELETE /v1/sandboxes/{id}/processes/7"), (405, "method_not_allowed")),
    ] {
        let (status, code) = server.code(&line, "").await;
        assert_eq!((status, code.as_str()), wanted, "{line}");
    }
}

#[tokio::test]
async fn bodies() {
    let server = Server::start().await;
    let id = &server.gone;
    let execute = format!("POST /v1/sandboxes/{id}/execute");
    let processes = format!("POST /v1/sandboxes/{id}/processes");
    let long = format!("{{\"command\":\"{}\"}}", "x".repeat(1 << 20));
    for (line, body, wanted) in [
        ("POST /v1/sandboxes", "{", (400, "invalid_json")),
        ("POST /v1/sandboxes", "[]", (400, "invalid_json")),
        ("POST /v1/sandboxes", "template=python", (400, "invalid_json")),
        ("POST /v1/sandboxes", "", (400, "missing_field")),
        ("POST /v1/sandboxes", "{\"template\":\"python\",\"colour\":1}", (400, "unknown_field")),
        ("POST /v1/sandboxes", "{\"template\":\"nowhere\"}", (404, "template_not_found")),
        ("POST /v1/sandboxes", "{\"template\":\"python\",\"runtime\":\"magic\"}", (400, "invalid_field")),
        ("POST /v1/sandboxes", "{\"template\":\"python\"}", (503, "runtime_unavailable")),
        ("POST /v1/sandboxes", "{\"template\":\"python\",\"runtime\":\"gvisor\"}", (503, "runtime_unavailable")),
        (
            "POST /v1/templates",
            "{\"name\":\"x\",\"source\":{\"kind\":\"debian\",\"suite\":\"s\"},\"runtime\":\"magic\"}",
            (400, "invalid_field"),
        ),
        (
            "POST /v1/templates",
            "{\"name\":\"x\",\"source\":{\"kind\":\"debian\",\"suite\":\"s\"},\"runtime\":\"gvisor\"}",
            (503, "runtime_unavailable"),
        ),
        (&execute, "", (400, "missing_command")),
        (&execute, "{\"command\":\"x\",\"timeout\":\"6m\"}", (400, "invalid_duration")),
        (&execute, &long, (413, "body_too_large")),
        (&format!("{execute}?stream=perhaps"), "{\"command\":\"x\"}", (400, "invalid_field")),
        (&format!("{execute}?stream=true"), "{\"command\":\"x\",\"timeout\":\"0\"}", (409, "sandbox_destroyed")),
        (&format!("{execute}?stream=true"), "{\"command\":\"x\",\"keep_awake\":true}", (400, "unknown_field")),
        (&processes, "{\"command\":\"x\",\"keep_awake\":1}", (400, "invalid_field")),
        (&processes, "{\"command\":\"x\",\"pty\":{\"cols\":80}}", (400, "missing_field")),
        (
            &processes,
            "{\"command\":\"x\",\"pty\":{\"cols\":80,\"rows\":1},\"stdin\":\"\"}",
            (400, "invalid_combination"),
        ),
        (&processes, "{\"command\":\"x\",\"timeout\":\"2h\"}", (409, "sandbox_destroyed")),
        (&format!("{processes}/x/signal"), "{}", (404, "process_not_found")),
        (&format!("{processes}/7/signal"), "{\"signal\":\"TERM\"}", (409, "sandbox_destroyed")),
        (&format!("{processes}/7/resize"), "{\"cols\":1,\"rows\":70000}", (400, "invalid_field")),
        (&format!("{processes}/7/stdin?end=true"), "", (400, "unknown_field")),
        (&format!("POST /v1/sandboxes/{id}/wake"), "{\"now\":true}", (400, "unknown_field")),
        (&format!("POST /v1/sandboxes/{id}/suspend"), "{\"memory\":1}", (400, "invalid_field")),
        (&format!("POST /v1/sandboxes/{id}/keepalive"), "{\"timeout\":\"0s\"}", (400, "invalid_duration")),
    ] {
        let (status, code) = server.code(line, body).await;
        assert_eq!((status, code.as_str()), wanted, "{line} {body:.80}");
    }
}

/// Each path takes the methods that the document says, and no others.
#[tokio::test]
async fn methods_are_as_described() {
    let server = Server::start().await;
    let answer = server.raw(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let document: serde_json::Value = serde_json::from_str(body).unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 10);
    for (path, item) in paths {
        let line = format!("BREW {}", path.replace(['{', '}'], ""));
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = server.raw(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 405"), "{path}: {answer}");
        let allow = answer.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
        let mut allowed: Vec<String> = allow.split(',').map(|method| method.trim().to_lowercase()).collect();
        let mut described: Vec<String> = item.as_object().unwrap().keys().cloned().collect();
        // What can be got can be asked for without its body.
        if described.contains(&"get".to_owned()) && !described.contains(&"head".to_owned()) {
            described.push("head".into());
        }
        allowed.sort();
        described.sort();
        assert_eq!(allowed, described, "{path}");
    }
}
