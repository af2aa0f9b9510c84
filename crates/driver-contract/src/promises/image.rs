//! Images that are not what they should be, and saves that fail.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

use wakeful_driver::{Error, Image, Machine};

use crate::lab::{Lab, RealLab};
use crate::sandbox::{Sandbox, flip, shell, suspended};
use crate::small::SmallDisk;

async fn refusal(sandbox: &Sandbox, image: &Image) -> Error {
    let Err(error) = sandbox.wake(&sandbox.checkpoint(0), image).await else { panic!("it must not load") };
    assert!(!sandbox.place.run.exists() && sandbox.processes().is_empty(), "nothing is left");
    assert!(sandbox.disk().exists(), "its disk is untouched");
    error
}

/// Whatever is flipped, cut, missing or a link is refused, and the image loads when it is sound again.
pub async fn damage_is_refused(lab: Arc<dyn Lab>) {
    let (mut sandbox, image) = suspended(&lab, "damage").await;
    let (dir, away) = (sandbox.checkpoint(0), sandbox.place.data.join("away"));
    for file in &image.files {
        let path = dir.join(&file.name);
        let middle = if file.bulk_digest.is_none() && file.bytes < 1 << 22 { file.bytes / 2 } else { 0 };
        // Of what is too large to be read at every load only the length is known.
        let flips: &[u64] = if file.digest.is_empty() { &[] } else { &[0, middle] };
        for at in flips {
            flip(&path, *at);
            let error = refusal(&sandbox, &image).await;
            assert!(
                matches!(&error, Error::Damaged { file: named, .. } if *named == file.name),
                "{file:?} {at}: {error}"
            );
            flip(&path, *at);
        }
        fs::rename(&path, &away).expect("is there");
        assert!(matches!(refusal(&sandbox, &image).await, Error::Damaged { .. }), "{} is missing", file.name);
        symlink(&away, &path).expect("can be linked");
        assert!(matches!(refusal(&sandbox, &image).await, Error::Damaged { .. }), "{} is a link", file.name);
        fs::remove_file(&path).expect("is there");
        fs::copy(&away, &path).expect("can be copied");
        let cut = fs::File::options().write(true).open(&path).expect("is there");
        cut.set_len(file.bytes - 1).expect("can be cut");
        assert!(matches!(refusal(&sandbox, &image).await, Error::Damaged { .. }), "{} is short", file.name);
        fs::rename(&away, &path).expect("is there");
    }
    let engine = sandbox.wake(&dir, &image).await.expect("after all that it is still sound");
    let guest = sandbox.go(&*engine).await;
    lab.count(&sandbox, &guest).await;
}

/// An image fits the engine that wrote it and no other.
pub async fn a_foreign_image_is_unfit(lab: Arc<dyn Lab>) {
    let (sandbox, image) = suspended(&lab, "unfit").await;
    let other = Image { engine: "0123456789abcdef".to_owned(), ..image.clone() };
    let error = refusal(&sandbox, &other).await;
    assert!(matches!(error, Error::Unfit { .. }), "{error}");
    sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("its own loads");
}

/// Nor another machine, nor an engine that is not kept.
pub async fn another_machines_image_is_unfit(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (mut sandbox, image) = suspended(&lab, "machine").await;
    let machine = sandbox.machine;
    let larger = Machine { memory_mb: machine.memory_mb * 2, ..machine };
    let more = Machine { cpu: machine.cpu + 1, ..machine };
    let smaller = Machine { disk_mb: machine.disk_mb / 2, ..machine };
    for other in [larger, more, smaller] {
        sandbox.machine = other;
        let error = refusal(&sandbox, &image).await;
        assert!(matches!(error, Error::Unfit { .. }), "{other}: {error}");
    }
    sandbox.machine = machine;
    let mut gone = image.clone();
    let kept = gone.detail["engine"].as_str().expect("it is named").to_owned();
    let digit = if kept.ends_with('0') { '1' } else { '0' };
    for name in [format!("{}{digit}", &kept[..kept.len() - 1]), "../engines".to_owned(), String::new()] {
        gone.detail["engine"] = name.as_str().into();
        let error = refusal(&sandbox, &gone).await;
        assert!(matches!(error, Error::Unfit { .. }), "{name:?}: {error}");
    }
    let strange = Image { detail: serde_json::Value::Null, ..image.clone() };
    assert!(matches!(refusal(&sandbox, &strange).await, Error::Unfit { .. }), "no detail");
    sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("its own loads");
}

