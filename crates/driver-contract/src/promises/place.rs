//! Finding engines again, and removing what is left of them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wakeful_confine::cgroup::Cgroups;
use wakeful_confine::range::RANGES;
use wakeful_driver::{Error, Source, StrayKind};
use wakeful_sys::mounts::LoopDevice;

use crate::lab::{Lab, RealLab};
use crate::sandbox::Sandbox;

const A_WHILE: Duration = Duration::from_millis(700);
const SOON: Duration = Duration::from_secs(30);

/// A later driver finds engines that run, are stopped, or were loaded; and none where there is none.
pub async fn engines_are_adopted(lab: Arc<dyn Lab>) {
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "adopt").await;
    lab.begin_count(&sandbox, &guest).await;
    let (before, pid) = (lab.count(&sandbox, &guest).await, engine.pid());
    drop((guest, engine));

    sandbox.driver = lab.reopened().await;
    let engine = sandbox.driver.adopt(&sandbox.place).await.expect("can be adopted").expect("it lives");
    assert_eq!(engine.pid(), pid);
    assert_eq!(engine.disk_mb(), sandbox.machine.disk_mb);
    engine.disconnected().await.expect("the old stream is gone");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(lab.count(&sandbox, &guest).await.token, before.token);

    // Saved by the adopted one; found stopped, and it goes on.
    sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    drop(engine);
    sandbox.driver = lab.reopened().await;
    let engine = sandbox.driver.adopt(&sandbox.place).await.expect("can be adopted").expect("a stopped one lives too");
    assert!(!sandbox.answers(&*engine, A_WHILE).await, "it is still stopped");
    engine.disconnected().await.expect("nobody is connected");
    let guest = sandbox.go(&*engine).await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(1)).await;
    sandbox.end(&*engine).await;
    assert!(sandbox.driver.adopt(&sandbox.place).await.expect("can be looked at").is_none());

    // Loaded, and its daemon died before it ran.
    let engine = sandbox.wake(&sandbox.checkpoint(1), &image).await.expect("can be woken");
    drop(engine);
    sandbox.driver = lab.reopened().await;
    let engine = sandbox.driver.adopt(&sandbox.place).await.expect("can be adopted").expect("a loaded one lives too");
    assert!(!sandbox.answers(&*engine, A_WHILE).await, "it has not run");
    engine.disconnected().await.expect("nobody is connected");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(lab.count(&sandbox, &guest).await.token, before.token);
}

/// Of a place where there was never anybody, a living engine, and a dead one.
pub async fn reaping_is_fine_at_any_time(lab: Arc<dyn Lab>) {
    let empty = Sandbox::new(&lab, "empty");
    empty.driver.reap(&empty.place).await.expect("nothing to do");
    assert!(empty.driver.adopt(&empty.place).await.expect("can be looked at").is_none());
    let (sandbox, engine, guest) = Sandbox::started(&lab, "reap").await;
    drop(guest);
    for _ in 0..2 {
        sandbox.driver.reap(&sandbox.place).await.expect("can be reaped");
        assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty());
    }
    tokio::time::timeout(SOON, engine.exited()).await.expect("that it has ended is known to all");
    assert!(sandbox.place.data.exists() && sandbox.disk().exists(), "its data is not the driver's to remove");
}

/// As if the daemon had died before the account of the launch was complete.
pub async fn a_cut_off_launch_is_not_adopted(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (sandbox, engine, guest) = Sandbox::started(&lab, "cut").await;
    drop(guest);
    let account = sandbox.place.run.join("engine.json");
    let record = fs::read(&account).expect("is there");
    let mut record: serde_json::Value = serde_json::from_slice(&record).expect("is data");
    record["started"] = serde_json::Value::Null;
    fs::write(&account, record.to_string()).expect("can be written");
    assert!(sandbox.driver.adopt(&sandbox.place).await.expect("can be looked at").is_none());
    assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty());
    tokio::time::timeout(SOON, engine.exited()).await.expect("it has ended");
}

/// Whatever of a run directory is missing.
pub async fn a_place_is_reaped_with_anything_missing(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (sandbox, engine, guest) = Sandbox::started(&lab, "whole").await;
    let entries = fs::read_dir(&sandbox.place.run).expect("is there").flatten();
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    drop(guest);
    sandbox.end(&*engine).await;
    for (number, missing) in names.iter().enumerate() {
        let (sandbox, engine, guest) = Sandbox::started(&lab, &format!("missing-{number}")).await;
        drop(guest);
        wakeful_confine::files::remove_any(&sandbox.place.run.join(missing)).expect("is there");
        for _ in 0..2 {
            sandbox.driver.reap(&sandbox.place).await.expect("can be reaped");
            assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty(), "without {missing}");
        }
        tokio::time::timeout(SOON, engine.exited()).await.expect("it has ended");
    }
}

