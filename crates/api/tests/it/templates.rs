use futures_util::TryStreamExt;
use wakeful_client::types::BuildEvent;

use crate::server::Server;

#[tokio::test]
async fn looks() {
    let server = Server::start().await;
    let all = server.client.templates().await.unwrap().templates;
    assert_eq!(all.iter().map(|template| template.name.as_str()).collect::<Vec<_>>(), ["python"]);
    let one = server.client.template("python").await.unwrap();
    assert_eq!(server.client.template(one.id.as_str()).await.unwrap(), one);
    assert_eq!(server.client.template("nowhere").await.unwrap_err().code(), Some("template_not_found"));
}

#[tokio::test]
async fn a_log_ends_with_the_status() {
    let server = Server::start().await;
    for follow in [true, false] {
        let events: Vec<BuildEvent> =
            server.client.template_log("python", follow).await.unwrap().try_collect().await.unwrap();
        assert!(matches!(events.as_slice(), [BuildEvent::End { build_error: None, .. }]), "{events:?}");
    }
}

#[tokio::test]
async fn bad_requests() {
    let server = Server::start().await;
    for (body, wanted) in [
        ("{}", (400, "missing_field")),
        ("{\"name\":\"x\"}", (400, "missing_field")),
        ("{\"name\":\"X y\",\"source\":{\"kind\":\"debian\",\"suite\":\"bookworm\"}}", (400, "invalid_name")),
        ("{\"name\":\"x\",\"source\":{\"kind\":\"debian\",\"suite\":\"../x\"}}", (400, "invalid_field")),
        ("{\"name\":\"python\",\"source\":{\"kind\":\"debian\",\"suite\":\"bookworm\"}}", (409, "name_taken")),
    ] {
        let (status, code) = server.code("POST /v1/templates", body).await;
        assert_eq!((status, code.as_str()), wanted, "{body}");
    }
}
