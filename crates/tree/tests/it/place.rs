//! Entries that go where the caller says.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use wakeful_tree::{Error, Owner, Shape, Unpack, unpack};

use crate::archive::Archive;

#[test]
fn below_a_prefix() {
    let root = tempfile::tempdir().expect("tempdir");
    fs::create_dir(root.path().join("real")).expect("mkdir");
    symlink("/real", root.path().join("app")).expect("symlink");
    let archive = Archive::default()
        .raw(b"./", b'5', b"", 0o700, b"")
        .file("implied/file", b"x")
        .hard("link", "implied/file")
        .raw(b"tool", b'0', b"", 0o755, b"x")
        .end();
    let options = Unpack {
        prefix: PathBuf::from("/app/sub/dir"),
        owner: Owner::Fixed { uid: 1000, gid: 1001 },
        mode: Some(0o750),
        ..Unpack::default()
    };
    unpack(&archive[..], root.path(), &options).expect("unpacked");
    let stat = |name: &str| {
        let found = fs::symlink_metadata(root.path().join("real").join(name)).expect("stat");
        (found.mode() & 0o7777, found.uid(), found.gid())
    };
    assert_eq!(stat("sub"), (0o755, 0, 0));
    assert_eq!(stat("sub/dir"), (0o750, 1000, 1001));
    assert_eq!(stat("sub/dir/implied"), (0o755, 1000, 1001));
    assert_eq!(stat("sub/dir/tool"), (0o750, 1000, 1001));
    assert_eq!(stat("sub/dir/link"), (0o750, 1000, 1001));
    let options = Unpack { prefix: PathBuf::from("app"), keep_top: true, ..Unpack::default() };
    unpack(&archive[..], root.path(), &options).expect("unpacked");
    assert_eq!(stat(""), (0o755, 0, 0));
    let up = Unpack { prefix: PathBuf::from("a/../../b"), ..Unpack::default() };
    assert!(matches!(unpack(&archive[..], root.path(), &up), Err(Error::Refused { .. })));
    let into_file = Unpack { prefix: PathBuf::from("real/tool"), ..Unpack::default() };
    assert!(matches!(unpack(&archive[..], root.path(), &into_file), Err(Error::Entry { .. })));
}

#[test]
fn over_a_merged_system() {
    let root = tempfile::tempdir().expect("tempdir");
    fs::create_dir_all(root.path().join("usr/lib")).expect("mkdir");
    fs::write(root.path().join("usr/lib/libc"), "libc").expect("write");
    symlink("usr/lib", root.path().join("lib")).expect("symlink");
    symlink("nowhere", root.path().join("broken")).expect("symlink");
    let archive = Archive::default().directory("lib/").file("lib/mine", b"x").directory("broken/").end();
    let options = Unpack { keep_directory_links: true, ..Unpack::default() };
    unpack(&archive[..], root.path(), &options).expect("unpacked");
    assert!(root.path().join("lib").is_symlink() && root.path().join("usr/lib/mine").exists());
    assert!(!root.path().join("broken").is_symlink());
    unpack(&archive[..], root.path(), &Unpack::default()).expect("unpacked");
    assert!(!root.path().join("lib").is_symlink() && root.path().join("usr/lib/libc").exists());
}

#[test]
fn a_single_file() {
    let root = tempfile::tempdir().expect("tempdir");
    let options = |name: Option<&str>| Unpack {
        prefix: PathBuf::from("etc"),
        shape: Shape::Single { name: name.map(Into::into) },
        ..Unpack::default()
    };
    let one = Archive::default().raw(b"./", b'5', b"", 0o700, b"").file("some/where/conf", b"x").end();
    unpack(&one[..], root.path(), &options(Some("renamed"))).expect("unpacked");
    unpack(&one[..], root.path(), &options(None)).expect("unpacked");
    let names: Vec<_> = crate::facts::of(root.path()).into_keys().collect();
    assert_eq!(names, [Path::new(""), Path::new("etc"), Path::new("etc/conf"), Path::new("etc/renamed")]);
    let none = Archive::default().directory("d/").end();
    assert!(matches!(unpack(&none[..], root.path(), &options(None)), Err(Error::NotSingle { .. })));
    let two = Archive::default().file("a", b"").file("b", b"").end();
    assert!(matches!(unpack(&two[..], root.path(), &options(None)), Err(Error::NotSingle { .. })));
    for bad in ["..", "a/b", "", "."] {
        assert!(matches!(unpack(&one[..], root.path(), &options(Some(bad))), Err(Error::Refused { .. })), "{bad:?}");
    }
}
