//! Engines outlive the driver that launched them.

use std::fs;
use std::sync::Arc;

use wakeful_driver::{Driver, Engine};
use wakeful_driver_qemu::Qemu;

use crate::lab::{Lab, config};

#[tokio::test(flavor = "multi_thread")]
async fn a_later_driver_finds_running_and_stopped_engines() {
    let lab = Lab::open().await;
    let (mut sandbox, engine, guest) = lab.clone("adopt").await;
    let pid = engine.pid();
    drop(guest);
    drop(engine);

    let data = lab.golden.parent().expect("the cache");
    let again = Arc::new(Qemu::open(config(data, lab.run_dir())).await.expect("all is prepared"));
    let engine: Arc<dyn Engine> = again.adopt(&sandbox.place).await.expect("can be adopted").expect("it lives");
    assert_eq!(engine.pid(), pid);
    engine.disconnected().await.expect("the old stream is gone");
    let guest = sandbox.go(&*engine).await;

    // Saved by the adopted one, over the base that the first one mapped.
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    drop(engine);
    let engine = again.adopt(&sandbox.place).await.expect("can be adopted").expect("a stopped one lives too");
    engine.kill().await.expect("can be killed");
    assert!(again.adopt(&sandbox.place).await.expect("can be looked at").is_none());
    let source = wakeful_driver::Source::Wake { checkpoint: &sandbox.checkpoint(0), image: &image };
    let engine = sandbox.launch(source).await.expect("can be woken");
    sandbox.go(&*engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_launch_was_cut_off_is_ended() {
    let lab = Lab::open().await;
    let (sandbox, engine, guest) = lab.clone("cut").await;
    drop(guest);
    // As if the daemon had died before it wrote the start time.
    let account = sandbox.place.run.join("engine.json");
    let mut record: serde_json::Value =
        serde_json::from_slice(&fs::read(&account).expect("is there")).expect("is data");
    record["started"] = serde_json::Value::Null;
    fs::write(&account, record.to_string()).expect("can be written");
    assert!(sandbox.qemu.adopt(&sandbox.place).await.expect("can be looked at").is_none());
    assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty());
    engine.exited().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reaping_works_with_anything_missing() {
    let lab = Lab::open().await;
    for missing in ["engine.json", "qmp", "agent"] {
        let (sandbox, engine, guest) = lab.clone(&format!("reap-{missing}")).await;
        drop(guest);
        fs::remove_file(sandbox.place.run.join(missing)).expect("is there");
        sandbox.qemu.reap(&sandbox.place).await.expect("can be reaped");
        sandbox.qemu.reap(&sandbox.place).await.expect("twice is fine");
        assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty(), "without {missing}");
        engine.exited().await;
    }
}
