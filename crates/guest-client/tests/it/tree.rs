//! Trees as tar streams, through the real agent.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tokio::time::timeout;
use wakeful_guest_client::{Error, Guest, PackOptions, UnpackOptions, Unpacked};
use wakeful_tree::{Owner, Pack, Unpack};

use crate::agent::{Agent, SOON};

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

fn workspace(agent: &Agent) -> PathBuf {
    let path = agent.directory().join("w");
    fs::create_dir(&path).expect("a directory");
    path
}

async fn pack(guest: &Guest, path: &Path, options: PackOptions) -> Result<Vec<u8>, Error> {
    let pieces = timeout(SOON, guest.pack(text(path), options)).await.expect("in time")?;
    let all = pieces.try_fold(Vec::new(), |mut all, piece| async move {
        all.extend_from_slice(&piece);
        Ok(all)
    });
    Ok(timeout(3 * SOON, all).await.expect("in time").expect("a whole archive"))
}

async fn unpack(guest: &Guest, dest: &str, options: &UnpackOptions, archive: &[u8]) -> Result<Unpacked, Error> {
    let pieces: Vec<_> = archive.chunks(10_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    timeout(3 * SOON, guest.unpack(dest, options, stream::iter(pieces))).await.expect("in time")
}

/// What the host packs of its own, owned by nobody in particular.
fn ours(path: &Path) -> Vec<u8> {
    let (root, name) = (path.parent().expect("a parent"), path.file_name().expect("a name"));
    let mut archive = Vec::new();
    let options = Pack { owner: Owner::Fixed { uid: 4711, gid: 4712 }, ..Pack::default() };
    wakeful_tree::pack(root, Path::new(name), &mut archive, &options).expect("packed");
    archive
}

fn reason<T: std::fmt::Debug>(result: &Result<T, Error>) -> (&str, &str) {
    match result {
        Err(Error::Refused { code, wakeful_code, .. }) => (code, wakeful_code.as_deref().unwrap_or("")),
        other => panic!("{other:?}"),
    }
}

fn owner(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).expect("is there");
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

fn sample(directory: &Path) -> PathBuf {
    let tree = directory.join("tree");
    fs::create_dir_all(tree.join("sub")).expect("mkdir");
    fs::write(tree.join("large"), vec![7; 3 << 20]).expect("write");
    fs::write(tree.join("sub/tool"), "#!").expect("write");
    fs::set_permissions(tree.join("sub/tool"), PermissionsExt::from_mode(0o4711)).expect("chmod");
    fs::hard_link(tree.join("sub/tool"), tree.join("same")).expect("link");
    symlink("sub/tool", tree.join("link")).expect("symlink");
    fs::File::create(tree.join("hollow")).expect("create").set_len(64 << 20).expect("resize");
    tree
}

#[tokio::test]
async fn a_tree_there_and_back() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    let tree = sample(&directory);
    let archive = pack(&guest, &tree, PackOptions::default()).await.expect("packed");
    assert!(archive.len() < 4 << 20, "holes do not travel");
    // The host can read it, and the agent what the host has packed.
    let here = tempfile::tempdir().expect("tempdir");
    let summary = wakeful_tree::unpack(&archive[..], here.path(), &Unpack::default()).expect("unpacked");
    assert_eq!(owner(&here.path().join("same")), (0, 0, 0o4711));
    let there = directory.join("made/for it");
    let unpacked = unpack(&guest, text(&there), &UnpackOptions::default(), &archive).await.expect("unpacked");
    assert_eq!((unpacked.entries, unpacked.bytes), (summary.entries, summary.bytes));
    assert_eq!(fs::read(there.join("large")).expect("read"), vec![7; 3 << 20]);
    assert_eq!(fs::read_link(there.join("link")).expect("readlink"), Path::new("sub/tool"));
    let inode = |name: &str| fs::metadata(there.join(name)).expect("stat").ino();
    assert_eq!(inode("same"), inode("sub/tool"));
    assert!(fs::metadata(there.join("hollow")).expect("stat").blocks() < 64);
    assert_eq!(archive, pack(&guest, &there, PackOptions::default()).await.expect("packed"), "the same bytes again");
}

#[tokio::test]
async fn what_a_build_copies() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    let archive = ours(&sample(&directory));
    let dest = directory.join("app");
    let dest = text(&dest);
    unpack(&guest, dest, &UnpackOptions::default(), &archive).await.expect("unpacked");
    assert_eq!(owner(&Path::new(dest).join("sub/tool")), (4711, 4712, 0o4711));
    assert_eq!(owner(Path::new(dest)), (4711, 4712, 0o755));
    let chosen = |owner: &str| UnpackOptions { owner: Some(owner.to_owned()), ..UnpackOptions::default() };
    let strict = UnpackOptions { mode: Some(0o750), keep_top: true, ..chosen("root:daemon") };
    unpack(&guest, dest, &strict, &archive).await.expect("unpacked");
    let daemon = owner(&Path::new(dest).join("link")).1;
    assert_ne!(daemon, 4712);
    assert_eq!(owner(&Path::new(dest).join("sub/tool")), (0, daemon, 0o750));
    assert_eq!(owner(Path::new(dest)), (4711, 4712, 0o755), "the destination is left as it is");
    unpack(&guest, dest, &chosen("123"), &archive).await.expect("unpacked");
    assert_eq!(owner(&Path::new(dest).join("large")), (123, 123, 0o644));
    assert_eq!(reason(&unpack(&guest, dest, &chosen("nobody-here"), &archive).await).1, "unknown_user");
    assert_eq!(reason(&unpack(&guest, "relative", &chosen("root"), &archive).await), ("400", "invalid_path"));
    let into_file = format!("{dest}/large");
    let answer = unpack(&guest, &into_file, &UnpackOptions::default(), &archive).await;
    assert_eq!(reason(&answer), ("400", "not_a_directory"));
}

