//! Directories: making, listing, moving, removing.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use wakeful_guest_proto::connect_rpc::{Code, ErrorBody, WakefulCode};
use wakeful_guest_proto::filesystem::{EntryInfo, MAX_ENTRIES, MAX_LISTING};

use super::{entry, explain};
use crate::process::rpc::Dialect;
use crate::process::{Accounts, User};

/// What an entry takes in JSON besides its name, its path and its targets, generously.
const ENTRY_COST: usize = 600;

/// Makes a directory and its parents, all for the user.
pub(super) fn make_dir(path: &Path, user: &User) -> Result<(), ErrorBody> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            let message = format!("directory already exists: {}", path.display());
            return Err(ErrorBody::new(Code::AlreadyExists, message));
        }
        Ok(_) => {
            let message = format!("path already exists but it is not a directory: {}", path.display());
            return Err(ErrorBody::new(Code::InvalidArgument, message).because(WakefulCode::NotADirectory));
        }
        Err(_) => {}
    }
    make_parents(path, user).map(|_| ()).map_err(|error| explain("make directory", path, &error))
}

/// Makes whatever is missing of a directory's path, 0755 and for the user, and says what that was, outermost first.
pub(super) fn make_parents(path: &Path, user: &User) -> io::Result<Vec<PathBuf>> {
    let mut missing = VecDeque::new();
    for ancestor in path.ancestors() {
        if ancestor.as_os_str().is_empty() || fs::metadata(ancestor).is_ok_and(|found| found.is_dir()) {
            break;
        }
        missing.push_front(ancestor.to_owned());
    }
    let mut made = Vec::new();
    let result = missing.iter().try_for_each(|path| {
        match DirBuilder::new().mode(0o755).create(path) {
            Ok(()) => made.push(path.clone()),
            // Somebody else was faster; what it is, the next step will see.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
            Err(error) => return Err(error),
        }
        std::os::unix::fs::lchown(path, Some(user.uid), Some(user.gid))
    });
    match result {
        Ok(()) => Ok(made),
        Err(error) => {
            remove_made(&made);
            Err(error)
        }
    }
}

/// Takes back directories that were made for nothing; those that somebody uses meanwhile stay.
pub(super) fn remove_made(made: &[PathBuf]) {
    for path in made.iter().rev() {
        let _ = fs::remove_dir(path);
    }
}

/// What is in a directory, by name, a directory before what is in it, symlinks not followed.
pub(super) fn list(
    path: &Path,
    depth: u32,
    dialect: Dialect,
    accounts: &Accounts,
) -> Result<Vec<EntryInfo>, ErrorBody> {
    let found = fs::metadata(path).map_err(|error| explain("list", path, &error))?;
    if !found.is_dir() {
        let message = format!("path is not a directory: {}", path.display());
        return Err(ErrorBody::new(Code::InvalidArgument, message).because(WakefulCode::NotADirectory));
    }
    let (mut entries, mut cost) = (Vec::new(), 0);
    let mut waiting = vec![(path.to_owned(), depth)];
    // Children are pushed in reverse, so that the stack hands them out by name; the first one is the directory itself.
    while let Some((current, depth)) = waiting.pop() {
        if current != path {
            // What vanished since it was read is left out.
            let Ok(entry) = entry::describe(&current, dialect, accounts) else { continue };
            cost += ENTRY_COST + json_length(&entry);
            entries.push(entry);
        }
        if entries.len() > MAX_ENTRIES || cost > MAX_LISTING || waiting.len() > MAX_ENTRIES {
            return Err(too_many(path));
        }
        let real_dir = current == path || fs::symlink_metadata(&current).is_ok_and(|found| found.is_dir());
        if depth == 0 || !real_dir {
            continue;
        }
        let Ok(reader) = fs::read_dir(&current) else { continue };
        let mut children = Vec::new();
        for child in reader.flatten() {
            if children.len() >= MAX_ENTRIES {
                return Err(too_many(path));
            }
            children.push(child.path());
        }
        children.sort_unstable_by(|a, b| b.cmp(a));
        waiting.extend(children.into_iter().map(|child| (child, depth - 1)));
    }
    Ok(entries)
}

/// At most six bytes for a byte, when every one of them is a control character.
fn json_length(entry: &EntryInfo) -> usize {
    let target = entry.native.as_ref().and_then(|native| native.target.as_ref());
    let texts = [Some(&entry.name), Some(&entry.path), entry.symlink_target.as_ref(), target];
    texts.into_iter().flatten().flat_map(|text| text.bytes()).map(|byte| if byte < b' ' { 6 } else { 1 }).sum()
}

