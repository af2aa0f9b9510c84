use futures_util::StreamExt;

use crate::server::Server;

#[tokio::test]
async fn a_tombstone_has_its_story_and_no_more() {
    let server = Server::start().await;
    let page = server.client.events(server.gone.as_str(), 0, 10).await.unwrap();
    assert_eq!((page.events.len(), page.next_after), (0, 0));
    let page = server.client.events(server.gone.as_str(), 5, 10).await.unwrap();
    assert_eq!(page.next_after, 5, "a page that is empty moves nobody back");
    let follow = server.client.follow_events(server.gone.as_str(), 0).await.unwrap();
    let all = tokio::time::timeout(std::time::Duration::from_secs(10), follow.collect::<Vec<_>>());
    assert!(all.await.expect("what is destroyed has no future").is_empty());
}

#[tokio::test]
async fn streams_look_like_streams() {
    let server = Server::start().await;
    let request = format!(
        "GET /v1/sandboxes/{}/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: text/event-stream\r\n\r\n",
        server.gone
    );
    let answer = server.raw(request.as_bytes()).await.to_lowercase();
    assert!(answer.contains("content-type: text/event-stream") && answer.contains("x-request-id: "), "{answer}");
}

#[tokio::test]
async fn metrics_have_no_ids() {
    let server = Server::start().await;
    server.client.sandbox(server.gone.as_str()).await.unwrap();
    server.code("BREW /v1/sandboxes", "").await;
    server.code("GET /nowhere/at/all", "").await;
    let answer = server.raw(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{answer}");
    for line in [
        "wakeful_build_info{version=\"1.2.3\"} 1",
        "wakeful_http_requests_total{route=\"/v1/sandboxes/{id}\",method=\"GET\",status=\"200\"} 1",
        "wakeful_http_requests_total{route=\"/v1/sandboxes\",method=\"other\",status=\"405\"} 1",
        "wakeful_http_requests_total{route=\"none\",method=\"GET\",status=\"404\"} 1",
        "wakeful_http_request_seconds_count{route=\"/v1/sandboxes/{id}\",method=\"GET\"} 1",
        "wakeful_sandboxes{state=\"running\"} 0",
        "# EOF",
    ] {
        assert!(answer.contains(line), "{line} is not in {answer}");
    }
    assert!(!answer.contains("sbx_") && !answer.contains("nowhere"), "{answer}");
    let resident = answer.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes ")).unwrap();
    assert!(resident.parse::<u64>().unwrap() > 1 << 20);
}
