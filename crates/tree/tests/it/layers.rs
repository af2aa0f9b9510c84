//! Layers over each other.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use wakeful_tree::{Summary, Unpack, Whiteouts, unpack};

use crate::archive::Archive;

fn layer(root: &Path, archive: Archive) -> Summary {
    let options = Unpack { whiteouts: Whiteouts::Apply, ..Unpack::default() };
    unpack(&archive.end()[..], root, &options).expect("unpacked")
}

fn below(root: &Path) -> tempfile::TempDir {
    let archive = Archive::default()
        .directory("d/")
        .file("d/old", b"old")
        .file("d/both", b"lower")
        .directory("d/sub/")
        .file("d/sub/old", b"old")
        .file("file", b"lower");
    layer(root, archive);
    let canary = tempfile::tempdir().expect("tempdir");
    fs::write(canary.path().join("canary"), "sings").expect("write");
    canary
}

fn names(root: &Path) -> Vec<String> {
    crate::facts::of(root).into_keys().map(|path| path.display().to_string()).collect()
}

#[test]
fn whiteouts_remove_what_lower_layers_brought() {
    let root = tempfile::tempdir().expect("tempdir");
    let canary = below(root.path());
    symlink(canary.path(), root.path().join("d/out")).expect("symlink");
    symlink(canary.path(), root.path().join("out")).expect("symlink");
    let summary =
        layer(root.path(), Archive::default().file(".wh.d", b"").file(".wh.out", b"").file(".wh.nothing", b""));
    assert_eq!((summary.whiteouts, summary.entries), (3, 0));
    assert_eq!(names(root.path()), ["", "file"]);
    assert!(canary.path().join("canary").exists());
    // A directory that is not there: nothing to remove, and nothing is made for it.
    layer(
        root.path(),
        Archive::default().file("none/.wh.x", b"").file("file/.wh.x", b"").file("none/.wh..wh..opq", b""),
    );
    assert_eq!(names(root.path()), ["", "file"]);
}

#[test]
fn whiteouts_spare_their_own_layer_in_either_order() {
    for before in [true, false] {
        let root = tempfile::tempdir().expect("tempdir");
        below(root.path());
        let mut archive = Archive::default();
        if before {
            archive = archive.file(".wh.d", b"").file(".wh.file", b"");
        }
        archive = archive.directory("d/").file("d/both", b"upper").file("d/deep/new", b"new").file("file", b"upper");
        if !before {
            archive = archive.file(".wh.d", b"").file(".wh.file", b"");
        }
        layer(root.path(), archive);
        assert_eq!(names(root.path()), ["", "d", "d/both", "d/deep", "d/deep/new", "file"], "{before}");
        for name in ["d/both", "file"] {
            assert_eq!(fs::read(root.path().join(name)).expect("read"), b"upper");
        }
    }
}

#[test]
fn opaque_directories_in_either_order() {
    for before in [true, false] {
        let root = tempfile::tempdir().expect("tempdir");
        below(root.path());
        let mut archive = Archive::default().directory("d/");
        if before {
            archive = archive.file("d/.wh..wh..opq", b"");
        }
        archive = archive.file("d/new", b"new").file("d/sub/new", b"new");
        if !before {
            archive = archive.file("d/.wh..wh..opq", b"");
        }
        layer(root.path(), archive);
        assert_eq!(names(root.path()), ["", "d", "d/new", "d/sub", "d/sub/new", "file"], "{before}");
    }
}

#[test]
fn an_opaque_root_empties_it() {
    let root = tempfile::tempdir().expect("tempdir");
    below(root.path());
    layer(root.path(), Archive::default().file("new", b"").file(".wh..wh..opq", b"").file(".wh..wh.plnk/1.2", b"x"));
    assert_eq!(names(root.path()), ["", "new"]);
}

#[test]
fn without_layers_they_are_files() {
    let root = tempfile::tempdir().expect("tempdir");
    below(root.path());
    let archive = Archive::default().file(".wh.d", b"").end();
    unpack(&archive[..], root.path(), &Unpack::default()).expect("unpacked");
    assert!(root.path().join(".wh.d").exists() && root.path().join("d/old").exists());
}

#[test]
fn symlinks_of_lower_layers_are_resolved_inside() {
    let root = tempfile::tempdir().expect("tempdir");
    layer(root.path(), Archive::default().directory("run/").directory("var/").symlink("var/run", "/run"));
    layer(root.path(), Archive::default().symlink("var/gone", "/made/here").symlink("up", "../../../../run"));
    layer(root.path(), Archive::default().file("var/run/pid", b"1").file("var/gone/by/link", b"2").file("up/x", b"3"));
    for name in ["run/pid", "made/here/by/link", "run/x"] {
        assert!(root.path().join(name).is_file(), "{name}");
    }
    // A relative one of the same archive is fine as long as it stays inside.
    layer(root.path(), Archive::default().directory("usr/lib/").symlink("lib", "usr/lib").file("lib/so", b""));
    assert!(root.path().join("usr/lib/so").is_file());
}

#[test]
fn kinds_replace_each_other() {
    let root = tempfile::tempdir().expect("tempdir");
    let canary = below(root.path());
    symlink(canary.path(), root.path().join("link")).expect("symlink");
    symlink(canary.path().join("canary"), root.path().join("d/canary")).expect("symlink");
    fs::hard_link(root.path().join("file"), canary.path().join("other name")).expect("link");
    layer(
        root.path(),
        Archive::default()
            .directory("link/")
            .file("link/canary", b"theirs")
            .file("file", b"upper")
            .file("d/canary", b"x"),
    );
    assert_eq!(fs::read(canary.path().join("canary")).expect("read"), b"sings");
    assert_eq!(fs::read(canary.path().join("other name")).expect("read"), b"lower", "never written through");
    assert_eq!(fs::read(root.path().join("link/canary")).expect("read"), b"theirs");
    layer(root.path(), Archive::default().file("d", b"now a file").symlink("link", "file").directory("file/"));
    assert_eq!(names(root.path()), ["", "d", "file", "link"]);
    assert_eq!(fs::read(root.path().join("d")).expect("read"), b"now a file");
    // A directory over a directory keeps what is in it, and gets the mode.
    layer(root.path(), Archive::default().file("file/inside", b"").raw(b"file", b'5', b"", 0o700, b""));
    assert!(root.path().join("file/inside").exists());
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(root.path().join("file")).expect("stat"));
    assert_eq!(mode & 0o7777, 0o700);
}
