//! Files, streamed both ways.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use wakeful_guest_client::proto::filesystem::EntryKind;
use wakeful_guest_client::{Entry, Error, FileHead, FilePart, Guest};

use crate::agent::{Agent, SOON};

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

fn once(bytes: impl Into<Bytes>) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
    let bytes = bytes.into();
    stream::once(async move { Ok(bytes) })
}

async fn write(guest: &Guest, path: &Path, content: &'static [u8]) -> Result<Entry, Error> {
    timeout(SOON, guest.write(text(path), None, None, None, once(content))).await.expect("in time")
}

async fn read(guest: &Guest, path: &str, range: Option<&str>) -> Result<(FileHead, Vec<u8>), Error> {
    let (head, pieces) = timeout(SOON, guest.read(path, range)).await.expect("in time")?;
    let read = timeout(
        SOON,
        pieces.try_fold(Vec::new(), |mut all, piece| async move {
            all.extend_from_slice(&piece);
            Ok(all)
        }),
    );
    Ok((head, read.await.expect("in time").expect("a whole file")))
}

fn reason<T: std::fmt::Debug>(result: &Result<T, Error>) -> (&str, &str) {
    match result {
        Err(Error::Refused { code, wakeful_code, .. }) => (code, wakeful_code.as_deref().unwrap_or("")),
        other => panic!("{other:?}"),
    }
}

/// What is in a directory, hidden files too.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn workspace(agent: &Agent) -> PathBuf {
    let path = agent.directory().join("w");
    fs::create_dir(&path).expect("a directory");
    path
}

#[tokio::test]
async fn twenty_megabytes_there_and_back() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let path = workspace(&agent).join("deep/er/data.bin");
    let piece = |nth: u32| Bytes::from(nth.to_le_bytes().repeat(16 << 10));
    let digest = (0..320).fold(Sha256::new(), |digest, nth| digest.chain_update(piece(nth))).finalize();
    let size = 320_u64 * (64 << 10);
    let content = stream::iter((0..320).map(move |nth| Ok(piece(nth))));
    let entry = guest.write(text(&path), None, None, Some(size), content);
    let entry = timeout(3 * SOON, entry).await.expect("in time").expect("written");
    assert_eq!((entry.name.as_str(), entry.size, entry.kind, entry.mode), ("data.bin", size, EntryKind::File, 0o644));
    assert_eq!(Sha256::digest(fs::read(&path).expect("is there")), digest);
    let (head, back) = read(&guest, text(&path), None).await.expect("read");
    assert_eq!((head.length, head.part), (Some(size), None));
    assert!(head.modified.is_some_and(|date| date.ends_with(" GMT")));
    assert_eq!(Sha256::digest(back), digest);
    assert_eq!(names(path.parent().expect("a parent")), ["data.bin"]);
    assert_eq!(guest.head(text(&path)).await.expect("head").length, Some(size));
}

#[tokio::test]
async fn ranges_and_odd_files() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    let path = directory.join("a file +&%ü");
    write(&guest, &path, b"0123456789").await.expect("written");
    let (head, part) = read(&guest, text(&path), Some("bytes=2-4")).await.expect("a part");
    assert_eq!((head.part, part.as_slice()), (Some(FilePart { start: 2, end: 4, total: 10 }), &b"234"[..]));
    assert_eq!(read(&guest, text(&path), Some("bytes=-3")).await.expect("a part").1, b"789");
    assert_eq!(read(&guest, text(&path), Some("nonsense")).await.expect("all of it").1.len(), 10);
    assert_eq!(reason(&read(&guest, text(&path), Some("bytes=10-")).await).0, "416");
    write(&guest, &directory.join("empty"), b"").await.expect("written");
    assert_eq!(read(&guest, text(&directory.join("empty")), None).await.expect("read").1, b"");
    // Files of the kernel have no size in advance.
    assert!(read(&guest, "/proc/self/status", None).await.expect("read").1.starts_with(b"Name:"));
    let fifo = directory.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("runs").success());
    for (path, expected) in [
        (text(&fifo), ("400", "invalid_path")),
        ("/dev/null", ("400", "invalid_path")),
        (text(&directory), ("400", "is_directory")),
        ("/no/such/file", ("404", "path_not_found")),
        ("/etc/passwd/x", ("400", "not_a_directory")),
        ("/etc\0", ("400", "invalid_path")),
    ] {
        assert_eq!(reason(&read(&guest, path, None).await), expected, "{path}");
    }
    assert_eq!(reason(&guest.head("/no/such/file").await).0, "404");
}

