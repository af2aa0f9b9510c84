use std::time::Duration;

use futures_util::TryStreamExt;
use secrecy::ExposeSecret;
use serde_json::json;
use wakeful_api::ApiConfig;
use wakeful_client::types::{BuildEvent, CreateTemplate, PruneRequest, RebuildTemplate, Template, Usage};
use wakeful_lifecycle::{BuildSettings, LimitsChange, NewKey};
use wakeful_model::{Scope, TemplateSource, TemplateStatus};

use crate::server::{ADMIN_TOKEN, Server};

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
    let absent = "k3v7q2m5x6a4b2c7d5ef";
    for (source, extra, code, field) in [
        (json!({"kind": "image", "reference": "Not An Image"}), json!({}), "invalid_field", Some("source.reference")),
        (json!({"kind": "image", "upload": absent}), json!({}), "invalid_field", Some("source.upload")),
        (json!({"kind": "dockerfile", "upload": absent}), json!({}), "invalid_field", Some("source.upload")),
        (json!({"kind": "rootfs", "upload": absent}), json!({}), "invalid_field", Some("source.upload")),
        (json!({"kind": "sandbox", "sandbox_id": absent}), json!({}), "sandbox_not_found", None),
        (json!({"kind": "sandbox", "snapshot_id": absent}), json!({}), "snapshot_not_found", None),
        (json!({"kind": "sandbox", "sandbox_id": server.theirs}), json!({}), "wrong_tenant", None),
        (json!({"kind": "image", "reference": "a"}), json!({"tags": ["a b"]}), "invalid_field", Some("tags")),
        (
            json!({"kind": "image", "reference": "a"}),
            json!({"default_size": "huge"}),
            "invalid_size",
            Some("default_size"),
        ),
        (json!({"kind": "image", "reference": "a"}), json!({"disk_mb": 1}), "invalid_size", Some("disk_mb")),
    ] {
        let mut body = json!({"name": "x", "source": source});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let new: CreateTemplate = serde_json::from_value(body.clone()).unwrap();
        let error = server.client.create_template(&new).await.unwrap_err();
        let problem = error.problem().unwrap_or_else(|| panic!("{body}: {error}"));
        assert_eq!((problem.code.as_str(), problem.field.as_deref()), (code, field), "{body}: {problem:?}");
    }
}

#[tokio::test]
async fn an_upload_is_kept() {
    let server = Server::start().await;
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    // Longer than any JSON body, announced or not.
    for length in [Some(long.len() as u64), None] {
        let kept = server.client.upload_source(std::io::Cursor::new(long.clone()), length).await.unwrap();
        assert_eq!(kept.bytes, long.len() as u64);
        assert_eq!(kept.digest, blake3::hash(&long).to_hex().to_string());
    }
    assert_eq!(uploads(&server).await, 2);
    // One that breaks off leaves nothing.
    let broken = tokio_util::io::StreamReader::new(futures_util::stream::iter([
        Ok(bytes::Bytes::from_static(b"abc")),
        Err(std::io::Error::other("gone")),
    ]));
    assert!(server.client.upload_source(broken, None).await.is_err());
    assert_eq!(uploads(&server).await, 2);
    assert_eq!(server.code("POST /v1/uploads?name=x", "").await, (400, "unknown_field".into()));
}

async fn uploads(server: &Server) -> u64 {
    let usage = server.client.usage().await.unwrap();
    usage.kinds.iter().find(|space| space.kind == "uploads").expect("a kind").count
}

#[tokio::test]
async fn an_upload_has_its_limit() {
    let builds = BuildSettings { upload_bytes: 1000, ..BuildSettings::default() };
    let server = Server::start_building(ApiConfig::default(), builds).await;
    assert_eq!(server.client.upload_source(&[7; 1000][..], None).await.unwrap().bytes, 1000);
    for length in [Some(1001), None] {
        let refused = server.client.upload_source(&[7; 1001][..], length).await.unwrap_err();
        assert_eq!(refused.code(), Some("body_too_large"), "{refused}");
    }
    assert_eq!(uploads(&server).await, 1);
}

async fn key(server: &Server, tenant: &str) -> wakeful_client::Client {
    let registry = server.lifecycle.registry();
    let new = NewKey { name: "test".into(), tenant: tenant.into(), scopes: vec![Scope::Template] };
    let (_, secret) = registry.create_key(new).await.unwrap();
    server.client_with(secret.expose_secret())
}

#[tokio::test]
async fn an_upload_is_its_tenants() {
    let server = Server::start().await;
    server.lifecycle.registry().create_tenant("acme", LimitsChange::default()).await.unwrap();
    let (theirs, ours) = (key(&server, "acme").await, key(&server, "default").await);
    let upload = theirs.upload_source(&b"bytes"[..], None).await.unwrap();
    let new = CreateTemplate::new("mine", TemplateSource::Rootfs { upload: upload.id });
    let refused = ours.create_template(&new).await.unwrap_err();
    let problem = refused.problem().expect("a problem");
    assert_eq!((problem.code.as_str(), problem.field.as_deref()), ("invalid_field", Some("source.upload")));
}

#[tokio::test]
async fn what_everybody_uses_is_for_admins() {
    let server = Server::start().await;
    let ours = key(&server, "default").await;
    for refused in [
        ours.rebuild_template("python", &RebuildTemplate::default()).await.map(drop),
        ours.cancel_build("python").await.map(drop),
        ours.delete_template("python").await,
        ours.prune(&PruneRequest::default()).await.map(drop),
        ours.usage().await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code(), Some("forbidden"));
    }
    let admin = server.client_with(ADMIN_TOKEN);
    assert_eq!(admin.cancel_build("python").await.unwrap_err().code(), Some("no_build"));
}