fn too_many(path: &Path) -> ErrorBody {
    let message =
        format!("'{}' has more than {MAX_ENTRIES} entries, which is too much for one listing", path.display());
    ErrorBody::new(Code::ResourceExhausted, message)
}

/// Moves, also between file systems, and makes the parents of the destination.
pub(super) fn move_entry(from: &Path, to: &Path, user: &User) -> Result<(), ErrorBody> {
    fs::symlink_metadata(from).map_err(|error| explain("move", from, &error))?;
    let made = match to.parent() {
        Some(parent) => make_parents(parent, user).map_err(|error| explain("make directory", parent, &error))?,
        None => Vec::new(),
    };
    let moved = match fs::rename(from, to) {
        // Directories of the image cannot be renamed on an overlay, and /run is another file system altogether.
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => copy_and_remove(from, to),
        other => other,
    };
    moved.map_err(|error| {
        remove_made(&made);
        explain("move", from, &error)
    })
}

/// A copy beside the destination that takes its place when it is whole, then the original goes.
fn copy_and_remove(from: &Path, to: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if to.starts_with(from) {
        return Err(rustix::io::Errno::INVAL.into());
    }
    let temporary = parent.join(super::upload::temporary_name(name)?);
    let copied = copy(from, &temporary).and_then(|()| fs::rename(&temporary, to));
    if copied.is_err() {
        let _ = remove_any(&temporary);
    }
    copied?;
    remove_any(from)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    // Without recursion: a tree made deep on purpose must not overflow the stack. Directories get their modes at the end,
    // in case one of them is not writable.
    let mut waiting = vec![(from.to_owned(), to.to_owned())];
    let mut directories = Vec::new();
    while let Some((from, to)) = waiting.pop() {
        let found = fs::symlink_metadata(&from)?;
        let kind = found.file_type();
        if kind.is_dir() {
            DirBuilder::new().mode(0o700).create(&to)?;
            for child in fs::read_dir(&from)? {
                let child = child?;
                waiting.push((child.path(), to.join(child.file_name())));
            }
            directories.push((to, found));
            continue;
        }
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
            std::os::unix::fs::lchown(&to, Some(found.uid()), Some(found.gid()))?;
        } else if kind.is_file() {
            let (mut source, mut copy) = (File::open(&from)?, File::options().write(true).create_new(true).open(&to)?);
            io::copy(&mut source, &mut copy)?;
            settle(&copy, &found)?;
        } else {
            let mode = rustix::fs::Mode::from_raw_mode(found.mode());
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &to,
                rustix::fs::FileType::from_raw_mode(found.mode()),
                mode,
                found.rdev(),
            )?;
            std::os::unix::fs::lchown(&to, Some(found.uid()), Some(found.gid()))?;
        }
    }
    directories.iter().rev().try_for_each(|(path, found)| settle(&File::open(path)?, found))
}

/// Owner first: changing it clears the set-user-id bit.
fn settle(file: &File, found: &fs::Metadata) -> io::Result<()> {
    std::os::unix::fs::fchown(file, Some(found.uid()), Some(found.gid()))?;
    file.set_permissions(fs::Permissions::from_mode(found.mode() & 0o7777))?;
    file.set_times(fs::FileTimes::new().set_accessed(found.accessed()?).set_modified(found.modified()?))
}

/// Removes whatever is there, with all that is in it; nothing there is fine.
pub(super) fn remove(path: &Path) -> Result<(), ErrorBody> {
    match remove_any(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| explain("remove", path, &error)),
    }
}

fn remove_any(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_modes_links_and_times() {
        let dir = std::env::temp_dir().join(format!("wakeful-copy-tree-{}", std::process::id()));
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("inner/script"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(from.join("inner/script"), fs::Permissions::from_mode(0o4755)).unwrap();
        std::os::unix::fs::symlink("inner/script", from.join("link")).unwrap();
        fs::set_permissions(from.join("inner"), fs::Permissions::from_mode(0o555)).unwrap();
        let before = fs::metadata(from.join("inner/script")).unwrap();
        copy_and_remove(&from, &to).unwrap();
        let after = fs::metadata(to.join("inner/script")).unwrap();
        assert_eq!((before.mode(), before.mtime(), before.size()), (after.mode(), after.mtime(), after.size()));
        assert_eq!(fs::metadata(to.join("inner")).unwrap().mode() & 0o7777, 0o555);
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("inner/script"));
        assert!(!from.exists());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing temporary stays");
        assert!(copy_and_remove(&to, &to.join("inside")).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
