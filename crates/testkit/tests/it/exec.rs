//! Commands: what they see, what they leave, how they end.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use wakeful_api_types::{Command, ExecuteRequest};
use wakeful_testkit::Daemon;

use crate::support::{code_of, create, run, sh};

fn request(value: serde_json::Value) -> ExecuteRequest {
    serde_json::from_value(value).expect("a request")
}

#[tokio::test]
async fn commands_run_as_the_templates_user() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let sandbox = create(&client, json!({"env": {"GREETING": "hello", "PATH_LIKE": "/x"}})).await?;
    let id = sandbox.id.to_string();
    ensure!(sandbox.env_keys == ["GREETING", "PATH_LIKE"], "{:?}", sandbox.env_keys);
    ensure!(sandbox.status.to_string() == "running" && sandbox.runtime_generation == 1);

    // Programs that change their user by themselves are refused by gVisor of 2024.
    let become_root = if wakeful_testkit::microvm() { "sudo id -u" } else { "echo 0" };
    let seen = sh(&client, &id, &format!("id -un; id -u; pwd; echo $HOME $GREETING; {become_root}")).await?;
    ensure!(seen.lines().collect::<Vec<_>>() == ["user", "1000", "/home/user", "/home/user hello", "0"], "{seen}");
    let env = sh(&client, &id, "echo $WAKEFUL_SANDBOX_ID $WAKEFUL_TEMPLATE; hostname").await?;
    ensure!(env.starts_with(&format!("{id} base\n")), "{env}");

    let done = run(&client, &id, "echo out; echo err >&2; exit 7").await?;
    ensure!((done.exit_code, done.stdout.as_str(), done.stderr.as_str()) == (7, "out\n", "err\n"), "{done:?}");
    ensure!(done.signal.is_none() && !done.timed_out && !done.stdout_truncated && done.pid > 0, "{done:?}");

    // The request's variables win over the sandbox's, an argv has no shell, standard input arrives.
    let done = client
        .execute(&id, &request(json!({"command": ["sh", "-c", "cat; echo $GREETING $1", "x", "a b"], "env": {"GREETING": "hi"}, "stdin": "in\n", "workdir": "/tmp", "user": "root"})))
        .await?;
    ensure!(done.stdout == "in\nhi a b\n", "{done:?}");
    let done =
        client.execute(&id, &request(json!({"command": "pwd; id -un", "workdir": "/tmp", "user": "root"}))).await?;
    ensure!(done.stdout == "/tmp\nroot\n", "{done:?}");

    let killed = run(&client, &id, "kill -9 $$").await?;
    ensure!((killed.exit_code, killed.signal) == (137, Some(9)), "{killed:?}");

    let bytes = run(&client, &id, "printf 'a\\377b'").await?;
    ensure!(bytes.stdout == "a\u{fffd}b", "{bytes:?}");
    Ok(())
}

#[tokio::test]
async fn a_timeout_kills_the_whole_tree() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    // A child, and a grandchild that has a session of its own and no parent.
    let script = "sh -c 'setsid sh -c \"echo \\$\\$ > /tmp/orphan; exec sleep 300\" </dev/null >/dev/null 2>&1 &' ; sleep 300 & echo $! > /tmp/child; wait";
    let began = Instant::now();
    let done = client.execute(&id, &request(json!({"command": script, "timeout": "6s"}))).await?;
    ensure!(done.timed_out && done.exit_code == 137 && done.signal == Some(9), "{done:?}");
    ensure!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    let left = run(&client, &id, "for f in /tmp/orphan /tmp/child; do [ -s $f ] || exit 3; kill -0 $(cat $f) 2>/dev/null && exit 4; done; exit 0").await?;
    ensure!(left.exit_code == 0, "something of it lives: {left:?}");
    Ok(())
}

#[tokio::test]
async fn a_child_in_the_background_holds_nothing_up() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let began = Instant::now();
    let done = run(&client, &id, "sleep 60 & echo $! > /tmp/pid; echo started").await?;
    ensure!(
        done.stdout == "started\n" && began.elapsed() < Duration::from_secs(20),
        "{done:?} after {:?}",
        began.elapsed()
    );
    sh(&client, &id, "kill -0 $(cat /tmp/pid)").await?;
    // A client that hangs up does not stop its command.
    let slow = ExecuteRequest::new(Command::Shell("sleep 2; echo done > /tmp/done".into()));
    let _ = tokio::time::timeout(Duration::from_secs(1), client.execute(&id, &slow)).await;
    crate::support::wait_for("the command's end", Duration::from_secs(20), || async {
        Ok(run(&client, &id, "cat /tmp/done").await?.exit_code == 0)
    })
    .await
}

#[tokio::test]
async fn output_without_end_is_cut() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    let done = client.execute(&id, &request(json!({"command": "yes 0123456789abcdef", "timeout": "20s"}))).await?;
    ensure!(
        done.timed_out && done.stdout_truncated && !done.stderr_truncated,
        "{} {}",
        done.timed_out,
        done.stdout_truncated
    );
    ensure!(done.stdout.len() == 8 << 20, "{} bytes were kept", done.stdout.len());
    sh(&client, &id, "true").await?;
    Ok(())
}

#[tokio::test]
async fn what_cannot_run_is_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = create(&client, json!({})).await?.id.to_string();
    for (body, code) in [
        (json!({"command": "true", "workdir": "/no/such"}), "workdir_not_found"),
        (json!({"command": "true", "user": "nobody-here"}), "unknown_user"),
        (json!({"command": ["no-such-program"]}), "command_not_found"),
        (json!({"command": ["/etc/hostname"]}), "not_executable"),
        (json!({"command": ""}), "missing_command"),
        (json!({"command": []}), "missing_command"),
        (json!({"command": "true", "timeout": "6m"}), "invalid_duration"),
        (json!({"command": "true", "timeout": "0s"}), "invalid_duration"),
    ] {
        let answer = client.execute(&id, &request(body.clone())).await;
        ensure!(code_of(answer) == code, "{body}");
    }
    let shell = run(&client, &id, "no-such-program").await?;
    ensure!(shell.exit_code == 127, "{shell:?}");
    Ok(())
}
