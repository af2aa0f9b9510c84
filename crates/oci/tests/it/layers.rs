//! Layers one over the other, in each compression.

use std::os::unix::fs::MetadataExt as _;

use wakeful_oci::{Digest, Error, Phase, Settings};

use crate::layout::{Layout, Tar, noise};
use crate::registry::Registry;
use crate::{House, Told};

fn stacked() -> Layout {
    Layout::new()
        .layer(
            &Tar::new()
                .dir("a")
                .file("a/removed", b"1")
                .file("a/kept", b"1")
                .dir("opaque")
                .file("opaque/old", b"1")
                .dir("opaque/deep")
                .file("opaque/deep/old", b"1")
                .file("becomes-dir", b"1")
                .dir("becomes-file")
                .file("becomes-file/x", b"1")
                .symlink("run", "/a")
                .end(),
        )
        .layer(
            &Tar::new()
                .file("a/.wh.removed", b"")
                .dir("opaque")
                .file("opaque/new", b"2")
                .file("opaque/.wh..wh..opq", b"")
                .dir("becomes-dir")
                .file("becomes-dir/x", b"2")
                .file("becomes-file", b"2")
                .hardlink("a/second", "a/kept")
                .end(),
        )
        .layer(&Tar::new().file("a/removed", b"3").file("run/through", b"3").end())
}

fn look(house: &House) {
    assert_eq!(house.text("a/removed"), "3", "removed, and there again");
    assert_eq!(house.text("a/kept"), "1");
    assert_eq!(house.text("opaque/new"), "2");
    assert!(!house.root().join("opaque/old").exists() && !house.root().join("opaque/deep").exists());
    assert_eq!(house.text("becomes-dir/x"), "2");
    assert_eq!(house.text("becomes-file"), "2");
    assert_eq!(house.text("a/through"), "3", "a symlink of a lower layer is followed inside the root");
    let inode = |name: &str| std::fs::metadata(house.root().join(name)).unwrap().ino();
    assert_eq!(inode("a/second"), inode("a/kept"));
    let names = walk(&house.root());
    assert!(names.iter().all(|name| !name.contains(".wh.")), "{names:?}");
}

fn walk(directory: &std::path::Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        names.push(entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            names.extend(walk(&entry.path()));
        }
    }
    names
}

#[tokio::test]
async fn whiteouts_and_every_compression() {
    let gzip = stacked();
    let (zstd, plain) = (gzip.repacked("zstd"), gzip.repacked("plain"));
    let mut contents = Vec::new();
    for (layout, magic) in [(&gzip, Some([0x1f, 0x8b])), (&zstd, Some([0x28, 0xb5])), (&plain, None)] {
        // One each: `skopeo` takes what a registry has already in another form.
        let registry = Registry::start();
        let reference = layout.push_with(&registry, "stacked:1", &["--preserve-digests"]);
        let house = House::new();
        let image = house.pull(&reference).await.unwrap();
        for layer in &image.layers {
            let stored = std::fs::read(registry.blob(layer.digest.hex())).unwrap();
            match magic {
                Some(magic) => assert_eq!(stored[..2], magic),
                None => assert_eq!(layer.digest, layer.diff_id),
            }
        }
        let told = Told::default();
        std::fs::create_dir(house.root()).unwrap();
        let limits = wakeful_tree::Limits { bytes: 1 << 20, entries: 1000 };
        let summary = wakeful_oci::unpack(&image, &house.cache, &house.root(), limits, &told).unwrap();
        assert_eq!(summary.layers, 3);
        look(&house);
        let size = image.layers[2].size;
        assert_eq!(told.0.lock().unwrap().last(), Some(&(Phase::Unpack, 3, 3, size, size, false)));
        contents.push(image.layers.into_iter().map(|layer| layer.diff_id).collect::<Vec<_>>());
    }
    assert!(contents.iter().all(|content| *content == contents[0]));
}

#[tokio::test]
async fn a_layer_that_is_not_what_the_configuration_says() {
    let registry = Registry::start();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let house = House::new();
    let mut image = house.pull(&reference).await.unwrap();
    image.layers[1].diff_id = Digest::of(b"something else");
    let error = house.unpack(&image).unwrap_err();
    assert!(matches!(&error, Error::WrongDigest { what, .. } if what.contains("layer 2 of 2")), "{error}");
    assert!(house.blobs().contains(&image.layers[1].digest.hex().to_owned()), "the cache has no fault");
}

#[tokio::test]
async fn damage_in_the_cache_is_repaired_by_the_next_pull() {
    let registry = Registry::start();
    let reference = Layout::new().layer(&Tar::new().file("noise", &noise(100_000)).end()).push(&registry, "noise:1");
    let house = House::new();
    let image = house.pull(&reference).await.unwrap();
    let blob = house.directory.path().join("cache/sha256").join(image.layers[0].digest.hex());
    for at in [50_000, 2] {
        let mut bytes = std::fs::read(&blob).unwrap();
        bytes[at] ^= 0xff;
        std::fs::write(&blob, &bytes).unwrap();
        let error = house.unpack(&image).unwrap_err();
        assert!(error.to_string().contains("get the image again"), "{error}");
        assert!(matches!(house.unpack(&image), Err(Error::Missing { .. })));
        house.pull(&reference).await.unwrap();
        house.unpack(&image).unwrap();
    }
}

#[tokio::test]
async fn cancelled_in_the_middle() {
    struct Stop;
    impl wakeful_oci::Progress for Stop {
        fn event(&self, _: wakeful_oci::Event<'_>) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let registry = Registry::start();
    let reference = Layout::usual().push(&registry, "team/app:v1");
    let house = House::new();
    let error = house.pull_told(&reference, &Settings::default(), &Stop).await.unwrap_err();
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    let image = house.pull(&reference).await.unwrap();
    std::fs::create_dir(house.root()).unwrap();
    let limits = wakeful_tree::Limits { bytes: 1 << 20, entries: 1000 };
    let error = wakeful_oci::unpack(&image, &house.cache, &house.root(), limits, &Stop).unwrap_err();
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
}
