//! Starting, stopping, saving, waking, ending.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use wakeful_driver::{Error, IoLimits, Source};

use crate::lab::{Lab, RealLab};
use crate::sandbox::{Sandbox, shell, suspended};

/// In which somebody who runs has answered, and somebody who does not has not.
const A_WHILE: Duration = Duration::from_millis(700);
const SOON: Duration = Duration::from_secs(60);

/// A new engine answers, and has made its disk.
pub async fn a_first_start_answers(lab: Arc<dyn Lab>) {
    let (sandbox, engine, guest) = Sandbox::started(&lab, "first").await;
    guest.health(SOON).await.expect("it answers");
    assert!(sandbox.disk().exists() && sandbox.place.run.exists());
    assert_eq!(engine.disk_mb(), sandbox.machine.disk_mb);
    assert!(engine.pid() > 1);
}

/// A guest does something.
pub async fn a_command_runs(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (sandbox, engine, guest) = Sandbox::started(&lab, "command").await;
    assert_eq!(shell(&guest, "echo $((6 * 7)) > /root/answer; cat /root/answer").await, "42");
    assert!(sandbox.processes().contains(&engine.pid()), "it is in its cgroup");
    let metrics = guest.metrics().await.expect("it answers");
    let (memory, disk) = (metrics.mem_total >> 20, metrics.disk_total >> 20);
    let machine = sandbox.machine;
    assert!(memory <= u64::from(machine.memory_mb) + 160, "{memory} MiB inside of {machine}");
    assert!(disk <= u64::from(machine.disk_mb), "{disk} MiB inside of {machine}");
}

/// What its capabilities deny is refused, and what they say works.
pub async fn what_can_be_done_is_said(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (sandbox, engine, _guest) = Sandbox::started(&lab, "said").await;
    let (can, info) = (sandbox.driver.capabilities().clone(), sandbox.driver.engine().clone());
    assert!(can.memory_checkpoint && !info.key.is_empty() && !info.version.is_empty());
    let limits = IoLimits { ops_per_sec: Some(1000), ..IoLimits::default() };
    let limited = engine.limit_io(limits).await;
    if can.io_limits {
        limited.expect("it says so");
    } else {
        assert!(matches!(limited, Err(Error::Refused { .. })));
    }
    engine.limit_io(IoLimits::default()).await.expect("no limit is fine everywhere");
}

/// Whether sandboxes are clones by habit or not: what ran in a golden snapshot runs in each clone of it, on a disk of its own.
pub async fn a_golden_snapshot_is_cloned_with_what_runs_in_it(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let mut golden = Sandbox::new(&lab, "golden");
    golden.secret = [1; 32];
    let engine = golden.launch(Source::Golden { secret: [1; 32] }).await.expect("can be started");
    let guest = golden.greet(&*engine).await;
    lab.begin_count(&golden, &guest).await;
    shell(&guest, "echo golden > /root/who").await;
    let before = lab.count(&golden, &guest).await;
    let dir = golden.place.data.clone();
    let image = golden.suspend(&*engine, guest, &dir).await;
    golden.end(&*engine).await;
    let mut running = Vec::new();
    for name in ["clone-a", "clone-b"] {
        let mut clone = Sandbox::new(&lab, name);
        clone.secret = golden.secret;
        let engine = clone.launch(Source::Clone { golden: &dir, image: &image }).await.expect("can be cloned");
        let guest = clone.go(&*engine).await;
        assert_eq!(lab.count(&clone, &guest).await.token, before.token);
        assert_eq!(shell(&guest, "cat /root/who").await, "golden");
        shell(&guest, &format!("echo {name} > /root/who")).await;
        running.push((clone, engine, guest));
    }
    for (clone, _, guest) in &running {
        assert_eq!(shell(guest, "cat /root/who").await, clone.place.name);
    }
    // A clone that comes to nothing leaves no disk.
    let lost = Sandbox::new(&lab, "lost");
    let mut foreign = image.clone();
    foreign.engine = "another".to_owned();
    let refused = lost.launch(Source::Clone { golden: &dir, image: &foreign }).await;
    assert!(matches!(refused, Err(Error::Unfit { .. })));
    assert!(!lost.place.run.exists() && !lost.disk().exists());
}

