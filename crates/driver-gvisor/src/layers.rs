//! What a disk stands on: disks that were turned into layers, each shared by all who came of it.
//!
//! ```text
//!   source/disk.ext4 (1 GiB)          ─ lay ─▶  source/layer-000.ext4 ─┬─ one file with a name in each directory:
//!                                               source/disk.ext4 (empty)│  the last name that goes takes it away
//!                                     ─ copy ─▶ child/layer-000.ext4 ──┘
//!                                               child/disk.ext4 (empty)
//! ```
//!
//! Where the host's file system shares no blocks, a copy of a disk takes its time and its blocks for each child, and that of a
//! running source is made while it stands still. A layer costs nothing to share. It is never written again: it is mounted read-only, by a device that cannot be
//! written to. Where it does not pay (little to copy, blocks that are shared anyway, too many layers, or more in them than
//! one disk may hold) the disk is copied as it is, over the same layers.
//!
//! A disk becomes a layer by changing names with an empty one, which is one step: whoever looks finds both or neither.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use wakeful_confine::files;
use wakeful_driver::Error;
use wakeful_sys::copy::shares_blocks;
use wakeful_sys::mounts::{self, Access, LoopDevice};

use crate::disk;

/// Below this a copy is as quick as ending an engine and starting it over a layer.
const WORTH: u64 = 64 << 20;
/// The more of them, the longer a look at a file that is in none takes.
const MOST: usize = 8;
const BEGINS: &str = "layer-";
const ENDS: &str = ".ext4";

/// The layers below the disk in this directory, the lowest first. Blocks.
///
/// # Errors
/// If it cannot be read.
pub fn of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let is_layer = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.strip_prefix(BEGINS)
            .and_then(|rest| rest.strip_suffix(ENDS))
            .is_some_and(|number| number.len() == 3 && number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let mut layers = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if is_layer(&entry.file_name()) {
            layers.push(entry.path());
        }
    }
    layers.sort_unstable();
    Ok(layers)
}

/// Gives the layers of one directory a name in another. Blocks.
pub(crate) fn link(from: &Path, to: &Path) -> io::Result<()> {
    for layer in of(from)? {
        let name = layer.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        fs::hard_link(&layer, to.join(name))?;
    }
    Ok(())
}

/// Whether the disk in this directory is better laid than copied. Blocks.
pub(crate) fn worthwhile(dir: &Path, disk_mb: u32) -> io::Result<bool> {
    let disk = files::open_regular(&dir.join(disk::DISK), false)?;
    let own = disk.metadata()?.blocks() * 512;
    let layers = of(dir)?;
    if own < WORTH || layers.len() >= MOST {
        return Ok(false);
    }
    let below = layers.iter().map(|layer| Ok(fs::symlink_metadata(layer)?.blocks() * 512)).sum::<io::Result<u64>>()?;
    // Whoever writes everything anew before each fork would else have as many disks as layers.
    Ok(below + own <= u64::from(disk_mb) << 20 && !shares_blocks(&disk, dir)?)
}

/// As [`Driver::lay`](wakeful_driver::Driver::lay). Blocks.
pub(crate) fn lay(data_dir: &Path, dir: &Path, disk_mb: u32) -> Result<(), Error> {
    let failed = |source| Error::io("turn a disk into a layer", source);
    let disk = dir.join(disk::DISK);
    disk::at_rest(&disk)?;
    disk::finish(&disk).map_err(failed)?;
    disk::at_rest(&disk)?;
    let layer = dir.join(format!("{BEGINS}{:03}{ENDS}", of(dir).map_err(failed)?.len()));
    // Complete before it has a layer's name: if the daemon dies then, an empty layer is there, which is passed over.
    let new = tempfile::Builder::new().prefix(files::NEW).tempdir_in(dir).map_err(failed)?;
    let empty = new.path().join(disk::DISK);
    disk::make(data_dir, &empty, disk_mb)?;
    let lay = || -> io::Result<()> {
        File::open(&empty)?.sync_all()?;
        File::open(&disk)?.sync_all()?;
        fs::rename(&empty, &layer)?;
        renameat_with(CWD, &disk, CWD, &layer, RenameFlags::EXCHANGE)?;
        files::sync_dir(dir)
    };
    lay().map_err(failed)
}

/// Mounts a layer at `place`, which is made, under the ids of `users`; by way of `raw`, where nothing is mounted afterwards.
/// Not one that is empty: whether it is mounted. Blocks.
pub(crate) fn mount_at(layer: &Path, raw: &Path, place: &Path, users: BorrowedFd<'_>) -> io::Result<bool> {
    let device = LoopDevice::shared(&files::open_regular(layer, false)?)?;
    let flags = MountFlags::RDONLY | MountFlags::NOATIME | MountFlags::NODEV;
    mount(device.path(), raw, "ext4", flags, None)?;
    let upper = raw.join("upper");
    let used = upper.is_dir();
    if used {
        let mapped = mounts::idmapped(&upper, users, Access::ReadOnly)?;
        fs::create_dir(place)?;
        mounts::attach(mapped.as_fd(), place)?;
    }
    unmount(raw, UnmountFlags::DETACH)?;
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_found_by_their_names_and_in_order() {
        let dir = tempfile::tempdir().expect("can be made");
        for name in
            ["layer-010.ext4", "layer-002.ext4", "disk.ext4", "layer-1.ext4", "layer-0003.ext4", "layer-abc.ext4"]
        {
            fs::write(dir.path().join(name), name).expect("can be written");
        }
        let found = of(dir.path()).expect("can be read");
        let names: Vec<_> = found.iter().map(|path| path.file_name().expect("has one").to_owned()).collect();
        assert_eq!(names, ["layer-002.ext4", "layer-010.ext4"]);
    }

    #[test]
    fn little_is_copied() {
        let dir = tempfile::tempdir().expect("can be made");
        let disk = File::create(dir.path().join(disk::DISK)).expect("can be made");
        disk.set_len(1 << 30).expect("can be sized");
        assert!(!worthwhile(dir.path(), 1024).expect("can be looked at"), "it is all holes");
    }
}
