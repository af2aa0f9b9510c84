//! Streams as GNU tar sees them.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use wakeful_dockerfile::{Context, CopyStep, Error, Format, SelectedKind, pack_inline};

use super::{actions, copy, lay};

fn step(text: &str) -> CopyStep {
    copy(&actions(text)[0]).clone()
}

fn packed(context: &Context, text: &str) -> Result<Vec<u8>, Error> {
    let step = step(text);
    let selected = context.select(&step)?;
    let mut stream = Vec::new();
    context.pack(&selected, &step.inline, &mut stream)?;
    Ok(stream)
}

/// Runs GNU tar over a stream.
fn tar(arguments: &[&str], stream: &[u8]) -> String {
    let mut child = Command::new("tar")
        .args(arguments)
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tar runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(move || drop(stdin.write_all(stream)));
        let output = child.wait_with_output().expect("tar ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    })
}

fn listed(stream: &[u8]) -> Vec<String> {
    tar(&["-tf", "-"], stream).lines().map(str::to_owned).collect()
}

#[test]
fn a_tree_is_listed_with_modes_owners_and_times() {
    let dir = tempfile::tempdir().unwrap();
    lay(dir.path(), &[("d/run.sh", "#!/bin/sh\n"), ("d/sub/data", "12345")]);
    symlink("../elsewhere", dir.path().join("d/link")).unwrap();
    let set = |name: &str, mode| {
        let path = dir.path().join(name);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set("d/run.sh", 0o755);
    set("d/sub/data", 0o640);
    set("d/sub", 0o1770);
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::open(dir.path().join("d/run.sh")).unwrap().set_modified(then).unwrap();
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    let stream = packed(&context, "COPY d /x").unwrap();
    let list = tar(&["-tvf", "-", "--numeric-owner"], &stream);
    let lines: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "{list}");
    assert_eq!((lines[0][0], lines[0][5..].join(" ")), ("lrwxrwxrwx", "link -> ../elsewhere".to_owned()));
    assert_eq!(lines[1], ["-rwxr-xr-x", "0/0", "10", "2001-09-09", "01:46", "run.sh"]);
    assert_eq!((lines[2][0], lines[2][5]), ("drwxrwx--T", "sub/"));
    assert_eq!((lines[3][0], lines[3][2], lines[3][5]), ("-rw-r-----", "5", "sub/data"));
    assert_eq!(stream, packed(&context, "COPY d /x").unwrap(), "the same files give the same stream");
}

#[test]
fn long_and_strange_names_survive() {
    let dir = tempfile::tempdir().unwrap();
    let long = format!("{}/{}/ü{}", "a".repeat(90), "b".repeat(90), "c".repeat(90));
    lay(dir.path(), &[(&long, "deep"), ("new\nline", "x")]);
    symlink("t".repeat(300), dir.path().join("far")).unwrap();
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    let stream = packed(&context, "COPY . /x").unwrap();
    let out = tempfile::tempdir().unwrap();
    tar(&["-xf", "-", "-C", out.path().to_str().unwrap()], &stream);
    assert_eq!(std::fs::read_to_string(out.path().join(&long)).unwrap(), "deep");
    assert_eq!(std::fs::read_link(out.path().join("far")).unwrap().as_os_str().len(), 300);
    assert!(out.path().join("new\nline").exists());
}

#[test]
fn inline_files_stand_beside_the_others() {
    let dir = tempfile::tempdir().unwrap();
    lay(dir.path(), &[("a", "1")]);
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    let stream = packed(&context, "COPY a <<F /x/\ncontent\nF").unwrap();
    assert_eq!(listed(&stream), ["a", "F"]);
    assert_eq!(tar(&["-xOf", "-", "F"], &stream), "content\n");
    let mut alone = Vec::new();
    pack_inline(&step("COPY <<F /x\ny\nF").inline, &mut alone).unwrap();
    assert!(tar(&["-tvf", "-"], &alone).starts_with("-rw-r--r--"));
}

#[test]
fn a_file_that_changes_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    lay(dir.path(), &[("a", "12345"), ("b", "x")]);
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    let selected = context.select(&step("COPY a b /x/")).unwrap();
    lay(dir.path(), &[("a", "1")]);
    assert!(context.pack(&selected, &[], std::io::sink()).is_err());
    assert!(context.digest(&selected).is_err());
    // A link put in the place of a file is not followed.
    let selected = context.select(&step("COPY b /x")).unwrap();
    std::fs::remove_file(dir.path().join("b")).unwrap();
    symlink("a", dir.path().join("b")).unwrap();
    assert!(context.pack(&selected, &[], std::io::sink()).is_err());
    assert!(context.digest(&selected).is_err());
}

