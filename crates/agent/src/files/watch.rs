//! Changes in a directory, or in a whole tree, as the kernel tells them.
//!
//! ```text
//!   inotify (one descriptor a watch) ── events ──▶ Watch: which directory, which name ──▶ changes
//!        ▲                                            │ a new directory in a tree
//!        └──────────── watched as well ◀──────────────┘ what is in it already is reported
//! ```
//!
//! Only directories are watched, so the cost is theirs and not that of their files; links are not followed, and other file
//! systems below the root (`/proc` above all) are left out. Nothing is queued here: the kernel's own queue is the buffer,
//! it is bounded, and when it overflows that is told.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::filesystem::EventType;

use super::explain;
use super::upload::is_temporary;

/// Directories in one watch. Small machines allow some eight thousand to a user, all watches together.
const MAX_DIRECTORIES: usize = 4096;
/// Changes that are handed out at once.
const MAX_CHANGES: usize = 1024;
/// Of a read; an event with the longest name fits many times.
const BUFFER: usize = 16 << 10;

/// Something to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// What happened to which path, relative to the root; empty for the root itself.
    Happened(EventType, PathBuf),
    /// Changes were lost.
    Overflow,
    /// The root is gone or elsewhere; nothing follows.
    Gone,
}

/// One watched directory or tree. Everything here blocks on the disk.
pub(super) struct Watch {
    inotify: Arc<OwnedFd>,
    root: PathBuf,
    device: u64,
    recursive: bool,
    /// Paths relative to the root.
    directories: HashMap<i32, PathBuf>,
    /// Found by looking into a new directory: if the kernel saw them arrive as well, that is the same arrival.
    found: HashSet<(i32, OsString)>,
    /// A file of an upload that is just being moved to its place.
    arriving: Option<u32>,
    over: bool,
}

impl Watch {
    /// From here on nothing is missed.
    pub(super) fn open(root: &Path, recursive: bool) -> Result<Self, ErrorBody> {
        let metadata = fs::metadata(root).map_err(|error| explain("watch", root, &error))?;
        if !metadata.is_dir() {
            let message = format!("path is not a directory: {}", root.display());
            return Err(ErrorBody::new(Code::InvalidArgument, message).because(WakefulCode::NotADirectory));
        }
        let none_left = |errno: Errno| match errno {
            Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::NOMEM => too_much(root),
            other => explain("watch", root, &other.into()),
        };
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(none_left)?;
        let mut watch = Self {
            inotify: Arc::new(inotify),
            root: root.to_owned(),
            device: metadata.dev(),
            recursive,
            directories: HashMap::new(),
            found: HashSet::new(),
            arriving: None,
            over: false,
        };
        watch.add(Path::new("")).map_err(none_left)?;
        if recursive && !watch.descend(Path::new(""), None) {
            return Err(too_much(root));
        }
        Ok(watch)
    }

