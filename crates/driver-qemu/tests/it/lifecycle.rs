//! Golden, clone, cancel, suspend, wake, compact, boot, exit.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use wakeful_driver::{MemoryBase, Source};
use wakeful_driver_contract::shell;

use crate::lab;

fn env(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("REMEMBER".to_owned(), value.to_owned())])
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_survives_cancel_suspend_and_compaction() {
    let lab = lab::open().await;
    let (mut sandbox, engine, guest) = lab.started("life").await;
    let owner = fs::metadata(format!("/proc/{}", engine.pid())).expect("it lives");
    assert!(owner.uid() > 1_900_000_000 && owner.gid() == owner.uid(), "engines are nobody");
    sandbox.set_env(&guest, env("one")).await;

    // A suspend that somebody changes his mind about.
    let cancelled = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    assert_eq!(cancelled.base, Some(MemoryBase::Golden(lab.golden.clone())));
    let guest = sandbox.go(&*engine).await;
    assert_eq!(guest.envs().await.expect("it answers")["REMEMBER"], "one");
    sandbox.set_env(&guest, env("two")).await;

    // One that is kept; its engine goes.
    let first = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(1)).await;
    assert!(first.bytes() < 64 << 20, "{} bytes for an idle guest", first.bytes());
    engine.kill().await.expect("can be killed");
    engine.kill().await.expect("twice is fine");
    sandbox.driver.reap(&sandbox.place).await.expect("can be reaped");
    assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty());

    // Waking spends nothing until somebody says so: the same checkpoint loads twice.
    for _ in 0..2 {
        let source = Source::Wake { checkpoint: &sandbox.checkpoint(1), image: &first };
        let engine = sandbox.launch(source).await.expect("can be woken");
        engine.kill().await.expect("can be killed");
    }
    let source = Source::Wake { checkpoint: &sandbox.checkpoint(1), image: &first };
    let engine = sandbox.launch(source).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(guest.envs().await.expect("it answers")["REMEMBER"], "two");
    sandbox.set_env(&guest, env("three")).await;
    let second = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(2)).await;
    engine.kill().await.expect("can be killed");

    // Folded into an own base, there are no pages left to inject.
    let folded =
        sandbox.driver.compact(&sandbox.place, &sandbox.checkpoint(2), &second).await.expect("can be compacted");
    assert_eq!(folded.base, Some(MemoryBase::Own));
    assert!(folded.files.iter().all(|file| file.name != "mem.diff"));
    assert!(sandbox.place.data.join("mem.base").exists() && !sandbox.place.data.join("mem.base.new").exists());
    // Until the caller commits that, the old account over the old files is as good as ever.
    let source = Source::Wake { checkpoint: &sandbox.checkpoint(2), image: &second };
    sandbox.launch(source).await.expect("can be woken").kill().await.expect("can be killed");
    fs::remove_file(sandbox.checkpoint(2).join("mem.diff")).expect("is there");
    let source = Source::Wake { checkpoint: &sandbox.checkpoint(2), image: &folded };
    let engine = sandbox.launch(source).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(guest.envs().await.expect("it answers")["REMEMBER"], "three");

    // The next one is a difference to the own base; compacting it replaces that base.
    let third = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(3)).await;
    assert_eq!(third.base, Some(MemoryBase::Own));
    engine.kill().await.expect("can be killed");
    let folded =
        sandbox.driver.compact(&sandbox.place, &sandbox.checkpoint(3), &third).await.expect("can be compacted");
    for image in [&third, &folded] {
        // Old pages over the new base give the same memory.
        let source = Source::Wake { checkpoint: &sandbox.checkpoint(3), image };
        let engine = sandbox.launch(source).await.expect("can be woken");
        engine.kill().await.expect("can be killed");
    }
    let source = Source::Wake { checkpoint: &sandbox.checkpoint(3), image: &folded };
    let engine = sandbox.launch(source).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(guest.envs().await.expect("it answers")["REMEMBER"], "three");
    drop(guest);
    sandbox.driver.reap(&sandbox.place).await.expect("a running one can be reaped");
    assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty());
    // Whoever reaps takes the status; that it has ended is known to all.
    engine.exited().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_memory_and_disk_come_back() {
    let lab = lab::open().await;
    let (mut sandbox, engine, guest) = lab.started("data").await;
    // The card is plugged in, also where that leads nowhere: a clone must not have to be told.
    assert_eq!(shell(&guest, "cat /sys/class/net/eth0/carrier").await, "1");
    let make = "head -c 20000000 /dev/urandom > /dev/shm/memory; head -c 5000000 /dev/urandom > /root/disk; \
                md5sum /dev/shm/memory /root/disk > /root/sums; cat /root/sums";
    shell(&guest, make).await;
    // A process that goes on counting. It appends, so that a reader never meets an empty file.
    let count = "(i=0; while :; do i=$((i+1)); echo $i >> /dev/shm/count; sleep 0.05; done) > /dev/null 2>&1 &";
    shell(&guest, count).await;
    let last = "while read n; do last=$n; done < /dev/shm/count; echo $last";
    let check = format!("echo 3 > /proc/sys/vm/drop_caches; md5sum -c /root/sums && {last}");
    shell(&guest, "while ! test -s /dev/shm/count; do sleep 0.05; done").await;

    let (mut engine, mut guest) = (engine, guest);
    for cycle in 1..=3 {
        let before: u64 = shell(&guest, last).await.parse().expect("a number");
        let checkpoint = sandbox.checkpoint(cycle);
        let mut image = sandbox.suspend(&*engine, guest, &checkpoint).await;
        engine.kill().await.expect("can be killed");
        assert!(image.bytes() > 20_000_000 || cycle > 2, "{} bytes", image.bytes());
        if cycle == 2 {
            image = sandbox.driver.compact(&sandbox.place, &checkpoint, &image).await.expect("can be compacted");
        } else if cycle == 3 {
            assert!(image.bytes() < 20_000_000, "{} bytes over an own base", image.bytes());
        }
        let source = Source::Wake { checkpoint: &checkpoint, image: &image };
        engine = sandbox.launch(source).await.expect("can be woken");
        guest = sandbox.go(&*engine).await;
        let said = shell(&guest, &check).await;
        let after: u64 = said.lines().last().and_then(|line| line.parse().ok()).expect("a number");
        assert!(said.contains("/root/disk: OK") && said.contains("/dev/shm/memory: OK"), "{said}");
        assert!(after >= before, "{before} -> {after}");
        shell(&guest, &format!("while test $({last}) -le {after}; do sleep 0.05; done")).await;
    }
    drop(guest);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ways_to_find_pages_agree() {
    let lab = lab::open().await;
    let (sandbox, engine, guest) = lab.started("pages").await;
    let by_ioctl = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    // The engine is stopped: nothing changes between the two.
    let (inode, size) = {
        let meta = fs::metadata(lab.golden.join("mem")).expect("is there");
        (meta.ino(), meta.len())
    };
    let mappings =
        wakeful_sys::pages::private_mappings(engine.pid(), inode, size).expect("it lives").expect("it maps it");
    let mut found = Vec::new();
    for method in [wakeful_sys::pages::Method::Best, wakeful_sys::pages::Method::Pagemap] {
        let mut map = wakeful_sys::pages::Pagemap::open(engine.pid(), method).expect("may be traced");
        let mut pages: Vec<u64> = Vec::new();
        for mapping in &mappings {
            map.dirty(mapping, &mut |run| {
                pages.extend((run.start..run.end).step_by(4096));
                Ok(())
            })
            .expect("can be scanned");
        }
        found.push(pages);
    }
    assert_eq!(found[0], found[1]);
    let diff = by_ioctl.files.iter().find(|file| file.name == "mem.diff").expect("is there");
    assert!(!found[0].is_empty() && diff.bytes <= 4096 + found[0].len() as u64 * 4100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_boot_has_an_empty_base_of_its_own() {
    let lab = lab::open().await;
    let (mut sandbox, engine, guest) = lab.started("boot").await;
    drop(guest);
    sandbox.end(&*engine).await;
    sandbox.secret = [9; 32];
    let engine = sandbox.launch(Source::Boot { secret: [9; 32] }).await.expect("can be booted");
    let guest = sandbox.go(&*engine).await;
    let checkpoint = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(1)).await;
    assert_eq!(checkpoint.base, Some(MemoryBase::Own));
}

#[tokio::test(flavor = "multi_thread")]
async fn how_an_engine_ended_is_told() {
    let lab = lab::open().await;
    let (_sandbox, engine, guest) = lab.started("killed").await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(engine.pid()).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
    let exit = tokio::time::timeout(Duration::from_secs(10), engine.exited()).await.expect("it is noticed");
    assert_eq!((exit.status.as_deref(), exit.output.as_str()), (Some("signal 9"), ""));
    assert!(!std::path::Path::new(&format!("/proc/{}", engine.pid())).exists(), "no zombie is left");
    guest.closed().await;

    let (_sandbox, engine, guest) = lab.started("off").await;
    guest.poweroff().await.expect("it begins");
    let exit = tokio::time::timeout(Duration::from_secs(30), engine.exited()).await.expect("it ends");
    assert!(exit.status.as_deref().is_some_and(|status| status.ends_with("restarted from inside")), "{exit:?}");
}
