//! Previews: HTTP and WebSockets to services inside, as browsers and programs meet them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::header::{HeaderMap, HeaderValue};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};
use wakeful_client::Client;
use wakeful_client::types::{CreateKey, CreateTenant, LimitsRequest};
use wakeful_testkit::{Daemon, Options};

use crate::support::{create, persistent, run, wait_for};
use crate::wire::{SOON, answer, background};

const SERVER: &str = include_str!("previews.py");
const PORT: u16 = 3000;
const LARGE: usize = 30 << 20;

/// A daemon with a sandbox in which the service runs, on loopback only.
pub(crate) struct Place {
    pub(crate) daemon: Daemon,
    pub(crate) id: String,
    http: reqwest::Client,
}

impl Place {
    pub(crate) async fn start(more: Value) -> Result<Self> {
        Self::over(Daemon::start().await?, more).await
    }

    async fn over(daemon: Daemon, more: Value) -> Result<Self> {
        let client = daemon.client()?;
        let mut request = json!({"template": "python", "mode": "persistent", "idle_timeout": "1h"});
        if let (Value::Object(request), Value::Object(more)) = (&mut request, more) {
            request.extend(more);
        }
        let id = create(&client, request).await?.id.to_string();
        background(&daemon, &id, json!({"command": ["python3", "-c", SERVER, "127.0.0.1", PORT.to_string()]})).await?;
        let redirects = reqwest::redirect::Policy::none();
        let http = reqwest::Client::builder().no_proxy().redirect(redirects).build()?;
        let place = Self { daemon, id, http };
        wait_for("the service", SOON, || async {
            let status = place.get("/").send().await?.status();
            ensure!(matches!(status.as_u16(), 200 | 502), "{status}");
            Ok(status.is_success())
        })
        .await?;
        Ok(place)
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        Ok(self.daemon.url().trim_start_matches("http://").parse()?)
    }

