//! What is remembered of slots in the run directory.
//!
//! ```text
//! <run_dir>/pool             the range that the slots' uplinks are numbered from
//! <run_dir>/<n>/             made before anything else of slot n, removed last
//! <run_dir>/<n>/netns        its namespace, mounted
//! <run_dir>/<n>/card         the namespace of the guest's card, mounted, where that is a link
//! <run_dir>/<n>/owner        whose it is, from the moment it is handed out
//! <run_dir>/<n>/names        which names its policy is about, and since how many changes
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Error;

pub(crate) fn directory(run_dir: &Path, slot: u32) -> PathBuf {
    run_dir.join(slot.to_string())
}

/// Where a slot's namespace is mounted.
pub(crate) fn namespace(run_dir: &Path, slot: u32) -> PathBuf {
    directory(run_dir, slot).join("netns")
}

/// Where the namespace of a guest's card is mounted.
pub(crate) fn card(run_dir: &Path, slot: u32) -> PathBuf {
    directory(run_dir, slot).join("card")
}

/// The numbers of all slots that there is anything of.
pub(crate) fn slots(run_dir: &Path) -> Result<Vec<u32>, Error> {
    let entries = std::fs::read_dir(run_dir).map_err(Error::io("list", run_dir))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("list", run_dir))?;
        found.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Writes a file so that it is there whole or not at all.
pub(crate) fn write(path: &Path, content: &str) -> Result<(), Error> {
    let draft = path.with_extension("tmp");
    std::fs::write(&draft, content).map_err(Error::io("write", &draft))?;
    std::fs::rename(&draft, path).map_err(Error::io("rename", &draft))
}

/// A file's text; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

/// Removes a file; one that is not there is removed.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The file that says whose a slot is.
pub(crate) fn owner_file(run_dir: &Path, slot: u32) -> PathBuf {
    directory(run_dir, slot).join("owner")
}

/// Whose a slot is; `None` if it was never handed out.
pub(crate) fn owner(run_dir: &Path, slot: u32) -> Result<Option<String>, Error> {
    read(&owner_file(run_dir, slot))
}

/// Since when a slot has its owner.
pub(crate) fn owned_since(run_dir: &Path, slot: u32) -> SystemTime {
    let modified = std::fs::metadata(owner_file(run_dir, slot)).and_then(|file| file.modified());
    modified.unwrap_or(SystemTime::UNIX_EPOCH)
}