/// Stopped, it does nothing; both ways are fine twice.
pub async fn a_pause_stops_it(lab: Arc<dyn Lab>) {
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "pause").await;
    lab.begin_count(&sandbox, &guest).await;
    let before = lab.count(&sandbox, &guest).await;
    engine.resume().await.expect("running already is fine");
    sandbox.stop(&*engine, guest).await;
    engine.pause().await.expect("stopped already is fine");
    assert!(!sandbox.answers(&*engine, A_WHILE).await, "it is stopped");
    engine.disconnected().await.expect("nobody is connected");
    engine.resume().await.expect("it goes on");
    engine.resume().await.expect("running already is fine");
    let guest = sandbox.greet(&*engine).await;
    let after = lab.count(&sandbox, &guest).await;
    assert!(after.token == before.token && after.number >= before.number, "{before:?} {after:?}");
    // Stopped with somebody on the line, without a word to the guest.
    engine.pause().await.expect("it stops");
    engine.resume().await.expect("it goes on");
    guest.health(SOON).await.expect("it goes on where it was");
}

/// Only a stopped engine is saved.
pub async fn a_running_engine_is_not_saved(lab: Arc<dyn Lab>) {
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "running").await;
    let into = sandbox.checkpoint(0);
    fs::create_dir(&into).expect("can be made");
    assert!(matches!(engine.save(&into).await, Err(Error::Refused { .. })));
    assert_eq!(fs::read_dir(&into).expect("is there").count(), 0, "nothing is left of the attempt");
    guest.health(SOON).await.expect("it is not disturbed");
    sandbox.stop(&*engine, guest).await;
    assert!(engine.save(&sandbox.place.data.join("nowhere")).await.is_err(), "there is no such directory");
    let image = engine.save(&into).await.expect("now it can be saved");
    assert!(!image.files.is_empty() && image.engine == sandbox.driver.engine().key);
    sandbox.go(&*engine).await;
}

/// A saved engine is alive and stopped, and goes on as the same.
pub async fn a_save_can_be_called_off(lab: Arc<dyn Lab>) {
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "cancel").await;
    lab.begin_count(&sandbox, &guest).await;
    let (before, pid, processes) = (lab.count(&sandbox, &guest).await, engine.pid(), sandbox.processes().len());
    sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    assert!(!sandbox.answers(&*engine, A_WHILE).await, "it is stopped");
    engine.disconnected().await.expect("nobody is connected");
    let guest = sandbox.go(&*engine).await;
    let after = lab.count(&sandbox, &guest).await;
    assert!(after.token == before.token && after.number >= before.number, "{before:?} {after:?}");
    assert_eq!(engine.pid(), pid);
    assert!(sandbox.processes().len() + 2 >= processes, "all of it is there");
    // What was saved then is of no use any more; what is saved now is.
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(1)).await;
    sandbox.end(&*engine).await;
    let engine = sandbox.wake(&sandbox.checkpoint(1), &image).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(lab.count(&sandbox, &guest).await.token, before.token);
}

/// Saved, killed and woken, it goes on counting where it was.
pub async fn memory_comes_back_three_times(lab: Arc<dyn Lab>) {
    let (mut sandbox, mut engine, mut guest) = Sandbox::started(&lab, "cycles").await;
    lab.begin_count(&sandbox, &guest).await;
    for cycle in 0..3 {
        let before = lab.count(&sandbox, &guest).await;
        let checkpoint = sandbox.checkpoint(cycle);
        let image = sandbox.suspend(&*engine, guest, &checkpoint).await;
        sandbox.end(&*engine).await;
        assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty(), "nothing of it is left");
        let told: u64 = image.files.iter().map(|file| file.bytes).sum();
        assert_eq!(image.bytes(), told);
        engine = sandbox.wake(&checkpoint, &image).await.expect("can be woken");
        guest = sandbox.go(&*engine).await;
        let after = lab.count(&sandbox, &guest).await;
        assert!(after.token == before.token && after.number >= before.number, "{cycle}: {before:?} {after:?}");
        let moving = async {
            while lab.count(&sandbox, &guest).await.number <= after.number {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, moving).await.expect("it goes on counting");
    }
}