/// The events of a build, to its end.
async fn followed(server: &Server, name: &str) -> (Vec<BuildEvent>, Template) {
    let log = server.client.template_log(name, true).await.unwrap();
    let events = tokio::time::timeout(Duration::from_secs(60), log.try_collect()).await.expect("it ends").unwrap();
    (events, server.client.template(name).await.unwrap())
}

#[tokio::test]
async fn a_build_that_fails_and_another() {
    let server = Server::start().await;
    let client = &server.client;
    let upload = client.upload_source(&b"this is no archive"[..], None).await.unwrap().id;
    let new = CreateTemplate {
        tags: vec!["1.0".into()],
        description: Some("Mine".into()),
        disk_mb: Some(4096),
        ..CreateTemplate::new("mine", TemplateSource::Rootfs { upload: upload.clone() })
    };
    let template = client.create_template(&new).await.unwrap();
    assert_eq!(template.source, TemplateSource::Rootfs { upload });
    assert_eq!((template.tags, template.description.as_str(), template.disk_mb), (new.tags, "Mine", Some(4096)));
    let (events, template) = followed(&server, "mine:1.0").await;
    assert_eq!(template.status, TemplateStatus::Failed);
    let error = template.build_error.expect("a reason");
    assert_eq!(error.step, "unpack");
    let [.., BuildEvent::Progress { step, line: Some(_), layer: None, .. }, BuildEvent::End { status, build_error }] =
        events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!((step.as_str(), *status, build_error.as_ref()), ("unpack", TemplateStatus::Failed, Some(&error)));

    let absent = RebuildTemplate { upload: Some("upl_k3v7q2m5x6a4b2c7d5ef".parse().unwrap()) };
    for name in ["mine", "python"] {
        let refused = client.rebuild_template(name, &absent).await.unwrap_err();
        let problem = refused.problem().expect("a problem");
        assert_eq!((problem.code.as_str(), problem.field.as_deref()), ("invalid_field", Some("upload")), "{name}");
    }
    let upload = client.upload_source(&b"neither is this"[..], None).await.unwrap().id;
    let again = client.rebuild_template("mine", &RebuildTemplate { upload: Some(upload.clone()) }).await.unwrap();
    assert_eq!(again.source, TemplateSource::Rootfs { upload });
    assert_eq!(followed(&server, "mine").await.1.status, TemplateStatus::Failed);
    assert_eq!(client.cancel_build("mine").await.unwrap_err().code(), Some("no_build"));
    let line = "POST /v1/templates/mine/rebuild";
    assert_eq!(server.code(line, "{\"upload\":\"x\"}").await, (400, "invalid_field".into()));
    assert_eq!(server.code(line, "{\"context\":\"x\"}").await, (400, "unknown_field".into()));
    assert_eq!(server.code("POST /v1/templates/mine/cancel", "{\"now\":1}").await, (400, "unknown_field".into()));
    assert_eq!(server.code("POST /v1/templates/no/rebuild", "").await, (404, "template_not_found".into()));
    assert_eq!(server.code("POST /v1/templates/no/cancel", "").await, (404, "template_not_found".into()));
}

#[tokio::test]
async fn one_build_at_a_time() {
    let server = Server::start().await;
    let client = &server.client;
    // A registry that takes connections and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let reference = format!("{}/app:1", silent.local_addr().unwrap());
    let source = TemplateSource::Image { reference: Some(reference), upload: None };
    client.create_template(&CreateTemplate::new("slow", source)).await.unwrap();
    let refused = client.rebuild_template("slow", &RebuildTemplate::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some("build_in_progress"), "{refused}");
    let refused = client.prune(&PruneRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some("build_in_progress"), "{refused}");
    let ended = client.cancel_build("slow").await.unwrap();
    assert_eq!(ended.status, TemplateStatus::Failed);
    assert_eq!(ended.build_error.map(|error| error.detail).as_deref(), Some("cancelled"));
    assert_eq!(client.cancel_build("slow").await.unwrap_err().code(), Some("no_build"));
    client.delete_template("slow").await.unwrap();
    client.prune(&PruneRequest { unused: Some("7d".into()) }).await.unwrap();
}

#[tokio::test]
async fn space() {
    let server = Server::start().await;
    let before = server.client.usage().await.unwrap();
    assert!(before.total_bytes >= before.free_bytes && before.total_bytes > 0, "{before:?}");
    server.client.upload_source(&[7; 100_000][..], None).await.unwrap();
    let after = server.client.usage().await.unwrap();
    let bytes = |usage: &Usage| usage.kinds.iter().map(|space| space.apparent_bytes).sum::<u64>();
    assert!(bytes(&after) >= bytes(&before) + 100_000, "{after:?}");
    for (body, wanted) in [
        ("", (200, "")),
        ("{\"unused\":\"0s\"}", (200, "")),
        ("{\"unused\":86400}", (200, "")),
        ("{\"unused\":\"soon\"}", (400, "invalid_duration")),
        ("{\"all\":true}", (400, "unknown_field")),
    ] {
        let (status, code) = server.code("POST /v1/prune", body).await;
        assert_eq!((status, code.as_str()), wanted, "{body}");
    }
    assert_eq!(server.code("GET /v1/df?kind=x", "").await, (400, "unknown_field".into()));
}
