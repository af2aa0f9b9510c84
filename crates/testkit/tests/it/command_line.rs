//! The command line against a real daemon, and the lines of the pages that it follows.

use std::io::Write as _;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use wakeful_testkit::Daemon;

use crate::support::wait_for;

/// Runs `wakeful …`, off the runtime.
async fn wakeful(daemon: &Daemon, args: &[&str], stdin: Option<&str>) -> Result<Output> {
    let mut command = daemon.command();
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    let text = stdin.map(str::to_owned);
    let output = tokio::task::spawn_blocking(move || -> Result<Output> {
        let mut child = command.spawn()?;
        if let Some(text) = text {
            child.stdin.take().context("a pipe")?.write_all(text.as_bytes())?;
        }
        Ok(child.wait_with_output()?)
    });
    output.await?
}

async fn succeed(daemon: &Daemon, args: &[&str]) -> Result<String> {
    let output = wakeful(daemon, args, None).await?;
    ensure!(output.status.success(), "{args:?}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::test]
async fn a_day_with_the_command_line() -> Result<()> {
    let daemon = Daemon::start().await?;
    let id = succeed(
        &daemon,
        &[
            "sandbox",
            "create",
            "--template",
            "python",
            "--persistent",
            "--idle-timeout",
            "10m",
            "--env",
            "GREETING=hi",
            "--size",
            "shared-cpu-1x",
        ],
    )
    .await?;
    ensure!(id.ends_with('\n') && id.starts_with("sbx_"), "{id:?}");
    let id = id.trim();

    ensure!(succeed(&daemon, &["sandbox", "exec", id, "--", "python3", "-c", "print('hello')"]).await? == "hello\n");
    ensure!(
        succeed(
            &daemon,
            &["sandbox", "exec", id, "--timeout", "60s", "--workdir", "/tmp", "--", "sh", "-c", "pwd; echo $GREETING"]
        )
        .await?
            == "/tmp\nhi\n"
    );
    let failing =
        wakeful(&daemon, &["sandbox", "exec", id, "--", "sh", "-c", "cat; echo oops >&2; exit 3"], Some("piped"))
            .await?;
    ensure!(
        failing.status.code() == Some(3) && failing.stdout == b"piped" && failing.stderr == b"oops\n",
        "{failing:?}"
    );
    let late = wakeful(&daemon, &["sandbox", "exec", id, "--timeout", "2s", "--", "sleep", "60"], None).await?;
    ensure!(late.status.code() == Some(124), "{late:?}");
    let never = wakeful(&daemon, &["sandbox", "exec", id, "--", "no-such-program"], None).await?;
    ensure!(never.status.code() == Some(125), "{never:?}");

    let dir = tempfile::tempdir()?;
    let (up, down) = (dir.path().join("up"), dir.path().join("down"));
    std::fs::write(&up, vec![7u8; 3_000_000])?;
    succeed(&daemon, &["sandbox", "upload", id, up.to_str().context("utf-8")?, "/home/user/main.py"]).await?;
    succeed(&daemon, &["sandbox", "download", id, "/home/user/main.py", down.to_str().context("utf-8")?]).await?;
    ensure!(std::fs::read(&up)? == std::fs::read(&down)?);

    let list = succeed(&daemon, &["sandbox", "list"]).await?;
    ensure!(list.contains(id) && list.contains("STATUS") && list.contains("running"), "{list}");
    let json: Value = serde_json::from_str(&succeed(&daemon, &["sandbox", "list", "--json"]).await?)?;
    ensure!(json[0]["id"] == id, "{json}");
    let status: Value = serde_json::from_str(&succeed(&daemon, &["sandbox", "status", id, "--json"]).await?)?;
    ensure!(status["status"] == "running" && status["mode"] == "persistent", "{status}");

    succeed(&daemon, &["sandbox", "suspend", id]).await?;
    ensure!(daemon.engines().is_empty());
    ensure!(succeed(&daemon, &["sandbox", "exec", id, "--", "echo", "I'm back!"]).await? == "I'm back!\n");
    succeed(&daemon, &["sandbox", "suspend", id]).await?;
    succeed(&daemon, &["sandbox", "wake", id]).await?;
    let refused = wakeful(&daemon, &["sandbox", "keepalive", id, "--timeout", "30m"], None).await?;
    ensure!(
        refused.status.code() == Some(1) && String::from_utf8_lossy(&refused.stderr).starts_with("error: "),
        "{refused:?}"
    );
    succeed(&daemon, &["sandbox", "destroy", id]).await?;

    let ran = succeed(&daemon, &["sandbox", "run", "-t", "base", "--", "sh", "-c", "echo from a sandbox"]).await?;
    ensure!(ran == "from a sandbox\n", "{ran}");
    let leased = succeed(
        &daemon,
        &[
            "sandbox",
            "create",
            "--template",
            "base",
            "--timeout",
            "10m",
            "--egress-allow-cidr",
            "10.0.0.0/8",
            "--egress-allow-port",
            "443",
        ],
    )
    .await?;
    succeed(&daemon, &["sandbox", "keepalive", leased.trim(), "--timeout", "30m"]).await?;
    succeed(&daemon, &["sandbox", "destroy", "-f", leased.trim()]).await?;
    let templates = succeed(&daemon, &["templates", "list"]).await?;
    ensure!(templates.contains("base") && templates.contains("python") && templates.contains("ready"), "{templates}");
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

/// The pages' own lines, with a real id in them, by the real curl and by a shell in which `zwrm` is an alias.
#[tokio::test]
async fn the_lines_of_the_pages_work_as_printed() -> Result<()> {
    let daemon = Daemon::start().await?;
    let dir = tempfile::tempdir()?;
    let address = daemon.url().strip_prefix("http://").context("an address")?;
    let port = address.rsplit(':').next().context("a port")?;
    let script = include_str!("pages.sh").replace("localhost:8080", &format!("localhost:{port}"));
    let mut bash = std::process::Command::new("bash");
    bash.arg("-c").arg(script).current_dir(dir.path());
    bash.env("WAKEFUL_URL", daemon.url()).env("WAKEFUL", wakeful_testkit::wakeful_binary());
    let output = tokio::task::spawn_blocking(move || bash.output()).await??;
    ensure!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name));
    let executed: Value = serde_json::from_str(&read("executed.json")?)?;
    ensure!(
        executed["exit_code"] == 0 && executed["stdout"].as_str().is_some_and(|out| out.starts_with("3.")),
        "{executed}"
    );
    ensure!(read("output.json")? == "hello\n");
    let list: Value = serde_json::from_str(&read("list.json")?)?;
    let listed =
        list["entries"].as_array().is_some_and(|all| all.iter().any(|e| e["name"] == "main.py" && e["type"] == "file"));
    ensure!(listed, "{list}");
    ensure!(
        String::from_utf8_lossy(&output.stdout) == "hello\nI'm back!\n",
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    // The page's size was the first of its kind: its golden snapshot is made beside.
    wait_for("nothing is left", Duration::from_secs(90), async || {
        Ok(daemon.engines().is_empty() && daemon.places().is_empty())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn doctor_and_info_agree() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    crate::support::wait_for("the runtime", std::time::Duration::from_secs(30), || async {
        Ok(!client.info().await?.runtimes.is_empty())
    })
    .await?;
    let info = client.info().await?;
    ensure!(info.runtimes.iter().any(|runtime| runtime.name == "qemu" && runtime.available), "{info:?}");
    let data = daemon.data().to_str().context("utf-8")?.to_owned();
    let report: Value = serde_json::from_str(&succeed(&daemon, &["doctor", "--json", "--data-dir", &data]).await?)?;
    ensure!(
        report["selected_runtime"] == "qemu" && report["runtimes"].as_array().is_some_and(|all| !all.is_empty()),
        "{report}"
    );
    Ok(())
}