/// The daemon that clears up may have only another runtime's driver.
pub async fn another_runtimes_broom_clears_everything(lab: Arc<dyn RealLab>) {
    let (inspector, foreign) = (lab.inspector(), lab.foreign());
    let lab: Arc<dyn Lab> = lab;
    let (sandbox, engine, guest) = Sandbox::started(&lab, "foreign").await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    assert!(!traces(&sandbox).is_empty(), "there is something to clear");
    foreign.reap(&sandbox.place).await.expect("can be reaped");
    tokio::time::timeout(SOON, engine.exited()).await.expect("it has ended");
    cleared(&sandbox).await;
    // Also one that waits to be run.
    let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("can be woken");
    foreign.reap(&sandbox.place).await.expect("can be reaped");
    foreign.reap(&sandbox.place).await.expect("twice is fine");
    tokio::time::timeout(SOON, engine.exited()).await.expect("it has ended");
    cleared(&sandbox).await;
    assert!(!inspector.lives(&sandbox.place).await.expect("can be looked at"));
    for broom in [inspector, foreign] {
        let strays = broom.strays(lab.run()).await.expect("can be looked for");
        assert!(strays.iter().all(|stray| stray.kind != StrayKind::Cgroup), "{strays:?}");
    }
}

/// What of a sandbox is on the host beside its data.
fn traces(sandbox: &Sandbox) -> Vec<PathBuf> {
    let cgroup = Cgroups::path(&sandbox.place.run);
    let cgroup = cgroup.strip_prefix("/").unwrap_or(&cgroup).to_owned();
    let top = PathBuf::from("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    let cgroups = hierarchies.chain([top]).map(|hierarchy| hierarchy.join(&cgroup)).filter(|path| path.exists());
    let processes = sandbox.processes().into_iter().map(|pid| PathBuf::from(format!("/proc/{pid}")));
    let run = Some(sandbox.place.run.clone()).filter(|run| run.exists());
    let ranges = fs::read_dir(RANGES).into_iter().flatten().flatten().map(|entry| entry.path());
    let ranges = ranges.filter(|link| fs::read_link(link).is_ok_and(|owner| owner == sandbox.place.run));
    cgroups.chain(processes).chain(run).chain(ranges).chain(LoopDevice::find(&sandbox.disk())).collect()
}

async fn cleared(sandbox: &Sandbox) {
    let clean = async {
        // A mount goes with its last process, which takes the kernel a moment.
        while traces(sandbox).iter().any(|path| path.starts_with("/dev")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let done = tokio::time::timeout(SOON, clean).await;
    assert!(done.is_ok() && traces(sandbox).is_empty(), "{:?}", traces(sandbox));
}

/// Cut off at many different moments: before, while and after the engine starts.
pub async fn a_dropped_launch_leaves_nothing(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let sandbox = Sandbox::new(&lab, "dropped");
    for milliseconds in [0, 1, 4, 8, 16, 32, 48, 90, 130, 170, 210] {
        // The card takes its own time, which is not meant.
        let card = lab.card().await;
        let source = match lab.golden() {
            Some((golden, image, _)) => Source::Clone { golden, image },
            None => Source::First { secret: sandbox.secret },
        };
        let launch = sandbox.driver.launch(&sandbox.place, sandbox.machine, lab.base(), card, source);
        if let Ok(Ok(engine)) = tokio::time::timeout(Duration::from_millis(milliseconds), launch).await {
            sandbox.end(&*engine).await;
            fs::remove_file(sandbox.disk()).expect("is there");
        }
        // A thread that was in the middle of a step finishes it, sees that nobody wants it, and cleans up.
        let clean = async {
            while sandbox.place.run.exists() || sandbox.disk().exists() || !sandbox.processes().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let done = tokio::time::timeout(SOON, clean).await;
        assert!(done.is_ok(), "after {milliseconds} ms: {:?} {:?}", traces(&sandbox), sandbox.disk().exists());
    }
}

/// One place, one engine; whoever comes second disturbs nobody.
pub async fn a_taken_place_is_refused(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "twice").await;
    let refused = sandbox.launch(Source::Boot { secret: [1; 32] });
    let refused = tokio::time::timeout(Duration::from_secs(10), refused).await.expect("it is seen at once");
    assert!(matches!(&refused, Err(Error::Refused { .. })), "{:?}", refused.err());
    assert!(sandbox.first().await.is_err(), "there is a disk already");
    guest.health(SOON).await.expect("the first one is untouched");
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    assert!(sandbox.wake(&sandbox.checkpoint(0), &image).await.is_err(), "it lives, stopped");
    let guest = sandbox.go(&*engine).await;
    guest.health(SOON).await.expect("the first one is untouched");
    drop(guest);
}
