//! GNU tar's archives, and ours in its hands.

use std::fs;
use std::path::Path;
use std::process::Command;

use wakeful_tree::{Pack, Unpack, pack, unpack};

use crate::facts;

fn tar(arguments: &[&str], directory: &Path) -> Vec<u8> {
    let output =
        Command::new("tar").args(arguments).current_dir(directory).env("LC_ALL", "C").output().expect("GNU tar");
    assert!(output.status.success(), "tar {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn theirs(format: &[&str]) {
    let (from, to) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    facts::one_of_each(from.path());
    let ustar = format[0] == "--format=ustar";
    if ustar {
        // What that format cannot say.
        for name in ["deep", "far", "fifo", "sticky", "holes"] {
            let path = from.path().join(name);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("remove");
        }
        facts::set_mtime(from.path(), 1_500_000_000);
    }
    let archive = tar(&[&["--numeric-owner"], format, &["-cf", "-", "."]].concat(), from.path());
    unpack(&archive[..], to.path(), &Unpack::default()).expect("unpacked");
    let (mut before, after) = (facts::of(from.path()), facts::of(to.path()));
    let attributes = format.contains(&"--xattrs");
    for (path, facts) in &mut before {
        if !attributes {
            facts.xattrs.clear();
        }
        assert!(facts.content == after[path].content, "content of {path:?}");
        assert_eq!(*facts, after[path], "{path:?}");
    }
    assert_eq!(before.len(), after.len());
    if !ustar {
        assert!(facts::taken(&to.path().join("holes")) < 64 * 1024);
    }
}

#[test]
fn old_gnu() {
    theirs(&["--format=gnu"]);
}

#[test]
fn old_gnu_sparse() {
    theirs(&["--format=gnu", "--sparse"]);
}

#[test]
fn ustar() {
    theirs(&["--format=ustar"]);
}

#[test]
fn pax() {
    theirs(&["--format=pax", "--xattrs", "--xattrs-include=*"]);
}

#[test]
fn pax_sparse() {
    for version in ["0.0", "0.1", "1.0"] {
        let version = format!("--sparse-version={version}");
        theirs(&["--format=pax", "--xattrs", "--xattrs-include=*", "--sparse", &version]);
    }
}

#[test]
fn many_pieces() {
    use std::os::unix::fs::FileExt as _;

    let (from, to) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    let file = fs::File::create(from.path().join("comb")).expect("create");
    for tooth in 0..200u64 {
        file.write_all_at(&[tooth as u8 + 1; 4096], tooth * 65536).expect("write");
    }
    let content = fs::read(from.path().join("comb")).expect("read");
    let mut archives = vec![
        tar(&["--format=gnu", "--sparse", "-cf", "-", "."], from.path()),
        tar(&["--format=pax", "--sparse", "-cf", "-", "."], from.path()),
    ];
    let mut ours = Vec::new();
    pack(from.path(), Path::new(""), &mut ours, &Pack::default()).expect("packed");
    archives.push(ours);
    for archive in archives {
        assert!(archive.len() < 2 << 20);
        unpack(&archive[..], to.path(), &Unpack::default()).expect("unpacked");
        assert!(fs::read(to.path().join("comb")).expect("read") == content);
        assert!(facts::taken(&to.path().join("comb")) < 2 << 20);
    }
}

#[test]
fn ours_in_their_hands() {
    let home = tempfile::tempdir().expect("tempdir");
    let (from, to) = (home.path().join("from"), home.path().join("to"));
    fs::create_dir(&from).expect("mkdir");
    fs::create_dir(&to).expect("mkdir");
    facts::one_of_each(&from);
    let file = fs::File::create(home.path().join("ours.tar")).expect("create");
    pack(&from, Path::new(""), file, &Pack::default()).expect("packed");
    let listed = String::from_utf8(tar(&["-tf", "ours.tar"], home.path())).expect("text");
    assert_eq!(listed.lines().count(), facts::of(&from).len());
    assert_eq!(listed.lines().take(3).collect::<Vec<_>>(), ["./", "absolute", "deep/"]);
    tar(&["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", "../ours.tar"], &to);
    let (before, after) = (facts::of(&from), facts::of(&to));
    for (path, facts) in &before {
        assert!(facts.content == after[path].content, "content of {path:?}");
        assert_eq!(*facts, after[path], "{path:?}");
    }
    assert!(facts::taken(&to.join("holes")) < 64 * 1024);
}