#[tokio::test]
async fn owners_and_modes() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    let path = directory.join("new/script");
    let script = || once(&b"#!/bin/sh\n"[..]);
    let entry = guest.write(text(&path), Some("nobody"), Some(0o755), None, script()).await.expect("written");
    assert_eq!((entry.owner.as_str(), entry.mode), ("nobody", 0o755));
    let nobody = fs::metadata(&path).expect("is there").uid();
    assert_eq!(fs::metadata(directory.join("new")).expect("is there").uid(), nobody);
    assert_eq!(fs::metadata(directory.join("new")).expect("is there").mode() & 0o7777, 0o755);
    // Without a mode, a file that is there keeps its own.
    let entry = write(&guest, &path, b"other").await.expect("written");
    assert_eq!((entry.mode, entry.owner.as_str(), entry.size), (0o755, "root", 5));
    let unknown = guest.write(text(&path), Some("no-such-user"), None, None, script()).await;
    assert_eq!(reason(&unknown), ("401", "unknown_user"));
    let entry = guest.mkdir(text(&directory.join("x/y")), Some("nobody")).await.expect("made");
    assert_eq!((entry.kind, entry.owner.as_str()), (EntryKind::Directory, "nobody"));
    assert_eq!(fs::metadata(directory.join("x")).expect("is there").uid(), nobody);
    assert_eq!(reason(&guest.mkdir(text(&directory.join("x/y")), None).await).0, "already_exists");
    let file = guest.mkdir(text(&path), None).await;
    assert_eq!(reason(&file), ("invalid_argument", "not_a_directory"));
    for (path, expected) in [
        (text(&directory), ("400", "is_directory")),
        ("/", ("400", "is_directory")),
        ("/dev/null", ("400", "invalid_path")),
        ("/etc/passwd/x", ("400", "not_a_directory")),
    ] {
        assert_eq!(reason(&guest.write(path, None, None, None, once("x")).await), expected, "{path}");
    }
}

#[tokio::test]
async fn an_upload_that_is_cut_off_leaves_nothing() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    fs::write(directory.join("old"), "old").expect("a file");
    // The source fails.
    let broken = stream::iter([Ok(Bytes::from(vec![1; 500_000])), Err(io::Error::other("the client is gone"))]);
    let result = timeout(SOON, guest.write(text(&directory.join("a/b/c")), None, None, None, broken)).await;
    let result = result.expect("in time");
    assert!(
        matches!(&result, Err(Error::Io { source, .. }) if source.to_string() == "the client is gone"),
        "{result:?}"
    );
    wait_for("a clean directory", || names(&directory) == ["old"]).await;
    // The caller goes away while the source is still open; the old file stays as it is.
    let endless = stream::iter([Ok(Bytes::from(vec![1; 500_000]))]).chain(stream::pending());
    let old = directory.join("old");
    {
        let mut writing = std::pin::pin!(guest.write(text(&old), None, None, None, endless));
        let beside = async { wait_for("the temporary file", || names(&directory).len() == 2).await };
        tokio::select! {
            result = &mut writing => panic!("{result:?}"),
            () = beside => {}
        }
    }
    wait_for("a clean directory", || names(&directory) == ["old"]).await;
    assert_eq!(fs::read(&old).expect("is there"), b"old");
    // The whole channel goes away.
    let endless = stream::iter([Ok(Bytes::from(vec![1; 500_000]))]).chain(stream::pending());
    let path = directory.join("new/file");
    let other = guest.clone();
    let writing = async move { other.write(text(&path), None, None, None, endless).await };
    let closing = async {
        wait_for("the temporary file", || directory.join("new").exists()).await;
        guest.clone().close().await;
    };
    let (result, ()) = timeout(SOON, async { tokio::join!(writing, closing) }).await.expect("in time");
    assert!(matches!(result, Err(Error::Lost)), "{result:?}");
    wait_for("a clean directory", || names(&directory) == ["old"]).await;
    // Fewer bytes than announced.
    let guest = agent.connect().await;
    let path = directory.join("short");
    let short = guest.write(text(&path), None, None, Some(10), once("x"));
    assert!(timeout(SOON, short).await.expect("in time").is_err());
    wait_for("a clean directory", || names(&directory) == ["old"]).await;
}