/// An inspector tells living engines from dead ones, and reads images to their last byte.
pub async fn an_inspector_sees_engines_and_damage(lab: Arc<dyn RealLab>) {
    let inspector = lab.inspector();
    let lab: Arc<dyn Lab> = lab;
    let (sandbox, engine, guest) = Sandbox::started(&lab, "inspect").await;
    assert_eq!(inspector.disk_file(), sandbox.driver.disk_file());
    assert!(inspector.lives(&sandbox.place).await.expect("can be looked at"));
    let dir = sandbox.checkpoint(0);
    let image = sandbox.suspend(&*engine, guest, &dir).await;
    assert!(inspector.lives(&sandbox.place).await.expect("can be looked at"), "a stopped one lives too");
    sandbox.end(&*engine).await;
    assert!(!inspector.lives(&sandbox.place).await.expect("can be looked at"));
    inspector.verify(&sandbox.place.data, &dir, &image).await.expect("it is sound");
    for file in &image.files {
        for at in [0, file.bytes / 2, file.bytes - 1] {
            flip(&dir.join(&file.name), at);
            let found = inspector.verify(&sandbox.place.data, &dir, &image).await;
            assert!(matches!(found, Err(Error::Damaged { .. })), "{} at {at}: {found:?}", file.name);
            flip(&dir.join(&file.name), at);
        }
    }
    inspector.verify(&sandbox.place.data, &dir, &image).await.expect("it is sound again");
}

/// A save that finds no room leaves nothing, and an engine that goes on; the next one is good.
pub async fn a_full_disk_leaves_it_alive(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "full").await;
    lab.begin_count(&sandbox, &guest).await;
    shell(&guest, "head -c 4000000 /dev/urandom > /dev/shm/memory; md5sum /dev/shm/memory > /root/sum").await;
    let before = lab.count(&sandbox, &guest).await;
    let small = SmallDisk::mount(sandbox.place.data.join("small"));
    sandbox.stop(&*engine, guest).await;
    for _ in 0..2 {
        let error = engine.save(small.path()).await.expect_err("there is no room");
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
        assert_eq!(fs::read_dir(small.path()).expect("is there").count(), 0, "partial files are removed");
    }
    let guest = sandbox.go(&*engine).await;
    assert_eq!(lab.count(&sandbox, &guest).await.token, before.token);
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    sandbox.end(&*engine).await;
    let engine = sandbox.wake(&sandbox.checkpoint(0), &image).await.expect("can be woken");
    let guest = sandbox.go(&*engine).await;
    assert_eq!(lab.count(&sandbox, &guest).await.token, before.token);
    assert!(shell(&guest, "md5sum -c /root/sum").await.contains("OK"));
}

/// A file that is in the way is not written over, and the others go again.
pub async fn what_is_in_the_way_leaves_no_half_image(lab: Arc<dyn RealLab>) {
    let lab: Arc<dyn Lab> = lab;
    let (mut sandbox, engine, guest) = Sandbox::started(&lab, "way").await;
    let image = sandbox.suspend(&*engine, guest, &sandbox.checkpoint(0)).await;
    for file in &image.files {
        let dir = sandbox.place.data.join(format!("in-the-way-of-{}", file.name));
        fs::create_dir(&dir).expect("can be made");
        fs::write(dir.join(&file.name), "somebody's").expect("can be written");
        assert!(engine.save(&dir).await.is_err(), "{} is there already", file.name);
        let left: Vec<_> = fs::read_dir(&dir).expect("is there").flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| *name == *file.name), "{left:?}");
        assert_eq!(fs::read(dir.join(&file.name)).unwrap_or_default(), b"somebody's", "{} is not ours", file.name);
    }
    fs::create_dir(sandbox.checkpoint(1)).expect("can be made");
    engine.save(&sandbox.checkpoint(1)).await.expect("elsewhere it can be saved");
    let guest = sandbox.go(&*engine).await;
    guest.health(Duration::from_secs(30)).await.expect("it goes on");
}
