//! A server of its own for each test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use wakeful_api::ApiConfig;
use wakeful_client::Client;
use wakeful_driver::Driver;
use wakeful_lifecycle::{BuildSettings, Clock, Config, Defaults, Layout, Lifecycle, Runtime, RuntimeInfo};
use wakeful_model::{
    Content, Egress, OnExpiry, Policy, Sandbox, SandboxId, Snapshot, SnapshotId, State, Template, TemplateId,
    TemplateSource, TemplateStatus,
};
use wakeful_store::{SqliteStore, Store};

/// A host without a usable engine.
struct NoEngine;

#[async_trait::async_trait]
impl Runtime for NoEngine {
    async fn open(&self, _runtime: &str) -> Result<Arc<dyn Driver>, wakeful_driver::Error> {
        Err(wakeful_driver::Error::Missing { what: "an engine".into() })
    }

    async fn default(&self) -> Result<String, wakeful_driver::Error> {
        Ok("qemu".into())
    }

    fn known(&self) -> Vec<RuntimeInfo> {
        vec![RuntimeInfo {
            name: "qemu".into(),
            accel: "tcg".into(),
            available: false,
            reason: Some("it is not there".into()),
            fix: None,
            version: None,
            probed_at: None,
        }]
    }
}

/// The text of the admin token.
pub(crate) const ADMIN_TOKEN: &str = "wka_00112233445566778899aabbccddeeff00112233";

/// A server with a sandbox that was destroyed, a snapshot of its disk, and a template; another of each is of tenant
/// `acme`. (A sandbox that lives would need an engine.)
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) gone: SandboxId,
    pub(crate) theirs: SandboxId,
    address: String,
    _tasks: JoinSet<()>,
    _dir: TempDir,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(ApiConfig::default()).await
    }

    /// With what only some tests need.
    pub(crate) async fn start_with(config: ApiConfig) -> Self {
        Self::start_building(config, BuildSettings::default()).await
    }

    /// One that builds like this.
    pub(crate) async fn start_building(config: ApiConfig, builds: BuildSettings) -> Self {
        let dir = TempDir::new().unwrap();
        let (data, run) = (dir.path().join("data"), dir.path().join("run"));
        std::fs::create_dir(&data).unwrap();
        std::fs::create_dir(&run).unwrap();
        let store = SqliteStore::open(&data.join("wakeful.db")).await.unwrap();
        let gone = SandboxId::random();
        store.insert_template(&template()).await.unwrap();
        store.insert_sandbox(&destroyed(&gone), None).await.unwrap();
        let theirs = SandboxId::random();
        let tools = Template { tenant: "acme".into(), name: "tools".into(), ..template() };
        store.insert_template(&tools).await.unwrap();
        store.insert_sandbox(&Sandbox { tenant: "acme".into(), ..destroyed(&theirs) }, None).await.unwrap();
        for (tenant, of) in [("default", &gone), ("acme", &theirs)] {
            assert!(store.insert_snapshot(&snapshot(tenant, of)).await.unwrap());
        }
        let layout = Layout::new(data, run);
        let wired = Config {
            layout,
            store: Arc::new(store),
            runtime: Arc::new(NoEngine),
            defaults: defaults(),
            network: None,
            builds,
            clock: Clock::default(),
            witness: None,
        };
        let lifecycle = Lifecycle::start(wired).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = ApiConfig {
            version: "1.2.3".into(),
            domain: "localhost".into(),
            ports: vec![address.port()],
            admin_token: Some(ADMIN_TOKEN.to_owned().into()),
            ..config
        };
        let router = wakeful_api::router(lifecycle.clone(), config);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let client = Client::new(&format!("http://{address}"), None).unwrap();
        Self { client, lifecycle, gone, theirs, address: address.to_string(), _tasks: tasks, _dir: dir }
    }

    /// Sends bytes that no client library would, and gives the whole answer.
    pub(crate) async fn raw(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer));
        read.await.expect("the server closes").unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A client that shows this.
    pub(crate) fn client_with(&self, key: &str) -> Client {
        Client::new(&format!("http://{}", self.address), Some(key)).unwrap()
    }

    /// Status and code of the answer to a request line and a body.
    pub(crate) async fn code(&self, line: &str, body: &str) -> (u16, String) {
        let (status, code, _) = self.call(line, &[], body).await;
        (status, code)
    }

    /// Status, code and head of the answer to a request with headers, one of which may be `Host`.
    pub(crate) async fn call(&self, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        let mut request = format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("\r\n{body}"));
        let answer = self.raw(request.as_bytes()).await;
        let status = answer.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.to_lowercase().contains("x-request-id: "), "{answer}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        (status, body["code"].as_str().unwrap_or_default().to_owned(), head.to_lowercase())
    }
}

