//! Keys, tenants and limits: a real daemon, by the command line and over HTTP.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use wakeful_client::types::{CreateKey, CreateTenant, LimitsRequest};
use wakeful_client::{Client, ListQuery};
use wakeful_testkit::{Daemon, Options, wakeful_binary};

use crate::support::{code_of, persistent, sh, wait_for};

/// `wakeful …` on a data directory, with no server named.
async fn here(data: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(wakeful_binary());
    command.args(args).env("WAKEFUL_DATA_DIR", data).env("NO_COLOR", "1").stdin(Stdio::null());
    for name in ["WAKEFUL_URL", "WAKEFUL_API_KEY", "WAKEFUL_CONFIG"] {
        command.env_remove(name);
    }
    // Nobody's own file may name a server.
    command.env("HOME", data);
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

async fn done(data: &Path, args: &[&str]) -> Result<String> {
    let output = here(data, args).await?;
    ensure!(output.status.success(), "{args:?}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

async fn key_of(admin: &Client, tenant: &str) -> Result<String> {
    let new = CreateKey { name: "test".into(), tenant: Some(tenant.into()), scopes: vec!["sandbox:*".into()] };
    let created = serde_json::to_value(admin.create_key(&new).await?)?;
    Ok(created["key"].as_str().context("the key")?.to_owned())
}

#[tokio::test]
async fn keys_with_and_without_a_daemon() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let data = daemon.data().to_owned();
    let list = async |client: Client| client.sandboxes(&ListQuery::default()).await;
    let with = |daemon: &Daemon, key: &str| Client::new(daemon.url(), Some(key));
    list(daemon.client()?).await?;

    // The daemon has the directory, so it makes the key, and asks for one from then on.
    let first = done(&data, &["key", "create", "--name", "ci"]).await?;
    let first = first.strip_suffix('\n').context("one line")?;
    ensure!(first.starts_with("wkf_") && first.len() == 44, "{first}");
    ensure!(code_of(list(daemon.client()?).await) == "unauthenticated");
    list(with(&daemon, first)?).await?;
    daemon.client()?.health().await?;

    // Whoever can read the directory is admin; the token is found, and goes to that daemon only.
    let token = std::fs::read_to_string(data.join("admin.token"))?;
    ensure!(std::fs::metadata(data.join("admin.token"))?.permissions().mode() & 0o777 == 0o600);
    let url = daemon.url().to_owned();
    done(&data, &["--api-url", &url, "sandbox", "list"]).await?;
    let strange = tempfile::tempdir()?;
    let refused = here(strange.path(), &["--api-url", &url, "--json", "sandbox", "list"]).await?;
    let problem: Value = serde_json::from_slice(&refused.stdout)?;
    ensure!(refused.status.code() == Some(1) && problem["code"] == "unauthenticated", "{refused:?}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?;
    let elsewhere = format!("http://{}", nobody.local_addr()?);
    let heard = tokio::task::spawn_blocking(move || -> Result<String> {
        use std::io::Read as _;
        let (mut caller, _) = nobody.accept()?;
        caller.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut heard = vec![0; 4096];
        let length = caller.read(&mut heard)?;
        Ok(String::from_utf8_lossy(&heard[..length]).into_owned())
    });
    here(&data, &["--api-url", &elsewhere, "sandbox", "list"]).await?;
    let heard = heard.await??;
    ensure!(heard.starts_with("GET /v1/sandboxes") && !heard.contains("wka_"), "{heard}");

    let keys: Value = serde_json::from_str(&done(&data, &["key", "list", "--json"]).await?)?;
    let id = keys[0]["id"].as_str().context("an id")?.to_owned();
    ensure!(keys.as_array().is_some_and(|all| all.len() == 1) && keys[0]["name"] == "ci", "{keys}");
    let table = done(&data, &["key", "list"]).await?;
    ensure!(table.starts_with("ID") && table.contains(&id) && !table.contains(&first[4..]), "{table}");

    // A key outlives the daemon, and so does its end.
    ensure!(daemon.terminate().await? == Some(0));
    let second = done(&data, &["key", "create", "--name", "made-without-a-daemon", "--scope", "sandbox:read"]).await?;
    daemon.start_again(Options::default()).await?;
    list(with(&daemon, first)?).await?;
    list(with(&daemon, second.trim())?).await?;
    let more =
        with(&daemon, second.trim())?.create_sandbox(&serde_json::from_value(json!({"template": "base"}))?).await;
    ensure!(code_of(more) == "forbidden");
    done(&data, &["key", "delete", &id]).await?;
    ensure!(code_of(list(with(&daemon, first)?).await) == "unauthenticated");
    list(with(&daemon, second.trim())?).await?;
    daemon.kill()?;
    daemon.start_again(Options::default()).await?;
    ensure!(code_of(list(with(&daemon, first)?).await) == "unauthenticated");
    ensure!(std::fs::read_to_string(data.join("admin.token"))? == token, "made once");

    let log = daemon.log();
    for secret in [&first[4..], &second.trim()[4..], &token.trim()[4..]] {
        ensure!(!log.contains(secret), "a secret is in the log");
    }
    let wrong = here(&data, &["key", "create", "--name", "x", "--scope", "everything"]).await?;
    ensure!(wrong.status.code() == Some(2), "{wrong:?}");
    Ok(())
}

/// In a network of its own, which nobody reaches.
#[tokio::test]
async fn a_daemon_that_others_reach_wants_a_key_first() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let serve = || {
        let mut command = Command::new("unshare");
        command.args(["--net", "--"]).arg(wakeful_binary());
        command.args(["serve", "--listen", "0.0.0.0:0", "--data-dir"]).arg(&data);
        command.env_remove("WAKEFUL_CONFIG").env("HOME", dir.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    let refused = async || -> Result<()> {
        let mut command = serve();
        let output = tokio::task::spawn_blocking(move || command.stderr(Stdio::piped()).output()).await??;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1) && said.contains("wakeful key create"), "{} {said}", output.status);
        Ok(())
    };
    refused().await?;
    ensure!(!data.exists(), "nothing was made");
    let place = ["--data-dir", data.to_str().context("utf-8")?];
    done(&data, &[&["tenant", "create", "acme"][..], &place].concat()).await?;
    refused().await?;
    let key: Value =
        serde_json::from_str(&done(&data, &[&["key", "create", "--name", "x", "--json"][..], &place].concat()).await?)?;
    let mut child = serve().stderr(Stdio::null()).spawn()?;
    let announced = wait_for("the daemon", Duration::from_secs(60), || async {
        let holder = std::fs::read(data.join("lock")).unwrap_or_default();
        let holder: Value = serde_json::from_slice(&holder).unwrap_or_default();
        Ok(holder["url"].as_str().is_some_and(|url| url.starts_with("http://127.0.0.1:")))
    })
    .await;
    // In order: its network is in a namespace that no later start would come back to.
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a pid")?;
    kill_process(pid, Signal::TERM)?;
    let ended = wait_for("its end", Duration::from_secs(60), || {
        let ended = child.try_wait();
        async move { Ok(ended?.is_some()) }
    })
    .await;
    let _ = child.kill();
    child.wait()?;
    announced?;
    ended?;
    // Without the key it refuses again.
    let id = key["id"].as_str().context("an id")?;
    done(&data, &[&["key", "delete", id][..], &place].concat()).await?;
    refused().await
}

#[tokio::test]
async fn a_tenant_has_what_it_may_have() -> Result<()> {
    let daemon = Daemon::start().await?;
    let data = daemon.data().to_owned();
    done(&data, &["tenant", "create", "acme", "--sandboxes", "2", "--memory-mb", "512"]).await?;
    let admin = daemon.client()?;
    admin.create_tenant(&CreateTenant { name: "other".into(), limits: LimitsRequest::default() }).await?;
    let key = key_of(&admin, "acme").await?;
    let token = std::fs::read_to_string(data.join("admin.token"))?;
    let admin = Client::new(daemon.url(), Some(token.trim()))?;
    let acme = Client::new(daemon.url(), Some(&key))?;
    let other = Client::new(daemon.url(), Some(&key_of(&admin, "other").await?))?;

    // A rush: no more than two, and the others are told why.
    let rush = futures_util::future::join_all((0..5).map(|_| persistent(&acme, "base"))).await;
    let (made, refused): (Vec<_>, Vec<_>) = rush.into_iter().partition(Result::is_ok);
    ensure!(made.len() == 2 && refused.len() == 3, "{} made", made.len());
    for error in refused.into_iter().filter_map(Result::err) {
        let error = error.downcast::<wakeful_client::Error>()?;
        let problem = error.problem().context("a problem")?;
        ensure!((problem.status, problem.code.as_str()) == (429, "quota_exceeded"), "{problem:?}");
        ensure!(problem.more["limit"] == "sandboxes" && problem.more["used"] == 2, "{problem:?}");
    }
    let ids: Vec<String> = made.into_iter().map(|made| made.map(|s| s.id.to_string())).collect::<Result<_>>()?;
    let [one, two] = ids.as_slice() else { anyhow::bail!("{ids:?}") };
    ensure!(sh(&acme, one, "echo hi").await? == "hi");

    // What is another's is another's, also while it runs.
    let foreign = [
        code_of(other.sandbox(one).await),
        code_of(other.suspend(one, true).await),
        code_of(other.stat(one, "/etc/hostname").await),
        code_of(other.destroy_sandbox(one).await),
        code_of(admin.sandbox(one).await),
    ];
    ensure!(foreign.iter().all(|code| code == "wrong_tenant"), "{foreign:?}");
    ensure!(other.sandboxes(&ListQuery::default()).await?.sandboxes.is_empty());
    ensure!(code_of(other.sandbox("sbx_aaaaaaaaaaaaaaaaaaaa").await) == "sandbox_not_found");
    ensure!(code_of(admin.delete_tenant("acme").await) == "tenant_in_use");

    // Memory is that of those that run, and a wake needs its share again.
    acme.suspend(one, true).await?;
    let usage = admin.tenant("acme").await?.usage;
    ensure!((usage.sandboxes, usage.memory_mb) == (2, 256), "{usage:?}");
    done(&data, &["tenant", "set", "acme", "--memory-mb", "300"]).await?;
    for code in [code_of(acme.wake(one, true).await), code_of(acme.stat(one, "/etc/hostname").await)] {
        ensure!(code == "quota_exceeded", "{code}");
    }
    ensure!(acme.sandbox(one).await?.status.to_string() == "suspended");
    acme.suspend(two, true).await?;
    ensure!(sh(&acme, one, "echo again").await? == "again");
    ensure!(code_of(acme.wake(two, true).await) == "quota_exceeded");
    done(&data, &["tenant", "set", "acme", "--memory-mb", "none"]).await?;
    ensure!(sh(&acme, two, "echo again").await? == "again");
    let table = done(&data, &["tenant", "list"]).await?;
    ensure!(table.lines().any(|line| line.split_whitespace().eq(["acme", "2/2", "512/-", "4096/-"])), "{table}");
    for id in [one, two] {
        acme.destroy_sandbox(id).await?;
    }
    ensure!(daemon.engines().is_empty(), "{:?}", daemon.places());
    Ok(())
}