    /// Readable when there is something to take.
    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.inotify)
    }

    /// Where a change is.
    pub(super) fn path(&self, relative: &Path) -> PathBuf {
        if relative.as_os_str().is_empty() { self.root.clone() } else { self.root.join(relative) }
    }

    /// What has happened since the last call, up to a bound; `true` if there may be more at once.
    pub(super) fn take(&mut self) -> (Vec<Change>, bool) {
        let mut changes = Vec::new();
        let inotify = Arc::clone(&self.inotify);
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&*inotify, &mut buffer);
        while !self.over {
            // What has been read must be handed out: only between two reads may we stop.
            if changes.len() >= MAX_CHANGES && reader.is_buffer_empty() {
                return (changes, true);
            }
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
                    let (directory, what, cookie) = (event.wd(), event.events(), event.cookie());
                    self.note(directory, what, cookie, name, &mut changes);
                }
                Err(Errno::INTR) => {}
                Err(_) => {
                    // The kernel has told all that happened while we looked into new directories.
                    self.found.clear();
                    break;
                }
            }
        }
        (changes, false)
    }

    fn note(&mut self, number: i32, what: ReadFlags, cookie: u32, name: Option<OsString>, changes: &mut Vec<Change>) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            changes.push(Change::Overflow);
            self.look_again();
            return;
        }
        if what.contains(ReadFlags::IGNORED) {
            self.directories.remove(&number);
            return;
        }
        let Some(directory) = self.directories.get(&number) else { return };
        let Some(name) = name else {
            // The directories below are told of by the one above them.
            if directory.as_os_str().is_empty() {
                self.note_root(what, changes);
            }
            return;
        };
        let path = directory.join(&name);
        let is_directory = what.contains(ReadFlags::ISDIR);
        if is_temporary(&name) {
            // Half an upload is nobody's business; it appears when it is whole.
            if what.contains(ReadFlags::MOVED_FROM) {
                self.arriving = Some(cookie);
            }
            return;
        }
        let mut tell = |kind| changes.push(Change::Happened(kind, path.clone()));
        if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            let uploaded = self.arriving.take() == Some(cookie) && what.contains(ReadFlags::MOVED_TO);
            if self.found.remove(&(number, name)) {
                return;
            }
            tell(EventType::Create);
            if uploaded && !is_directory {
                // As it would look to somebody who wrote it in place, which is what E2B's clients count on.
                tell(EventType::Chmod);
                tell(EventType::Write);
            }
            if is_directory && self.recursive && self.is_ours(&path) && !self.descend(&path, Some(changes)) {
                changes.push(Change::Overflow);
            }
        } else if what.contains(ReadFlags::MODIFY) {
            tell(EventType::Write);
        } else if what.contains(ReadFlags::ATTRIB) {
            tell(EventType::Chmod);
        } else if what.contains(ReadFlags::DELETE) {
            tell(EventType::Remove);
            self.found.remove(&(number, name));
        } else if what.contains(ReadFlags::MOVED_FROM) {
            tell(EventType::Rename);
            self.found.remove(&(number, name));
            if is_directory && self.recursive {
                // Where it is now, its new directory will tell, if that is one of ours.
                self.forget(|below| below.starts_with(&path));
            }
        }
    }

    fn note_root(&mut self, what: ReadFlags, changes: &mut Vec<Change>) {
        let (kind, gone) = if what.intersects(ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT) {
            (EventType::Remove, true)
        } else if what.contains(ReadFlags::MOVE_SELF) {
            (EventType::Rename, true)
        } else if what.contains(ReadFlags::ATTRIB) && self.root.exists() {
            (EventType::Chmod, false)
        } else {
            return;
        };
        changes.push(Change::Happened(kind, PathBuf::new()));
        if gone {
            changes.push(Change::Gone);
            self.over = true;
        }
    }

    /// Watches one directory.
    fn add(&mut self, relative: &Path) -> Result<i32, Errno> {
        if self.directories.len() >= MAX_DIRECTORIES {
            return Err(Errno::NOSPC);
        }
        let mut flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        if !relative.as_os_str().is_empty() {
            flags |= WatchFlags::DONT_FOLLOW;
        }
        let number = inotify::add_watch(&*self.inotify, self.path(relative), flags)?;
        self.directories.insert(number, relative.to_owned());
        Ok(number)
    }

    /// Watches a directory and everything below it, and reports what is in it already, if that is wanted. False if it
    /// was too much.
    fn descend(&mut self, from: &Path, mut changes: Option<&mut Vec<Change>>) -> bool {
        let mut waiting = vec![from.to_owned()];
        while let Some(directory) = waiting.pop() {
            // Watched before it is read: what comes in between is seen twice, and never not at all.
            let number = match self.add(&directory) {
                Ok(number) => number,
                Err(Errno::NOSPC | Errno::NOMEM) => return false,
                Err(_) => continue, // it has gone, or become something else
            };
            let Ok(entries) = fs::read_dir(self.path(&directory)) else { continue };
            for entry in entries.flatten() {
                let (name, Ok(metadata)) = (entry.file_name(), entry.metadata()) else { continue };
                if is_temporary(&name) {
                    continue;
                }
                let path = directory.join(&name);
                if let Some(changes) = &mut changes {
                    if changes.len() >= 2 * MAX_CHANGES {
                        return false;
                    }
                    changes.push(Change::Happened(EventType::Create, path.clone()));
                    if metadata.is_file() && metadata.len() > 0 {
                        changes.push(Change::Happened(EventType::Write, path.clone()));
                    }
                    self.found.insert((number, name));
                }
                if metadata.is_dir() && metadata.dev() == self.device {
                    if waiting.len() >= MAX_DIRECTORIES {
                        return false;
                    }
                    waiting.push(path);
                }
            }
        }
        true
    }

    /// Whether a directory is on the root's own file system.
    fn is_ours(&self, relative: &Path) -> bool {
        fs::symlink_metadata(self.path(relative)).is_ok_and(|found| found.is_dir() && found.dev() == self.device)
    }

    /// After lost events: directories may have come and gone unseen.
    fn look_again(&mut self) {
        if !self.recursive {
            return;
        }
        let before = std::mem::take(&mut self.directories);
        // A tree that has become too large was told of by the overflow already.
        self.descend(Path::new(""), None);
        for number in before.keys().filter(|number| !self.directories.contains_key(number)) {
            let _ = inotify::remove_watch(&*self.inotify, *number);
        }
    }

    fn forget(&mut self, which: impl Fn(&Path) -> bool) {
        self.directories.retain(|number, path| {
            let kept = !which(path);
            if !kept {
                let _ = inotify::remove_watch(&*self.inotify, *number);
            }
            kept
        });
    }
}