    /// The preview's name.
    pub(crate) fn host(&self) -> String {
        let bare = self.id.trim_start_matches("sbx_");
        let port = self.daemon.url().rsplit(':').next().unwrap_or_default();
        format!("{PORT}-{bare}.localhost:{port}")
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.daemon.url())).header("Host", self.host())
    }

    fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.request(reqwest::Method::GET, path)
    }

    /// Below the API's own path.
    fn by_path(&self, path: &str) -> reqwest::RequestBuilder {
        self.http.get(format!("{}/v1/sandboxes/{}/ports/{PORT}{path}", self.daemon.url(), self.id))
    }

    async fn websocket(&self) -> Result<WebSocketStream<TcpStream>> {
        let request = format!("ws://{}/ws", self.host()).into_client_request()?;
        let stream = TcpStream::connect(self.address()?).await?;
        Ok(timeout(SOON, tokio_tungstenite::client_async(request, stream)).await??.0)
    }

    async fn status(&self) -> Result<String> {
        Ok(self.daemon.client()?.sandbox(&self.id).await?.status.to_string())
    }

    /// Once it is awake; ends only if it does.
    async fn never_sleeps(&self) -> Result<Infallible> {
        wait_for("the wake", SOON, || async { Ok(self.status().await? == "running") }).await?;
        let generation = self.generation().await?;
        loop {
            let (status, now) = (self.status().await?, self.generation().await?);
            ensure!(status == "running" && now == generation, "{status} {now}, and not {generation}");
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn generation(&self) -> Result<u64> {
        Ok(self.daemon.client()?.sandbox(&self.id).await?.runtime_generation)
    }
}

async fn code(request: reqwest::RequestBuilder) -> Result<(u16, String)> {
    let response = timeout(SOON, request.send()).await??;
    let status = response.status().as_u16();
    let problem: Value = response.json().await?;
    Ok((status, problem["code"].as_str().unwrap_or_default().to_owned()))
}

async fn say(socket: &mut WebSocketStream<TcpStream>, text: &str) -> Result<()> {
    Ok(timeout(SOON, socket.send(Message::text(text))).await??)
}

async fn hear(socket: &mut WebSocketStream<TcpStream>) -> Result<Message> {
    timeout(SOON, socket.next()).await.context("the socket is silent")?.context("it was closed")?.map_err(Into::into)
}

async fn hear_text(socket: &mut WebSocketStream<TcpStream>) -> Result<String> {
    match hear(socket).await? {
        Message::Text(text) => Ok(text.as_str().to_owned()),
        other => bail!("not a text but {other:?}"),
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..=255).cycle().take(length).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn by_host_and_by_path() -> Result<()> {
    let place = Place::start(json!({})).await?;
    ensure!(place.get("/x").send().await?.text().await? == "hello from inside");
    let told = answer(
        place
            .get("/headers?a=1&b=%2F")
            .header("Authorization", "Basic eDp5")
            .header("X-API-Key", format!("wkf_{}", "a".repeat(40)))
            .header("X-Wakeful-Tenant", "default")
            .header("Cookie", "mine=1; wakeful_preview=secret; yours=2")
            .header("Connection", "close, x-hop")
            .header("X-Hop", "1"),
    )
    .await?;
    let header = |told: &Value, name: &str| -> Vec<String> {
        let all = told["headers"].as_array().cloned().unwrap_or_default();
        all.iter().filter(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap_or("").to_owned()).collect()
    };
    ensure!(told["path"] == "/headers?a=1&b=%2F", "{told}");
    ensure!(header(&told, "host") == [place.host()] && header(&told, "x-forwarded-host") == [place.host()], "{told}");
    ensure!(header(&told, "x-forwarded-for") == ["127.0.0.1"] && header(&told, "x-forwarded-proto") == ["http"]);
    ensure!(header(&told, "cookie") == ["mine=1; yours=2"], "{told}");
    ensure!(header(&told, "authorization") == ["Basic eDp5"], "{told}");
    for name in ["x-api-key", "x-wakeful-tenant", "x-hop", "x-forwarded-prefix"] {
        ensure!(header(&told, name).is_empty(), "{name}: {told}");
    }
    let cookies = place.get("/headers").send().await?.headers()["set-cookie"].to_str()?.to_owned();
    ensure!(cookies == "mine=1; Path=/", "{cookies}");

    let response = place.by_path("/headers?a=1").header("Cookie", "mine=1").send().await?;
    let csp = response.headers()["content-security-policy"].to_str()?;
    ensure!(csp == "sandbox allow-scripts allow-forms" && !response.headers().contains_key("set-cookie"));
    let told: Value = response.json().await?;
    let prefix = format!("/v1/sandboxes/{}/ports/{PORT}", place.id);
    ensure!(told["path"] == "/headers?a=1" && header(&told, "x-forwarded-prefix") == [prefix], "{told}");
    ensure!(header(&told, "cookie").is_empty(), "{told}");
    ensure!(place.by_path("/").send().await?.text().await? == "hello from inside");

    // What a preview's host is asked for never reaches the API, and other names are no previews.
    ensure!(place.get("/v1/info").send().await?.text().await? == "hello from inside");
    for host in ["3000-abc.localhost", "0-aaaaaaaaaaaaaaaaaaaa.localhost"] {
        let asked = place.http.get(place.daemon.url()).header("Host", host);
        ensure!(code(asked).await?.0 == 404, "{host}");
    }
    let other = place.host().replacen("3000", "3001", 1);
    let asked = place.http.get(place.daemon.url()).header("Host", other);
    ensure!(code(asked).await? == (502, "port_not_open".into()));
    ensure!(code(place.get("/garbage")).await? == (502, "bad_gateway".into()));
    // gRPC to a service that does not speak it.
    let grpc = place.request(reqwest::Method::POST, "/").header("Content-Type", "application/grpc");
    ensure!(code(grpc).await? == (502, "bad_gateway".into()));
    // A page of another origin must not drive a service of a daemon without keys.
    let foreign = place.get("/").header("Origin", "http://evil.example");
    ensure!(code(foreign).await? == (403, "foreign_origin".into()));
    let own = place.get("/").header("Origin", format!("http://{}", place.host()));
    ensure!(own.send().await?.status().is_success());

    // Counted as what they are.
    let metrics = place.http.get(format!("{}/metrics", place.daemon.url())).send().await?.text().await?;
    let counted = |route: &str, status: u16| {
        metrics
            .contains(&format!("wakeful_http_requests_total{{route=\"{route}\",method=\"GET\",status=\"{status}\"}}"))
    };
    ensure!(counted("preview", 200) && counted("preview", 502) && !metrics.contains("route=\"none\""), "{metrics}");
    ensure!(counted("/v1/sandboxes/{id}/ports/{port}/{*path}", 200), "{metrics}");

    // The port as the API and the command line tell it.
    let port = answer(place.by_path("")).await?;
    ensure!(port == json!({"port": PORT, "public": false, "url": format!("http://{}/", place.host())}), "{port}");
    let done = |args: &'static [&'static str]| {
        let mut command = place.daemon.command();
        command.args(["sandbox", args[0], &place.id]).args(&args[1..]);
        async move {
            let output = tokio::task::spawn_blocking(move || command.output()).await??;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Ok(String::from_utf8(output.stdout)?)
        }
    };
    ensure!(done(&["url", "3000"]).await?.trim() == format!("http://{}/", place.host()));
    done(&["port", "3000", "--public"]).await?;
    let table = done(&["ports"]).await?;
    ensure!(table.lines().any(|line| line.contains("3000") && line.contains("public")), "{table}");
    ensure!(answer(place.by_path("")).await?["public"] == true);
    done(&["port", "3000", "--private"]).await?;
    ensure!(answer(place.by_path("")).await?["public"] == false);
    Ok(())
}

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

#[tokio::test]
async fn a_browser_gets_a_page_for_a_refusal() -> Result<()> {
    let place = Place::start(json!({})).await?;
    let ask = |host: &str| place.http.get(place.daemon.url()).header("Host", host);
    let nothing_there = place.host().replacen("3000", "3001", 1);
    let by_path = format!("{}/v1/sandboxes/{}/ports/3001/", place.daemon.url(), place.id);
    let asked = [
        (ask(&nothing_there), 502, "port_not_open"),
        (place.http.get(by_path), 502, "port_not_open"),
        (place.get("/garbage"), 502, "bad_gateway"),
        (ask("3000-<b>&'.localhost"), 404, "route_not_found"),
    ];
    for (request, status, wanted) in asked {
        let again = request.try_clone().context("it has no body")?;
        let response = timeout(SOON, request.header("Accept", BROWSER).send()).await??;
        ensure!(response.status() == status, "{response:?}");
        let header =
            |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        ensure!(header("content-type") == "text/html; charset=utf-8" && header("cache-control") == "no-store");
        ensure!(header("content-security-policy").starts_with("default-src 'none'"), "{response:?}");
        let id = header("x-request-id").to_owned();
        let page = response.text().await?;
        let shown = [format!("<title>{status} "), format!("<code>{wanted}</code>"), format!("<code>{id}</code>")];
        ensure!(shown.iter().all(|text| page.contains(text)) && page.contains("What to do: "), "{page}");
        for never in ["<b>", "<script", "src=", "href="] {
            ensure!(!page.contains(never), "{page}");
        }
        ensure!(code(again).await? == (status, wanted.to_owned()), "programs get JSON");
    }
    // The API is no preview.
    let response = place.http.get(format!("{}/v1/sandboxes/x", place.daemon.url())).header("Accept", BROWSER);
    ensure!(response.send().await?.headers()["content-type"] == "application/problem+json");
    Ok(())
}

#[tokio::test]
async fn large_bodies_and_events() -> Result<()> {
    let place = Place::start(json!({})).await?;
    let body = pattern(LARGE);
    let wanted = json!({"sha256": hex(&Sha256::digest(&body)), "length": LARGE});
    let up = answer(place.request(reqwest::Method::POST, "/up").body(body.clone())).await?;
    ensure!(up == wanted, "{up}");
    let pieces: Vec<Result<Vec<u8>, std::io::Error>> = body.chunks(100_000).map(|piece| Ok(piece.to_vec())).collect();
    let stream = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let up = answer(place.request(reqwest::Method::POST, "/up").body(stream)).await?;
    ensure!(up == wanted, "{up}");
    let down = timeout(SOON, place.get(&format!("/down/{LARGE}")).send()).await??;
    ensure!(down.content_length() == Some(LARGE as u64));
    ensure!(down.bytes().await? == body, "other bytes came");
    // Events come one by one, not when all are there.
    let began = Instant::now();
    let mut events = timeout(SOON, place.get("/events").send()).await??;
    let first = timeout(SOON, events.chunk()).await??.context("an event")?;
    ensure!(first == "data: 0\n\n" && began.elapsed() < Duration::from_secs(4), "{first:?} {:?}", began.elapsed());
    let rest = timeout(SOON, events.text()).await??;
    ensure!(rest == "data: 1\n\ndata: 2\n\ndata: 3\n\n", "{rest:?}");
    Ok(())
}

#[tokio::test]
async fn http2_is_understood() -> Result<()> {
    let place = Place::start(json!({})).await?;
    let stream = TcpStream::connect(place.address()?).await?;
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let pieces = futures_util::stream::iter(
        (0..40)
            .map(|_| Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(bytes::Bytes::from(vec![7; 50_000])))),
    );
    let request = http::Request::post(format!("http://{}/up", place.host())).body(StreamBody::new(pieces))?;
    let response = timeout(SOON, send.send_request(request)).await??;
    ensure!(response.version() == http::Version::HTTP_2 && response.status() == 200);
    let told: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
    ensure!(told["length"] == 2_000_000, "{told}");

    // A WebSocket over HTTP/2, as RFC 8441 has it.
    let stream = TcpStream::connect(place.address()?).await?;
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tasks.spawn(async move { drop(connection.await) });
    let mut request = http::Request::builder().method("CONNECT").uri(format!("http://{}/ws", place.host()));
    request = request.header("Sec-WebSocket-Version", "13");
    let mut request = request.body(http_body_util::Empty::<bytes::Bytes>::new())?;
    request.extensions_mut().insert(hyper::ext::Protocol::from_static("websocket"));
    // The server must have said first that it can.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut response = timeout(SOON, send.send_request(request)).await??;
    ensure!(response.status() == 200, "{response:?}");
    let upgraded = TokioIo::new(hyper::upgrade::on(&mut response).await?);
    let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
    timeout(SOON, socket.send(Message::text("hello"))).await??;
    let heard = timeout(SOON, socket.next()).await?.context("an answer")??;
    ensure!(heard == Message::text("1:hello"), "{heard:?}");
    Ok(())
}

