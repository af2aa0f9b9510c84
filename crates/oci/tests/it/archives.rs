//! Images as files: what `skopeo` writes as `docker save` would, OCI layouts, and what is none.

use std::path::Path;

use serde_json::json;
use wakeful_oci::{Digest, Error, ImageLimits, Platform};

use crate::House;
use crate::layout::{Layout, Tar, noise, run};

fn check(house: &House, path: &Path, tag: Option<&str>) -> wakeful_oci::Image {
    let image = house.archive(path, tag).unwrap();
    assert_eq!(image.config.user.as_deref(), Some("app"));
    house.unpack(&image).unwrap();
    assert_eq!((house.text("etc/name"), house.text("only-below")), ("upper".into(), "1".into()));
    assert_eq!(
        std::fs::read_dir(house.directory.path().join("cache/tmp")).unwrap().count(),
        0,
        "nothing is left behind"
    );
    image
}

#[test]
fn as_docker_saves() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image.tar");
    let layout = Layout::usual();
    layout.copy(&format!("docker-archive:{}:team/app:v1", file.display()), &[]);
    let house = House::new();
    let image = check(&house, &file, None);
    assert!(image.reference.ends_with("team/app:v1"), "{}", image.reference);
    for tag in ["team/app:v1", "app:v1", "v1"] {
        assert_eq!(house.archive(&file, Some(tag)).unwrap(), image);
    }
    let error = house.archive(&file, Some("v2")).unwrap_err();
    assert!(matches!(&error, Error::Choose { tags, .. } if tags.len() == 1), "{error}");

    for program in ["gzip", "zstd"] {
        let compressed = directory.path().join(format!("image.tar.{program}"));
        let output = std::process::Command::new(program).args(["-c", file.to_str().unwrap()]).output().unwrap();
        std::fs::write(&compressed, output.stdout).unwrap();
        assert_eq!(check(&House::new(), &compressed, None), image);
    }

    // Unpacked, with its symlinks, as a directory.
    let unpacked = directory.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    run("tar", &["--extract", "--file", file.to_str().unwrap(), "--directory", unpacked.to_str().unwrap()]);
    assert_eq!(check(&House::new(), &unpacked, None), image);
}

#[test]
fn layouts_as_directory_and_tar() {
    let layout = Layout::usual();
    let house = House::new();
    let image = check(&house, &layout.path(), None);
    let directory = tempfile::tempdir().unwrap();
    let (plain, gzip) = (directory.path().join("image.tar"), directory.path().join("image.tgz"));
    layout.tar(&plain, &[]);
    layout.tar(&gzip, &["--gzip"]);
    for file in [&plain, &gzip] {
        assert_eq!(check(&House::new(), file, Some("test")), image);
    }
    let file = directory.path().join("skopeo.tar");
    layout.copy(&format!("oci-archive:{}:named", file.display()), &[]);
    let named = check(&House::new(), &file, Some("named"));
    assert_eq!(named.reference, "named");
    assert_eq!(named.layers, image.layers);
    for kind in ["plain", "zstd"] {
        let other = check(&House::new(), &layout.repacked(kind).path(), None);
        assert_eq!(other.layers[0].diff_id, image.layers[0].diff_id);
        assert_ne!(other.layers[0].digest, image.layers[0].digest);
    }
}

#[test]
fn several_images_need_a_tag() {
    let layout = Layout::usual().image("other");
    let house = House::new();
    let error = house.archive(&layout.path(), None).unwrap_err();
    assert!(matches!(&error, Error::Choose { tags, .. } if tags == &["other", "test"]), "{error}");
    assert!(error.to_string().ends_with("there are other, test"), "{error}");
    check(&house, &layout.path(), Some("test"));
    assert!(house.archive(&layout.path(), Some("other")).unwrap().layers.is_empty());
    assert!(matches!(house.archive(&layout.path(), Some("third")), Err(Error::Choose { .. })));
}

#[test]
fn another_platform() {
    let layout = Layout::usual().config(&["--architecture=arm64"]);
    let error = House::new().archive(&layout.path(), None).unwrap_err();
    assert!(matches!(&error, Error::WrongPlatform { found, .. } if found == &["linux/arm64"]), "{error}");
}

