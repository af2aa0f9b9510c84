//! Disks that became layers.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use wakeful_driver::{Part, Source};
use wakeful_driver_contract::{Lab, Sandbox, shell};
use wakeful_driver_gvisor::layers;

use crate::lab;

/// Enough that it is worth it.
const FILL: &str = "head -c 80000000 /dev/urandom > /root/large";
/// All that an overlay must remember: new, changed, removed, replaced, moved, linked, owned by somebody.
const CHANGE: &str = "cd /root; md5sum large > sums; echo 1 >> /etc/hostname.ours; rm /etc/issue; rm -r /etc/apt; mkdir /etc/apt; \
    echo mine > /etc/apt/only; mkdir -p deep/er; echo x > deep/er/x; mv deep moved; ln sums hard; ln -s sums soft; \
    echo o > owned; chown 1234:4321 owned; chmod 4751 owned";
const LOOK: &str = "cd /root; md5sum -c sums >&2; cat /etc/hostname.ours; ls /etc/issue /etc/apt 2>/dev/null; cat moved/er/x; \
    cat hard soft | md5sum; stat -c '%u %g %a' owned";

fn blocks(path: &Path) -> u64 {
    fs::metadata(path).expect("is there").blocks() * 512
}

/// Worth it, laid, and shared with a new sandbox.
async fn laid(lab: &Arc<dyn Lab>, source: &Sandbox, name: &str) -> Sandbox {
    let (data, disk_mb) = (&source.place.data, source.machine.disk_mb);
    assert!(source.driver.worth_laying(data, disk_mb).await.expect("can be looked at"));
    source.driver.lay(data, disk_mb).await.expect("can be laid");
    let mut child = Sandbox::new(lab, name);
    child.secret = source.secret;
    source.driver.copy(Part::Disk, data, &child.place.data).await.expect("can be shared");
    child
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_and_copy_go_on_over_one_layer() {
    let whole: Arc<dyn Lab> = lab::open().await;
    let (mut parent, engine, guest) = Sandbox::started(&whole, "parent").await;
    whole.begin_count(&parent, &guest).await;
    shell(&guest, FILL).await;
    shell(&guest, CHANGE).await;
    // Open for writing while it becomes a layer.
    shell(&guest, "cd /root; (exec 3>>log; echo a >&3; while [ ! -e go ]; do sleep 0.1; done; echo b >&3; echo done >&3) >/dev/null 2>&1 &").await;
    let (before, seen) = (whole.count(&parent, &guest).await, shell(&guest, LOOK).await);
    let checkpoint = parent.checkpoint(0);
    let image = parent.suspend(&*engine, guest, &checkpoint).await;
    parent.end(&*engine).await;
    let mut child = laid(&whole, &parent, "child").await;

    // The copy takes nothing, and neither could be copied for less.
    let (own, layer) =
        (layers::of(&parent.place.data).expect("is there"), layers::of(&child.place.data).expect("is there"));
    assert_eq!((own.len(), layer.len()), (1, 1));
    assert_eq!(fs::metadata(&own[0]).expect("is there").ino(), fs::metadata(&layer[0]).expect("is there").ino());
    assert!(blocks(&layer[0]) > 80_000_000 && blocks(&child.disk()) < 20_000_000, "{}", blocks(&child.disk()));
    assert!(!parent.driver.worth_laying(&parent.place.data, 128).await.expect("can be looked at"), "it is empty");

    let mut all = Vec::new();
    for sandbox in [&mut parent, &mut child] {
        let engine = sandbox.wake(&checkpoint, &image).await.expect("can be woken");
        let guest = sandbox.go(&*engine).await;
        assert_eq!(whole.count(sandbox, &guest).await.token, before.token, "its memory is there");
        assert_eq!(shell(&guest, LOOK).await, seen, "its files are there");
        shell(&guest, &format!("echo {} > /root/who; rm /root/large; touch /root/go", sandbox.place.name)).await;
        let log =
            shell(&guest, "cd /root; for i in $(seq 100); do grep -q done log && break; sleep 0.1; done; cat log");
        assert_eq!(log.await.replace('\n', " "), "a b done", "what was open is written on");
        all.push((engine, guest));
    }
    for (sandbox, (_, guest)) in [&parent, &child].into_iter().zip(&all) {
        assert_eq!(
            shell(guest, "cat /root/who; ls /root/large 2>/dev/null || echo gone").await,
            format!("{}\ngone", sandbox.place.name)
        );
    }

    // Once more, over two layers; the first's other name is gone by then.
    let (engine, guest) = all.remove(1);
    shell(&guest, &FILL.replace("large", "second")).await;
    let kept = shell(&guest, "md5sum < /root/second").await;
    let image = child.suspend(&*engine, guest, &child.checkpoint(0)).await;
    child.end(&*engine).await;
    let (engine, guest) = all.remove(0);
    guest.close().await;
    parent.end(&*engine).await;
    fs::remove_dir_all(&parent.place.data).expect("can be removed");
    child.machine.disk_mb = 512;
    let mut grandchild = laid(&whole, &child, "grandchild").await;
    grandchild.machine.disk_mb = 512;
    assert_eq!(layers::of(&grandchild.place.data).expect("is there").len(), 2);
    let engine = grandchild.wake(&child.checkpoint(0), &image).await.expect("can be woken");
    let guest = grandchild.go(&*engine).await;
    assert_eq!(
        shell(&guest, "cat /root/who; md5sum < /root/second; ls /root/large 2>/dev/null || echo gone").await,
        format!("child\n{kept}\ngone")
    );
    // And a boot, which needs no memory.
    guest.close().await;
    grandchild.end(&*engine).await;
    grandchild.secret = [9; 32];
    let engine = grandchild.launch(Source::Boot { secret: [9; 32] }).await.expect("can be booted");
    let guest = grandchild.go(&*engine).await;
    assert_eq!(shell(&guest, "md5sum < /root/second; cat /etc/apt/only").await, format!("{kept}\nmine"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_done_only_where_it_pays() {
    let whole: Arc<dyn Lab> = lab::open().await;
    let (sandbox, engine, guest) = Sandbox::started(&whole, "one").await;
    let worth = |disk_mb| sandbox.driver.worth_laying(&sandbox.place.data, disk_mb);
    assert!(!worth(1024).await.expect("can be looked at"), "there is nothing to copy");
    shell(&guest, &format!("{FILL}; sync")).await;
    sandbox.stop(&*engine, guest).await;
    fs::create_dir(sandbox.checkpoint(0)).expect("can be made");
    engine.save(&sandbox.checkpoint(0)).await.expect("can be saved");
    assert!(worth(1024).await.expect("can be looked at"), "also while it is in use");
    assert!(!worth(64).await.expect("can be looked at"), "more than one disk may hold");
    sandbox.end(&*engine).await;
    for number in 0..8 {
        fs::write(sandbox.place.data.join(format!("layer-{number:03}.ext4")), "").expect("can be written");
    }
    assert!(!worth(1024).await.expect("can be looked at"), "there are too many");
}

/// As a power cut leaves it: the journal has what the rest has not. And a daemon that died when the empty disk had its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_was_in_use_is_brought_to_an_end() {
    let whole: Arc<dyn Lab> = lab::open().await;
    let (source, engine, guest) = Sandbox::started(&whole, "source").await;
    shell(&guest, &format!("{FILL}; sync; echo last > /root/last; sync")).await;
    let mut sandbox = Sandbox::new(&whole, "after-a-cut");
    fs::copy(source.disk(), sandbox.disk()).expect("can be copied in use");
    guest.close().await;
    source.end(&*engine).await;
    // Passed over: it is an empty disk.
    let blank = fs::read_dir(whole_data(&whole).join("disks")).expect("is there").flatten();
    let blank = blank.map(|entry| entry.path()).find(|path| path.ends_with("blank-128.ext4")).expect("was made");
    fs::copy(blank, sandbox.place.data.join("layer-000.ext4")).expect("can be copied");
    let (data, disk_mb) = (sandbox.place.data.clone(), sandbox.machine.disk_mb);
    sandbox.driver.lay(&data, disk_mb).await.expect("can be laid");
    assert_eq!(layers::of(&data).expect("is there").len(), 2);
    let engine = sandbox.launch(Source::Boot { secret: sandbox.secret }).await.expect("can be booted");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(shell(&guest, "cat /root/last; stat -c %s /root/large").await, "last\n80000000");
}

fn whole_data(lab: &Arc<dyn Lab>) -> std::path::PathBuf {
    // The lab's work is below its data.
    lab.work().ancestors().find(|dir| dir.join("disks").is_dir()).expect("the driver's data").to_owned()
}
