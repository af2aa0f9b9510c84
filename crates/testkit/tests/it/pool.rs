//! The warm pool on real engines: a claim is a sandbox like any other, and what nobody claims is in nobody's way.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use serde_json::{Value, json};
use wakeful_api_types::Pool;
use wakeful_client::{Client, ListQuery};
use wakeful_testkit::{Daemon, Options};

use crate::outside::{Guest, on_a_host};
use crate::support::{create, persistent, run, sh, wait_for, wait_for_golden};

const SIZE: &str = "shared-cpu-1x";
/// Longer than a member or a golden snapshot takes on a busy machine.
const MADE: Duration = Duration::from_secs(90);
const CLAIMED: &str = "claimed from the pool";

/// A configuration that keeps so many of a template ready.
fn pool_of(template: &str, target: u32) -> String {
    format!("[pool]\nenabled = true\nreplenish_interval = \"300ms\"\n[pool.sizes]\n{template} = {target}\n")
}

async fn started(config: &str) -> Result<(Daemon, Client)> {
    let daemon = Daemon::start_with(Options::default().config(config)).await?;
    let client = daemon.client()?;
    Ok((daemon, client))
}

async fn pool(client: &Client, template: &str) -> Result<Pool> {
    let pools = client.pools().await?.pools;
    let pool = pools.into_iter().find(|pool| pool.template == template && pool.size == SIZE);
    pool.with_context(|| format!("a pool of {template}"))
}

async fn filled(client: &Client, template: &str, members: u32) -> Result<()> {
    wait_for("the pool", MADE, async || {
        let pool = pool(client, template).await?;
        Ok(pool.ready == members && pool.memory_mb == u64::from(members) * 256)
    })
    .await
}

/// How a sandbox came to be, if not as a clone.
async fn how(client: &Client, id: &str) -> Result<Option<String>> {
    let page = serde_json::to_value(client.events(id, 0, 10).await?)?;
    ensure!(page["events"][0]["type"] == "created", "{page}");
    Ok(page["events"][0]["detail"]["message"].as_str().map(str::to_owned))
}

/// A figure of the pool.
async fn figure(daemon: &Daemon, name: &str) -> Result<f64> {
    let text = reqwest::get(format!("{}/metrics", daemon.url())).await?.text().await?;
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(SIZE));
    let line = line.with_context(|| format!("{name} is not in\n{text}"))?;
    Ok(line.rsplit(' ').next().context("a number")?.parse()?)
}

