//! Images whose parts are not what they should be, beside what every driver refuses; and engines that nobody needs.

use std::fs;

use wakeful_driver::{Driver as _, Error, Image, Source};
use wakeful_driver_contract::{Sandbox, flip};

use crate::lab::{self, config, run_dir};

async fn refusal(sandbox: &Sandbox, image: &Image) -> Error {
    let source = Source::Wake { checkpoint: &sandbox.checkpoint(0), image };
    let Err(error) = sandbox.launch(source).await else { panic!("it must not load") };
    assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty(), "nothing is left");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_refused_before_anything_is_spent() {
    let lab = lab::open().await;
    let (sandbox, engine, guest) = lab.started("damage").await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    engine.kill().await.expect("can be killed");
    sandbox.driver.reap(&sandbox.place).await.expect("can be reaped");
    let dir = sandbox.checkpoint(0);
    let length = fs::metadata(dir.join("mem.diff")).expect("is there").len();

    for (file, at) in
        [("dev.state", 0), ("dev.state", 9000), ("mem.diff", 9), ("mem.diff", 2000), ("mem.diff", length - 3)]
    {
        flip(&dir.join(file), at);
        let error = refusal(&sandbox, &image).await;
        assert!(matches!(&error, Error::Damaged { file: named, .. } if named == file), "{file} {at}: {error}");
        flip(&dir.join(file), at);
    }
    // State that is as its account says and that the engine does not understand.
    let state = dir.join("dev.state");
    let sound = fs::read(&state).expect("is there");
    let mut junk = sound.clone();
    junk[200..].fill(0x5a);
    fs::write(&state, &junk).expect("can be written");
    let mut lying = image.clone();
    let account = lying.files.iter_mut().find(|file| file.name == "dev.state").expect("is named");
    account.digest = blake3::hash(&junk).to_hex().to_string();
    let error = refusal(&sandbox, &lying).await;
    assert!(matches!(&error, Error::Unfit { .. }), "{error}");

    fs::write(&state, &sound).expect("can be written");
    let source = Source::Wake { checkpoint: &dir, image: &image };
    sandbox.launch(source).await.expect("after all that it is still sound");
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_nobody_needs_are_forgotten() {
    let lab = lab::open().await;
    let (data, run) = (tempfile::tempdir().expect("can be made"), run_dir());
    let kernels = lab.data().join("kernels");
    let kernel = kernels.join(fs::read_to_string(kernels.join("current")).expect("is prepared").trim());
    let config = wakeful_driver_qemu::QemuConfig { kernel: Some(kernel), ..config(data.path(), run.path()) };
    let qemu = wakeful_driver_qemu::Qemu::open(config).await.expect("all is prepared");
    assert_eq!(qemu.engine(), lab.qemu.engine(), "the same engine has the same key wherever it is kept");
    let engines = data.path().join("engines");
    let old = engines.join("qemu-6.0.0-0123456789ab");
    fs::create_dir(&old).expect("can be made");
    fs::write(old.join("engine.json"), r#"{"version":"6.0.0","digest":"0123456789ab"}"#).expect("can be written");
    qemu.forget_engines(&[]).await.expect("can be removed");
    assert!(!old.exists());
    qemu.forget_engines(&[qemu.engine().key.clone()]).await.expect("nothing to do");
    let kept = fs::read_dir(engines).expect("is there").flatten().filter(|entry| entry.path().is_dir()).count();
    assert_eq!(kept, 1, "the one in use is kept in any case");
}
