//! HTTPS on the same port: certificates, both HTTP versions, reload.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wakeful_client::Client;
use wakeful_client::types::CreateKey;
use wakeful_testkit::{Daemon, Options};

use crate::outside::on_a_host;
use crate::support::{persistent, wait_for};
use crate::wire::{SOON, answer};

/// Writes a self-signed certificate for the domain and all names below it, with its key.
fn certify(dir: &Path) -> Result<(CertificateDer<'static>, String)> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "*.sandboxes.test".to_owned()])?;
    // The key first: whoever looks in between finds a pair that does not fit, and keeps the one before.
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem())?;
    std::fs::write(dir.join("cert.pem"), made.cert.pem())?;
    Ok((made.cert.der().clone(), made.cert.pem()))
}

async fn connect(
    daemon: &Daemon,
    name: &str,
    known: &CertificateDer<'static>,
    alpn: &[u8],
) -> Result<TlsStream<TcpStream>> {
    secured(TcpStream::connect(daemon.url().trim_start_matches("http://")).await?, name, known, alpn).await
}

async fn secured(
    stream: TcpStream,
    name: &str,
    known: &CertificateDer<'static>,
    alpn: &[u8],
) -> Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(known.clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = ServerName::try_from(name.to_owned())?;
    Ok(timeout(SOON, TlsConnector::from(Arc::new(config)).connect(name, stream)).await??)
}

type Answer = (http::Version, u16, Value);

async fn over_http1(stream: TlsStream<TcpStream>, host: &str) -> Result<Answer> {
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let request = http::Request::get("/healthz").header("Host", host).body(Empty::<bytes::Bytes>::new())?;
    let response = timeout(SOON, send.send_request(request)).await??;
    let (version, status) = (response.version(), response.status().as_u16());
    Ok((version, status, serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?))
}

async fn over_http2(stream: TlsStream<TcpStream>, host: &str) -> Result<Answer> {
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let request = http::Request::get(format!("https://{host}/healthz")).body(Empty::<bytes::Bytes>::new())?;
    let response = timeout(SOON, send.send_request(request)).await??;
    let (version, status) = (response.version(), response.status().as_u16());
    Ok((version, status, serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?))
}

#[tokio::test]
async fn https_and_a_new_certificate() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (first, pem) = certify(dir.path())?;
    let config = format!(
        "domain = \"sandboxes.test\"\n[tls]\ncert = {:?}\nkey = {:?}\n",
        dir.path().join("cert.pem").display().to_string(),
        dir.path().join("key.pem").display().to_string()
    );
    // This machine's own programs may still speak in the clear: the test kit itself does.
    let daemon = Daemon::start_with(Options::default().config(&config)).await?;
    let (version, status, health) =
        over_http1(connect(&daemon, "localhost", &first, b"http/1.1").await?, "localhost").await?;
    ensure!((version, status) == (http::Version::HTTP_11, 200) && health["status"] == "ok", "{health}");
    let stream = connect(&daemon, "localhost", &first, b"h2").await?;
    ensure!(stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice()));
    let (version, status, health) = over_http2(stream, "localhost").await?;
    ensure!((version, status) == (http::Version::HTTP_2, 200) && health["status"] == "ok", "{health}");

    // A preview's name, with the wildcard; nothing listens there.
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let host = format!("3000-{}.sandboxes.test", id.trim_start_matches("sbx_"));
    for http2 in [false, true] {
        let stream = connect(&daemon, &host, &first, if http2 { b"h2" } else { b"http/1.1" }).await?;
        let (_, status, problem) =
            if http2 { over_http2(stream, &host).await? } else { over_http1(stream, &host).await? };
        ensure!(status == 502 && problem["code"] == "port_not_open", "{problem}");
    }
    let http = reqwest::Client::builder().no_proxy().build()?;
    let port = answer(http.get(format!("{}/v1/sandboxes/{id}/ports/3000", daemon.url()))).await?;
    let listening = daemon.url().rsplit(':').next().context("a port")?.to_owned();
    ensure!(port["url"] == format!("https://{host}:{listening}/"), "{port}");
    // The client and the command line, given the authority.
    let url = format!("https://localhost:{listening}");
    Client::with_authority(&url, None, Some(pem.as_bytes()))?.health().await?;
    ensure!(Client::new(&url, None)?.health().await.is_err(), "nobody vouches for it");
    let mut command = daemon.command();
    command.env("WAKEFUL_URL", &url).env("WAKEFUL_CA_CERT", dir.path().join("cert.pem")).args(["sandbox", "list"]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains(&id), "{output:?}");

    // A broken pair changes nothing, a whole one is taken without a restart.
    std::fs::write(dir.path().join("cert.pem"), "nothing of the kind")?;
    wait_for("the warning", SOON, || async { Ok(daemon.log().contains("the one before stays")) }).await?;
    connect(&daemon, "localhost", &first, b"h2").await?;
    let (second, _) = certify(dir.path())?;
    wait_for("the new certificate", SOON, || async { Ok(connect(&daemon, "localhost", &second, b"h2").await.is_ok()) })
        .await?;
    ensure!(connect(&daemon, "localhost", &first, b"h2").await.is_err());
    // SIGHUP is no end.
    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.pid())?).context("a process id")?;
    rustix::process::kill_process(pid, rustix::process::Signal::HUP)?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    daemon.client()?.health().await?;
    Ok(())
}

