//! A daemon for tests that are not written in Rust: those of the SDKs.
//!
//! Starts one over a data directory of its own, made of the test cache, and says where it is in a line of JSON. Then each
//! line on standard input is a thing to do, answered by a line when it is done:
//!
//! ```text
//! restart    SIGTERM, then the next daemon at the same address   -> {"url", "data_dir", "log"}
//! kill       SIGKILL, then the same                              -> {"url", "data_dir", "log"}
//! stop       SIGTERM; nobody listens until the next `start`      -> {"stopped": true}
//! start      the next daemon at the same address                 -> {"url", "data_dir", "log"}
//! ```
//!
//! At the end of the input everything is gone: daemon, engines, files. With `--leftovers` a last line tells which sandboxes
//! had not been destroyed by then, and the exit code is 1 if there were any.

use std::io::{BufRead as _, Write as _};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use wakeful_testkit::{Daemon, Options};

/// A real daemon in a temporary directory, driven by lines on standard input.
#[derive(Parser)]
struct Arguments {
    /// The runtime of its sandboxes.
    #[arg(long, default_value = "gvisor")]
    runtime: String,
    /// Text of its configuration file.
    #[arg(long, default_value = "")]
    config: String,
    /// At the end, name what was not destroyed, and fail if there is something.
    #[arg(long)]
    leftovers: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let options = Options::default().env("WAKEFUL_RUNTIME", &arguments.runtime).config(&arguments.config);
    let mut daemon = Daemon::start_with(options.clone()).await?;
    let address = daemon.url().strip_prefix("http://").context("the daemon speaks plain HTTP")?.to_owned();
    let again = options.listen(&address);
    say(&place(&daemon))?;
    for line in std::io::stdin().lock().lines() {
        match line?.trim() {
            "restart" => {
                daemon.terminate().await?;
                daemon.start_again(again.clone()).await?;
                say(&place(&daemon))?;
            }
            "kill" => {
                daemon.kill()?;
                daemon.start_again(again.clone()).await?;
                say(&place(&daemon))?;
            }
            "stop" => {
                daemon.terminate().await?;
                say(&json!({"stopped": true}))?;
            }
            "start" => {
                daemon.start_again(again.clone()).await?;
                say(&place(&daemon))?;
            }
            other => bail!("unknown command {other:?}"),
        }
    }
    if arguments.leftovers {
        let left = daemon.places();
        say(&json!({"leftovers": left}))?;
        if !left.is_empty() {
            bail!("not destroyed: {left:?}");
        }
    }
    Ok(())
}

fn place(daemon: &Daemon) -> Value {
    json!({"url": daemon.url(), "data_dir": daemon.data(), "log": daemon.data().join("daemon.log")})
}

fn say(answer: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}")?;
    Ok(out.flush()?)
}
