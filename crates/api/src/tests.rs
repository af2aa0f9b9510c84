//! What every route has around it, and the sandbox's body. What needs a guest is tested against a whole daemon.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::routing::put;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use tower::ServiceExt;
use wakeful_driver::{Cancel, Capabilities, CardKind, DiskKind, Isolation, OutsideTcp, Repairs};
use wakeful_lifecycle::{Awake, AwakeReason, SandboxView, Storage};
use wakeful_model::{Code, Egress, Memory, OnExpiry, Op, OperationId, Policy, Sandbox, State, Transition};

use super::*;
use crate::problem::Problem;
use crate::upload::Upload;

/// Largest upload of the toy route.
const LIMIT: u64 = 1 << 20;

/// Routes that need no lifecycle, in the same dress as the real ones.
fn toy() -> Router {
    let config = Arc::new(ApiConfig { domain: "localhost".into(), ports: vec![8080], ..ApiConfig::default() });
    let upload = async |headers: HeaderMap, body: Body| {
        let mut upload = Upload::new(&headers, body, LIMIT)?;
        let fate = upload.fate();
        while let Some(Ok(_)) = upload.next().await {}
        fate.problem().map_or(Ok("fits"), Err)
    };
    let routes = Router::new()
        .route("/ok", get(async || "fine"))
        .route("/panic", get(async || -> &'static str { panic!("of a handler") }))
        .route("/inside", get(async || Problem::internal("the secret reason")))
        .route("/busy", get(async || Problem::new(Code::Busy, "later")))
        .route("/upload", put(upload))
        .route("/unread", put(async || Problem::new(Code::SandboxNotFound, "there is none")));
    dressed(routes, Door::new(config, Arc::default()))
}

async fn call(method: Method, uri: &str, headers: &[(&str, &str)]) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let Ok(response) = toy().oneshot(request.body(Body::empty()).unwrap()).await.map_err(|e: Infallible| e);
    response
}

async fn problem_of(response: Response<Body>) -> wakeful_api_types::Problem {
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    let (status, id) = (response.status(), response.headers()["x-request-id"].to_str().unwrap().to_owned());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: wakeful_api_types::Problem = serde_json::from_slice(&body).unwrap();
    assert_eq!((problem.status, &problem.request_id), (status.as_u16(), &id));
    problem
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let response = call(Method::GET, "/ok", &[("x-request-id", "mine-1")]).await;
    assert_eq!(response.headers()["x-request-id"], "mine-1");
    let response = call(Method::GET, "/ok", &[("x-request-id", "not mine")]).await;
    assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req_"));
    let response = call(Method::GET, "/nowhere", &[("x-request-id", "mine-2")]).await;
    assert_eq!(problem_of(response).await.request_id, "mine-2");
}

#[tokio::test]
async fn nowhere_and_not_so() {
    let problem = problem_of(call(Method::GET, "/v1/nowhere", &[]).await).await;
    assert_eq!((problem.status, problem.code.as_str()), (404, "route_not_found"));
    let response = call(Method::PATCH, "/ok", &[]).await;
    assert_eq!(response.headers()[header::ALLOW], "GET,HEAD");
    let problem = problem_of(response).await;
    assert_eq!((problem.status, problem.code.as_str()), (405, "method_not_allowed"));
}

#[tokio::test]
async fn our_faults_stay_inside() {
    for route in ["/panic", "/inside"] {
        let problem = problem_of(call(Method::GET, route, &[]).await).await;
        assert_eq!((problem.status, problem.code.as_str()), (500, "internal"));
        assert!(!format!("{problem:?}").contains("secret") && !format!("{problem:?}").contains("handler"));
    }
}

#[tokio::test]
async fn later_says_when() {
    let response = call(Method::GET, "/busy", &[]).await;
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    assert_eq!(problem_of(response).await.status, 503);
}

#[tokio::test]
async fn strangers_are_refused_everywhere() {
    for headers in [("host", "evil.example"), ("origin", "null"), ("origin", "http://evil.example")] {
        for route in ["/ok", "/nowhere"] {
            let problem = problem_of(call(Method::GET, route, &[headers]).await).await;
            assert_eq!((problem.status, problem.code.as_str()), (403, "foreign_origin"), "{headers:?} {route}");
        }
    }
    let own = call(Method::GET, "/ok", &[("host", "localhost:8080"), ("origin", "http://localhost:8080")]).await;
    assert_eq!(own.status(), StatusCode::OK);
}

/// A real server and a real client: what matters here is what becomes of the connection.
#[tokio::test]
async fn a_refused_upload_gets_its_answer() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move { axum::serve(listener, toy()).await });
    wakeful_client::use_ring();
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().unwrap();
    let pieces = || stream::iter(0..512).map(|_| Ok::<_, Infallible>(Bytes::from(vec![7; 128 << 10])));
    for (route, declared, code) in [
        ("/upload", true, "file_too_large"),
        ("/upload", false, "file_too_large"),
        ("/unread", true, "sandbox_not_found"),
        ("/nowhere", true, "route_not_found"),
    ] {
        let mut request = client.put(format!("{base}{route}")).body(reqwest::Body::wrap_stream(pieces()));
        if declared {
            request = request.header(header::CONTENT_LENGTH, 64 << 20);
        }
        let response = request.send().await.expect("the answer is not lost with the connection");
        let problem: wakeful_api_types::Problem = response.json().await.unwrap();
        assert_eq!(problem.code, code);
    }
    let fits = client.put(format!("{base}/upload")).body(vec![7; 1 << 20]).send().await.unwrap();
    assert_eq!(fits.status(), StatusCode::OK);
}

