use std::time::Duration;

use wakeful_lifecycle::{Answer, Claimed, Lifecycle};

use crate::server::Server;

fn answer() -> Answer {
    Answer { status: 201, location: Some("/v1/sandboxes/x".into()), body: "{}".into() }
}

async fn claim(lifecycle: &Lifecycle, tenant: &str, digest: &str, subject: &str) -> Result<Claimed, &'static str> {
    lifecycle.claim(tenant, "k", digest, subject.into()).await.map_err(|error| error.code().as_str())
}

#[tokio::test]
async fn a_key_stands_for_one_call() {
    let server = Server::start().await;
    let lifecycle = &server.lifecycle;
    let Ok(Claimed::New(held)) = claim(lifecycle, "a", "d", "sbx_1").await else { panic!("it is new") };
    drop(held);
    let Ok(Claimed::Interrupted(held)) = claim(lifecycle, "a", "d", "sbx_2").await else { panic!("no answer yet") };
    assert_eq!(held.subject(), "sbx_1", "the id that the first call had");
    let held = held.renew("sbx_3".into()).await.unwrap();
    assert_eq!(held.subject(), "sbx_3");
    held.keep(&answer()).await;
    let Ok(Claimed::Answered(kept)) = claim(lifecycle, "a", "d", "sbx_4").await else { panic!("answered") };
    assert_eq!(kept, answer());
    assert_eq!(claim(lifecycle, "a", "other", "sbx_5").await.map(|_| ()), Err("idempotency_mismatch"));
    assert!(
        matches!(claim(lifecycle, "b", "other", "sbx_6").await, Ok(Claimed::New(_))),
        "another tenant's is another"
    );
}

#[tokio::test]
async fn the_second_waits_for_the_first() {
    let server = Server::start().await;
    let Ok(Claimed::New(first)) = claim(&server.lifecycle, "a", "d", "sbx_1").await else { panic!("it is new") };
    let lifecycle = server.lifecycle.clone();
    let mut second = tokio::task::JoinSet::new();
    second.spawn(async move { claim(&lifecycle, "a", "d", "sbx_2").await });
    assert!(tokio::time::timeout(Duration::from_millis(200), second.join_next()).await.is_err(), "it must wait");
    first.release().await;
    let second = tokio::time::timeout(Duration::from_secs(10), second.join_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(second, Ok(Claimed::New(held)) if held.subject() == "sbx_2"), "a refused call leaves no trace");
}

#[tokio::test]
async fn a_refused_create_frees_its_key() {
    let server = Server::start().await;
    let create = |body: &'static str, key: &'static str| {
        let request = format!(
            "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nIdempotency-Key: {key}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let server = &server;
        async move { server.raw(request.as_bytes()).await }
    };
    for body in ["{\"template\":\"python\"}", "{\"template\":\"python\"}", "{\"template\":\"python\",\"cpu\":2}"] {
        let answer = create(body, "k").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("runtime_unavailable"), "{answer}");
    }
    assert!(create("{}", "\u{e9}").await.starts_with("HTTP/1.1 400"));
}
