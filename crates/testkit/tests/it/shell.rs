//! `wakeful sandbox shell` and `exec -t` in a real terminal: what a person sees and types.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;
use wakeful_testkit::{Daemon, Options};

use crate::proxy::Proxy;
use crate::support::{persistent, sh, wait_for};

const WITHIN: Duration = Duration::from_secs(60);

/// A terminal, with a shell of this machine in it.
struct Tmux {
    dir: tempfile::TempDir,
}

impl Tmux {
    /// One in which `wakeful` talks to `url`.
    async fn start(url: &str) -> Result<Self> {
        let tmux = Self { dir: tempfile::tempdir()? };
        let binary = wakeful_testkit::wakeful_binary();
        let name = binary.to_str().context("utf-8")?;
        let shell = format!(
            "env -u NO_COLOR HOME=/nonexistent PS1='here> ' WAKEFUL_URL={url} W={name} bash --norc --noprofile"
        );
        tmux.run(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", &shell]).await?;
        tmux.see("here>").await?;
        Ok(tmux)
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("tmux")
    }

    async fn run(&self, args: &[&str]) -> Result<Output> {
        let output = tmux(&self.socket(), args).output().await.context("tmux is needed")?;
        ensure!(output.status.success(), "tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(output)
    }

    /// What is on the screen, with its colours.
    async fn screen(&self, flags: &[&str]) -> Result<String> {
        Ok(String::from_utf8(self.run(&[&["capture-pane", "-p", "-J"], flags].concat()).await?.stdout)?)
    }

    /// Keys as they are.
    async fn keys(&self, text: &str) -> Result<()> {
        self.run(&["send-keys", "-l", text]).await?;
        Ok(())
    }

    /// A line and the return key.
    async fn line(&self, text: &str) -> Result<()> {
        self.keys(text).await?;
        self.press("Enter").await
    }

    async fn press(&self, key: &str) -> Result<()> {
        self.run(&["send-keys", key]).await?;
        Ok(())
    }

    /// Waits until some line of the screen satisfies.
    async fn line_where(&self, what: &str, found: impl Fn(&str) -> bool) -> Result<()> {
        let deadline = tokio::time::Instant::now() + WITHIN;
        loop {
            let screen = self.screen(&["-S", "-200"]).await?;
            if screen.lines().any(|line| found(line.trim_end())) {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                bail!("{what} is not to be seen:\n{screen}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn see(&self, text: &str) -> Result<()> {
        self.line_where(text, |line| line.contains(text)).await
    }

    /// A line that is exactly this: not the one on which it was typed.
    async fn see_line(&self, text: &str) -> Result<()> {
        self.line_where(text, |line| line == text).await
    }
}

fn tmux(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("tmux");
    command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").arg("-S").arg(socket).args(args);
    command
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut command = std::process::Command::new("tmux");
        let _ = command.env_remove("TMUX").arg("-S").arg(self.socket()).arg("kill-server").output();
    }
}

#[tokio::test]
async fn a_shell_to_live_in() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let proxy = Proxy::start(daemon.url(), None).await?;
    let tmux = Tmux::start(&proxy.url).await?;
    tmux.line(&format!("$W sandbox shell {id}; echo \"code=$?\"; stty -a | tr ';' '\\n' | grep -o ' icanon'")).await?;

    // a prompt, the user, colours
    tmux.line_where("a prompt", |line| line.ends_with('$') && !line.contains("here>")).await?;
    tmux.line("MINE=kept; echo user-$(id -un)-$((40 + 2)); printf '\\033[31mred\\033[0m\\n'").await?;
    tmux.see_line("user-user-42").await?;
    tmux.see_line("red").await?;
    ensure!(tmux.screen(&["-e"]).await?.contains("\x1b[31mred"), "no colours: {:?}", tmux.screen(&["-e"]).await?);

    // the size, and another one
    tmux.line("echo size=$(stty size)").await?;
    tmux.see_line("size=30 100").await?;
    tmux.run(&["resize-window", "-x", "120", "-y", "40"]).await?;
    wait_for("the new size", WITHIN, || async {
        tmux.line("clear; echo size=$(stty size)").await?;
        tmux.line_where("a size", |line| line.starts_with("size=")).await?;
        Ok(tmux.screen(&[]).await?.contains("size=40 120"))
    })
    .await?;

    // ^C is the shell's
    tmux.line("echo sleeping; sleep 600").await?;
    tmux.see_line("sleeping").await?;
    tmux.press("C-c").await?;
    tmux.line("echo code-$?").await?;
    tmux.see_line("code-130").await?;

    // it sleeps; a key wakes it, and the same shell goes on
    client.suspend(&id, true).await?;
    tmux.see("[wakeful: the sandbox sleeps").await?;
    ensure!(client.sandbox(&id).await?.status.to_string() == "suspended", "the open terminal woke it");
    tmux.line("echo still-$MINE-$((6 * 7))").await?;
    tmux.see_line("still-kept-42").await?;
    ensure!(client.sandbox(&id).await?.runtime_generation == 2);

    // the daemon dies and comes back
    proxy.cut();
    daemon.kill()?;
    tmux.see("[wakeful: the connection is lost").await?;
    daemon.start_again(Options::default()).await?;
    proxy.point_to(daemon.url())?;
    tmux.line("echo back-$MINE-$((7 * 7))").await?;
    tmux.see_line("back-kept-49").await?;

    // its code is ours, and the terminal is as it was
    tmux.line("exit 23").await?;
    tmux.see_line("code=23").await?;
    tmux.see_line(" icanon").await
}

#[tokio::test]
async fn leaving_and_coming_back() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let tmux = Tmux::start(daemon.url()).await?;
    tmux.line(&format!("$W sandbox shell {id}; echo \"code=$?\"")).await?;
    tmux.line_where("a prompt", |line| line.ends_with('$') && !line.contains("here>")).await?;
    tmux.line("MINE=kept; echo pid-is-$$").await?;
    tmux.line_where("its pid", |line| line.starts_with("pid-is-") && !line.ends_with('$')).await?;
    let screen = tmux.screen(&[]).await?;
    let pid = screen.lines().find_map(|line| line.trim_end().strip_prefix("pid-is-")).context("a pid")?.to_owned();
    tmux.keys("~.").await?;
    tmux.see(&format!("--attach {pid}")).await?;
    tmux.see_line("code=0").await?;
    let process = client.process(&id, pid.parse()?).await?;
    ensure!(process.running && process.pty, "{process:?}");

    tmux.line(&format!("clear; $W sandbox shell {id} --attach {pid}; echo \"code=$?\"")).await?;
    tmux.line("echo again-$MINE-$((6 * 7))").await?;
    tmux.see_line("again-kept-42").await?;
    // killed from outside, the terminal must be as it was
    tmux.line("kill -9 $$").await?;
    tmux.see_line("code=137").await?;
    tmux.line("stty -a | tr ';' '\\n' | grep -o ' icanon'").await?;
    tmux.see_line(" icanon").await
}

#[tokio::test]
async fn one_command_in_a_terminal() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    let tmux = Tmux::start(daemon.url()).await?;
    tmux.line(&format!(
        "$W sandbox exec {id} -t -e NAME=value -w /tmp -- sh -c 'tty; echo $NAME in $(pwd); read x; echo got $x; exit 9'; echo \"code=$?\""
    ))
    .await?;
    tmux.line_where("a terminal", |line| line.starts_with("/dev/pts/")).await?;
    tmux.see_line("value in /tmp").await?;
    tmux.line("word").await?;
    tmux.see_line("got word").await?;
    tmux.see_line("code=9").await?;
    tmux.line(&format!("clear; $W sandbox shell {id} --command 'echo from-$((1 + 1)); exit 4'; echo \"code=$?\""))
        .await?;
    tmux.see_line("from-2").await?;
    tmux.see_line("code=4").await?;
    // a signal that asks us to end leaves a terminal that works, and the shell inside
    tmux.line(&format!("clear; $W sandbox shell {id}; echo \"code=$?\"")).await?;
    tmux.line_where("a prompt", |line| line.ends_with('$') && !line.contains("here>")).await?;
    let pane = String::from_utf8(tmux.run(&["display-message", "-p", "#{pane_pid}"]).await?.stdout)?;
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", pane.trim()))?;
    let ours = children.split_whitespace().next().context("the command runs")?.parse()?;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(ours).context("a pid")?,
        rustix::process::Signal::TERM,
    )?;
    tmux.see_line("code=143").await?;
    tmux.line("stty -a | tr ';' '\\n' | grep -o ' icanon'").await?;
    tmux.see_line(" icanon").await?;
    ensure!(sh(&client, &id, "echo well").await? == "well");
    Ok(())
}
