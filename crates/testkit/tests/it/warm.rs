//! Templates whose start command is kept warm: every sandbox is a copy of one in which it was ready.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use wakeful_client::Client;
use wakeful_testkit::Daemon;

use crate::support::{create, persistent, sh, wait_for};

/// Takes its time, then tells who it is to whoever asks.
const SERVICE: &str = r#"
import os, socketserver, time
time.sleep(2)
token, asked = os.urandom(8).hex(), [0]
class Tell(socketserver.StreamRequestHandler):
    def handle(self):
        asked[0] += 1
        self.wfile.write(f'{token} {os.getpid()} {asked[0]} {os.environ.get("FOR", "nobody")}'.encode())
class Server(socketserver.TCPServer):
    allow_reuse_address = True
server = Server(('127.0.0.1', 7000), Tell)
open('/tmp/ready', 'w').close()
server.serve_forever()
"#;
const ASK: &str =
    "python3 -c \"import socket; s = socket.create_connection(('127.0.0.1', 7000)); print(s.makefile().read())\"";
const WHO: &str = "hostname; echo $WAKEFUL_SANDBOX_ID; python3 -c 'import os; print(os.getrandom(16).hex())'";

/// Which start it is, which process, how often it was asked by then, and for whom.
#[derive(Debug, PartialEq)]
struct Told {
    start: String,
    pid: String,
    asked: u64,
    whom: String,
}

async fn ask(client: &Client, id: &str) -> Result<Told> {
    let text = sh(client, id, ASK).await?;
    let [start, pid, asked, whom] =
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().try_into().ok().context(text)?;
    Ok(Told { start, pid, asked: asked.parse()?, whom })
}

/// Builds a template of what a sandbox has on its disk; how that ended.
async fn build(client: &Client, name: &str, id: &str, more: Value) -> Result<Value> {
    let mut new = json!({"name": name, "source": {"kind": "sandbox", "sandbox_id": id}, "warm": true,
        "start": ["python3", "service.py"], "ready": "test -e /tmp/ready"});
    if let (Value::Object(new), Value::Object(more)) = (&mut new, more) {
        new.extend(more);
    }
    client.create_template(&serde_json::from_value(new)?).await?;
    wait_for("the build", Duration::from_secs(240), || async {
        Ok(["ready", "failed"].contains(&client.template(name).await?.status.to_string().as_str()))
    })
    .await?;
    Ok(serde_json::to_value(client.template(name).await?)?)
}

#[tokio::test]
async fn what_a_template_starts_is_running_from_the_first_moment() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let source = persistent(&client, "python").await?.id.to_string();
    sh(&client, &source, &format!("cat > ~/service.py <<'EOF'\n{SERVICE}\nEOF\n")).await?;

    // One that is never ready is found out by the build.
    let never = build(&client, "never", &source, json!({"ready": "false", "ready_timeout": "3s"})).await?;
    ensure!(never["status"] == "failed" && never["build_error"]["step"] == "start command", "{never}");

    let template = build(&client, "warm", &source, json!({"env": {"FOR": "all"}})).await?;
    ensure!(template["status"] == "ready" && template["entry"]["warm"] == true, "{template}");
    client.destroy_sandbox(&source).await?;
    let (mut told, mut who) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let id = persistent(&client, "warm").await?.id.to_string();
        let events = client.events(&id, 0, 10).await?.events;
        let detail = serde_json::to_string(&events)?;
        ensure!(detail.contains("with its start command running"), "{detail}");
        told.push(ask(&client, &id).await?);
        who.push((id.clone(), sh(&client, &id, WHO).await?));
        let processes = client.processes(&id).await?.processes;
        let services = processes.iter().filter(|process| format!("{process:?}").contains("service.py")).count();
        ensure!(services == 1, "it was started again: {processes:?}");
    }
    ensure!(told[0] == told[1] && told[0].asked == 1 && told[0].whom == "all", "they are of one start: {told:?}");
    ensure!(who[0].1 != who[1].1 && who[0].1.contains(&who[0].0), "each is itself: {who:?}");

    // They sleep and wake like any other.
    client.suspend(&who[0].0, true).await?;
    ensure!(ask(&client, &who[0].0).await?.asked == 2);

    // One with variables of its own starts it itself, and so sees them.
    let own = create(&client, json!({"template": "warm", "env": {"FOR": "me"}})).await?.id.to_string();
    let its = ask(&client, &own).await?;
    ensure!(its.start != told[0].start && its.whom == "me", "{its:?}");

    // Members of a pool have it running too; another size starts it until there is a copy of that.
    client.put_pool("warm", "shared-cpu-1x", 1).await?;
    wait_for("a member", Duration::from_secs(60), || async {
        Ok(client.pools().await?.pools.iter().any(|pool| pool.template == "warm" && pool.ready == 1))
    })
    .await?;
    let claimed = create(&client, json!({"template": "warm"})).await?.id.to_string();
    let pools = client.pools().await?.pools;
    ensure!(pools.iter().any(|pool| pool.claimed == 1), "{pools:?}");
    ensure!(ask(&client, &claimed).await? == told[0]);
    client.put_pool("warm", "shared-cpu-1x", 0).await?;
    let first = create(&client, json!({"template": "warm", "memory_mb": 320})).await?.id.to_string();
    let its = ask(&client, &first).await?;
    ensure!(its.start != told[0].start, "{its:?}");
    wait_for("a copy of that size", Duration::from_secs(120), async || {
        Ok(daemon.log().lines().any(|line| line.contains("m320") && line.contains("warm=true")))
    })
    .await?;
    let second = create(&client, json!({"template": "warm", "memory_mb": 320})).await?.id.to_string();
    ensure!(ask(&client, &second).await?.asked == 1);
    Ok(())
}
