use secrecy::ExposeSecret;
use wakeful_client::Client;
use wakeful_client::types::{CreateKey, CreateTenant, LimitsRequest};

use crate::server::{ADMIN_TOKEN, Server};

async fn key(root: &Client, server: &Server, tenant: &str, scopes: &[&str]) -> Client {
    let scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
    let new = CreateKey { name: "test".into(), tenant: Some(tenant.into()), scopes };
    server.client_with(root.create_key(&new).await.unwrap().secret.expose_secret())
}

fn code<T: std::fmt::Debug>(answer: Result<T, wakeful_client::Error>) -> String {
    answer.unwrap_err().code().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn tenants_come_change_and_go() {
    let server = Server::start().await;
    let client = &server.client;
    let limits = LimitsRequest { sandboxes: Some(Some(3)), memory_mb: None, disk_mb: Some(None) };
    let made = client.create_tenant(&CreateTenant { name: "lab".into(), limits }).await.unwrap();
    assert_eq!((made.limits.sandboxes, made.limits.memory_mb, made.limits.disk_mb), (Some(3), None, None));
    assert_eq!(made.usage.sandboxes, 0);
    let again = CreateTenant { name: "lab".into(), limits: LimitsRequest::default() };
    assert_eq!(code(client.create_tenant(&again).await), "name_taken");
    let bad = CreateTenant { name: "L A B".into(), limits: LimitsRequest::default() };
    assert_eq!(code(client.create_tenant(&bad).await), "invalid_name");
    let change = LimitsRequest { sandboxes: Some(None), memory_mb: Some(Some(512)), disk_mb: None };
    let changed = client.limit_tenant("lab", change).await.unwrap();
    assert_eq!((changed.limits.sandboxes, changed.limits.memory_mb), (None, Some(512)));
    assert_eq!(client.tenant("lab").await.unwrap(), changed);
    let too_much = LimitsRequest { disk_mb: Some(Some(u64::MAX)), ..LimitsRequest::default() };
    assert_eq!(code(client.limit_tenant("lab", too_much).await), "invalid_field");
    assert_eq!(code(client.limit_tenant("nobody", change).await), "tenant_not_found");
    let names: Vec<String> = client.tenants().await.unwrap().tenants.into_iter().map(|t| t.name).collect();
    assert_eq!(names, ["default", "lab"]);
    client.delete_tenant("lab").await.unwrap();
    assert_eq!(code(client.delete_tenant("lab").await), "tenant_not_found");
    assert_eq!(code(client.delete_tenant("default").await), "tenant_in_use");
    // A template of its own keeps it.
    client.create_tenant(&CreateTenant { name: "acme".into(), limits: LimitsRequest::default() }).await.unwrap();
    let error = client.delete_tenant("acme").await.unwrap_err();
    assert!(error.to_string().contains("0 sandboxes, 1 templates, 1 snapshots and 0 keys"), "{error}");
}

#[tokio::test]
async fn shared_templates_are_everyones_and_nobodys() {
    let server = Server::start().await;
    let root = server.client_with(ADMIN_TOKEN);
    for name in ["acme", "other"] {
        let new = CreateTenant { name: name.into(), limits: LimitsRequest::default() };
        root.create_tenant(&new).await.unwrap();
    }
    let acme = key(&root, &server, "acme", &["template:*"]).await;
    let other = key(&root, &server, "other", &["template:*"]).await;
    let insider = key(&root, &server, "default", &["template:*", "sandbox:*"]).await;
    let names = async |client: &Client| {
        client.templates().await.unwrap().templates.into_iter().map(|template| template.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&acme).await, ["python", "tools"]);
    assert_eq!(names(&other).await, ["python"]);
    assert_eq!(names(&insider).await, ["python"]);
    let (python, tools) = (other.template("python").await.unwrap(), acme.template("tools").await.unwrap());
    assert_eq!(other.template(python.id.as_str()).await.unwrap(), python);
    assert_eq!(code(other.template(tools.id.as_str()).await), "template_not_found");
    assert_eq!(code(other.template("tools").await), "template_not_found");
    for client in [&acme, &other, &insider] {
        assert_eq!(code(client.delete_template("python").await), "forbidden");
        assert_eq!(code(client.delete_template(python.id.as_str()).await), "forbidden");
    }
    let line = "POST /v1/templates";
    let body = r#"{"name":"base","source":{"kind":"debian","suite":"bookworm"}}"#;
    let bearer = format!("Bearer {}", {
        let new = CreateKey { name: "x".into(), tenant: None, scopes: vec!["template:write".into()] };
        root.create_key(&new).await.unwrap().secret.expose_secret().to_owned()
    });
    let (status, code, _) = server.call(line, &[("Authorization", &bearer)], body).await;
    assert_eq!((status, code.as_str()), (403, "forbidden"), "what all run is not one's to build");
    root.delete_template("python").await.unwrap();
    assert!(names(&other).await.is_empty());
}