#[tokio::test]
async fn claims_have_all_of_their_own() -> Result<()> {
    let (daemon, client) = started(&pool_of("python", 2)).await?;
    filled(&client, "python", 2).await?;
    ensure!(client.sandboxes(&ListQuery::default()).await?.sandboxes.is_empty(), "members are no sandboxes");
    ensure!(figure(&daemon, "wakeful_pool_ready").await? == 2.0);
    let mut seen = Vec::new();
    for number in 0..2 {
        let env = json!({"template": "python", "env": {"MARK": format!("mark {number}")}});
        let more = json!({"mode": "persistent", "idle_timeout": "1h"});
        let request = [env, more].into_iter().fold(json!({}), |mut all, one| {
            if let (Value::Object(all), Value::Object(one)) = (&mut all, one) {
                all.extend(one);
            }
            all
        });
        let id = create(&client, request).await?.id.to_string();
        ensure!(how(&client, &id).await?.as_deref() == Some(CLAIMED), "{:?}", how(&client, &id).await?);
        let bare = id.strip_prefix("sbx_").context("an id")?;
        ensure!(sh(&client, &id, "echo $MARK $WAKEFUL_SANDBOX_ID").await? == format!("mark {number} {id}"));
        ensure!(sh(&client, &id, "hostname").await? == bare);
        wait_for("its name", Duration::from_secs(10), async || {
            Ok(run(&client, &id, "getent hosts $(hostname)").await?.exit_code == 0)
        })
        .await?;
        let random = "cat /proc/sys/kernel/random/uuid 2>/dev/null || cat /proc/sys/kernel/hostname; \
                      python3 -c 'import os, random, uuid; print(os.getrandom(16).hex(), uuid.uuid4(), random.random())'";
        seen.push(sh(&client, &id, random).await?);
        let skew = sh(&client, &id, "date +%s").await?.parse::<i64>()? - seconds_now();
        ensure!(skew.abs() <= 2, "its clock is {skew} s off");
        sh(&client, &id, "echo memory > /dev/shm/mark").await?;
        client.suspend(&id, true).await?;
        ensure!(sh(&client, &id, "cat /dev/shm/mark; echo $MARK").await? == format!("memory\nmark {number}"));
        ensure!(client.sandbox(&id).await?.restored_memory == Some(true));
        if number == 0 {
            let processes = client.processes(&id).await?.processes;
            ensure!(processes.len() <= 8, "nothing of before is told: {processes:?}");
        }
    }
    let words: Vec<&str> = seen.iter().flat_map(|text| text.split_whitespace()).collect();
    ensure!(words.len() == 8 && words.iter().collect::<HashSet<_>>().len() == 8, "{words:?}");
    ensure!(pool(&client, "python").await?.claimed == 2);
    ensure!(figure(&daemon, "wakeful_pool_claimed").await? == 2.0);
    Ok(())
}

fn seconds_now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or_default()
}

#[test]
fn the_egress_of_a_claim_holds() -> Result<()> {
    on_a_host(async |_world| {
        let options = crate::outside::options();
        let config = options.config.clone().unwrap_or_default() + "\n" + &pool_of("python", 3);
        let daemon = Daemon::start_with(options.config(&config)).await?;
        let client = daemon.client()?;
        filled(&client, "python", 3).await?;
        for (egress, open) in [
            (json!(null), true),
            (json!({"mode": "deny_all"}), false),
            (json!({"allow_cidrs": ["203.0.113.11/32"]}), true),
        ] {
            let id = create(&client, json!({"template": "python", "egress": egress})).await?.id.to_string();
            ensure!(how(&client, &id).await?.as_deref() == Some(CLAIMED));
            let guest = Guest::new(&client, &id).await?;
            if open {
                guest.reaches("http 203.0.113.11", "203.0.113.11 203.0.113.11").await?;
            } else {
                guest.is_refused("tcp 203.0.113.11 80").await?;
            }
            if egress.is_null() {
                guest.reaches("tcp 203.0.113.10 9000", "hello").await?;
            } else {
                guest.is_refused("tcp 203.0.113.10 9000").await?;
            }
        }
        ensure!(client.put_pool("python", SIZE, 0).await?.target == 0);
        for sandbox in client.sandboxes(&ListQuery::default()).await?.sandboxes {
            client.destroy_sandbox(sandbox.id.as_str()).await?;
        }
        filled(&client, "python", 0).await?;
        ensure!(daemon.places().is_empty(), "{:?}", daemon.places());
        Ok(())
    })
}

