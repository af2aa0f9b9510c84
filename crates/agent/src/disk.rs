//! The sandbox's disk grows while it sleeps; its file system follows while it is in use.
//!
//! ```text
//!   boot      init, before anybody uses it
//!   wake      the host says how large the disk is now, and waits
//!   restore   whatever is still to be done, by itself: an earlier try may have failed, or its host died
//! ```
//!
//! The sizes of device and file system are compared every time, so that it can be repeated at any moment.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, SeekFrom};

use crate::init;

/// How long the kernel may take to hear of a larger device.
const HEARD: Duration = Duration::from_secs(10);
/// Where ext4 has its superblock, and how much of it counts here.
const SUPERBLOCK: (u64, usize) = (1024, 1024);

/// The disk, whose path is gone once the root has moved; whoever has root inside may have changed what its name means.
struct Disk {
    device: File,
    /// The root of its file system, as a place.
    mounted: OwnedFd,
    /// The kernel refuses two at once.
    growing: Mutex<()>,
}

static DISK: OnceLock<Disk> = OnceLock::new();

/// Remembers the disk, mounted at `mounted` from `device`.
pub(crate) fn keep(device: &str, mounted: &str) -> io::Result<()> {
    let device = File::open(device)?;
    let mounted = rustix::fs::open(mounted, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let _ = DISK.set(Disk { device, mounted, growing: Mutex::new(()) });
    Ok(())
}

/// Where it is mounted, as a place that has no path any more.
pub(crate) fn mounted() -> Option<&'static OwnedFd> {
    DISK.get().map(|disk| &disk.mounted)
}

/// Makes the file system as large as the device; its size afterwards.
///
/// # Errors
/// Whatever the kernel says; the file system is as it was then.
pub(crate) fn grow() -> io::Result<u64> {
    let disk = DISK.get().ok_or(ErrorKind::Unsupported)?;
    let _turn = disk.growing.lock().unwrap_or_else(PoisonError::into_inner);
    let (now, wanted) = (extent(&disk.device)?, device_bytes(disk)?);
    let blocks = wanted / now.block;
    if blocks > now.blocks {
        // The place itself takes no requests.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&disk.mounted, ".", flags, Mode::empty())?;
        wakeful_sys::guest::resize_ext4(root, blocks)?;
    }
    let Extent { blocks, block } = extent(&disk.device)?;
    Ok(blocks.saturating_mul(block))
}

/// The same, once the device has so many bytes.
///
/// # Errors
/// As [`grow`]; `TimedOut` if the device stays smaller.
pub(crate) fn grow_to(bytes: u64) -> io::Result<u64> {
    let disk = DISK.get().ok_or(ErrorKind::Unsupported)?;
    init::await_ready(HEARD, || Ok((device_bytes(disk)? >= bytes).then_some(())))?;
    grow()
}

fn device_bytes(disk: &Disk) -> io::Result<u64> {
    Ok(rustix::fs::seek(&disk.device, SeekFrom::End(0))?)
}

#[derive(Debug, PartialEq, Eq)]
struct Extent {
    blocks: u64,
    block: u64,
}

/// How large the file system is. What the device's cache says is what the mounted file system knows: they share it.
fn extent(device: &File) -> io::Result<Extent> {
    let mut superblock = [0; SUPERBLOCK.1];
    device.read_exact_at(&mut superblock, SUPERBLOCK.0)?;
    parse(&superblock).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the disk has no ext4"))
}

/// `s_blocks_count_lo`, `s_log_block_size`, `s_magic`, `s_feature_incompat`, `s_blocks_count_hi`.
fn parse(superblock: &[u8; SUPERBLOCK.1]) -> Option<Extent> {
    let word = |at: usize| Some(u64::from(u32::from_le_bytes(superblock.get(at..at + 4)?.try_into().ok()?)));
    let magic = superblock.get(0x38..0x3a)? == [0x53, 0xef];
    let is_64_bit = word(0x60)? & 0x80 != 0;
    let high = if is_64_bit { word(0x150)? } else { 0 };
    // 64 KiB are the largest block there is.
    let log = word(0x18)?;
    (magic && log <= 6).then_some(Extent { blocks: high << 32 | word(0x04)?, block: 1024 << log })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_is_read_or_refused() {
        let mut bytes = [0; SUPERBLOCK.1];
        assert_eq!(parse(&bytes), None);
        bytes[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
        bytes[0x04..0x08].copy_from_slice(&524_288_u32.to_le_bytes());
        bytes[0x18] = 2;
        bytes[0x150] = 1;
        assert_eq!(
            parse(&bytes),
            Some(Extent { blocks: 524_288, block: 4096 }),
            "the upper half counts only if it is in use"
        );
        bytes[0x60] = 0x80;
        assert_eq!(parse(&bytes), Some(Extent { blocks: (1 << 32) + 524_288, block: 4096 }));
        bytes[0x18] = 40;
        assert_eq!(parse(&bytes), None, "no block is so large");
    }
}