/// Makes an archive of a small tree with GNU tar.
fn archive(dir: &Path, name: &str, options: &[&str]) {
    let tree = dir.join("tree");
    if !tree.exists() {
        let long = format!("{}/{}", "l".repeat(120), "m".repeat(120));
        lay(&tree, &[("bin/tool", "tool"), ("etc/conf", "conf"), (&long, "long")]);
        symlink("tool", tree.join("bin/alias")).unwrap();
        std::fs::hard_link(tree.join("etc/conf"), tree.join("etc/twin")).unwrap();
    }
    let status = Command::new("tar")
        .args(options)
        .args(["--owner=7", "--group=8", "--numeric-owner", "-cf"])
        .arg(dir.join("context").join(name))
        .args(["-C", tree.to_str().unwrap(), "."])
        .status()
        .expect("tar runs");
    assert!(status.success(), "{name}");
}

#[test]
fn archives_unfold_whatever_packed_them() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("context")).unwrap();
    let context = Context::open(&dir.path().join("context"), Path::new("Dockerfile")).unwrap();
    let kinds: BTreeMap<&str, (&[&str], Format)> = [
        ("gnu.tar", (&["--format=gnu"][..], Format::Plain)),
        ("pax.tar", (&["--format=pax"][..], Format::Plain)),
        ("ustar.tgz", (&["--format=pax", "-z"][..], Format::Gzip)),
        // The name says nothing.
        ("xz.dat", (&["-J"][..], Format::Xz)),
        ("zstd.bin", (&["--zstd"][..], Format::Zstd)),
    ]
    .into();
    for (name, (options, format)) in kinds {
        archive(dir.path(), name, options);
        let text = format!("ADD {name} /x");
        let selected = context.select(&step(&text)).unwrap();
        assert_eq!(selected[0].kind, SelectedKind::Archive(format), "{name}");
        let stream = packed(&context, &text).expect(name);
        let out = tempfile::tempdir().unwrap();
        tar(&["-xf", "-", "-C", out.path().to_str().unwrap()], &stream);
        let read = |file: &str| std::fs::read_to_string(out.path().join(file)).expect(file);
        assert_eq!(
            (read("bin/tool"), read("bin/alias"), read("etc/twin")),
            ("tool".into(), "tool".into(), "conf".into())
        );
        assert_eq!(read(&format!("{}/{}", "l".repeat(120), "m".repeat(120))), "long");
        let list = tar(&["-tvf", "-", "--numeric-owner"], &stream);
        assert!(list.lines().all(|line| line.contains(" 7/8 ")), "owners stay: {list}");
        // COPY takes the file as it is, and so does ADD when told.
        for text in [format!("COPY {name} /x"), format!("ADD --unpack=false {name} /x")] {
            assert_eq!(listed(&packed(&context, &text).unwrap()), [name]);
        }
    }
}

#[test]
fn frames_of_zstd_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("context")).unwrap();
    archive(dir.path(), "a.tar", &[]);
    let whole = std::fs::read(dir.path().join("context/a.tar")).unwrap();
    let (first, second) = whole.split_at(1000);
    let mut frames = Vec::new();
    for part in [first, second] {
        frames.extend(ruzstd_frame(part));
    }
    std::fs::write(dir.path().join("context/b.tar.zst"), frames).unwrap();
    let context = Context::open(&dir.path().join("context"), Path::new("Dockerfile")).unwrap();
    let plain = packed(&context, "ADD a.tar /x").unwrap();
    assert_eq!(packed(&context, "ADD b.tar.zst /x").unwrap(), plain);
}

