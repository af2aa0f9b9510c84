//! `make soak`: random sandboxes through suspend, wake, fork and destroy on the real engine, until nothing is lost.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use wakeful_testkit::{Soak, soak};

const USAGE: &str = "wakeful-soak [--cycles N] [--seed N] [--kill]
  --cycles N  steps, each a sleep, a wake, a fork, … of one sandbox (500)
  --seed N    the same seed does the same (the time)
  --kill      end the daemon by SIGKILL now and then, too";

#[tokio::main]
async fn main() -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut how = Soak { cycles: 500, seed: now, kill: false };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|text| text.parse().ok()).with_context(|| format!("{arg} takes a number"));
        match arg.as_str() {
            "--cycles" => how.cycles = u32::try_from(number()?)?,
            "--seed" => how.seed = number()?,
            "--kill" => how.kill = true,
            _ => bail!("{arg} is no option\n{USAGE}"),
        }
    }
    println!("{how:?}");
    let soaked = soak(how, |cycle, what| println!("{cycle:>5}  {what}")).await?;
    println!("nothing was lost and nothing is left: {soaked:?}");
    Ok(())
}