#[tokio::test]
async fn an_empty_pool_and_a_dead_member_are_nobodys_business() -> Result<()> {
    let (daemon, client) = started(&pool_of("base", 1)).await?;
    filled(&client, "base", 1).await?;
    let made = join_all((0..4).map(|_| persistent(&client, "base"))).await;
    let ids = made.into_iter().map(|one| Ok(one?.id.to_string())).collect::<Result<HashSet<String>>>()?;
    ensure!(ids.len() == 4);
    let mut hows = Vec::new();
    for id in &ids {
        ensure!(sh(&client, id, "echo usable").await? == "usable");
        hows.push(how(&client, id).await?);
    }
    ensure!(hows.iter().any(|how| how.as_deref() == Some(CLAIMED)), "{hows:?}");
    ensure!(figure(&daemon, "wakeful_pool_misses").await? >= 1.0, "{hows:?}");

    filled(&client, "base", 1).await?;
    let before: HashSet<u32> = ids.iter().filter_map(|id| daemon.engine_pid(id)).collect();
    let member = daemon.engines().into_iter().find(|pid| !before.contains(pid)).context("a member")?;
    let pid = rustix::process::Pid::from_raw(i32::try_from(member)?).context("a pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let id = persistent(&client, "base").await?.id.to_string();
    ensure!(sh(&client, &id, "echo usable").await? == "usable");
    filled(&client, "base", 1).await
}

#[tokio::test]
async fn what_was_set_outlives_the_daemon_and_members_do_not() -> Result<()> {
    let (mut daemon, client) = started("").await?;
    ensure!(client.pools().await?.pools.is_empty());
    let said = daemon.command().args(["pool", "set", "base", "2"]).output()?;
    ensure!(said.status.success(), "{said:?}");
    ensure!(String::from_utf8(said.stdout)?.lines().next().is_some_and(|line| line.starts_with("TEMPLATE")));
    filled(&client, "base", 2).await?;
    let listed = daemon.command().args(["sandbox", "pool", "--json"]).output()?;
    let listed: Value = serde_json::from_slice(&listed.stdout)?;
    let line = json!([{"template": "base", "size": SIZE, "ready": 2, "claimed": 0, "target": 2, "memory_mb": 512}]);
    ensure!(listed == line, "{listed}");
    let (before, places) = (daemon.engines(), daemon.places());
    ensure!(before.len() == 2, "{before:?}");

    daemon.kill()?;
    ensure!(daemon.engines() == before, "engines outlive it");
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    filled(&client, "base", 2).await?;
    ensure!(daemon.engines().iter().all(|pid| !before.contains(pid)), "they are others");
    let now: HashSet<String> = daemon.places().into_iter().collect();
    ensure!(places.iter().all(|place| !now.contains(place) || place.contains("/net/")), "{places:?} {now:?}");

    // One that ends in peace takes them along, and the next has them again.
    ensure!(daemon.terminate().await? == Some(0), "{}", daemon.log());
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    filled(&client, "base", 2).await?;
    client.put_pool("base", SIZE, 0).await?;
    wait_for("an empty pool", MADE, async || Ok(daemon.engines().is_empty() && daemon.places().is_empty())).await
}

#[tokio::test]
async fn members_make_room() -> Result<()> {
    let (daemon, client) = started(&format!("[limits]\nmemory_mb = 600\n{}", pool_of("base", 3))).await?;
    filled(&client, "base", 2).await?;
    // The first of its size, beside: it boots, and the snapshot for the next is made when that is done.
    let large = create(&client, json!({"size": "shared-cpu-2x", "mode": "persistent", "idle_timeout": "1h"})).await?;
    let large = large.id.to_string();
    let (told, microvm) = (how(&client, &large).await?, wakeful_testkit::microvm());
    ensure!(!microvm || told.as_deref().is_some_and(|how| how.starts_with("booted")), "{told:?}");
    ensure!(pool(&client, "base").await?.ready == 0, "{:?}", pool(&client, "base").await?);
    sh(&client, &large, "echo memory > /dev/shm/mark").await?;
    if microvm {
        wait_for_golden(&daemon, "c1-m512-d2048").await?;
    }
    client.suspend(&large, true).await?;
    let second = create(&client, json!({"size": "shared-cpu-2x"})).await?.id.to_string();
    ensure!(how(&client, &second).await?.is_none(), "a clone");
    client.destroy_sandbox(&second).await?;
    filled(&client, "base", 2).await?;
    ensure!(sh(&client, &large, "cat /dev/shm/mark").await? == "memory", "a wake takes the room too");
    ensure!(client.sandbox(&large).await?.restored_memory == Some(true));
    Ok(())
}