/// One frame of raw blocks, written by hand: magic, a descriptor with a window of 1 MiB, blocks of at most 100 bytes.
fn ruzstd_frame(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 10 << 3];
    let blocks: Vec<&[u8]> = bytes.chunks(100).collect();
    for (i, block) in blocks.iter().enumerate() {
        let last = u32::from(i + 1 == blocks.len());
        let head = last | (u32::try_from(block.len()).unwrap() << 3);
        frame.extend(&head.to_le_bytes()[..3]);
        frame.extend(*block);
    }
    frame
}

#[test]
fn what_is_no_archive_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    lay(dir.path(), &[("plain", "just text"), ("empty", "")]);
    std::fs::write(dir.path().join("zeros"), vec![0; 10_240]).unwrap();
    std::fs::write(dir.path().join("broken.gz"), [0x1f, 0x8b, 8, 0, 1, 2, 3]).unwrap();
    let gzip = Command::new("gzip").args(["-k", dir.path().join("plain").to_str().unwrap()]).status().unwrap();
    assert!(gzip.success());
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    for name in ["plain", "empty", "zeros", "broken.gz", "plain.gz"] {
        assert_eq!(listed(&packed(&context, &format!("ADD {name} /x/")).unwrap()), [name]);
    }
}

#[test]
fn archives_that_mean_harm_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    let write = |name: &str, kind: tar::EntryType, path: &str, link: &str| {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        header.set_cksum();
        builder.append(&header, std::io::empty()).unwrap();
        std::fs::write(dir.path().join(name), builder.into_inner().unwrap()).unwrap();
    };
    use tar::EntryType::{Block, Link, Regular, Symlink};
    write("up.tar", Regular, "../../etc/cron.d/x", "");
    write("middle.tar", Regular, "a/../../x", "");
    write("hard.tar", Link, "a", "../../etc/shadow");
    for name in ["up.tar", "middle.tar", "hard.tar"] {
        let error = packed(&context, &format!("ADD {name} /x")).unwrap_err();
        assert!(error.to_string().contains("leads out"), "{name}: {error}");
    }
    // What is absolute is meant below the destination; what a link says is the sandbox's own matter; devices go.
    write("root.tar", Regular, "/etc/x", "");
    assert_eq!(listed(&packed(&context, "ADD root.tar /x").unwrap()), ["etc/x"]);
    write("link.tar", Symlink, "a", "/etc");
    assert_eq!(listed(&packed(&context, "ADD link.tar /x").unwrap()), ["a"]);
    write("device.tar", Block, "sda", "");
    assert!(listed(&packed(&context, "ADD device.tar /x").unwrap()).is_empty());
}

#[test]
fn archives_that_are_cut_or_of_another_kind() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("context")).unwrap();
    archive(dir.path(), "a.tar.gz", &["-z"]);
    archive(dir.path(), "a.tar", &[]);
    let inside = dir.path().join("context");
    for (from, to, keep) in [("a.tar.gz", "cut.tar.gz", 200), ("a.tar", "cut.tar", 1300)] {
        let bytes = std::fs::read(inside.join(from)).unwrap();
        std::fs::write(inside.join(to), &bytes[..keep.min(bytes.len() - 50)]).unwrap();
    }
    std::fs::write(inside.join("a.tar.bz2"), b"BZh91AY&SYxxxxxxxxxxxx").unwrap();
    let context = Context::open(&inside, Path::new("Dockerfile")).unwrap();
    for name in ["cut.tar.gz", "cut.tar"] {
        let error = packed(&context, &format!("ADD {name} /x")).unwrap_err();
        assert!(matches!(error, Error::Archive { .. }), "{name}: {error:?}");
    }
    let error = packed(&context, "ADD a.tar.bz2 /x").unwrap_err();
    assert!(error.to_string().contains("bzip2"), "{error}");
    packed(&context, "ADD --unpack=false a.tar.bz2 /x").unwrap();
}

#[test]
fn names_that_take_memory_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.as_old_mut().name[..1].copy_from_slice(b"x");
    header.set_mode(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(1 << 40);
    header.set_cksum();
    std::fs::write(dir.path().join("a.tar"), header.as_bytes()).unwrap();
    let context = Context::open(dir.path(), Path::new("Dockerfile")).unwrap();
    assert!(packed(&context, "ADD a.tar /x").unwrap_err().to_string().contains("longer than"));
}
