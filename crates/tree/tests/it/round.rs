//! There and back again.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use wakeful_tree::{Error, Limits, Owner, Pack, Unpack, pack, scan, unpack};

use crate::facts;

#[test]
fn everything_survives_the_journey() {
    let (from, to) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    facts::one_of_each(from.path());
    let mut archive = Vec::new();
    let packed = pack(from.path(), Path::new(""), &mut archive, &Pack::default()).expect("packed");
    assert!(archive.len() < 1 << 20, "holes do not travel: {}", archive.len());
    assert_eq!(scan(&archive[..], Limits::default()).expect("scanned").bytes, packed.bytes);
    let unpacked = unpack(&archive[..], to.path(), &Unpack::default()).expect("unpacked");
    assert_eq!((packed.entries, packed.bytes), (unpacked.entries, unpacked.bytes));
    let (before, after) = (facts::of(from.path()), facts::of(to.path()));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (path, facts) in &before {
        assert!(facts.content == after[path].content, "content of {path:?}");
        assert_eq!(*facts, after[path], "{path:?}");
    }
    for sparse in ["holes", "hollow"] {
        let (before, after) = (facts::taken(&from.path().join(sparse)), facts::taken(&to.path().join(sparse)));
        assert!(after <= before, "{sparse}: {after} > {before}");
    }
    let mut again = Vec::new();
    pack(to.path(), Path::new("."), &mut again, &Pack::default()).expect("packed");
    assert!(archive == again, "the same tree gives the same bytes");
    // Over itself, too: what is there is replaced.
    unpack(&archive[..], to.path(), &Unpack::default()).expect("unpacked");
    assert!(facts::of(to.path()) == before, "unpacked twice");
}

#[test]
fn zeros_become_holes() {
    let (from, to) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    let mut content = vec![0; 1 << 20];
    content[300_000] = 1;
    content.extend_from_slice(&[0; 100]);
    fs::write(from.path().join("file"), &content).expect("write");
    let mut archive = Vec::new();
    pack(from.path(), Path::new(""), &mut archive, &Pack::default()).expect("packed");
    assert!(archive.len() > 1 << 20, "the file itself has no holes");
    unpack(&archive[..], to.path(), &Unpack::default()).expect("unpacked");
    assert!(fs::read(to.path().join("file")).expect("read") == content);
    assert!(facts::taken(&to.path().join("file")) <= 8192);
}

#[test]
fn one_file_and_one_symlink() {
    let from = tempfile::tempdir().expect("tempdir");
    fs::create_dir_all(from.path().join("real/below")).expect("mkdir");
    fs::write(from.path().join("real/below/file"), "x").expect("write");
    symlink("/real", from.path().join("alias")).expect("symlink");
    symlink("/real/below", from.path().join("straight")).expect("symlink");
    let names = |what: &str, follow: bool| {
        let to = tempfile::tempdir().expect("tempdir");
        let mut archive = Vec::new();
        let options = Pack { follow, ..Pack::default() };
        pack(from.path(), Path::new(what), &mut archive, &options).expect("packed");
        unpack(&archive[..], to.path(), &Unpack::default()).expect("unpacked");
        facts::of(to.path())
            .into_iter()
            .map(|(path, facts)| format!("{} {}", path.display(), facts.kind))
            .collect::<Vec<_>>()
    };
    // Symlinks on the way are resolved inside the root, the last one only if asked.
    assert_eq!(names("alias/below/file", false), [" directory", "file file"]);
    assert_eq!(names("/alias/below", false), [" directory", "file file"]);
    assert_eq!(names("straight", false), [" directory", "straight symlink"]);
    assert_eq!(names("straight", true), [" directory", "file file"]);
    let missing = pack(from.path(), Path::new("real/none"), io::sink(), &Pack::default());
    assert!(matches!(missing, Err(Error::Missing { .. })));
    let missing = pack(from.path(), Path::new("real/below/file/x"), io::sink(), &Pack::default());
    assert!(matches!(missing, Err(Error::Missing { .. })));
}

