//! Images that are not what they should be, and launches that fail or are dropped.

use std::fs;
use std::path::Path;
use std::time::Duration;

use wakeful_driver::{Card, Driver, Error, Image, Machine, Source};

use crate::lab::{Lab, MACHINE, Sandbox, config, run_dir};

fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path).expect("is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("is long enough");
    byte[0] ^= 0x10;
    file.write_all_at(&byte, at).expect("can be written");
}

async fn refusal(sandbox: &Sandbox, image: &Image) -> Error {
    let source = Source::Wake { checkpoint: &sandbox.checkpoint(0), image };
    let Err(error) = sandbox.launch(source).await else { panic!("it must not load") };
    assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty(), "nothing is left");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_refused_before_anything_is_spent() {
    let lab = Lab::open().await;
    let (sandbox, engine, guest) = lab.clone("damage").await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    engine.kill().await.expect("can be killed");
    sandbox.qemu.reap(&sandbox.place).await.expect("can be reaped");
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
    for file in ["dev.state", "mem.diff"] {
        fs::rename(dir.join(file), dir.join("away")).expect("is there");
        assert!(matches!(refusal(&sandbox, &image).await, Error::Damaged { .. }), "{file} is missing");
        std::os::unix::fs::symlink(dir.join("away"), dir.join(file)).expect("can be linked");
        assert!(matches!(refusal(&sandbox, &image).await, Error::Damaged { .. }), "{file} is a link");
        fs::rename(dir.join("away"), dir.join(file)).expect("is there");
    }

    let other = Image { engine: "0123456789abcdef".to_owned(), ..image.clone() };
    assert!(matches!(refusal(&sandbox, &other).await, Error::Unfit { .. }), "another key");
    let mut gone = image.clone();
    gone.detail["engine"] = "qemu-6.0.0-0123456789ab".into();
    assert!(matches!(refusal(&sandbox, &gone).await, Error::Unfit { .. }), "another engine");
    let strange = Image { detail: serde_json::Value::Null, ..image.clone() };
    assert!(matches!(refusal(&sandbox, &strange).await, Error::Unfit { .. }), "no detail");
    let larger = Machine { memory_mb: 256, ..MACHINE };
    let source = Source::Wake { checkpoint: &dir, image: &image };
    let refused = sandbox.qemu.launch(&sandbox.place, larger, &sandbox.base, Card::Unplugged, source).await;
    assert!(matches!(refused, Err(Error::Unfit { .. })), "another machine");

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
async fn a_dropped_launch_leaves_nothing() {
    let lab = Lab::open().await;
    let sandbox = lab.sandbox("dropped");
    // Cut off at many different moments: before, while and after the engine starts.
    for milliseconds in [0, 1, 2, 4, 8, 12, 16, 24, 32, 48] {
        let source = Source::Clone { golden: &lab.golden, image: &lab.image };
        let launch = sandbox.launch(source);
        if let Ok(Ok(engine)) = tokio::time::timeout(Duration::from_millis(milliseconds), launch).await {
            engine.kill().await.expect("can be killed");
            sandbox.qemu.reap(&sandbox.place).await.expect("can be reaped");
            fs::remove_file(sandbox.place.data.join("overlay.ext4")).expect("is there");
        }
        // A thread that was in the middle of a step finishes it, sees that nobody wants it, and cleans up.
        let clean = async {
            while sandbox.place.run.exists()
                || sandbox.place.data.join("overlay.ext4").exists()
                || !sandbox.processes().is_empty()
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), clean).await.expect("all is cleaned up");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launch_where_an_engine_lives_is_refused() {
    let lab = Lab::open().await;
    let (sandbox, engine, guest) = lab.clone("twice").await;
    let refused = sandbox.launch(Source::Boot { secret: [1; 32] }).await;
    assert!(matches!(refused, Err(Error::Refused { .. })));
    guest.health(Duration::from_secs(10)).await.expect("the first one is untouched");
    drop(guest);
    engine.kill().await.expect("can be killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_nobody_needs_are_forgotten() {
    let lab = Lab::open().await;
    let (data, run) = (tempfile::tempdir().expect("can be made"), run_dir());
    let kernels = lab.golden.parent().expect("the cache").join("kernels");
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
