//! Everything about a tree that must survive a journey, for comparison.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// One thing in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) kind: &'static str,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: i64,
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
    /// The first name of the same thing.
    pub(crate) same_as: PathBuf,
}

/// Of everything below a directory and itself, by relative path.
pub(crate) fn of(root: &Path) -> BTreeMap<PathBuf, Facts> {
    let (mut facts, mut firsts, mut waiting) = (BTreeMap::new(), HashMap::new(), vec![PathBuf::new()]);
    while let Some(path) = waiting.pop() {
        let place = root.join(&path);
        let found = fs::symlink_metadata(&place).expect("stat");
        let kind = found.file_type();
        let mut content = Vec::new();
        let name = if kind.is_dir() {
            let mut children: Vec<PathBuf> =
                fs::read_dir(&place).expect("list").map(|child| path.join(child.expect("child").file_name())).collect();
            children.sort_by(|a, b| b.cmp(a));
            waiting.extend(children);
            "directory"
        } else if kind.is_symlink() {
            content = fs::read_link(&place).expect("readlink").into_os_string().into_encoded_bytes();
            "symlink"
        } else if kind.is_file() {
            content = fs::read(&place).expect("read");
            "file"
        } else if kind.is_fifo() {
            "fifo"
        } else {
            "other"
        };
        let same_as = firsts.entry(found.ino()).or_insert_with(|| path.clone()).clone();
        let xattrs = if matches!(name, "file" | "directory") { xattrs(&place) } else { Vec::new() };
        let owner = (found.uid(), found.gid());
        let mode = found.mode() & 0o7777;
        facts.insert(path, Facts { kind: name, mode, owner, mtime: found.mtime(), content, xattrs, same_as });
    }
    facts
}

pub(crate) fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = Vec::with_capacity(4096);
    rustix::fs::llistxattr(path, rustix::buffer::spare_capacity(&mut names)).expect("list attributes");
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::with_capacity(4096);
        rustix::fs::lgetxattr(path, name, rustix::buffer::spare_capacity(&mut value)).expect("read an attribute");
        found.push((String::from_utf8_lossy(name).into_owned(), value));
    }
    found.sort();
    found
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).expect("set an attribute");
}

pub(crate) fn set_mtime(path: &Path, seconds: i64) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("set a time");
}

/// Bytes that a file takes on its disk.
pub(crate) fn taken(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("stat").blocks() * 512
}

/// A tree with one of everything that can travel.
pub(crate) fn one_of_each(root: &Path) {
    use std::io::{Seek as _, SeekFrom, Write as _};
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    let long = "n".repeat(200);
    let deep = format!("deep/{}/{}/{}", "d".repeat(120), "e".repeat(120), "f".repeat(120));
    for directory in ["empty", "etc", "sticky", &deep] {
        fs::create_dir_all(root.join(directory)).expect("mkdir");
    }
    fs::write(root.join("etc/plain"), "plain\n").expect("write");
    fs::write(root.join("etc/nothing"), "").expect("write");
    fs::write(root.join("etc/odd name\nwith=everything\\"), "odd").expect("write");
    fs::write(root.join(&deep).join(&long), "long").expect("write");
    fs::write(root.join("suid"), vec![7; 100_000]).expect("write");
    fs::hard_link(root.join("etc/plain"), root.join("zz-hard")).expect("link");
    symlink("etc/plain", root.join("relative")).expect("symlink");
    symlink("/etc/passwd", root.join("absolute")).expect("symlink");
    symlink(format!("{deep}/{long}"), root.join("far")).expect("symlink");
    fs::hard_link(root.join("relative"), root.join("zz-symlink")).expect("link");
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), rustix::fs::FileType::Fifo, 0o640.into(), 0).expect("fifo");
    let mut holes = fs::File::create(root.join("holes")).expect("create");
    holes.seek(SeekFrom::Start(1 << 20)).expect("seek");
    holes.write_all(b"in the middle").expect("write");
    holes.seek(SeekFrom::Start(8 << 20)).expect("seek");
    holes.write_all(&[9; 5000]).expect("write");
    holes.set_len((16 << 20) + 77).expect("resize");
    fs::File::create(root.join("hollow")).expect("create").set_len(3 << 20).expect("resize");
    let mode = |name: &str, mode| fs::set_permissions(root.join(name), PermissionsExt::from_mode(mode)).expect("chmod");
    for (name, uid, gid) in
        [("suid", 0, 7), ("etc/plain", 1000, 1001), ("relative", 5, 6), ("sticky", 0, 3_000_000_000)]
    {
        lchown(root.join(name), Some(uid), Some(gid)).expect("chown");
    }
    mode("suid", 0o4755);
    mode("sticky", 0o1777);
    mode("empty", 0o2700);
    mode("etc/nothing", 0o000);
    // A newline in the value: cap_dac_override and cap_fowner.
    let capability = [1, 0, 0, 2, 0x0a, 0, 0, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set_xattr(&root.join("suid"), "security.capability", &capability);
    set_xattr(&root.join("suid"), "user.note", b"a\nb=c\0d");
    set_xattr(&root.join("sticky"), "user.empty", b"");
    for (path, facts) in of(root) {
        let seconds = 1_500_000_000 + i64::try_from(path.as_os_str().len()).expect("short");
        let seconds = if facts.kind == "fifo" { -5 } else { seconds };
        set_mtime(&root.join(path), seconds);
    }
}