#[tokio::test]
async fn a_request_wakes_the_service_that_was_there() -> Result<()> {
    let place = Place::start(json!({})).await?;
    let client = place.daemon.client()?;
    let before = answer(place.get("/count")).await?;
    client.suspend(&place.id, true).await?;
    let after = answer(place.get("/count")).await?;
    ensure!(after["pid"] == before["pid"], "{before} {after}");
    ensure!(after["hits"].as_u64() == before["hits"].as_u64().map(|hits| hits + 1), "{before} {after}");
    ensure!(place.generation().await? == 2);
    client.suspend(&place.id, true).await?;
    let after = answer(place.by_path("/count")).await?;
    ensure!(after["pid"] == before["pid"] && place.generation().await? == 3, "{after}");
    // Asleep, and told to stay so.
    answer(
        place
            .http
            .patch(format!("{}/v1/sandboxes/{}", place.daemon.url(), place.id))
            .json(&json!({"auto_resume": false})),
    )
    .await?;
    client.suspend(&place.id, true).await?;
    ensure!(code(place.get("/")).await? == (409, "sandbox_suspended".into()));
    client.destroy_sandbox(&place.id).await?;
    ensure!(code(place.get("/")).await? == (409, "sandbox_destroyed".into()));
    let never = place.http.get(place.daemon.url()).header("Host", "3000-aaaaaaaaaaaaaaaaaaaa.localhost");
    ensure!(code(never).await? == (404, "sandbox_not_found".into()));
    Ok(())
}

