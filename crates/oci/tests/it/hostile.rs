//! Layers that want out, or to fill the disk.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use wakeful_oci::{Config, Digest, Error, Image, Layer};

use crate::House;
use crate::layout::{Layout, Tar};
use crate::registry::Registry;

#[tokio::test]
async fn nothing_gets_out() {
    let registry = Registry::start();
    for (number, layer) in [
        Tar::new().file("../canary", b"bad").end(),
        Tar::new().file("a/../../canary", b"bad").end(),
        Tar::new().symlink("out", "/").file("out/canary", b"bad").end(),
        Tar::new().symlink("out", "../..").file("out/canary", b"bad").end(),
        Tar::new().hardlink("in", "../canary").end(),
        Tar::new().hardlink("in", "/etc/hostname").end(),
    ]
    .iter()
    .enumerate()
    {
        let house = House::new();
        let canary = house.directory.path().join("canary");
        std::fs::write(&canary, b"alive").unwrap();
        let below = Tar::new().file("below", b"1").end();
        let reference = Layout::new().layer(&below).layer(layer).push(&registry, &format!("hostile:{number}"));
        let image = house.pull(&reference).await.unwrap();
        let error = house.unpack(&image).unwrap_err();
        assert!(matches!(&error, Error::Layer { number: 2, count: 2, .. }), "{number}: {error}");
        assert_eq!(error.kind(), wakeful_model::Kind::Invalid);
        assert_eq!(std::fs::read(&canary).unwrap(), b"alive", "{number}");
        assert!(!std::path::Path::new("/canary").exists());
    }
}

#[tokio::test]
async fn symlinks_of_a_lower_layer_stay_inside() {
    let registry = Registry::start();
    let lower = Tar::new().symlink("absolute", "/").symlink("climbing", "../../../..").end();
    let upper = Tar::new().file("absolute/one", b"1").file("climbing/two", b"2").end();
    let reference = Layout::new().layer(&lower).layer(&upper).push(&registry, "links:1");
    let house = House::new();
    let image = house.pull(&reference).await.unwrap();
    house.unpack(&image).unwrap();
    assert_eq!((house.text("one"), house.text("two")), ("1".into(), "2".into()));
    assert!(!std::path::Path::new("/one").exists() && !std::path::Path::new("/two").exists());
}

#[tokio::test]
async fn a_bomb_stops_early() {
    let registry = Registry::start();
    let layer = Tar::new().file("zeros", &vec![0; 32 << 20]).end();
    let reference = Layout::new().layer(&layer).push(&registry, "bomb:1");
    let house = House::new();
    let image = house.pull(&reference).await.unwrap();
    assert!(image.layers[0].size < 1 << 20, "it came small");
    let limits = wakeful_tree::Limits { bytes: 4 << 20, entries: 100 };
    let error = house.unpack_within(&image, limits).unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit, .. } if limit == 4 << 20), "{error}");
    let many = (0..200).fold(Tar::new(), |tar, number| tar.file(&format!("f{number}"), b"")).end();
    let reference = Layout::new().layer(&many).push(&registry, "bomb:2");
    let image = house.pull(&reference).await.unwrap();
    let error = house.unpack_within(&image, limits).unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 100, unit: "entries", .. }), "{error}");
}

#[tokio::test]
async fn limits_are_for_all_layers_together() {
    let registry = Registry::start();
    let layer = |name: &str| Tar::new().file(name, &[1; 600]).end();
    let reference = Layout::new().layer(&layer("one")).layer(&layer("two")).push(&registry, "sum:1");
    let house = House::new();
    let image = house.pull(&reference).await.unwrap();
    assert_eq!(house.unpack_within(&image, wakeful_tree::Limits { bytes: 1200, entries: 2 }).unwrap().bytes, 1200);
    for limits in
        [wakeful_tree::Limits { bytes: 1000, entries: 10 }, wakeful_tree::Limits { bytes: 10_000, entries: 1 }]
    {
        assert!(matches!(house.unpack_within(&image, limits), Err(Error::TooLarge { .. })));
    }
}

/// What follows an archive's end is read for the digest only, and is bounded all the same.
#[test]
fn a_bomb_behind_the_end() {
    let mut plain = Tar::new().file("small", b"1").end();
    plain.resize(plain.len() + (64 << 20), 0);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&plain).unwrap();
    let stored = encoder.finish().unwrap();
    let house = House::new();
    let layer = Layer { digest: Digest::of(&stored), size: stored.len() as u64, diff_id: Digest::of(&plain) };
    std::fs::write(house.directory.path().join("cache/sha256").join(layer.digest.hex()), &stored).unwrap();
    let image =
        Image { reference: String::new(), digest: Digest::of(b""), config: Config::default(), layers: vec![layer] };
    let error = house.unpack_within(&image, wakeful_tree::Limits { bytes: 1 << 20, entries: 100 }).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    house.unpack_within(&image, wakeful_tree::Limits { bytes: 128 << 20, entries: 100 }).unwrap();
}