fn defaults() -> Defaults {
    Defaults {
        template_size: "shared-cpu-1x".into(),
        timeout: Duration::from_secs(300),
        max_timeout: Duration::from_secs(86400),
        idle_timeout: Duration::from_secs(600),
        exec_timeout: Duration::from_secs(30),
        max_exec_timeout: Duration::from_secs(300),
        disk_mb: 2048,
        tombstone: Duration::from_secs(86400),
        limit_awake: None,
        limit_disk_mb: None,
        upload_bytes: 1 << 20,
        limit_sandboxes: None,
        limit_memory_mb: None,
    }
}

fn now() -> Timestamp {
    wakeful_model::at_microseconds(Timestamp::now())
}

fn template() -> Template {
    Template {
        id: TemplateId::random(),
        version: 1,
        tenant: "default".into(),
        name: "python".into(),
        status: TemplateStatus::Ready,
        build_error: None,
        source: TemplateSource::Debian { suite: "bookworm".into(), packages: vec!["python3".into()] },
        tags: Vec::new(),
        description: String::new(),
        asked: wakeful_model::Asked::default(),
        user: "user".into(),
        workdir: "/home/user".into(),
        env: BTreeMap::new(),
        default_size: "shared-cpu-1x".into(),
        egress: Egress::default(),
        disk_mb: None,
        io: wakeful_model::IoLimits::default(),
        entry: None,
        base: Some("0".repeat(64)),
        disk_bytes: 1,
        created_at: now(),
        built_at: Some(now()),
    }
}

/// The id of the snapshot of a sandbox.
pub(crate) fn snapshot_of(sandbox: &SandboxId) -> SnapshotId {
    sandbox.bare().parse().unwrap()
}

fn snapshot(tenant: &str, of: &SandboxId) -> Snapshot {
    Snapshot {
        id: snapshot_of(of),
        tenant: tenant.into(),
        name: Some("before".into()),
        sandbox_id: of.clone(),
        created_at: now(),
        content: Content::of(&destroyed(of), None),
    }
}

fn destroyed(id: &SandboxId) -> Sandbox {
    Sandbox {
        id: id.clone(),
        version: 1,
        tenant: "default".into(),
        state: State::Destroyed,
        transition: None,
        template: "python".into(),
        template_id: TemplateId::random(),
        base: "0".repeat(64),
        size: Some("shared-cpu-1x".into()),
        cpu: 1,
        memory_mb: 256,
        disk_mb: 2048,
        user: "user".into(),
        workdir: "/home/user".into(),
        env: BTreeMap::from([("SECRET".into(), "never sent".into())]),
        env_keys: vec!["SECRET".into()],
        metadata: BTreeMap::from([("team".into(), "a b".into())]),
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
            idle_timeout: Some(SignedDuration::from_secs(600)),
            hard_expires_at: None,
            auto_resume: true,
            resume_lease: None,
            suspend_memory: true,
        },
        checkpoint: None,
        secret: [7; 32],
        created_at: now(),
        updated_at: now(),
        started_at: None,
        suspended_at: None,
        destroyed_at: Some(now()),
        last_activity_at: now(),
        parent_id: None,
        failure: None,
    }
}
