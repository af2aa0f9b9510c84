use secrecy::ExposeSecret;
use wakeful_api::ApiConfig;
use wakeful_client::types::CreateKey;
use wakeful_client::{Client, ListQuery};

use crate::server::{ADMIN_TOKEN, Server};

fn new(name: &str, tenant: Option<&str>, scopes: &[&str]) -> CreateKey {
    CreateKey {
        name: name.into(),
        tenant: tenant.map(str::to_owned),
        scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
    }
}

async fn refused(client: &Client) -> Option<String> {
    let answer = client.sandboxes(&ListQuery::default()).await;
    answer.err().map(|error| error.code().unwrap_or("no problem").to_owned())
}

#[tokio::test]
async fn the_first_key_closes_the_door_and_the_last_one_opens_it() {
    let server = Server::start().await;
    assert_eq!(refused(&server.client).await, None);
    let first = server.client.create_key(&new("ci", None, &[])).await.unwrap();
    assert_eq!((first.about.tenant.as_str(), first.about.name.as_str()), ("default", "ci"));
    assert_eq!(first.about.scopes, ["sandbox:*", "template:*"]);
    assert_eq!(first.about.last_used_at, None);
    let unauthenticated = Some("unauthenticated".to_owned());
    assert_eq!(refused(&server.client).await, unauthenticated, "at once");
    assert_eq!(server.client.health().await.unwrap().status, "ok");

    let secret = first.secret.expose_secret();
    let (holder, root) = (server.client_with(secret), server.client_with(ADMIN_TOKEN));
    assert_eq!(refused(&holder).await, None);
    assert_eq!(refused(&server.client_with(&secret.replace("wkf_", "e2b_"))).await, None);
    assert_eq!(refused(&root).await, None);
    let error = holder.create_key(&new("mine", None, &["admin"])).await.unwrap_err();
    assert_eq!(error.code(), Some("forbidden"), "nobody gives itself more");

    let second = root.create_key(&new("other", None, &["sandbox:read"])).await.unwrap();
    assert_eq!(refused(&server.client_with(second.secret.expose_secret())).await, None);
    let keys = root.keys(None).await.unwrap().keys;
    assert_eq!(keys.iter().map(|key| &key.id).collect::<Vec<_>>(), [&first.about.id, &second.about.id]);
    assert!(keys.iter().all(|key| key.last_used_at.is_some()));
    assert!(!serde_json::to_string(&keys).unwrap().contains(&secret[4..]));
    assert!(root.keys(Some("nobody")).await.unwrap().keys.is_empty());

    root.delete_key(first.about.id.as_str()).await.unwrap();
    assert_eq!(refused(&holder).await, unauthenticated, "at once");
    assert_eq!(root.delete_key(first.about.id.as_str()).await.unwrap_err().code(), Some("key_not_found"));
    root.delete_key(second.about.id.bare()).await.unwrap();
    assert_eq!(refused(&server.client).await, None, "no key, no need of one");
}

#[tokio::test]
async fn the_last_key_stays_where_others_reach_the_port() {
    let server = Server::start_with(ApiConfig { exposed: true, ..ApiConfig::default() }).await;
    let root = server.client_with(ADMIN_TOKEN);
    let [first, second] = [
        root.create_key(&new("a", None, &[])).await.unwrap().about.id,
        root.create_key(&new("b", None, &[])).await.unwrap().about.id,
    ];
    // Both at once: one of them is the last.
    let (a, b) = tokio::join!(root.delete_key(first.as_str()), root.delete_key(second.as_str()));
    let codes = [a, b].map(|answer| answer.err().map(|error| error.code().unwrap_or_default().to_owned()));
    assert!(codes.contains(&None) && codes.contains(&Some("last_key".to_owned())), "{codes:?}");
    assert_eq!(refused(&server.client).await.as_deref(), Some("unauthenticated"));
}

#[tokio::test]
async fn bad_requests() {
    let server = Server::start().await;
    for (new, code, field) in [
        (new("", None, &[]), "invalid_name", "name"),
        (new("a\u{7}", None, &[]), "invalid_name", "name"),
        (new(&"x".repeat(101), None, &[]), "invalid_name", "name"),
        (new("a", None, &["sandbox:*", "everything"]), "invalid_field", "scopes"),
        (new("a", Some("nobody"), &[]), "tenant_not_found", ""),
        (new("a", Some(""), &[]), "tenant_not_found", ""),
    ] {
        let error = server.client.create_key(&new).await.unwrap_err();
        let problem = error.problem().unwrap();
        assert_eq!((problem.code.as_str(), problem.field.as_deref().unwrap_or("")), (code, field), "{new:?}");
    }
    assert!(server.client.keys(None).await.unwrap().keys.is_empty(), "none of them closed the door");
}

#[tokio::test]
async fn a_secret_is_not_kept_by_caches() {
    let server = Server::start().await;
    let (status, _, head) = server.call("POST /v1/keys", &[], r#"{"name":"ci"}"#).await;
    assert!(status == 201 && head.contains("cache-control: no-store") && head.contains("location: /v1/keys/key_"));
}