/// More directories or watches than there may be.
pub(super) fn too_much(path: &Path) -> ErrorBody {
    let message = format!("'{}' is too much to watch: at most {MAX_DIRECTORIES} directories", path.display());
    ErrorBody::new(Code::ResourceExhausted, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write as _;

    use super::*;

    /// A directory that goes away again; the crate has no other use for a library of them.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("wakeful-watch-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn taken(watch: &mut Watch) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let (changes, more) = watch.take();
            all.extend(changes.into_iter().map(|change| match change {
                Change::Happened(kind, path) => format!("{kind:?} {}", path.display()),
                other => format!("{other:?}"),
            }));
            if !more {
                return all;
            }
        }
    }

    #[test]
    fn what_happens_in_a_directory_is_told_in_order() {
        let place = Place::new("order");
        let at = |name: &str| place.0.join(name);
        fs::create_dir(at("sub")).unwrap();
        let mut watch = Watch::open(&place.0, false).unwrap();
        let mut file = fs::File::create(at("a")).unwrap();
        file.write_all(b"x").unwrap();
        // An open file would keep the removed directory, and the kernel would tell of its end only then.
        drop(file);
        fs::set_permissions(at("a"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        fs::rename(at("a"), at("b")).unwrap();
        fs::remove_file(at("b")).unwrap();
        fs::write(at("sub/unseen"), "x").unwrap();
        assert_eq!(taken(&mut watch), ["Create a", "Write a", "Chmod a", "Rename a", "Create b", "Remove b"]);
        assert!(taken(&mut watch).is_empty());
        fs::remove_dir_all(&place.0).unwrap();
        let last = taken(&mut watch);
        assert_eq!(last[last.len() - 2..], ["Remove ", "Gone"], "{last:?}");
        assert!(taken(&mut watch).is_empty());
    }

    #[test]
    fn an_upload_appears_when_it_is_whole() {
        let place = Place::new("upload");
        let temporary = place.0.join(super::super::upload::temporary_name(OsStr::new("a")).unwrap());
        let mut watch = Watch::open(&place.0, true).unwrap();
        fs::write(&temporary, "half").unwrap();
        assert!(taken(&mut watch).is_empty());
        fs::rename(&temporary, place.0.join("a")).unwrap();
        assert_eq!(taken(&mut watch), ["Create a", "Chmod a", "Write a"]);
        fs::write(&temporary, "half").unwrap();
        fs::remove_file(&temporary).unwrap();
        assert!(taken(&mut watch).is_empty());
    }

    #[test]
    fn new_directories_are_followed_and_nothing_in_them_is_missed_or_told_twice() {
        let place = Place::new("tree");
        let at = |name: &str| place.0.join(name);
        let mut watch = Watch::open(&place.0, true).unwrap();
        // All of it before the watch has had a look.
        fs::create_dir_all(at("one/two")).unwrap();
        fs::write(at("one/two/file"), "x").unwrap();
        fs::write(at("one/empty"), "").unwrap();
        let told = taken(&mut watch);
        let once: BTreeSet<&str> = told.iter().map(String::as_str).collect();
        let expected =
            ["Create one", "Create one/empty", "Create one/two", "Create one/two/file", "Write one/two/file"];
        assert_eq!((once.into_iter().collect::<Vec<_>>(), told.len()), (expected.to_vec(), expected.len()), "{told:?}");
        fs::write(at("one/two/later"), "x").unwrap();
        assert_eq!(taken(&mut watch), ["Create one/two/later", "Write one/two/later"]);
        // Removed and made again: that is another one.
        fs::remove_file(at("one/two/file")).unwrap();
        fs::write(at("one/two/file"), "").unwrap();
        assert_eq!(taken(&mut watch), ["Remove one/two/file", "Create one/two/file"]);
        // Moved: what happens in it is told under its new name.
        fs::rename(at("one"), at("uno")).unwrap();
        let moved = taken(&mut watch);
        assert_eq!(moved[..2], ["Rename one", "Create uno"], "{moved:?}");
        assert!(moved.contains(&"Create uno/two/later".to_owned()), "{moved:?}");
        fs::write(at("uno/two/last"), "").unwrap();
        assert_eq!(taken(&mut watch), ["Create uno/two/last"]);
        // Out of the tree: no longer ours.
        let outside = Place::new("outside");
        fs::rename(at("uno"), outside.0.join("uno")).unwrap();
        assert_eq!(taken(&mut watch), ["Rename uno"]);
        fs::write(outside.0.join("uno/two/unseen"), "").unwrap();
        assert!(taken(&mut watch).is_empty());
    }

    #[test]
    fn lost_events_are_told_and_the_tree_is_found_again() {
        let place = Place::new("overflow");
        let mut watch = Watch::open(&place.0, true).unwrap();
        let limit: usize =
            fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
        for _ in 0..=limit {
            // Two different events in turn, or the kernel would join them.
            fs::write(place.0.join("a"), "").unwrap();
            fs::remove_file(place.0.join("a")).unwrap();
        }
        fs::create_dir_all(place.0.join("late/one")).unwrap();
        let told = taken(&mut watch);
        assert!(told.contains(&"Overflow".to_owned()) && told.len() > limit / 2, "{}", told.len());
        fs::write(place.0.join("late/one/file"), "").unwrap();
        assert_eq!(taken(&mut watch), ["Create late/one/file"]);
    }

    #[test]
    fn only_directories_can_be_watched() {
        let place = Place::new("kinds");
        fs::write(place.0.join("file"), "").unwrap();
        let refused = |name: &str| Watch::open(&place.0.join(name), false).map(|_| ()).unwrap_err();
        assert_eq!(refused("file").wakeful_code, Some(WakefulCode::NotADirectory));
        assert_eq!(refused("missing").wakeful_code, Some(WakefulCode::PathNotFound));
    }

    #[test]
    fn a_tree_that_is_too_large_is_refused() {
        let place = Place::new("large");
        for n in 0..=MAX_DIRECTORIES {
            fs::create_dir(place.0.join(n.to_string())).unwrap();
        }
        let refused = Watch::open(&place.0, true).map(|_| ()).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(Watch::open(&place.0, false).is_ok());
    }
}
