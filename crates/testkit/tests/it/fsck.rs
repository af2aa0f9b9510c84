//! `wakeful fsck`: what is wrong is found and repaired, what is needed is left alone.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use wakeful_testkit::{Daemon, Options};

use crate::support::{code_of, create, persistent, run, sh, wait_for};

/// What it said, with the findings that are this data directory's own: uids are the host's.
struct Checked {
    code: Option<i32>,
    report: Value,
    talk: String,
}

impl Checked {
    fn findings(&self) -> Vec<&Value> {
        let all = self.report["findings"].as_array().into_iter().flatten();
        all.filter(|finding| finding["kind"] != "stray_uid").collect()
    }

    /// Kind and status of what was found about a subject.
    fn of(&self, subject: &str) -> Vec<(&str, &str)> {
        let about = self.findings().into_iter().filter(|finding| finding["subject"].as_str() == Some(subject));
        about.filter_map(|finding| Some((finding["kind"].as_str()?, finding["status"].as_str()?))).collect()
    }
}

fn fsck(daemon: &Daemon, flags: &[&str]) -> Result<Checked> {
    let mut command = daemon.command();
    command.args(["fsck", "--json", "--config"]).arg(daemon.data().join("config.toml"));
    let ended = command.arg("--data-dir").arg(daemon.data()).args(flags).output()?;
    let talk = String::from_utf8_lossy(&ended.stderr).into_owned();
    // Who is refused gets no report.
    let report = if ended.stdout.is_empty() { Value::Null } else { serde_json::from_slice(&ended.stdout)? };
    Ok(Checked { code: ended.status.code(), report, talk })
}

fn clean(daemon: &Daemon) -> Result<Checked> {
    let checked = fsck(daemon, &[])?;
    ensure!(checked.code == Some(0) && checked.findings().is_empty(), "{:#}", checked.report);
    Ok(checked)
}

fn flip(path: &Path, at: u64) -> Result<()> {
    let file = fs::File::options().read(true).write(true).open(path).with_context(|| path.display().to_string())?;
    let mut byte = [0u8];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 0x40], at)?;
    Ok(())
}

/// A file that is a link to the tests' common one becomes this test's own.
fn own(path: &Path) -> Result<()> {
    let copy = path.with_extension("own");
    ensure!(std::process::Command::new("cp").args(["-p", "--sparse=always"]).arg(path).arg(&copy).status()?.success());
    Ok(fs::rename(copy, path)?)
}

/// Where a byte of content is that is not in a hole.
fn content(path: &Path) -> Result<u64> {
    let file = fs::File::open(path)?;
    Ok(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0))? + 100)
}

fn sql(daemon: &Daemon, statement: &str) -> Result<()> {
    let ended = std::process::Command::new("sqlite3").arg(daemon.data().join("wakeful.db")).arg(statement).output()?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Ok(())
}

#[tokio::test]
async fn all_is_well_after_use_and_nobody_is_disturbed() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let awake = persistent(&client, "base").await?.id.to_string();
    let asleep = persistent(&client, "base").await?.id.to_string();
    let gone = create(&client, json!({})).await?.id.to_string();
    for id in [&awake, &asleep] {
        sh(&client, id, "echo kept > /dev/shm/mark").await?;
    }
    client.suspend(&asleep, true).await?;
    client.destroy_sandbox(&gone).await?;
    let engine = daemon.engine_pid(&awake).expect("an engine");

    // A daemon has it: nothing is looked at, and nothing happens to that one.
    let refused = fsck(&daemon, &["--repair"])?;
    ensure!(refused.code == Some(1) && refused.talk.contains("is in use by wakeful serve"), "{}", refused.talk);
    ensure!(refused.talk.contains("hint: stop it first"), "{}", refused.talk);
    ensure!(sh(&client, &awake, "cat /dev/shm/mark").await? == "kept");

    ensure!(daemon.terminate().await? == Some(0));
    let checked = clean(&daemon)?;
    let counts = &checked.report["checked"];
    ensure!(counts["sandboxes"] == 2 && counts["checkpoints"] == 1, "{counts}");
    ensure!(counts["golden_snapshots"].as_u64() >= Some(1) && counts["bases"].as_u64() >= Some(1), "{counts}");
    let repaired = fsck(&daemon, &["--repair"])?;
    ensure!(repaired.code == Some(0) && repaired.findings().is_empty(), "{:#}", repaired.report);
    ensure!(daemon.engine_pid(&awake) == Some(engine), "an engine that runs on is left alone");

    daemon.start_again(Options::default()).await?;
    // What a killed daemon kept ready is nobody's; what its sandboxes use is theirs.
    daemon.kill()?;
    let repaired = fsck(&daemon, &["--repair"])?;
    ensure!(repaired.code == Some(0), "{:#}", repaired.report);
    ensure!(repaired.findings().iter().all(|found| found["kind"] == "stray_slot"), "{:#}", repaired.report);
    ensure!(daemon.places().iter().filter(|place| place.contains("/net/")).count() == 1, "{:?}", daemon.places());
    clean(&daemon)?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(daemon.engine_pid(&awake) == Some(engine));
    for id in [&awake, &asleep] {
        ensure!(sh(&client, id, "cat /dev/shm/mark").await? == "kept", "{id}");
        client.destroy_sandbox(id).await?;
    }
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