#[tokio::test]
async fn a_websocket_survives_a_sleep() -> Result<()> {
    let place = Place::start(json!({})).await?;
    let client = place.daemon.client()?;
    let mut socket = place.websocket().await?;
    say(&mut socket, "one").await?;
    ensure!(hear_text(&mut socket).await? == "1:one");
    client.suspend(&place.id, true).await?;
    // Pings are answered, and wake nobody.
    timeout(SOON, socket.send(Message::Ping("there?".into()))).await??;
    ensure!(matches!(hear(&mut socket).await?, Message::Pong(payload) if payload == "there?"));
    ensure!(place.status().await? == "suspended");
    // A message does, and finds the same connection.
    say(&mut socket, "two").await?;
    ensure!(hear_text(&mut socket).await? == "2:two");
    ensure!(place.generation().await? == 2);
    timeout(SOON, socket.send(Message::Ping("inside?".into()))).await??;
    ensure!(matches!(hear(&mut socket).await?, Message::Pong(payload) if payload == "inside:inside?"));

    // Woken by somebody else, the service is heard again.
    say(&mut socket, "push 4").await?;
    say(&mut socket, "x").await?;
    ensure!(hear_text(&mut socket).await? == "4:x");
    client.suspend(&place.id, true).await?;
    client.wake(&place.id, true).await?;
    ensure!(hear_text(&mut socket).await? == "pushed");

    // Much in both directions while it is put to sleep.
    let large = "z".repeat(300_000);
    say(&mut socket, &large).await?;
    client.suspend(&place.id, true).await?;
    if !wakeful_testkit::microvm() {
        // Sockets inside may have taken all of it before the sleep: then nothing is left that would wake it.
        client.wake(&place.id, true).await?;
    }
    ensure!(hear_text(&mut socket).await? == format!("5:{large}"));
    timeout(SOON, socket.close(None)).await??;
    while let Some(Ok(message)) = timeout(SOON, socket.next()).await? {
        ensure!(message.is_close(), "{message:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_websocket_does_not_survive_a_cold_boot() -> Result<()> {
    let place = Place::start(json!({})).await?;
    let client = place.daemon.client()?;
    let mut socket = place.websocket().await?;
    say(&mut socket, "one").await?;
    ensure!(hear_text(&mut socket).await? == "1:one");
    client.suspend(&place.id, false).await?;
    client.wake(&place.id, true).await?;
    let end = timeout(SOON, socket.next()).await?;
    ensure!(!matches!(end, Some(Ok(Message::Text(_)))), "{end:?}");
    Ok(())
}

#[tokio::test]
async fn an_answer_under_way_survives_a_sleep() -> Result<()> {
    let place = Place::start(json!({})).await?;
    let client = place.daemon.client()?;
    let mut events = timeout(SOON, place.get("/events").send()).await??;
    ensure!(timeout(SOON, events.chunk()).await??.context("an event")? == "data: 0\n\n");
    client.suspend(&place.id, true).await?;
    client.wake(&place.id, true).await?;
    let rest = timeout(SOON, events.text()).await??;
    ensure!(rest == "data: 1\n\ndata: 2\n\ndata: 3\n\n", "{rest:?}");
    Ok(())
}

/// A client's program sends pings all the time; nobody says anything for a minute and a half, in the long suite
/// (`make soak`) for eleven.
#[tokio::test]
async fn an_idle_websocket_lets_it_sleep() -> Result<()> {
    let silence = Duration::from_secs(if std::env::var_os("WAKEFUL_SOAK").is_some() { 660 } else { 90 });
    let place = Place::start(json!({"idle_timeout": "20s"})).await?;
    let mut socket = place.websocket().await?;
    say(&mut socket, "one").await?;
    ensure!(hear_text(&mut socket).await? == "1:one");
    let end = Instant::now() + silence;
    let mut slept = false;
    let mut count = 0;
    while Instant::now() < end {
        let ping = format!("{count}");
        count += 1;
        timeout(SOON, socket.send(Message::Ping(ping.clone().into()))).await??;
        let Message::Pong(payload) = hear(&mut socket).await? else { bail!("no pong") };
        ensure!(String::from_utf8_lossy(&payload).ends_with(&ping), "{payload:?}");
        slept |= place.status().await? == "suspended";
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    ensure!(slept && place.status().await? == "suspended", "an idle client kept it awake");
    ensure!(place.daemon.engines().is_empty());
    say(&mut socket, "two").await?;
    ensure!(hear_text(&mut socket).await? == "2:two");
    ensure!(place.generation().await? == 2);
    Ok(())
}

#[tokio::test]
async fn a_service_at_work_is_not_put_to_sleep() -> Result<()> {
    // Silent for many times as long as it may be idle: it never sleeps meanwhile, and only then.
    let place = Place::start(json!({"idle_timeout": "4s"})).await?;
    let answer = async { Ok::<_, anyhow::Error>(timeout(SOON, place.get("/slow/24").send()).await??.text().await?) };
    let text = tokio::select! {
        text = answer => text?,
        slept = place.never_sleeps() => match slept? {},
    };
    ensure!(text == "at last", "{text:?}");
    wait_for("the sleep", SOON, || async { Ok(place.status().await? == "suspended") }).await
}

#[tokio::test]
async fn private_and_public() -> Result<()> {
    let place = Place::start(json!({})).await?;
    let daemon = &place.daemon;
    let open = daemon.client()?;
    open.create_tenant(&CreateTenant { name: "other".into(), limits: LimitsRequest::default() }).await?;
    let key = async |tenant: &str, scope: &str, by: &Client| -> Result<(String, String)> {
        let new = CreateKey { name: "test".into(), tenant: Some(tenant.into()), scopes: vec![scope.into()] };
        let made = serde_json::to_value(by.create_key(&new).await?)?;
        let text = |name: &str| made[name].as_str().map(str::to_owned).context("text");
        Ok((text("key")?, text("id")?))
    };
    let token = std::fs::read_to_string(daemon.data().join("admin.token"))?;
    let (ours, ours_id) = key("default", "sandbox:*", &open).await?;
    let admin = Client::new(daemon.url(), Some(token.trim()))?;
    let (reader, _) = key("default", "sandbox:read", &admin).await?;
    let (theirs, _) = key("other", "sandbox:*", &admin).await?;

    // Nobody, somebody else, somebody who may only look.
    for request in [place.get("/"), place.by_path("/"), place.get("/").bearer_auth("nonsense")] {
        ensure!(code(request).await? == (401, "unauthenticated".into()));
    }
    let never = place.http.get(daemon.url()).header("Host", "3000-aaaaaaaaaaaaaaaaaaaa.localhost");
    ensure!(code(never).await? == (401, "unauthenticated".into()), "what there is not is nobody's business");
    for request in [place.get("/"), place.by_path("/")] {
        ensure!(code(request.bearer_auth(&theirs)).await? == (403, "wrong_tenant".into()));
    }
    for request in [place.get("/"), place.by_path("/")] {
        ensure!(code(request.bearer_auth(&reader)).await? == (403, "forbidden".into()));
    }
    // Our own keys get in, and stay outside.
    for request in [
        place.get("/headers").bearer_auth(&ours),
        place.get("/headers").header("X-API-Key", ours.replacen("wkf_", "e2b_", 1)),
        place.get("/headers").bearer_auth(token.trim()),
        place.by_path("/headers").bearer_auth(&ours),
    ] {
        let told = answer(request).await?.to_string();
        for secret in [&ours[4..], &token.trim()[4..], "authorization", "x-api-key"] {
            ensure!(!told.contains(secret), "{told}");
        }
    }

    // A browser: a ticket, once, for a cookie.
    let session = async |by: &str| {
        answer(
            place.http.post(format!("{}/v1/sandboxes/{}/ports/{PORT}/session", daemon.url(), place.id)).bearer_auth(by),
        )
        .await
    };
    let opened = session(&ours).await?;
    let url = opened["url"].as_str().context("a url")?.to_owned();
    let query = url.strip_prefix(&format!("http://{}/", place.host())).context("the preview's address")?.to_owned();
    ensure!(query.starts_with("?wakeful_token="), "{url}");
    let redirect = place.get(&format!("/headers{query}&a=1")).send().await?;
    ensure!(redirect.status() == 303 && redirect.headers()["location"] == "/headers?a=1", "{redirect:?}");
    let cookie = redirect.headers()["set-cookie"].to_str()?.to_owned();
    for attribute in ["wakeful_preview=", "HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=43200"] {
        ensure!(cookie.contains(attribute), "{cookie}");
    }
    ensure!(!cookie.contains("Domain"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
    let mut with = HeaderMap::new();
    with.insert("cookie", HeaderValue::try_from(format!("mine=1; {cookie}"))?);
    let told = answer(place.get("/headers").headers(with.clone()).bearer_auth("the-service-s-own")).await?;
    ensure!(!told.to_string().contains("wakeful_preview") && told.to_string().contains("mine=1"), "{told}");
    ensure!(told.to_string().contains("Bearer the-service-s-own"), "{told}");
    ensure!(code(place.get(&format!("/headers{query}"))).await?.0 == 401, "a ticket is good once");
    // For this port only, and not for other pages.
    let other = place.host().replacen("3000", "3001", 1);
    let elsewhere = place.http.get(daemon.url()).header("Host", other).headers(with.clone());
    ensure!(code(elsewhere).await? == (401, "unauthenticated".into()));
    let page = place.get("/").headers(with.clone()).header("Origin", "http://3000-evil.localhost");
    ensure!(code(page).await? == (403, "foreign_origin".into()));
    let forged = place.get("/").header("Cookie", "wakeful_preview=9999999999.admin.00");
    ensure!(code(forged).await? == (401, "unauthenticated".into()));
    let refused = place.http.post(format!("{}/v1/sandboxes/{}/ports/{PORT}/session", daemon.url(), place.id));
    ensure!(code(refused.bearer_auth(&theirs)).await? == (403, "wrong_tenant".into()));

    // Public: everybody, and still no key gets inside.
    let put = |public: bool, by: &str| {
        let request = place.http.put(format!("{}/v1/sandboxes/{}/ports/{PORT}", daemon.url(), place.id));
        request.bearer_auth(by).json(&json!({"public": public}))
    };
    ensure!(code(put(true, &theirs)).await? == (403, "wrong_tenant".into()));
    ensure!(code(put(true, &reader)).await? == (403, "forbidden".into()));
    ensure!(answer(put(true, &ours)).await?["public"] == true);
    for request in [place.get("/headers"), place.by_path("/headers"), place.get("/headers").bearer_auth(&theirs)] {
        let told = answer(request).await?.to_string();
        ensure!(!told.contains("authorization"), "{told}");
    }
    let ports =
        answer(place.http.get(format!("{}/v1/sandboxes/{}/ports", daemon.url(), place.id)).bearer_auth(&reader))
            .await?;
    ensure!(ports["ports"].as_array().is_some_and(|all| all.len() == 1 && all[0]["port"] == PORT), "{ports}");
    let gone = place.http.delete(format!("{}/v1/sandboxes/{}/ports/{PORT}", daemon.url(), place.id)).bearer_auth(&ours);
    ensure!(gone.send().await?.status() == 204);
    ensure!(code(place.get("/")).await?.0 == 401);
    // A cookie ends with its key.
    ensure!(place.get("/").headers(with.clone()).send().await?.status() == 200);
    admin.delete_key(&ours_id).await?;
    ensure!(code(place.get("/").headers(with)).await?.0 == 401);
    Ok(())
}

#[tokio::test]
async fn what_was_said_of_a_port_outlives_the_daemon() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    ensure!(run(&client, &id, "true").await?.exit_code == 0);
    let http = reqwest::Client::builder().no_proxy().build()?;
    let url = |daemon: &Daemon, rest: &str| format!("{}/v1/sandboxes/{id}/ports{rest}", daemon.url());
    answer(http.put(url(&daemon, "/8000")).json(&json!({"public": true}))).await?;
    for (body, wanted) in
        [(json!({}), "missing_field"), (json!({"public": 1}), "invalid_field"), (json!({"x": 1}), "unknown_field")]
    {
        ensure!(code(http.put(url(&daemon, "/8000")).json(&body)).await? == (400, wanted.into()), "{body}");
    }
    ensure!(code(http.get(url(&daemon, "/0"))).await? == (400, "invalid_field".into()));
    daemon.kill()?;
    daemon.start_again(Options::default()).await?;
    let ports = answer(http.get(url(&daemon, ""))).await?;
    ensure!(ports["ports"][0]["public"] == true, "{ports}");
    daemon.client()?.destroy_sandbox(&id).await?;
    ensure!(code(http.get(url(&daemon, ""))).await? == (409, "sandbox_destroyed".into()));
    Ok(())
}
