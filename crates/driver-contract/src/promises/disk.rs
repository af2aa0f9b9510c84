//! Disks: growing, copying, lasting.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use wakeful_driver::{Engine, MemoryBase, Part, Source};
use wakeful_guest_client::Guest;

use crate::lab::{Lab, RealLab};
use crate::sandbox::{Sandbox, shell};

/// Little enough that nobody may take it for nothing.
const GROWTH_MB: u32 = 32;
/// Of that, what a file system keeps for itself at most.
const KEPT_MB: u64 = 8;

async fn disk_mb(guest: &Guest) -> u64 {
    guest.metrics().await.expect("it answers").disk_total >> 20
}

/// Tells engine and guest, as a daemon does.
async fn grow(engine: &dyn Engine, guest: &Guest, size_mb: u32) {
    for _ in 0..2 {
        engine.grow_disk(size_mb).await.expect("it grows");
        assert_eq!(engine.disk_mb(), size_mb);
        guest.grow(u64::from(size_mb) << 20).await.expect("the file system follows");
    }
}

/// The file system inside follows, running or asleep, and keeps what was in it.
pub async fn a_disk_grows_asleep_and_awake(lab: Arc<dyn RealLab>) {
    let awake = lab.grows_awake();
    let lab: Arc<dyn Lab> = lab;
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "grow").await;
    let wanted = u64::from(GROWTH_MB) - KEPT_MB;
    shell(&guest, "head -c 3000000 /dev/urandom > /root/kept; md5sum /root/kept > /root/sum").await;
    let first = disk_mb(&guest).await;
    let mut second = first;
    if awake {
        sandbox.machine.disk_mb += GROWTH_MB;
        grow(&*engine, &guest, sandbox.machine.disk_mb).await;
        second = disk_mb(&guest).await;
        assert!(second >= first + wanted, "{first} {second}");
    } else {
        engine.grow_disk(sandbox.machine.disk_mb + GROWTH_MB).await.expect_err("this host does not let it");
        assert_eq!((engine.disk_mb(), disk_mb(&guest).await), (sandbox.machine.disk_mb, first));
        engine.grow_disk(sandbox.machine.disk_mb).await.expect("what it has is fine");
    }
    assert_eq!(fs::metadata(sandbox.disk()).expect("is there").len(), u64::from(sandbox.machine.disk_mb) << 20);

    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    sandbox.end(&*engine).await;
    sandbox.machine.disk_mb += GROWTH_MB;
    let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("memory goes on over a larger disk");
    engine.grow_disk(sandbox.machine.disk_mb).await.expect("before it runs");
    let guest = sandbox.go(&*engine).await;
    grow(&*engine, &guest, sandbox.machine.disk_mb).await;
    let third = disk_mb(&guest).await;
    assert!(third >= second + wanted, "{second} {third}");
    assert!(shell(&guest, "md5sum -c /root/sum").await.contains("OK"));

    // And at a cold boot.
    drop(guest);
    sandbox.end(&*engine).await;
    sandbox.machine.disk_mb += GROWTH_MB;
    sandbox.secret = [5; 32];
    let engine = sandbox.launch(Source::Boot { secret: [5; 32] }).await.expect("can be booted");
    let guest = sandbox.go(&*engine).await;
    grow(&*engine, &guest, sandbox.machine.disk_mb).await;
    let fourth = disk_mb(&guest).await;
    assert!(fourth >= third + wanted, "{third} {fourth}");
    assert!(shell(&guest, "md5sum -c /root/sum").await.contains("OK"));
}

/// What the guest has written out is there after a power cut.
pub async fn synced_files_outlive_a_kill(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "kill").await;
    let make = "head -c 3000000 /dev/urandom > /root/kept; md5sum /root/kept > /root/sum; echo gone > /root/old";
    shell(&guest, make).await;
    assert!(guest.quiesce(Duration::from_secs(20)).await.expect("it answers"), "it is on the disk");
    guest.close().await;
    engine.disconnected().await.expect("it sees that");
    sandbox.end(&*engine).await;
    sandbox.secret = [3; 32];
    let engine = sandbox.launch(Source::Boot { secret: [3; 32] }).await.expect("can be booted");
    let guest = sandbox.go(&*engine).await;
    assert!(shell(&guest, "cat /root/old; md5sum -c /root/sum").await.contains("OK"));
}

/// Two copies of a stopped engine run beside it: each has the memory and the files, and none sees the others'.
pub async fn a_fork_is_whole_and_its_own(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (mut parent, engine, guest) = Sandbox::started(&lab, "parent").await;
    lab.begin_count(&parent, &guest).await;
    let make = "head -c 5000000 /dev/urandom > /root/kept; md5sum /root/kept > /root/sum; echo nobody > /root/who";
    shell(&guest, make).await;
    let (before, checkpoint) = (lab.count(&parent, &guest).await, parent.checkpoint(0));
    let image = parent.suspend(&*engine, guest, &checkpoint).await;
    let mut children = vec![Sandbox::new(&lab, "child-a"), Sandbox::new(&lab, "child-b")];
    for child in &mut children {
        child.secret = parent.secret;
        let (from, to) = (&parent.place.data, &child.place.data);
        child.driver.copy(Part::Disk, from, to).await.expect("can be copied");
        assert!(child.driver.copy(Part::Disk, from, to).await.is_err(), "what is there is not written over");
        if image.base == Some(MemoryBase::Own) {
            child.driver.copy(Part::Memory, from, to).await.expect("can be copied");
        }
    }
    // The parent first, so that its children begin from what it was and not from what it is.
    let mut all = vec![(parent.go(&*engine).await, engine)];
    shell(&all[0].0, "echo parent > /root/who; head -c 1000 /dev/urandom > /root/kept").await;
    for child in &mut children {
        let engine = child.wake(&checkpoint, &image).await.expect("can be forked");
        let guest = child.go(&*engine).await;
        assert!(shell(&guest, "cat /root/who; md5sum -c /root/sum").await.starts_with("nobody"));
        shell(&guest, &format!("echo {} > /root/who", child.place.name)).await;
        all.push((guest, engine));
    }
    let mut random = Vec::new();
    for (sandbox, (guest, _)) in [&parent].into_iter().chain(&children).zip(&all) {
        assert_eq!(lab.count(sandbox, guest).await.token, before.token);
        assert_eq!(shell(guest, "cat /root/who").await, sandbox.place.name);
        random.push(shell(guest, "head -c 16 /dev/urandom | md5sum").await);
    }
    assert!(random[0] != random[1] && random[1] != random[2] && random[0] != random[2], "{random:?}");
    // A child is a sandbox like any other.
    let (guest, engine) = all.pop().expect("three");
    let child = &mut children[1];
    let image = child.suspend(&*engine, guest, &child.checkpoint(0)).await;
    child.end(&*engine).await;
    let engine = child.wake(&child.checkpoint(0), &image).await.expect("can be woken");
    let guest = child.go(&*engine).await;
    assert_eq!(shell(&guest, "cat /root/who").await, "child-b");
}
