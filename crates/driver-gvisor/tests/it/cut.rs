//! A daemon that died between two words of an engine's account.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use wakeful_driver_contract::{Lab, Sandbox};

use crate::lab;

const A_WHILE: Duration = Duration::from_millis(700);

async fn found_as(stands: &str, written: &str) {
    let whole: Arc<dyn Lab> = lab::open().await;
    let (mut sandbox, engine, guest) = Sandbox::started(&whole, "cut").await;
    whole.begin_count(&sandbox, &guest).await;
    let before = whole.count(&sandbox, &guest).await;
    let stopped = stands == "stopped";
    if stopped {
        sandbox.stop(&*engine, guest).await;
    } else {
        guest.close().await;
    }
    drop(engine);
    let account = sandbox.place.run.join("engine.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&account).expect("is there")).expect("is data");
    assert_eq!(record["phase"], stands);
    record["phase"] = written.into();
    fs::write(&account, record.to_string()).expect("can be written");

    sandbox.driver = whole.reopened().await;
    let engine = sandbox.driver.adopt(&sandbox.place).await.expect("can be adopted").expect("it lives");
    let record: Value = serde_json::from_slice(&fs::read(&account).expect("is there")).expect("is data");
    assert_eq!(record["phase"], stands, "it was found out");
    if stopped {
        assert!(!sandbox.answers(&*engine, A_WHILE).await, "it is not let go by the look");
    }
    let guest = sandbox.go(&*engine).await;
    let after = whole.count(&sandbox, &guest).await;
    assert!(after.token == before.token && after.number >= before.number, "{before:?} {after:?}");
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    sandbox.end(&*engine).await;
    let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(whole.count(&sandbox, &guest).await.token, before.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_it_stopped() {
    found_as("running", "stopping").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_it_stopped() {
    found_as("stopped", "stopping").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_it_went_on() {
    found_as("stopped", "continuing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_it_went_on() {
    found_as("running", "continuing").await;
}