fn view(state: State) -> SandboxView {
    let at = |second: i64| jiff::Timestamp::from_second(1_775_399_400 + second).unwrap();
    let row = Sandbox {
        id: "sbx_k3v7q2m5x6a4b2c7d5ef".parse().unwrap(),
        version: 3,
        tenant: "default".into(),
        state,
        transition: None,
        template: "python".into(),
        template_id: "tpl_k3v7q2m5x6a4b2c7d5ef".parse().unwrap(),
        base: "digest".into(),
        size: Some("shared-cpu-1x".into()),
        cpu: 1,
        memory_mb: 256,
        disk_mb: 2048,
        user: "user".into(),
        workdir: "/home/user".into(),
        env: BTreeMap::from([("OPENAI_API_KEY".into(), "never sent".into())]),
        env_keys: vec!["OPENAI_API_KEY".into()],
        metadata: BTreeMap::new(),
        egress: Egress::default(),
        io: wakeful_model::IoLimits::default(),
        entry: None,
        runtime: "qemu".into(),
        accel: "tcg".into(),
        runtime_generation: 1,
        restored_memory: None,
        policy: Policy {
            expires_at: None,
            on_expiry: OnExpiry::Suspend,
            timeout: None,
            idle_timeout: Some(jiff::SignedDuration::from_millis(599_500)),
            hard_expires_at: None,
            auto_resume: true,
            resume_lease: None,
            suspend_memory: true,
        },
        checkpoint: None,
        secret: [0; 32],
        created_at: at(0),
        updated_at: at(1),
        started_at: Some(at(1)),
        suspended_at: None,
        destroyed_at: None,
        last_activity_at: at(2),
        parent_id: None,
        failure: None,
    };
    let awake = Awake { reason: AwakeReason::Exec, since: at(2), detail: Some("pid 214".into()) };
    let storage = Storage { disk_bytes: 184_320, checkpoint_bytes: 0, shared_bytes: 184_549_376 };
    let capabilities = Capabilities {
        isolation: Isolation::Microvm,
        memory_checkpoint: true,
        cancel: Cancel::Always,
        dirty_pages: true,
        disk: DiskKind::Block,
        outside_tcp: OutsideTcp::Reset,
        clock: Repairs::Agent,
        entropy: Repairs::Agent,
        fork: true,
        network: true,
        card: CardKind::Tap,
        golden: true,
        obstacles: false,
        io_limits: true,
        hardware_virtualization: false,
    };
    SandboxView { row, capabilities: Some(capabilities), awake_because: vec![awake], sleeps_at: None, storage }
}

#[test]
fn a_sandbox() {
    let body = serde_json::to_string_pretty(&wire::sandbox(view(State::Running))).unwrap();
    assert!(!body.contains("never sent"));
    insta::assert_snapshot!(body);
}

#[test]
fn transitions() {
    for (op, kind) in [
        (Op::Create, None),
        (Op::Suspend, Some("suspending")),
        (Op::Wake, Some("waking")),
        (Op::Snapshot, Some("snapshotting")),
        (Op::Fork, Some("forking")),
    ] {
        let mut view = view(State::Suspended(Memory::Kept));
        let since = view.row.created_at;
        view.row.transition = Some(Transition { id: OperationId::random(), op, since, automatic: true });
        let body = serde_json::to_value(wire::sandbox(view)).unwrap();
        assert_eq!(body["status"], "suspended");
        assert_eq!(body["transition"]["kind"].as_str(), kind);
    }
}

#[test]
fn a_snapshot() {
    let row = view(State::Suspended(Memory::Kept)).row;
    let snapshot = wakeful_model::Snapshot {
        id: "snp_k3v7q2m5x6a4b2c7d5ef".parse().unwrap(),
        tenant: "default".into(),
        name: Some("before-upgrade".into()),
        sandbox_id: row.id.clone(),
        created_at: row.created_at,
        content: wakeful_model::Content::of(&row, Some("{}".into())),
    };
    let view = wakeful_lifecycle::SnapshotView { snapshot, own_bytes: 12_713_984, shared_bytes: 184_549_376 };
    insta::assert_snapshot!(serde_json::to_string(&wire::snapshot(view)).unwrap(), @r#"{"id":"snp_k3v7q2m5x6a4b2c7d5ef","name":"before-upgrade","sandbox_id":"sbx_k3v7q2m5x6a4b2c7d5ef","template":"python","memory":true,"own_bytes":12713984,"shared_bytes":184549376,"created_at":"2026-04-05T14:30:00.000Z"}"#);
}