#[tokio::test]
async fn a_single_file_goes_where_it_is_told() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    let single = UnpackOptions { single: true, ..UnpackOptions::default() };
    fs::write(directory.join("conf"), "new").expect("write");
    let archive = ours(&directory.join("conf"));
    fs::create_dir(directory.join("there")).expect("mkdir");
    for (dest, lands) in
        [("there", "there/conf"), ("other/", "other/conf"), ("deep/renamed", "deep/renamed"), ("conf", "conf")]
    {
        let dest = format!("{}/{dest}", text(&directory));
        let unpacked = unpack(&guest, &dest, &single, &archive).await.expect("unpacked");
        assert_eq!((unpacked.entries, unpacked.bytes), (1, 3));
        assert_eq!(fs::read(directory.join(lands)).expect("is there"), b"new", "{lands}");
    }
    let tree = ours(&sample(&directory));
    let answer = unpack(&guest, text(&directory.join("x")), &single, &tree).await;
    assert_eq!(reason(&answer).0, "400");
}

#[tokio::test]
async fn paths_and_symlinks() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    let tree = sample(&directory);
    let missing = pack(&guest, &tree.join("none"), PackOptions::default()).await;
    assert_eq!(reason(&missing), ("404", "path_not_found"));
    assert_eq!(reason(&pack(&guest, Path::new("relative"), PackOptions::default()).await), ("400", "invalid_path"));
    let kinds = async |options: PackOptions| {
        let here = tempfile::tempdir().expect("tempdir");
        let archive = pack(&guest, &tree.join("link"), options).await.expect("packed");
        wakeful_tree::unpack(&archive[..], here.path(), &Unpack::default()).expect("unpacked");
        here.path().join("link").is_symlink()
    };
    assert!(kinds(PackOptions::default()).await);
    assert!(!kinds(PackOptions { follow: true, ..PackOptions::default() }).await);
    let mounted = tree.join("mounted");
    fs::create_dir(&mounted).expect("mkdir");
    mount("none", &mounted, "tmpfs", MountFlags::empty(), None).expect("mount");
    fs::write(mounted.join("file"), vec![1; 100_000]).expect("write");
    let (one, all) = (
        pack(&guest, &tree, PackOptions { one_file_system: true, follow: false }).await,
        pack(&guest, &tree, PackOptions::default()).await,
    );
    unmount(&mounted, UnmountFlags::DETACH).expect("unmount");
    assert!(one.expect("packed").len() + 100_000 < all.expect("packed").len());
}

#[tokio::test]
async fn a_packing_that_fails_does_not_look_complete() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    fs::write(directory.join("a"), vec![7; 8 << 20]).expect("write");
    // Deeper than any path can name, so that the walk fails behind the large file.
    let mut deepest = open(&directory, OFlags::DIRECTORY, Mode::empty()).expect("open");
    let name = "d".repeat(250);
    for _ in 0..20 {
        mkdirat(&deepest, &name, Mode::RWXU).expect("mkdir");
        deepest = openat(&deepest, &name, OFlags::DIRECTORY, Mode::empty()).expect("open");
    }
    let pieces = guest.pack(text(&directory), PackOptions::default()).await.expect("begun");
    let results: Vec<io::Result<Bytes>> = timeout(SOON, pieces.collect()).await.expect("in time");
    let bytes: usize = results.iter().flatten().map(Bytes::len).sum();
    // A failure overtakes what is on its way: a stream that is reset does not send what it still holds.
    let on_its_way = 2 << 20;
    assert!(bytes > (8 << 20) - on_its_way && results.last().is_some_and(Result::is_err), "{bytes}");
    guest.health(SOON).await.expect("the channel goes on");
}

#[tokio::test]
async fn archives_that_are_not_whole() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    let archive = ours(&sample(&directory));
    let options = UnpackOptions::default();
    let dest = directory.join("dest");
    let dest = text(&dest);
    for (what, bytes) in [("half", &archive[..archive.len() / 2]), ("nothing", b""), ("noise", &[b'x'; 5000])] {
        assert_eq!(reason(&unpack(&guest, dest, &options, bytes).await).0, "400", "{what}");
    }
    // A host that fails while it sends, and one that goes away.
    let start = Bytes::copy_from_slice(&archive[..1 << 20]);
    let failing = stream::iter([Ok(start.clone()), Err(io::Error::other("no more"))]);
    let answer = timeout(SOON, guest.unpack(dest, &options, failing)).await.expect("in time");
    assert!(matches!(answer, Err(Error::Io { .. })), "{answer:?}");
    let endless = stream::once(async move { Ok(start) }).chain(stream::pending());
    assert!(timeout(SOON / 40, guest.unpack(dest, &options, endless)).await.is_err());
    // A refusal comes before the end of the stream.
    let noise = stream::iter([Ok(Bytes::from_static(&[b'x'; 5000]))]).chain(stream::pending());
    let answer = timeout(SOON, guest.unpack(dest, &options, noise)).await.expect("in time");
    assert_eq!(reason(&answer).0, "400");
    guest.health(SOON).await.expect("the channel goes on");
}

#[tokio::test]
async fn a_full_disk_has_a_code_of_its_own() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    let archive = ours(&sample(&directory));
    let small = directory.join("small");
    fs::create_dir(&small).expect("mkdir");
    mount("none", &small, "tmpfs", MountFlags::empty(), Some(c"size=1m")).expect("mount");
    let answer = unpack(&guest, text(&small), &UnpackOptions::default(), &archive).await;
    unmount(&small, UnmountFlags::DETACH).expect("unmount");
    assert_eq!(reason(&answer), ("507", "guest_disk_full"));
}
