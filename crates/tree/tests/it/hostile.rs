//! Archives that mean harm. A canary sits beside the root that they are unpacked into.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;

use wakeful_tree::{Error, Fault, Limits, Summary, Unpack, unpack};

use crate::archive::Archive;

/// A root, and beside it what nobody may touch.
pub(crate) struct Cage {
    home: tempfile::TempDir,
}

impl Cage {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().expect("tempdir");
        fs::create_dir(home.path().join("root")).expect("mkdir");
        fs::write(home.path().join("canary"), "sings").expect("write");
        Self { home }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.home.path().join("root")
    }

    pub(crate) fn unpack_with(&self, archive: &[u8], options: &Unpack) -> Result<Summary, Error> {
        let result = unpack(archive, &self.root(), options);
        self.check();
        result
    }

    pub(crate) fn unpack(&self, archive: Archive) -> Result<Summary, Error> {
        self.unpack_with(&archive.end(), &Unpack::default())
    }

    pub(crate) fn check(&self) {
        let mut names: Vec<_> =
            fs::read_dir(self.home.path()).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["canary", "root"]);
        assert_eq!(fs::read(self.home.path().join("canary")).expect("read"), b"sings");
        let canary = fs::metadata(self.home.path().join("canary")).expect("stat");
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&canary), 1);
    }
}

fn refused(archive: Archive) -> Error {
    let error = Cage::new().unpack(archive).expect_err("refused");
    assert_eq!(error.fault(), Fault::Archive, "{error}");
    error
}

#[test]
fn names_that_lead_upwards() {
    for name in ["../canary", "a/../../canary", "..", "./..", "a/..", "/../canary"] {
        let error = refused(Archive::default().file(name, b"x"));
        assert!(error.to_string().contains(name), "{error}");
        refused(Archive::default().raw(name.as_bytes(), b'5', b"", 0o755, b""));
        refused(Archive::default().pax(&[("path", name.as_bytes())]).file("harmless", b"x"));
        refused(Archive::default().raw(b"long", b'L', b"", 0o644, name.as_bytes()).file("harmless", b"x"));
        refused(Archive::default().symlink(name, "x"));
    }
}

#[test]
fn absolute_names_stay_inside() {
    let cage = Cage::new();
    let archive = Archive::default().file("/etc/passwd", b"mine").file("//tmp//x", b"").file("./y", b"");
    cage.unpack(archive).expect("unpacked");
    assert_eq!(fs::read(cage.root().join("etc/passwd")).expect("read"), b"mine");
    assert!(cage.root().join("tmp/x").exists() && cage.root().join("y").exists());
}

#[test]
fn symlinks_that_lead_out() {
    for target in ["/", "/etc", "..", "../..", "a/../.."] {
        let error = refused(Archive::default().symlink("link", target).file("link/canary", b"x"));
        assert!(matches!(&error, Error::Escape { link, .. } if link == "link"), "{error}");
        refused(Archive::default().symlink("d/link", "/").file("d/link/canary", b"x"));
        refused(Archive::default().symlink("link", target).directory("link/sub/"));
        refused(Archive::default().symlink("link", target).hard("mine", "link/canary"));
    }
    // To make one is fine, to replace it too.
    let cage = Cage::new();
    let archive =
        Archive::default().symlink("link", "/").symlink("up", "../canary").directory("link/").file("link/x", b"x");
    cage.unpack(archive).expect("unpacked");
    cage.unpack(Archive::default().file("up", b"a file now")).expect("unpacked");
    assert!(!cage.root().join("up").is_symlink());
    // From an earlier archive it is resolved inside.
    cage.unpack(Archive::default().symlink("out", "..").symlink("all", "/")).expect("unpacked");
    cage.unpack(Archive::default().file("out/canary", b"inside").file("all/canary2", b"inside")).expect("unpacked");
    assert!(cage.root().join("canary").exists() && cage.root().join("canary2").exists());
    // Symlinks among each other, whose end is outside by no single one of them.
    let cage = Cage::new();
    let archive = Archive::default().directory("a/b/").symlink("a/b/up", "..").symlink("x", "a/b/up").file("x/f", b"");
    cage.unpack(archive).expect("unpacked");
    let turn = Archive::default().symlink("s", "a/b/up/..").symlink("t", "s/..").file("t/canary", b"x");
    assert!(cage.unpack(turn).is_ok_and(|_| cage.root().join("canary").exists()));
    // Round and round.
    let error = cage.unpack(Archive::default().symlink("r", "r").file("r/x", b"")).expect_err("a loop");
    assert_eq!(error.fault(), Fault::System, "{error}");
    let error =
        cage.unpack(Archive::default().symlink("p", "q/x").symlink("q", "p/x").file("p/x", b"")).expect_err("a loop");
    assert_eq!(error.fault(), Fault::System, "{error}");
}

