//! `make soak`: random sandboxes through suspend, wake, fork and destroy on the real engine, until nothing is lost.
#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Parser;
use wakeful_testkit::{Soak, soak};

/// Lead random lives of sandboxes on the real engine, and lose nothing
#[derive(Parser)]
struct Args {
    /// Steps, each a sleep, a wake, a fork, … of one sandbox
    #[arg(long, default_value_t = 500)]
    cycles: u32,
    /// The same seed does the same [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// End the daemon by SIGKILL now and then, too
    #[arg(long)]
    kill: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Args { cycles, seed, kill } = Args::parse();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let how = Soak { cycles, seed: seed.unwrap_or(now), kill };
    println!("{how:?}");
    let soaked = soak(how, |cycle, what| println!("{cycle:>5}  {what}")).await?;
    println!("nothing was lost and nothing is left: {soaked:?}");
    Ok(())
}
