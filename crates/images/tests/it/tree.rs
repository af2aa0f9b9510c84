//! A base as a directory: everything that the image holds, once, and nothing half-made.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use wakeful_images::{Draft, ensure_tree, half_made_trees, tree_of};

use crate::Site;

fn run(program: &str, args: &[&str]) {
    assert!(Command::new(program).args(args).status().unwrap().success(), "{program} {args:?}");
}

/// The directory of a base with a bit of everything.
async fn base(site: &Site) -> PathBuf {
    let draft = Draft::begin(&site.work()).unwrap();
    let root = draft.root();
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::write(root.join("usr/bin/su"), "x").unwrap();
    fs::set_permissions(root.join("usr/bin/su"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::hard_link(root.join("usr/bin/su"), root.join("usr/bin/again")).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", root.join("link")).unwrap();
    fs::write(root.join("owned"), "mine").unwrap();
    std::os::unix::fs::chown(root.join("owned"), Some(1000), Some(1001)).unwrap();
    run("mknod", &[&at("null"), "c", "1", "3"]);
    run("mkfifo", &[&at("pipe")]);
    run("setcap", &["cap_net_raw+ep", &at("owned")]);
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let base = draft.finish(&site.bases(), &()).await.unwrap();
    base.path.parent().unwrap().to_owned()
}

#[tokio::test]
async fn nothing_is_lost_on_the_way() {
    let site = Site::new();
    let dir = base(&site).await;
    assert!(!tree_of(&dir).exists());
    let tree = {
        let dir = dir.clone();
        tokio::task::spawn_blocking(move || ensure_tree(&dir)).await.unwrap().unwrap()
    };
    assert_eq!(tree, tree_of(&dir));
    let meta = |name: &str| fs::symlink_metadata(tree.join(name)).unwrap();
    assert_eq!(fs::metadata(&tree).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(meta("usr/bin/su").mode() & 0o7777, 0o4755);
    assert_eq!((meta("usr/bin/su").nlink(), meta("usr/bin/su").ino()), (2, meta("usr/bin/again").ino()));
    assert_eq!(fs::read_link(tree.join("link")).unwrap(), PathBuf::from("/etc/shadow"));
    assert_eq!((meta("owned").uid(), meta("owned").gid()), (1000, 1001));
    assert!(meta("null").file_type().is_char_device() && meta("null").rdev() == device(1, 3));
    assert!(meta("pipe").file_type().is_fifo());
    let capable = Command::new("getcap").arg(tree.join("owned")).output().unwrap();
    assert!(String::from_utf8_lossy(&capable.stdout).contains("cap_net_raw"), "{capable:?}");
    assert!(!tree.join("lost+found").exists());
    // Nothing else is left there, and nothing is mounted.
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(dir.to_str().unwrap()));
    // The second finds it as it is.
    fs::write(tree.join("mark"), "").unwrap();
    assert_eq!(ensure_tree(&dir).unwrap(), tree);
    assert!(tree.join("mark").exists());
}

fn device(major: u64, minor: u64) -> u64 {
    major << 8 | minor
}

#[tokio::test]
async fn several_at_once_come_to_the_same() {
    let site = Site::new();
    let dir = base(&site).await;
    let making: Vec<_> = (0..4)
        .map(|_| {
            let dir = dir.clone();
            tokio::task::spawn_blocking(move || ensure_tree(&dir))
        })
        .collect();
    for one in making {
        assert_eq!(one.await.unwrap().unwrap(), tree_of(&dir));
    }
    assert_eq!(half_made_trees(&dir), Vec::<PathBuf>::new());
}

#[test]
fn what_is_no_image_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("base.ext4"), vec![7; 1 << 20]).unwrap();
    assert!(ensure_tree(dir.path()).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    fs::create_dir(dir.path().join("root.new-abc")).unwrap();
    assert_eq!(half_made_trees(dir.path()), [dir.path().join("root.new-abc")]);
}