microvm_only! { "its bits lie in pages and bases of microVMs; the same of gVisor is in the contract of drivers";
#[tokio::test]
async fn a_flipped_bit_costs_the_memory_and_not_the_disk() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let pages = persistent(&client, "base").await?.id.to_string();
    let folded = persistent(&client, "base").await?.id.to_string();
    let sound = persistent(&client, "base").await?.id.to_string();
    for id in [&pages, &folded, &sound] {
        sh(&client, id, "echo memory > /dev/shm/mark; echo disk > ~/mark").await?;
    }
    sh(&client, &folded, "head -c 60000000 /dev/urandom > /dev/shm/large").await?;
    for id in [&pages, &folded, &sound] {
        client.suspend(id, true).await?;
    }
    let diff = |id: &str| daemon.sandbox_dir(id).join("checkpoint-1/mem.diff");
    let (gone, base) = (diff(&folded), daemon.sandbox_dir(&folded).join("mem.base"));
    wait_for("the compaction", Duration::from_secs(60), || async { Ok(!gone.exists() && base.exists()) }).await?;
    let flipped = diff(&pages);
    ensure!(daemon.terminate().await? == Some(0));
    ensure!(clean(&daemon)?.report["checked"]["checkpoints"] == 3);

    // In a page, and in a base of its own: where no wake would ever look.
    flip(&flipped, 4096 + 100)?;
    flip(&base, content(&base)?)?;
    let checked = fsck(&daemon, &[])?;
    ensure!(checked.code == Some(1), "{:#}", checked.report);
    for id in [&pages, &folded] {
        ensure!(checked.of(id) == [("checkpoint", "found")], "{:#}", checked.report);
    }
    ensure!(checked.findings().len() == 2 && checked.report["checked"]["checkpoints"] == 1, "{:#}", checked.report);
    ensure!(flipped.exists() && base.exists(), "nothing is changed without being asked");
    let repaired = fsck(&daemon, &["--repair"])?;
    ensure!(repaired.code == Some(0), "{:#}", repaired.report);
    for id in [&pages, &folded] {
        ensure!(repaired.of(id) == [("checkpoint", "repaired")], "{:#}", repaired.report);
    }
    ensure!(!flipped.exists() && !base.exists(), "what is worth nothing goes");
    clean(&daemon)?;

    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    for (id, restored) in [(&pages, false), (&folded, false), (&sound, true)] {
        ensure!(client.sandbox(id).await?.status.to_string() == "suspended");
        ensure!(sh(&client, id, "cat ~/mark").await? == "disk", "{id}");
        ensure!((run(&client, id, "cat /dev/shm/mark").await?.exit_code == 0) == restored, "{id}");
        ensure!(client.sandbox(id).await?.restored_memory == Some(restored), "{id}");
    }
    let story = daemon.command().args(["sandbox", "events", &pages]).output()?;
    let story = String::from_utf8_lossy(&story.stdout).into_owned();
    ensure!(story.contains("checkpoint_rejected") && story.contains("recovery"), "{story}");
    Ok(())
}
}