#[test]
fn hard_links_out_and_to_nothing() {
    for target in ["../canary", "a/../../canary", "none", "d", "d/none", "/none", "", "./"] {
        let error = refused(Archive::default().directory("d/").hard("link", target));
        assert!(matches!(error, Error::Link { .. }), "{error}");
    }
    let cage = Cage::new();
    cage.unpack(Archive::default().symlink("s", "../canary").hard("l", "s").hard("s", "s")).expect("unpacked");
    assert!(cage.root().join("l").is_symlink(), "the symlink itself was linked");
    let error =
        cage.unpack(Archive::default().file("f", b"x").hard("f", "f").hard("f", "/f")).map(|summary| summary.entries);
    assert_eq!(error.expect("a link to itself changes nothing"), 3);
    assert_eq!(fs::read(cage.root().join("f")).expect("read"), b"x");
}

#[test]
fn impossible_names() {
    let long = vec![b'a'; 256];
    refused(Archive::default().pax(&[("path", &long)]).file("x", b""));
    let long = b"a/".repeat(2049);
    refused(Archive::default().pax(&[("path", &long)]).file("x", b""));
    refused(Archive::default().raw(b"long", b'L', b"", 0o644, &[b'/'; 5000]).file("x", b""));
    refused(Archive::default().pax(&[("path", b"a\0b")]).file("x", b""));
    refused(Archive::default().file("", b"x"));
    refused(Archive::default().file(".", b"x"));
    refused(Archive::default().symlink("s", ""));
    refused(Archive::default().pax(&[("linkpath", b"a\0b")]).symlink("s", "x"));
    refused(Archive::default().pax(&[("uid", b"4294967295")]).file("x", b""));
    refused(Archive::default().pax(&[("gid", b"99999999999")]).file("x", b""));
    refused(Archive::default().pax(&[("uid", b"-1")]).file("x", b""));
    let error = refused(Archive::default().file("../\u{1b}[2Jx", b""));
    assert!(!error.to_string().contains('\u{1b}'), "fit to print");
}