#[tokio::test]
async fn listing_and_stat() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    for (name, content) in [("b", "22"), ("a", "1"), (".hidden", "")] {
        fs::write(directory.join(name), content).expect("a file");
    }
    fs::create_dir(directory.join("c")).expect("a directory");
    fs::write(directory.join("c/inner"), "").expect("a file");
    symlink("b", directory.join("link")).expect("a link");
    symlink("nowhere", directory.join("dangling")).expect("a link");
    let entries = guest.list(text(&directory)).await.expect("listed");
    let seen: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
    assert_eq!(
        seen,
        [
            (".hidden", EntryKind::File),
            ("a", EntryKind::File),
            ("b", EntryKind::File),
            ("c", EntryKind::Directory),
            ("dangling", EntryKind::Symlink),
            ("link", EntryKind::Symlink),
        ]
    );
    assert_eq!((entries[2].size, entries[5].target.as_deref()), (2, Some("b")));
    let link = guest.stat(text(&directory.join("link"))).await.expect("stat");
    assert_eq!(
        (link.kind, link.name.as_str(), link.path.as_str()),
        (EntryKind::Symlink, "link", text(&directory.join("link")))
    );
    let file = guest.stat(text(&directory.join("b"))).await.expect("stat");
    let real = fs::metadata(directory.join("b")).expect("is there");
    assert_eq!(file.modified_ms / 1000, real.mtime());
    assert_eq!((file.owner.as_str(), file.group.as_str()), ("root", "root"));
    assert_eq!(guest.stat("/dev/null").await.expect("stat").kind, EntryKind::Other);
    assert_eq!(guest.stat("/").await.expect("stat").name, "/");
    for (path, expected) in [
        (directory.join("none"), ("not_found", "path_not_found")),
        (directory.join("a"), ("invalid_argument", "not_a_directory")),
    ] {
        assert_eq!(reason(&guest.list(text(&path)).await), expected);
    }
    assert_eq!(reason(&guest.stat(text(&directory.join("none"))).await), ("not_found", "path_not_found"));
    // Written through a link, the link stays a link.
    write(&guest, &directory.join("link"), b"through").await.expect("written");
    assert_eq!(fs::read(directory.join("b")).expect("is there"), b"through");
    write(&guest, &directory.join("dangling"), b"made").await.expect("written");
    assert_eq!(fs::read(directory.join("nowhere")).expect("is there"), b"made");
    assert_eq!(read(&guest, text(&directory.join("link")), None).await.expect("read").1, b"through");
}

#[tokio::test]
async fn too_many_entries_are_refused() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    // In memory: making so many takes long on a busy disk.
    let directory = tempfile::Builder::new().prefix("agent-").tempdir_in("/dev/shm").expect("a directory");
    let directory = directory.path();
    for nth in 0..10_000 {
        fs::write(directory.join(format!("file-{nth:05}")), "").expect("a file");
    }
    assert_eq!(guest.list(text(directory)).await.expect("just so many").len(), 10_000);
    fs::write(directory.join("one more"), "").expect("a file");
    assert_eq!(reason(&guest.list(text(directory)).await).0, "resource_exhausted");
}

#[tokio::test]
async fn moving_and_removing() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let directory = workspace(&agent);
    write(&guest, &directory.join("from/inner/file"), b"content").await.expect("written");
    fs::set_permissions(directory.join("from/inner/file"), fs::Permissions::from_mode(0o600)).expect("a mode");
    let moved =
        guest.rename(text(&directory.join("from")), text(&directory.join("new/parent/to")), None).await.expect("moved");
    assert_eq!((moved.name.as_str(), moved.kind), ("to", EntryKind::Directory));
    assert_eq!(fs::read(directory.join("new/parent/to/inner/file")).expect("is there"), b"content");
    assert!(!directory.join("from").exists());
    let missing = guest.rename(text(&directory.join("from")), text(&directory.join("x/y")), None).await;
    assert_eq!(reason(&missing), ("not_found", "path_not_found"));
    assert!(!directory.join("x").exists());
    let into_itself = guest.rename(text(&directory.join("new")), text(&directory.join("new/parent/deep")), None).await;
    assert_eq!(reason(&into_itself), ("invalid_argument", "invalid_path"));
    // To another file system.
    let elsewhere = tempfile::Builder::new().prefix("agent-").tempdir_in("/dev/shm").expect("a directory");
    let to = elsewhere.path().join("to");
    guest.rename(text(&directory.join("new/parent/to")), text(&to), None).await.expect("moved");
    assert_eq!(fs::metadata(to.join("inner/file")).expect("is there").mode() & 0o7777, 0o600);
    assert!(!directory.join("new/parent/to").exists());
    assert_eq!(names(elsewhere.path()), ["to"]);

    symlink("/etc", directory.join("link")).expect("a link");
    guest.remove(text(&directory.join("link"))).await.expect("removed");
    assert!(Path::new("/etc/passwd").exists(), "only the link goes");
    guest.remove(text(&to)).await.expect("removed");
    guest.remove(text(&to)).await.expect("nothing there is fine");
    assert!(names(elsewhere.path()).is_empty());
}

#[tokio::test]
async fn a_full_disk_is_told_and_left_as_it_was() {
    let agent = Agent::start().await;
    let guest = agent.connect().await;
    let disk = workspace(&agent);
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&disk).status();
    assert!(mount.expect("mount runs").success(), "needs root");
    let content = stream::iter((0..64).map(|_| Ok(Bytes::from(vec![7; 64 << 10]))));
    let result = timeout(SOON, guest.write(text(&disk.join("a/big")), None, None, None, content)).await;
    let left = names(&disk);
    let small = write(&guest, &disk.join("small"), b"fits").await;
    assert!(Command::new("umount").arg(&disk).status().expect("umount runs").success());
    assert_eq!(reason(&result.expect("in time")), ("507", "guest_disk_full"));
    assert!(left.is_empty(), "{left:?}");
    small.expect("a small one fits");
}