microvm_only! { "gVisor has no golden snapshots";
#[tokio::test]
async fn what_all_stand_on_is_read_too() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let id = persistent(&client, "base").await?.id.to_string();
    sh(&client, &id, "echo disk > ~/mark; sync").await?;
    let template = client.sandbox(&id).await?.template_id.to_string();
    client.suspend(&id, true).await?;
    ensure!(daemon.terminate().await? == Some(0));
    let manifest = fs::read_to_string(daemon.sandbox_dir(&id).join("checkpoint-1/manifest.json"))?;
    let manifest: Value = serde_json::from_str(&manifest)?;
    let golden = PathBuf::from(manifest["image"]["base"]["golden"].as_str().context("it stands on a golden snapshot")?);
    let memory = golden.join("mem");
    own(&memory)?;
    flip(&memory, content(&memory)?)?;
    let name = golden.strip_prefix(daemon.data().canonicalize()?)?.display().to_string();
    ensure!(name.contains(&template), "{name}");
    let checked = fsck(&daemon, &[])?;
    ensure!(checked.code == Some(1) && checked.findings().len() == 2, "{:#}", checked.report);
    ensure!(checked.of(&name) == [("golden_snapshot", "found")], "{:#}", checked.report);
    ensure!(checked.of(&id) == [("checkpoint", "found")], "{:#}", checked.report);
    let repaired = fsck(&daemon, &["--repair"])?;
    ensure!(repaired.code == Some(0) && !golden.exists(), "{:#}", repaired.report);
    clean(&daemon)?;

    // A base cannot be made up.
    let bases: Vec<PathBuf> =
        fs::read_dir(daemon.data().join("bases"))?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    let base = bases.first().context("there is a base")?.join("base.ext4");
    own(&base)?;
    let at = content(&base)?;
    flip(&base, at)?;
    for flags in [&[][..], &["--repair"]] {
        let checked = fsck(&daemon, flags)?;
        ensure!(checked.code == Some(1), "{:#}", checked.report);
        ensure!(checked.findings().iter().any(|found| found["kind"] == "base"), "{:#}", checked.report);
    }
    flip(&base, at)?;
    clean(&daemon)?;

    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(sh(&client, &id, "cat ~/mark").await? == "disk");
    ensure!(client.sandbox(&id).await?.restored_memory == Some(false));
    let new = create(&client, json!({})).await?.id.to_string();
    ensure!(sh(&client, &new, "echo fine").await? == "fine", "the golden snapshot is made anew");
    Ok(())
}
}

#[tokio::test]
async fn rows_without_a_disk_have_failed() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let robbed = persistent(&client, "base").await?.id.to_string();
    client.suspend(&robbed, true).await?;
    ensure!(daemon.terminate().await? == Some(0));
    fs::remove_file(daemon.sandbox_dir(&robbed).join(wakeful_testkit::disk_file()))?;
    ensure!(fsck(&daemon, &[])?.of(&robbed) == [("disk_missing", "found")]);
    ensure!(fsck(&daemon, &["--repair"])?.of(&robbed) == [("disk_missing", "repaired")]);
    clean(&daemon)?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    let found = client.sandbox(&robbed).await?;
    let failure = found.failure.as_ref().context("it has failed")?;
    ensure!(failure.code == "disk_missing" && !failure.bootable, "{found:?}");
    ensure!(code_of(client.wake(&robbed, true).await) == "not_wakeable");
    client.destroy_sandbox(&robbed).await?;
    ensure!(daemon.engines().is_empty() && daemon.places().is_empty(), "left: {:?}", daemon.places());
    Ok(())
}

