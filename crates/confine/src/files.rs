//! Small files: written whole or not at all, read without surprises.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest account that is read.
const SMALL: u64 = 1 << 20;

/// Opens a regular file and nothing else: no link is followed, no pipe is waited for.
pub fn open_regular(path: &Path, write: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).write(write).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(file)
}

/// Opens a file for an engine's output, which goes to its end; makes it if it is not there.
pub fn open_log(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(file)
}

/// A new file that only we can read.
pub fn create_new(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Makes a directory and those above it; fine if it is there.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Writes a directory's entries out.
///
/// # Errors
/// What the file system says.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// What was to be removed and is not there is as good as removed.
pub fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The account in this file; `None` if it is missing, too long or cannot be understood: accounts are only caches or
/// are written by rename, so that each of these means that there is none.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let mut text = Vec::new();
    open_regular(path, false).ok()?.take(SMALL).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Writes it beside and renames. Not synced: what is written so can be made again or dies with the engine.
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    write(path, &serde_json::to_vec(value)?)
}

/// As [`write_json`], for plain bytes.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = tempfile::Builder::new().prefix(NEW).tempfile_in(dir)?;
    file.write_all(content)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Prefix of everything that is made beside its place and renamed.
pub const NEW: &str = ".new-";

/// Removes what a process that was killed left half made. Only what is old: another one may be at work.
pub fn sweep(dir: &Path) {
    for path in half_made(dir) {
        let _ = remove_any(&path);
    }
}

/// What [`sweep`] removes.
pub fn half_made(dir: &Path) -> Vec<PathBuf> {
    let old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|meta| meta.modified());
        modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > Duration::from_secs(3600)))
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let half = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(NEW) && old(entry));
    half.map(|entry| entry.path()).collect()
}

/// Removes a file or a tree.
pub fn remove_any(path: &Path) -> io::Result<()> {
    absent_is_fine(if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) })
}

/// The last bytes of a text file from `from` on.
pub fn tail(path: &Path, from: u64, most: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        use std::os::unix::fs::FileExt;
        let file = open_regular(path, false)?;
        let end = file.metadata()?.size();
        let start = from.max(end.saturating_sub(most)).min(end);
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0)];
        let read = file.read_at(&mut bytes, start)?;
        bytes.truncate(read);
        Ok(bytes)
    };
    read().map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// What tells one boot of the host from the next.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().expect("can be made");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        write(&file, b"text").expect("can be written");
        std::os::unix::fs::symlink(&file, &link).expect("can be linked");
        assert!(open_regular(&file, true).is_ok());
        assert!(open_regular(&link, false).is_err());
        assert!(open_regular(dir.path(), false).is_err());
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("can be made");
        assert!(open_regular(&pipe, false).is_err());
        assert!(open_log(&pipe).is_err() && open_log(&link).is_err());
        assert!(open_log(&file).is_ok() && open_log(&dir.path().join("new")).is_ok());
    }

    #[test]
    fn tails_are_bounded() {
        let dir = tempfile::tempdir().expect("can be made");
        let path = dir.path().join("log");
        assert_eq!(tail(&path, 0, 10), "");
        write(&path, b"0123456789abcdef\n").expect("can be written");
        assert_eq!(tail(&path, 0, 5), "cdef");
        assert_eq!(tail(&path, 15, 5), "f");
        assert_eq!(tail(&path, 99, 5), "");
    }
}
