//! `wakeful bench` as a command: its shape, and that it leaves nothing. Not its figures: tests share the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wakeful_testkit::{cache_dir, wakeful_binary};

fn bench(data: &std::path::Path) -> Command {
    let mut command = Command::new(wakeful_binary());
    command.args(["bench", "--data-dir"]).arg(data).env("NO_COLOR", "1").env_remove("WAKEFUL_CONFIG");
    command
}

/// A prepared directory of the test's own, so that what is left in it was left by the test.
fn prepared() -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(cache_dir())?;
    let linked = Command::new("cp").arg("-al").arg(cache_dir().join("data/.")).arg(dir.path()).status()?;
    ensure!(linked.success(), "the prepared directory could not be linked");
    // Bench reads it only, but SQLite's files are not to be shared.
    fs::remove_file(dir.path().join("wakeful.db"))?;
    fs::copy(cache_dir().join("data/wakeful.db"), dir.path().join("wakeful.db"))?;
    Ok(dir)
}

/// Processes that have files of this directory open, and sockets of private daemons.
fn left(data: &std::path::Path) -> Vec<String> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let fds = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        let mut targets = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        if targets.any(|target| target.starts_with(data)) {
            left.push(entry.path().display().to_string());
        }
    }
    if data.join("bench").exists() {
        left.push("bench/".to_owned());
    }
    left
}

#[test]
fn a_quick_look_has_the_promised_shape_and_leaves_nothing() -> Result<()> {
    const CASES: [&str; 4] = ["create_pool", "pool_exec", "disk_prepare", "exec_true"];
    let data = prepared()?;
    let out = bench(data.path())
        .args(["--runtime", wakeful_testkit::runtime(), "--quick", "--json", "--case"])
        .args(CASES)
        .output()?;
    ensure!(out.status.code() == Some(0), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr));
    let rows: Value = serde_json::from_slice(&out.stdout)?;
    let rows = rows.as_array().context("an array")?;
    let names: BTreeSet<&str> = rows.iter().filter_map(|row| row["case"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(CASES));
    for row in rows {
        for field in ["case", "runtime", "n", "ours_ms", "engine_ms", "target", "met"] {
            ensure!(row.get(field).is_some(), "{field} is missing in {row}");
        }
    }
    let exec = rows.iter().find(|row| row["case"] == "exec_true").context("exec_true")?;
    ensure!(exec["n"].as_u64() >= Some(10) && exec["met"].is_boolean(), "{exec}");
    for side in ["ours_ms", "engine_ms"] {
        let (p50, p99) = (exec[side]["p50"].as_f64(), exec[side]["p99"].as_f64());
        ensure!(p50 > Some(0.0) && p50 <= p99, "{side} of {exec}");
    }
    for row in rows {
        ensure!(row["skipped"].is_null() && row["met"].is_boolean(), "{row}");
        let claims = ["create_pool", "pool_exec"].contains(&row["case"].as_str().unwrap_or_default());
        ensure!(!claims || row["detail"]["claimed"] == row["n"], "all of them were claimed: {row}");
    }
    ensure!(left(data.path()).is_empty(), "left: {:?}", left(data.path()));
    Ok(())
}

#[test]
fn the_network_is_measured_and_leaves_nothing() -> Result<()> {
    let data = prepared()?;
    let cases = ["uplink_latency", "uplink_throughput", "preview_latency", "preview_throughput"];
    let out = bench(data.path())
        .args(["--runtime", wakeful_testkit::runtime(), "--quick", "--json", "--case"])
        .args(cases)
        .output()?;
    ensure!(out.status.code() == Some(0), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr));
    let rows: Value = serde_json::from_slice(&out.stdout)?;
    let rows = rows.as_array().context("an array")?;
    assert_eq!(rows.iter().filter_map(|row| row["case"].as_str()).collect::<Vec<_>>(), cases);
    for row in rows {
        ensure!(row["skipped"].is_null() && row["n"].as_u64() >= Some(3), "{row}");
        ensure!(row["met"].is_boolean() == row["target"].is_string(), "{row}");
        for side in ["ours_ms", "engine_ms"] {
            ensure!(row[side]["p50"].as_f64() > Some(0.0), "{side} of {row}");
        }
    }
    for name in ["ours_out_mb_s", "engine_out_mb_s", "out_ratio", "ours_in_mb_s", "engine_in_mb_s", "in_ratio"] {
        for row in [&rows[1], &rows[3]] {
            ensure!(row["detail"][name].as_f64() > Some(0.0), "{name} of {row}");
        }
    }
    ensure!(left(data.path()).is_empty(), "left: {:?}", left(data.path()));
    Ok(())
}

#[tokio::test]
async fn an_interrupted_run_leaves_nothing() -> Result<()> {
    interrupted(&[]).await
}

#[tokio::test]
async fn an_interrupted_network_leaves_nothing() -> Result<()> {
    interrupted(&["--case", "uplink_latency"]).await
}

async fn interrupted(args: &[&str]) -> Result<()> {
    let data = prepared()?;
    let mut child = bench(data.path()).args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let (began, soon) = (Instant::now(), Duration::from_secs(60));
    // Until an engine runs, which is in the middle of it.
    let engines = || left(data.path()).len() > 2;
    while !engines() {
        ensure!(child.try_wait()?.is_none() && began.elapsed() < soon, "it does not measure");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    kill_process(Pid::from_raw(i32::try_from(child.id())?).context("a pid")?, Signal::INT)?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        ensure!(began.elapsed() < soon, "it does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(status.code(), Some(130));
    ensure!(left(data.path()).is_empty(), "left: {:?}", left(data.path()));
    Ok(())
}

#[test]
fn the_printed_baseline_runs() -> Result<()> {
    let data = prepared()?;
    let out = bench(data.path()).arg("--print-baseline").output()?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let script: PathBuf = data.path().join("baseline.sh");
    fs::write(&script, &out.stdout)?;
    let out = Command::new("timeout").arg("120").arg("bash").arg(&script).output()?;
    let (said, talk) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    ensure!(out.status.success(), "{}:\n{said}\n{talk}", out.status);
    // After the clone and after the wake.
    assert_eq!(said.matches("\"status\": \"running\"").count(), 2, "{said}\n{talk}");
    for word in ["clone ", "suspend ", "wake "] {
        ensure!(talk.lines().any(|line| line.starts_with(word)), "{talk}");
    }
    Ok(())
}