#[tokio::test]
async fn strays_of_every_kind_are_found_and_go() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client()?;
    let kept = persistent(&client, "base").await?.id.to_string();
    let forgotten = create(&client, json!({"timeout": "1h"})).await?.id.to_string();
    sh(&client, &kept, "echo memory > /dev/shm/mark").await?;
    client.suspend(&kept, true).await?;
    let engine = daemon.engine_pid(&forgotten).context("an engine")?;
    daemon.kill()?;
    // Engine, run directory, cgroup, slot and files of a sandbox that nobody knows any more.
    sql(
        &daemon,
        &format!("DELETE FROM events WHERE sandbox_id = '{forgotten}'; DELETE FROM sandboxes WHERE id = '{forgotten}'"),
    )?;
    let data = daemon.data().to_owned();
    let template = fs::read_dir(data.join("golden"))?.next().context("a template")??.path();
    let machine = fs::read_dir(&template)?.next().context("a machine")??.path();
    let bare = "abcdefghijklmnopqrst";
    let run = daemon.run().join(bare);
    let planted = [
        data.join(format!("sandboxes/sbx_{bare}")),
        data.join(format!("golden/tpl_{bare}/c1-m256-d2048/0123456789abcdef")),
        machine.join("new-abcdefghijklmnopqrst"),
        data.join("bases").join("0".repeat(64)),
        data.join(format!("builds/tpl_{bare}/work")),
        data.join("trash/something"),
        daemon.sandbox_dir(&kept).join("checkpoint-99"),
        daemon.sandbox_dir(&kept).join("checkpoint-1.new"),
        run.clone(),
    ];
    for dir in &planted {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("file"), "something")?;
    }
    let orphan = daemon.cgroup("bcdefghijklmnopqrstu").context("cgroups are mounted")?;
    fs::create_dir(&orphan)?;

    let checked = fsck(&daemon, &[])?;
    ensure!(checked.code == Some(1), "{:#}", checked.report);
    let kinds: Vec<&str> = checked.findings().iter().filter_map(|found| found["kind"].as_str()).collect();
    for kind in [
        "stray_engine",
        "stray_run_directory",
        "stray_cgroup",
        "stray_slot",
        "stray_sandbox",
        "stray_golden_snapshot",
        "half_made",
        "stray_base",
        "stray_build",
        "stale_image",
        "trash",
    ] {
        ensure!(kinds.contains(&kind), "{kind} is not among {:#}", checked.report);
    }
    ensure!(checked.of(&kept).is_empty(), "{:#}", checked.report);
    ensure!(planted.iter().all(|path| path.exists()) && orphan.exists(), "nothing goes without being asked");
    ensure!(daemon.engine_pid(&forgotten) == Some(engine));

    let repaired = fsck(&daemon, &["--repair"])?;
    ensure!(repaired.code == Some(0), "{:#}", repaired.report);
    ensure!(repaired.findings().iter().all(|found| found["status"] == "repaired"), "{:#}", repaired.report);
    for path in planted.iter().chain([&orphan, &daemon.sandbox_dir(&forgotten)]) {
        ensure!(!path.exists(), "{} is still there", path.display());
    }
    ensure!(daemon.engines().is_empty() && daemon.places() == [kept.clone()], "left: {:?}", daemon.places());
    clean(&daemon)?;
    daemon.start_again(Options::default()).await?;
    let client = daemon.client()?;
    ensure!(sh(&client, &kept, "cat /dev/shm/mark").await? == "memory");
    Ok(())
}

#[tokio::test]
async fn with_a_database_that_is_not_sound_nothing_is_repaired() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    ensure!(daemon.terminate().await? == Some(0));
    let stray = daemon.sandbox_dir("sbx_abcdefghijklmnopqrst");
    fs::create_dir_all(&stray)?;
    sql(&daemon, "INSERT INTO ports (sandbox_id, port, public) VALUES ('sbx_nobody', 80, 0)")?;
    let checked = fsck(&daemon, &["--repair"])?;
    ensure!(checked.code == Some(1) && checked.of("wakeful.db") == [("database", "found")], "{:#}", checked.report);
    ensure!(stray.exists(), "who knows what a row needs?");
    sql(&daemon, "DELETE FROM ports")?;
    let repaired = fsck(&daemon, &["--repair"])?;
    ensure!(repaired.code == Some(0) && !stray.exists(), "{:#}", repaired.report);
    Ok(())
}