/// In the clear, from wherever the stream comes: status, `Location` and text.
async fn in_the_clear(stream: TcpStream, host: &str, http2: bool) -> Result<(u16, Option<String>, String)> {
    let mut tasks = tokio::task::JoinSet::new();
    let (stream, empty) = (TokioIo::new(stream), Empty::<bytes::Bytes>::new());
    let response = if http2 {
        let (mut send, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
        tasks.spawn(async move { drop(connection.await) });
        let request = http::Request::get(format!("http://{host}/healthz?a=1")).body(empty)?;
        timeout(SOON, send.send_request(request)).await??
    } else {
        let (mut send, connection) = hyper::client::conn::http1::handshake(stream).await?;
        tasks.spawn(async move { drop(connection.await) });
        let request = http::Request::get("/healthz?a=1").header("Host", host).body(empty)?;
        timeout(SOON, send.send_request(request)).await??
    };
    let status = response.status().as_u16();
    let target = response.headers().get("location").map(|value| value.to_str().map(str::to_owned)).transpose()?;
    let text = response.into_body().collect().await?.to_bytes();
    Ok((status, target, String::from_utf8(text.to_vec())?))
}

#[test]
fn strangers_in_the_clear_are_sent_to_https() -> Result<()> {
    on_a_host(async |world| {
        let dir = tempfile::tempdir()?;
        let (certificate, _) = certify(dir.path())?;
        let config = format!(
            "domain = \"sandboxes.test\"\n[tls]\ncert = {:?}\nkey = {:?}\n",
            dir.path().join("cert.pem").display().to_string(),
            dir.path().join("key.pem").display().to_string()
        );
        // Nobody listens to the world without a key.
        let mut daemon = Daemon::start().await?;
        let key = CreateKey { name: "test".into(), tenant: None, scopes: vec!["sandbox:*".into()] };
        daemon.client()?.create_key(&key).await?;
        ensure!(daemon.terminate().await? == Some(0), "{}", daemon.log());
        daemon.start_again(Options::default().config(&config).listen("0.0.0.0:0")).await?;

        let port: u16 = daemon.url().rsplit(':').next().context("a port")?.parse()?;
        let from_outside = || {
            let stream = world.at_outside(|| Ok(std::net::TcpStream::connect(("203.0.113.1", port))?))?;
            stream.set_nonblocking(true)?;
            Ok::<_, anyhow::Error>(TcpStream::from_std(stream)?)
        };
        for host in [format!("203.0.113.1:{port}"), format!("3000-aaaaaaaaaaaaaaaaaaaa.sandboxes.test:{port}")] {
            for http2 in [false, true] {
                let (status, target, text) = in_the_clear(from_outside()?, &host, http2).await?;
                ensure!((status, target) == (308, Some(format!("https://{host}/healthz?a=1"))), "{status} {text}");
                ensure!(text == "this port speaks https\n", "{text}");
            }
        }
        // This host by another address than loopback is no better.
        let own = TcpStream::connect(("203.0.113.1", port)).await?;
        ensure!(in_the_clear(own, "localhost", false).await?.0 == 308);
        // Where they are sent to they are answered.
        let stream = secured(from_outside()?, "localhost", &certificate, b"h2").await?;
        let (_, status, health) = over_http2(stream, "localhost").await?;
        ensure!(status == 200 && health["status"] == "ok", "{health}");
        // And by loopback in the clear.
        for http2 in [false, true] {
            let near = TcpStream::connect(("127.0.0.1", port)).await?;
            let (status, _, text) = in_the_clear(near, "localhost", http2).await?;
            ensure!(status == 200 && text.contains("\"ok\""), "{status} {text}");
        }
        Ok(())
    })
}

#[tokio::test]
async fn a_certificate_that_cannot_be_read_is_an_error() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut command = std::process::Command::new(wakeful_testkit::wakeful_binary());
    std::fs::write(
        dir.path().join("config.toml"),
        "[tls]\ncert = \"/nowhere/cert.pem\"\nkey = \"/nowhere/key.pem\"\n",
    )?;
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path().join("data"));
    command.arg("--config").arg(dir.path().join("config.toml"));
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1) && said.contains("/nowhere/cert.pem"), "{} {said}", output.status);
    Ok(())
}
