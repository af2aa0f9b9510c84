//! Copies of large files that are mostly holes.
//!
//! A fresh overlay disk has 2 MB in 2 GiB, so only its data is copied: by reflink where the file system can, else extent
//! by extent inside the kernel, else by hand (a copy between two file systems is refused with EXDEV by some kernels).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

const BUFFER: usize = 1 << 20;

/// Makes `to`, which must be empty, a copy of `from`; holes stay holes. Moves the offset of `from`.
///
/// # Errors
/// What the file systems say, a full disk among them.
pub fn sparse_copy(from: &File, to: &File) -> io::Result<()> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    copy_extents(from, to)
}

/// Whether a copy of this file, in this directory, would share its blocks. Nothing is left there.
///
/// # Errors
/// If nothing can be made there.
pub fn shares_blocks(file: &File, dir: &Path) -> io::Result<bool> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let copy = match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(copy) => copy,
        // Where there are no files without a name there are no shared blocks either.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    Ok(ioctl_ficlone(&copy, file).is_ok())
}

fn copy_extents(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    to.set_len(size)?;
    for_each_extent(from, size, |start, end| copy_range(from, to, start, end))
}

/// Calls `visit` with start and end of every extent of data within the first `size` bytes. Moves the file's offset.
///
/// # Errors
/// What the file system or `visit` says.
pub fn for_each_extent(file: &File, size: u64, mut visit: impl FnMut(u64, u64) -> io::Result<()>) -> io::Result<()> {
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break, // only a hole is left
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        visit(start, end)?;
        at = end;
    }
    Ok(())
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut at, mut buffer) = (start, Vec::new());
    while at < end {
        let (mut read_at, mut write_at) = (at, at);
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 30);
        match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), wanted) {
            Ok(copied) if copied > 0 => at += copied as u64,
            Err(Errno::NOSPC) => return Err(Errno::NOSPC.into()),
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => {
                buffer.resize(BUFFER, 0);
                let part = buffer.len().min(wanted);
                let read = from.read_at(&mut buffer[..part], at)?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                to.write_all_at(&buffer[..read], at)?;
                at += read as u64;
            }
        }
    }
    Ok(())
}

/// Starts writing what is dirty in `file` to the disk and does not wait for it, so that a later fsync finds little to do.
/// Only a hint: whatever goes wrong is found by that fsync.
pub fn start_writeback(file: impl AsFd) {
    use std::os::fd::AsRawFd;
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the call takes a descriptor, which is borrowed for its duration, and three numbers.
    let _ = unsafe { libc::sync_file_range(fd, 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn temporary() -> File {
        let dir = std::env::temp_dir();
        let path = dir.join(format!("wakeful-copy-{}-{:?}", std::process::id(), std::thread::current().id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("can be made");
        std::fs::remove_file(path).expect("can be unlinked");
        file
    }

    #[test]
    fn holes_stay_holes() {
        let (from, to) = (temporary(), temporary());
        from.set_len(64 << 20).expect("can be resized");
        from.write_all_at(b"first", 4096).expect("can be written");
        from.write_all_at(&[7; 10_000], 40 << 20).expect("can be written");
        copy_extents(&from, &to).expect("can be copied");
        assert_eq!(to.metadata().expect("has a length").len(), 64 << 20);
        assert!(to.metadata().expect("has blocks").blocks() * 512 < 1 << 20, "the copy is not sparse");
        for (at, length) in [(0, 8192), (4096, 100), (40 << 20, 12_000), (63 << 20, 1 << 20)] {
            let (mut a, mut b) = (vec![1; length], vec![2; length]);
            from.read_exact_at(&mut a, at).expect("can be read");
            to.read_exact_at(&mut b, at).expect("can be read");
            assert_eq!(a, b);
        }
    }

    #[test]
    fn an_empty_file_has_an_empty_copy() {
        let (from, to) = (temporary(), temporary());
        sparse_copy(&from, &to).expect("can be copied");
        assert_eq!(to.metadata().expect("has a length").len(), 0);
    }
}