#[test]
fn left_out_on_purpose() {
    let (from, to) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    for directory in ["keep/sub", "drop/sub"] {
        fs::create_dir_all(from.path().join(directory)).expect("mkdir");
        fs::write(from.path().join(directory).join("file"), directory).expect("write");
    }
    let _socket = UnixListener::bind(from.path().join("socket")).expect("bind");
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.path().join("null"),
        rustix::fs::FileType::CharacterDevice,
        0o666.into(),
        null,
    )
    .expect("mknod");
    let options = Pack {
        skip: &|path, is_dir| path == Path::new("drop") && is_dir,
        owner: Owner::Fixed { uid: 12, gid: 13 },
        ..Pack::default()
    };
    let mut archive = Vec::new();
    let summary = pack(from.path(), Path::new(""), &mut archive, &options).expect("packed");
    assert_eq!((summary.entries, summary.skipped), (4, 2));
    unpack(&archive[..], to.path(), &Unpack::default()).expect("unpacked");
    let facts = facts::of(to.path());
    assert_eq!(facts.len(), 4);
    assert!(facts.values().all(|facts| facts.owner == (12, 13)));
}

#[test]
fn other_mounts_are_not_entered() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    let from = tempfile::tempdir().expect("tempdir");
    fs::create_dir_all(from.path().join("mounted")).expect("mkdir");
    fs::create_dir_all(from.path().join("bound")).expect("mkdir");
    fs::create_dir_all(from.path().join("plain")).expect("mkdir");
    fs::write(from.path().join("plain/file"), "x").expect("write");
    mount("none", from.path().join("mounted"), "tmpfs", MountFlags::empty(), None).expect("mount");
    rustix::mount::mount_bind(from.path().join("plain"), from.path().join("bound")).expect("bind");
    fs::write(from.path().join("mounted/file"), "x").expect("write");
    let count = |one_file_system| {
        let options = Pack { one_file_system, ..Pack::default() };
        pack(from.path(), Path::new(""), io::sink(), &options).map(|summary| summary.entries)
    };
    let (one, all) = (count(true), count(false));
    for name in ["mounted", "bound"] {
        unmount(from.path().join(name), UnmountFlags::DETACH).expect("unmount");
    }
    assert_eq!((one.expect("packed"), all.expect("packed")), (5, 7));
}

#[test]
fn very_deep_trees_are_packed() {
    let (from, to) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    let mut path = from.path().to_owned();
    for _ in 0..300 {
        fs::write(path.join("a"), "before").expect("write");
        fs::write(path.join("z"), "after").expect("write");
        path.push("d");
        fs::create_dir(&path).expect("mkdir");
    }
    let mut archive = Vec::new();
    let summary = pack(from.path(), Path::new(""), &mut archive, &Pack::default()).expect("packed");
    assert_eq!(summary.entries, 901);
    unpack(&archive[..], to.path(), &Unpack::default()).expect("unpacked");
    assert_eq!(facts::of(to.path()).len(), 901);
}

/// Does something to the tree as soon as the first bytes come out.
struct Meddler<F: Fn()>(AtomicBool, F, Vec<u8>);

impl<F: Fn()> Write for Meddler<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.0.swap(true, Ordering::Relaxed) {
            (self.1)();
        }
        self.2.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_tree_that_changes_meanwhile() {
    let (from, to) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    let at = |name: &str| from.path().join(name);
    fs::write(at("a"), vec![1; 2 << 20]).expect("write");
    fs::write(at("b"), "goes").expect("write");
    fs::create_dir(at("c")).expect("mkdir");
    fs::write(at("d"), "stays").expect("write");
    let meddle = || {
        fs::File::options().write(true).open(at("a")).and_then(|file| file.set_len(1 << 20)).expect("shrink");
        fs::remove_file(at("b")).expect("remove");
        fs::remove_dir(at("c")).expect("remove");
    };
    let mut writer = Meddler(AtomicBool::new(false), meddle, Vec::new());
    let summary = pack(from.path(), Path::new(""), &mut writer, &Pack::default()).expect("packed");
    assert_eq!((summary.entries, summary.changed), (3, 1));
    unpack(&writer.2[..], to.path(), &Unpack::default()).expect("unpacked");
    let content = fs::read(to.path().join("a")).expect("read");
    assert_eq!(content.len(), 2 << 20);
    assert!(
        content[..1 << 20].iter().all(|byte| *byte == 1) && content[(1 << 20) + 4096..].iter().all(|byte| *byte == 0)
    );
    assert_eq!(fs::read(to.path().join("d")).expect("read"), b"stays");
    assert_eq!(fs::metadata(to.path().join("a")).expect("stat").size(), 2 << 20);
}

#[test]
fn a_writer_that_fails() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let from = tempfile::tempdir().expect("tempdir");
    assert!(matches!(pack(from.path(), Path::new(""), Full, &Pack::default()), Err(Error::Write { .. })));
}
