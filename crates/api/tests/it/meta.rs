use std::time::Duration;

use crate::server::Server;

#[tokio::test]
async fn health_and_info() {
    let server = Server::start().await;
    let health = server.client.health().await.unwrap();
    assert_eq!((health.status.as_str(), health.version.as_str(), health.runtime), ("ok", "1.2.3", None));
    let info = server.client.info().await.unwrap();
    assert_eq!((info.sizes.len(), info.limits.upload_bytes, info.tenant.as_str()), (7, 1 << 20, "default"));
    assert_eq!(info.runtimes[0].reason.as_deref(), Some("it is not there"));
}

#[tokio::test]
async fn a_draining_server_says_so() {
    let server = Server::start().await;
    server.lifecycle.drain(Duration::from_secs(10)).await;
    assert_eq!(server.client.health().await.unwrap_err().code(), Some("shutting_down"));
    let error = server.client.wake(server.gone.as_str(), true).await.unwrap_err();
    assert_eq!(error.problem().map(|problem| (problem.status, problem.code.as_str())), Some((503, "shutting_down")));
}

#[tokio::test]
async fn strangers() {
    let server = Server::start().await;
    let answer = server.raw(b"GET /v1/info HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("foreign_origin"), "{answer}");
    let null = b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nConnection: close\r\n\r\n";
    assert!(server.raw(null).await.starts_with("HTTP/1.1 403"));
    let own = b"GET /v1/info HTTP/1.1\r\nHost: LocalHost:1\r\nConnection: close\r\n\r\n";
    assert!(server.raw(own).await.starts_with("HTTP/1.1 200"));
}