/// What was loaded waits for its resume.
pub async fn nothing_runs_before_its_time(lab: Arc<dyn Lab>) {
    let (mut sandbox, image) = suspended(&lab, "waits").await;
    let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("can be woken");
    engine.pause().await.expect("stopped already is fine");
    assert!(!sandbox.answers(&*engine, A_WHILE).await, "nobody runs yet");
    engine.disconnected().await.expect("nobody is connected");
    let guest = sandbox.go(&*engine).await;
    lab.count(&sandbox, &guest).await;
}

/// An image that was loaded and never run is what it was; so is its disk.
pub async fn loading_spends_nothing(lab: Arc<dyn Lab>) {
    let (mut sandbox, image) = suspended(&lab, "spends").await;
    for reaped in [true, false] {
        let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("can be woken");
        engine.kill().await.expect("can be killed");
        if reaped {
            sandbox.driver.reap(&sandbox.place).await.expect("can be reaped");
        }
    }
    // The last one was killed and not reaped: its place is free all the same.
    let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    lab.count(&sandbox, &guest).await;
}

/// Whoever watches is told, and what is dead says so.
pub async fn a_kill_is_noticed(lab: Arc<dyn Lab>) {
    let (sandbox, engine, guest) = Sandbox::started(&lab, "killed").await;
    let watched = Arc::clone(&engine);
    let watch = async { tokio::time::timeout(SOON, watched.exited()).await.expect("it is noticed") };
    let (exit, killed) = tokio::join!(watch, engine.kill());
    killed.expect("can be killed");
    assert!(!exit.out_of_memory, "{exit:?}");
    engine.kill().await.expect("twice is fine");
    engine.exited().await;
    tokio::time::timeout(SOON, guest.closed()).await.expect("its line is cut");
    assert!(matches!(engine.connect().await.map(drop), Err(Error::Ended { .. })));
    assert!(matches!(engine.pause().await, Err(Error::Ended { .. })));
    assert!(sandbox.driver.adopt(&sandbox.place).await.expect("can be looked at").is_none());
    assert!(sandbox.disk().exists(), "its disk is its own");
}

/// A guest that switches itself off is an engine that ends.
pub async fn switched_off_from_inside_it_ends(lab: Arc<dyn Lab>) {
    let (sandbox, engine, guest) = Sandbox::started(&lab, "off").await;
    // Its answer may be lost on the way.
    let _ = guest.poweroff().await;
    let exit = tokio::time::timeout(SOON, engine.exited()).await.expect("it ends");
    assert!(!exit.out_of_memory, "{exit:?}");
    assert!(matches!(engine.connect().await.map(drop), Err(Error::Ended { .. })));
    assert!(sandbox.driver.adopt(&sandbox.place).await.expect("can be looked at").is_none());
    sandbox.driver.reap(&sandbox.place).await.expect("can be reaped");
    assert!(sandbox.processes().is_empty());
}

/// A boot of its own disk: nothing is remembered, and the new secret counts.
pub async fn a_boot_has_fresh_memory(lab: Arc<dyn Lab>) {
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "boot").await;
    lab.begin_count(&sandbox, &guest).await;
    let before = lab.count(&sandbox, &guest).await;
    drop(guest);
    sandbox.end(&*engine).await;
    sandbox.secret = [9; 32];
    let engine = sandbox.launch(Source::Boot { secret: [9; 32] }).await.expect("can be booted");
    let guest = sandbox.go(&*engine).await;
    lab.begin_count(&sandbox, &guest).await;
    assert_ne!(lab.count(&sandbox, &guest).await.token, before.token);
    // And it sleeps and wakes like any other.
    let before = lab.count(&sandbox, &guest).await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    sandbox.end(&*engine).await;
    let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(lab.count(&sandbox, &guest).await.token, before.token);
}