#[test]
fn a_damaged_layout() {
    let layout = Layout::usual();
    let house = House::new();
    let image = house.archive(&layout.path(), None).unwrap();
    let blob = |digest: &Digest| layout.path().join("blobs/sha256").join(digest.hex());
    let layer = blob(&image.layers[1].digest);
    let good = std::fs::read(&layer).unwrap();
    let mut bad = good.clone();
    bad[20] ^= 1;
    std::fs::write(&layer, &bad).unwrap();
    let house = House::new();
    let error = house.archive(&layout.path(), None).unwrap_err();
    assert!(matches!(&error, Error::WrongDigest { expected, .. } if *expected == image.layers[1].digest), "{error}");
    std::fs::write(&layer, &good[1..]).unwrap();
    assert!(matches!(house.archive(&layout.path(), None), Err(Error::WrongSize { .. })));
    std::fs::remove_file(&layer).unwrap();
    assert!(matches!(house.archive(&layout.path(), None), Err(Error::Missing { .. })));
    std::os::unix::fs::symlink("/etc/hostname", &layer).unwrap();
    let error = house.archive(&layout.path(), None).unwrap_err();
    assert!(error.to_string().contains("leads out of it"), "{error}");
    std::fs::remove_file(&layer).unwrap();
    std::fs::write(&layer, &good).unwrap();
    let manifest = blob(&image.digest);
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes.push(b' ');
    std::fs::write(&manifest, bytes).unwrap();
    assert!(matches!(house.archive(&layout.path(), None), Err(Error::WrongDigest { .. })));
}

#[test]
fn what_is_no_archive() {
    let directory = tempfile::tempdir().unwrap();
    let house = House::new();
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let whole = Tar::new().file("manifest.json", &noise(5000)).end();
    for (path, wanted) in [
        (directory.path().join("missing"), "No such file"),
        (std::path::PathBuf::from("/dev/zero"), "neither a file nor a directory"),
        (write("noise", &noise(10_000)), "no usable image archive"),
        (write("empty", b""), "no usable image archive"),
        (write("rootfs.tar", &Tar::new().file("etc/passwd", b"").end()), "neither manifest.json"),
        (write("short.tar", &whole[..3000]), "cut off"),
        (write("nonsense.tar", &whole), "not understood"),
        (write("out.tar", &Tar::new().file("../manifest.json", b"[]").end()), "refused"),
        (write("long.tar", &Tar::new().file("index.json", &vec![b' '; 5 << 20]).end()), "too long"),
        (write("none.tar", &Tar::new().file("manifest.json", b"[]").end()), "holds no image"),
    ] {
        let error = house.archive(&path, None).unwrap_err();
        assert!(error.to_string().contains(wanted), "{}: {error}", path.display());
        assert_eq!(error.kind(), wakeful_model::Kind::Invalid);
    }
    assert!(house.blobs().is_empty());
    assert_eq!(std::fs::read_dir(house.directory.path().join("cache/tmp")).unwrap().count(), 0);
}

/// Names in `manifest.json` are the archive's word: they lead nowhere else.
#[test]
fn names_that_lead_out() {
    let house = House::new();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("secret"), b"{}").unwrap();
    let inside = directory.path().join("image");
    std::fs::create_dir(&inside).unwrap();
    for name in ["../secret", "/etc/hostname", "link"] {
        let _ = std::os::unix::fs::symlink("../secret", inside.join("link"));
        let manifest = json!([{"Config": name, "Layers": []}]);
        std::fs::write(inside.join("manifest.json"), manifest.to_string()).unwrap();
        let error = house.archive(&inside, None).unwrap_err();
        assert!(error.to_string().contains("leads out of it"), "{name}: {error}");
    }
}

#[test]
fn too_large() {
    let layout = Layout::new().layer(&Tar::new().file("noise", &noise(300_000)).end());
    let directory = tempfile::tempdir().unwrap();
    let (tar, docker) = (directory.path().join("image.tar"), directory.path().join("docker.tar"));
    layout.tar(&tar, &[]);
    layout.copy(&format!("docker-archive:{}:a:b", docker.display()), &[]);
    let house = House::new();
    let limits = ImageLimits { image_bytes: 200_000, layers: 10 };
    for path in [&layout.path(), &tar, &docker] {
        let error =
            wakeful_oci::open_archive(path, None, &house.cache, &limits, &Platform::default(), &()).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{}: {error}", path.display());
    }
    assert!(house.blobs().is_empty());
}
