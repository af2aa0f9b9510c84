use wakeful_client::types::{Command, ExecuteRequest, Status};
use wakeful_client::{ListQuery, Upload};

use crate::server::Server;

#[tokio::test]
async fn looks() {
    let server = Server::start().await;
    for id in [server.gone.as_str(), server.gone.bare()] {
        let sandbox = server.client.sandbox(id).await.unwrap();
        assert_eq!((sandbox.status, &sandbox.id), (Status::Destroyed, &server.gone));
        assert_eq!(sandbox.env_keys, ["SECRET"]);
        assert!(sandbox.destroyed_at.is_some() && sandbox.capabilities.is_none());
    }
    assert!(!server.client.sandbox_exists("sbx_aaaaaaaaaaaaaaaaaaaa").await.unwrap());
}

#[tokio::test]
async fn lists() {
    let server = Server::start().await;
    let found = async |query: ListQuery| server.client.all_sandboxes(&query).await.unwrap().len();
    let destroyed = |value: &str| ListQuery {
        status: Some("destroyed".into()),
        metadata: vec![("team".into(), value.into())],
        ..ListQuery::default()
    };
    assert_eq!(found(ListQuery::default()).await, 0);
    assert_eq!(found(ListQuery { status: Some("destroyed".into()), ..ListQuery::default() }).await, 1);
    assert_eq!(found(destroyed("a b")).await, 1);
    assert_eq!(found(destroyed("other")).await, 0);
}

#[tokio::test]
async fn what_is_gone_stays_gone() {
    let server = Server::start().await;
    let (client, gone) = (&server.client, server.gone.as_str());
    let execute = ExecuteRequest::new(Command::Shell("true".into()));
    assert_eq!(client.execute(gone, &execute).await.unwrap_err().code(), Some("sandbox_destroyed"));
    assert_eq!(client.stat(gone, "/a").await.unwrap_err().code(), Some("sandbox_destroyed"));
    assert_eq!(client.download(gone, "/a").await.map(|_| ()).unwrap_err().code(), Some("sandbox_destroyed"));
    assert_eq!(client.suspend(gone, true).await.unwrap_err().code(), Some("sandbox_destroyed"));
    assert_eq!(client.wake(gone, true).await.unwrap_err().code(), Some("not_wakeable"));
    client.destroy_sandbox(gone).await.unwrap();
}

#[tokio::test]
async fn uploads_are_bounded_before_anything_else() {
    let server = Server::start().await;
    for (length, code) in [(64 << 20, "file_too_large"), (1 << 20, "sandbox_destroyed")] {
        let content = tokio::io::AsyncReadExt::take(tokio::io::repeat(7), length);
        let refused = server.client.upload(server.gone.as_str(), "/a", length, content, &Upload::default()).await;
        assert_eq!(refused.unwrap_err().code(), Some(code));
    }
}