#[test]
fn damaged_archives() {
    let good = Archive::default().directory("d/").file("d/a", &[7; 3000]).file("b", &[8; 10]).end();
    for length in 0..good.len() - 1024 {
        let error = Cage::new().unpack_with(&good[..length], &Unpack::default()).expect_err("cut off");
        assert!(matches!(error, Error::Truncated { .. }), "{length}: {error}");
    }
    // Who knows that it is whole may do without the end, and without what fills the last block; not without data.
    let open = Unpack { open_end: true, ..Unpack::default() };
    let whole = good.len() - 1024;
    assert_eq!(Cage::new().unpack_with(&good[..whole], &open).expect("unpacked").entries, 3);
    assert_eq!(Cage::new().unpack_with(&good[..whole - 502], &open).expect("unpacked").entries, 3);
    assert!(Cage::new().unpack_with(&good[..whole - 503], &open).is_err());
    refused(Archive(vec![b'x'; 1024]));
    refused(Archive::default().pax(&[("path", b"x")]));
    refused(Archive::default().pax(&[("path", b"x")]).pax(&[("path", b"y")]).file("z", b""));
    refused(Archive::default().raw(b"p", b'x', b"", 0o644, b"99 path=x\n").file("z", b""));
    refused(Archive::default().pax(&[("size", b"x")]).file("z", b""));
    refused(Archive::default().header(b"z", b'0', b"", 0o644, 0, |block| block[124] = b'9'));
    refused(Archive::default().header(b"p", b'x', b"", 0o644, 0, |block| block[124] = 0xff));
    // Sparse files that contradict themselves.
    for records in [
        &[("GNU.sparse.map", &b"0,100,50,100"[..]), ("GNU.sparse.size", b"1000")][..],
        &[("GNU.sparse.map", b"0,100"), ("GNU.sparse.size", b"50")],
        &[("GNU.sparse.map", b"0,100")],
        &[("GNU.sparse.map", b"0,100,7"), ("GNU.sparse.size", b"1000")],
        &[("GNU.sparse.map", b"18446744073709551615,2"), ("GNU.sparse.size", b"1000")],
        &[("GNU.sparse.map", b"0,1000"), ("GNU.sparse.size", b"1000")],
        &[("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"1000")],
        &[("GNU.sparse.numbytes", b"1"), ("GNU.sparse.size", b"1000")],
    ] {
        refused(Archive::default().pax(records).file("sparse", &[b'x'; 100]));
    }
}

#[test]
fn bombs_stop_early() {
    let limits = Limits { bytes: 1 << 20, entries: 100 };
    let options = Unpack { limits, ..Unpack::default() };
    let large = |archive: Vec<u8>| {
        let cage = Cage::new();
        let error = cage.unpack_with(&archive, &options).expect_err("too large");
        assert!(matches!(error, Error::TooLarge { limit: 1_048_576 }), "{error}");
        let there: u64 = crate::facts::of(&cage.root()).values().map(|facts| facts.content.len() as u64).sum();
        assert!(there <= 1 << 20);
    };
    large(Archive::default().header(b"a", b'0', b"", 0o644, 0o77_777_777_777, |_| ()).end());
    large(Archive::default().file("a", &vec![0; 1 << 19]).file("b", &vec![0; (1 << 19) + 1]).end());
    large(Archive::default().pax(&[("size", b"18446744073709551615")]).file("a", b"").end());
    let sparse = [("GNU.sparse.map", &b"0,1"[..]), ("GNU.sparse.size", b"1099511627776")];
    large(Archive::default().pax(&sparse).file("a", b"x").end());
    large(Archive::default().header(b"a", b'Z', b"", 0o644, 2 << 20, |_| ()).end());
    large(
        Archive::default()
            .header(b"a", b'S', b"", 0o644, 0, |block| {
                block[257..265].copy_from_slice(b"ustar  \0");
                block[483..495].copy_from_slice(b"77777777777\0");
            })
            .end(),
    );
    let many = |archive: Archive| {
        let error = Cage::new().unpack_with(&archive.end(), &options).expect_err("too many");
        assert!(matches!(error, Error::TooMany { limit: 100 }), "{error}");
    };
    many((0..101).fold(Archive::default(), |archive, n| archive.file(&n.to_string(), b"")));
    many((0..101).fold(Archive::default(), |archive, n| archive.raw(n.to_string().as_bytes(), b'3', b"", 0o644, b"")));
    many((0..101).fold(Archive::default(), |archive, _| archive.raw(b"g", b'g', b"", 0o644, b"6 a=b\n")));
    many((0..3).fold(Archive::default(), |archive, n| archive.file(&format!("{n}/{}", "d/".repeat(45)), b"")));
    // Headers that want memory.
    refused(Archive::default().header(b"p", b'x', b"", 0o644, 1 << 30, |_| ()));
    refused(Archive::default().header(b"p", b'L', b"", 0o644, 1 << 30, |_| ()));
    refused(Archive::default().header(b"p", b'g', b"", 0o644, 1 << 30, |_| ()));
}

#[test]
fn an_endless_stream_ends() {
    let block = Archive::default().file("a", b"").0;
    let endless = block.iter().copied().cycle();
    struct Bytes<I>(I);
    impl<I: Iterator<Item = u8>> Read for Bytes<I> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill_with(|| self.0.next().unwrap_or_default());
            Ok(into.len())
        }
    }
    let root = tempfile::tempdir().expect("tempdir");
    let limits = Limits { bytes: 1000, entries: 1000 };
    let result = unpack(Bytes(endless), root.path(), &Unpack { limits, ..Unpack::default() });
    assert!(matches!(result, Err(Error::TooMany { .. })));
}

#[test]
fn devices_and_strange_kinds_are_left_out() {
    let cage = Cage::new();
    let archive = Archive::default()
        .raw(b"dev/sda", b'4', b"", 0o666, b"")
        .raw(b"dev/mem", b'3', b"", 0o666, b"")
        .raw(b"label", b'V', b"", 0o666, b"")
        .raw(b"strange", b'Z', b"", 0o666, b"with data")
        .raw(b"g", b'g', b"", 0o644, b"17 comment=a b c\n")
        .file("file", b"x");
    let summary = cage.unpack(archive).expect("unpacked");
    assert_eq!((summary.entries, summary.skipped), (1, 4));
    assert_eq!(crate::facts::of(&cage.root()).len(), 2);
}

#[test]
fn attributes_that_are_not_theirs_to_set() {
    let cage = Cage::new();
    let archive = Archive::default()
        .pax(&[
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.security.selinux", b"system_u:object_r:shadow_t:s0"),
            ("SCHILY.xattr.security.ima", b"x"),
            ("SCHILY.xattr.user.fine", b"yes\n"),
            ("SCHILY.xattr.system.posix_acl_access", b"x"),
            ("SCHILY.xattr.user.", b"x"),
        ])
        .file("file", b"x");
    cage.unpack(archive).expect("unpacked");
    assert_eq!(crate::facts::xattrs(&cage.root().join("file")), [("user.fine".to_owned(), b"yes\n".to_vec())]);
}

#[test]
fn deep_directories_do_not_exhaust_anything() {
    // Deeper than any path by going through a symlink of an earlier archive.
    let cage = Cage::new();
    let deep = "d/".repeat(1500);
    cage.unpack(Archive::default().pax(&[("path", deep.as_bytes())]).directory("x")).expect("unpacked");
    let bottom = deep.trim_end_matches('/');
    cage.unpack(Archive::default().pax(&[("linkpath", bottom.as_bytes())]).symlink("bottom", "x")).expect("unpacked");
    let name = format!("bottom/{deep}");
    cage.unpack(Archive::default().pax(&[("path", name.as_bytes())]).directory("x")).expect("unpacked");
    let error = cage.unpack(Archive::default().file("d", b"replaces it")).expect_err("too deep to be removed");
    assert_eq!(error.fault(), Fault::System, "{error}");
    let status = std::process::Command::new("rm").arg("-rf").arg(cage.root()).status().expect("rm");
    assert!(status.success());
}

#[test]
fn a_symlink_of_its_own_is_no_directory_to_keep() {
    let cage = Cage::new();
    let options = Unpack { keep_directory_links: true, ..Unpack::default() };
    for target in ["/", ".."] {
        let archive = Archive::default().symlink("link", target).directory("link/").file("link/x", b"x").end();
        cage.unpack_with(&archive, &options).expect("unpacked");
        assert!(!cage.root().join("link").is_symlink() && !cage.root().join("x").exists());
    }
}
