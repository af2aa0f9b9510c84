//! A sandbox's disk: a file system in a file.
//!
//! ```text
//!   place.data/disk.ext4 ── loop device ── ext4 ─┬─ upper, work    what differs from the template
//!                                                └─ size            its limit, whatever the host's disk has
//! ```
//!
//! It is mounted only where its engine is, in that engine's own mounts, so it goes with the engine's last process. That
//! takes the kernel a moment, in which the file is still written to: whoever needs it at rest waits ([`at_rest`]).
//! Only kernels write its structure, never a guest: a guest has files.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount, mount_remount};
use rustix::thread::CapabilitySet;
use wakeful_confine::files;
use wakeful_driver::Error;
use wakeful_sys::copy::sparse_copy;
use wakeful_sys::guest::resize_ext4;
use wakeful_sys::mounts::{self, Access, LoopDevice};

/// Name of the disk in a sandbox's directory.
pub const DISK: &str = "disk.ext4";
/// Within which the mounts of an engine that has ended must be gone.
const GONE: Duration = Duration::from_secs(20);
const BLOCK: u64 = 4096;
/// Per cent of a disk that no guest can use: an overlay makes a directory when it is mounted, and one over a full disk would
/// be read-only for good.
const RESERVE: &str = "0.2";
const FLAGS: MountFlags = MountFlags::NOATIME.union(MountFlags::NODEV);
/// Making a file system.
const FORMAT: Duration = Duration::from_secs(60);

/// Makes a fresh disk at `path`, where nothing may be: a copy of an empty one of this size, which is made once. Blocks.
///
/// # Errors
/// If there is no space, or something is there.
pub fn make(data_dir: &Path, path: &Path, disk_mb: u32) -> Result<(), Error> {
    let failed = |source| Error::io("make the disk", source);
    let empty = empty(data_dir, disk_mb)?;
    let (source, copy) =
        (files::open_regular(&empty, false).map_err(failed)?, files::create_new(path).map_err(failed)?);
    sparse_copy(&source, &copy).map_err(|source| {
        let _ = fs::remove_file(path);
        failed(source)
    })
}

/// The empty disk of this size.
fn empty(data_dir: &Path, disk_mb: u32) -> Result<PathBuf, Error> {
    let failed = |source| Error::io("make an empty disk", source);
    let dir = data_dir.join("disks");
    let path = dir.join(format!("blank-{disk_mb}.ext4"));
    if path.exists() {
        return Ok(path);
    }
    files::make_dir(&dir, 0o700).map_err(failed)?;
    let new = tempfile::Builder::new().prefix(files::NEW).tempfile_in(&dir).map_err(failed)?;
    new.as_file().set_len(u64::from(disk_mb) << 20).map_err(failed)?;
    // As those of microVMs: a small journal, since engines are killed, and no room kept for growth, which needs none.
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "^resize_inode", "-J", "size=16", "-m", RESERVE]);
    command.args(["-E", "lazy_itable_init=1,lazy_journal_init=1"]).arg(new.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    match crate::control::wait(&mut child, FORMAT).map_err(failed)? {
        Some(status) if status.success() => {}
        Some(status) => return Err(failed(io::Error::other(format!("mke2fs ended with {status}")))),
        None => return Err(Error::Late { doing: "make an empty disk", after: FORMAT }),
    }
    // Another may have been quicker, with the same.
    new.persist(&path).map_err(|error| failed(error.error))?;
    Ok(path)
}

/// Makes the file so long, never shorter. Blocks.
pub(crate) fn lengthen(path: &Path, disk_mb: u32) -> io::Result<()> {
    let (file, wanted) = (files::open_regular(path, true)?, u64::from(disk_mb) << 20);
    if file.metadata()?.len() < wanted { file.set_len(wanted) } else { Ok(()) }
}

/// Makes a disk that nobody uses so large, never smaller. Blocks. The file system in it follows when it is mounted, or, for
/// a daemon that may not have a mounted one grown, now: in a copy that takes its place when it is complete.
pub(crate) fn enlarge(path: &Path, disk_mb: u32) -> io::Result<()> {
    let (wanted, file) = (u64::from(disk_mb) << 20, files::open_regular(path, false)?);
    if may_resize()? || blocks(&file)? >= wanted / BLOCK {
        return lengthen(path, disk_mb);
    }
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let copy = tempfile::Builder::new().prefix(files::NEW).tempfile_in(dir)?;
    sparse_copy(&file, copy.as_file())?;
    copy.as_file().set_len(wanted.max(file.metadata()?.len()))?;
    // One that was not unmounted is mended first; 1 means that it was.
    run(Command::new("e2fsck").args(["-f", "-p"]).arg(copy.path()), 1)?;
    run(Command::new("resize2fs").arg(copy.path()), 0)?;
    copy.as_file().sync_all()?;
    copy.persist(path).map_err(|error| error.error)?;
    files::sync_dir(dir)
}

fn run(command: &mut Command, worst: i32) -> io::Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match crate::control::wait(&mut command.spawn()?, FORMAT)? {
        Some(status) if status.code().is_some_and(|code| code <= worst) => Ok(()),
        ended => Err(io::Error::other(format!("{} has failed: {ended:?}", command.get_program().display()))),
    }
}

/// Brings a disk that nobody uses to an end: what its journal still holds after a crash of the host is written where it
/// belongs, as whoever mounts it read-only could not. Blocks.
pub(crate) fn finish(path: &Path) -> io::Result<()> {
    const NEEDS_RECOVERY: u32 = 4;
    let file = files::open_regular(path, true)?;
    let superblock = superblock(&file)?;
    let incompatible = u32::from_le_bytes(superblock[0x60..0x64].try_into().expect("four bytes"));
    if incompatible & NEEDS_RECOVERY == 0 {
        return Ok(());
    }
    let device = LoopDevice::attach(&file, Access::ReadWrite)?;
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            mounts::private_mounts()?;
            Ok(mount(device.path(), Path::new(crate::world::HERE), "ext4", FLAGS, None)?)
        });
        work.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
    })
}

/// Waits until no mount uses it any more. Blocks.
///
/// # Errors
/// `Late` if one stays: an engine is there.
pub fn at_rest(path: &Path) -> Result<(), Error> {
    let Ok(path) = path.canonicalize() else { return Ok(()) };
    let begun = Instant::now();
    while LoopDevice::find(&path).is_some() {
        if begun.elapsed() > GONE {
            return Err(Error::Late { doing: "let go of its disk", after: GONE });
        }
        crate::nap(Duration::from_micros(500));
    }
    Ok(())
}

/// Mounts it at `raw` of the calling thread's mounts, as large as its file, with room for what differs. Whoever has this id
/// for files may use what is kept back, until [`keep_reserve`]. Blocks.
///
/// # Errors
/// If it is no file system, or without the right to.
pub fn mount_at(path: &Path, raw: &Path, first_id: u32) -> io::Result<()> {
    let file = files::open_regular(path, true)?;
    let (has, wanted) = (blocks(&file)?, file.metadata()?.len() / BLOCK);
    let device = LoopDevice::attach(&file, Access::ReadWrite)?;
    let options = CString::new(format!("discard,resuid={first_id}")).expect("no zero in it");
    mount(device.path(), raw, "ext4", FLAGS, Some(options.as_c_str()))?;
    if has < wanted {
        resize_ext4(&open_dir(raw)?, wanted)?;
    }
    for name in ["upper", "work"] {
        match fs::DirBuilder::new().mode(0o755).create(raw.join(name)) {
            // Whatever the umask is: it is the guest's root directory.
            Ok(()) => fs::set_permissions(raw.join(name), fs::Permissions::from_mode(0o755))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The overlay is mounted: from now on what is kept back is nobody's again.
///
/// # Errors
/// What the kernel says.
pub fn keep_reserve(raw: &Path) -> io::Result<()> {
    Ok(mount_remount(raw, FLAGS, c"discard,resuid=0")?)
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// How many blocks the file system in this file has, by its superblock: what statfs says is without what it keeps for itself.
fn blocks(disk: &File) -> io::Result<u64> {
    let superblock = superblock(disk)?;
    let word = |at: usize| u64::from(u32::from_le_bytes(superblock[at..at + 4].try_into().expect("four bytes")));
    Ok(word(0x4) | word(0x150) << 32)
}

fn superblock(disk: &File) -> io::Result<[u8; 1024]> {
    use std::os::unix::fs::FileExt as _;
    let mut superblock = [0; 1024];
    disk.read_exact_at(&mut superblock, 1024)?;
    Ok(superblock)
}

/// Calls `then` with the root of the mounted disk, if it is mounted: a second mount of the same, seen by nobody. Blocks.
fn with_mounted<T: Send>(path: &Path, then: impl FnOnce(Option<&OwnedFd>) -> io::Result<T> + Send) -> io::Result<T> {
    let path = path.canonicalize()?;
    let Some(device) = LoopDevice::of(&path)? else { return then(None) };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            mounts::private_mounts()?;
            let at = Path::new(crate::world::HERE);
            mount(device.path(), at, "ext4", FLAGS, Some(c"discard"))?;
            then(Some(&open_dir(at)?))
        });
        work.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended early")))
    })
}

/// Makes the disk of a running sandbox so large. Blocks.
pub(crate) fn grow(path: &Path, disk_mb: u32) -> io::Result<()> {
    let (wanted, file) = (u64::from(disk_mb) << 20, files::open_regular(path, false)?);
    if blocks(&file)? >= wanted / BLOCK {
        return Ok(());
    }
    if !may_resize()? {
        let reason = "without CAP_SYS_RESOURCE only the next start can";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    lengthen(path, disk_mb)?;
    if let Some(device) = LoopDevice::of(&path.canonicalize()?)? {
        device.follow_size()?;
    }
    let bytes = file.metadata()?.len();
    with_mounted(path, |root| root.map_or(Ok(()), |root| resize_ext4(root, bytes / BLOCK)))
}

/// Whether we may have a mounted file system grown: not every container's root may.
fn may_resize() -> io::Result<bool> {
    Ok(rustix::thread::capabilities(None)?.effective.contains(CapabilitySet::SYS_RESOURCE))
}

/// Writes everything out, the file too. Blocks.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    with_mounted(path, |root| root.map_or(Ok(()), |root| Ok(rustix::fs::syncfs(root)?)))?;
    files::open_regular(path, false)?.sync_all()
}

/// Lets a disk be written to again whose copier was killed. Blocks.
pub(crate) fn thaw(path: &Path) -> io::Result<()> {
    with_mounted(path, |root| root.map_or(Ok(()), mounts::thaw))
}

/// Copies it to `to`, where nothing may be: whole, whether it is in use or not. Nothing is written to it meanwhile. Blocks.
///
/// # Errors
/// If there is no space, or something is there; nothing is left then.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    struct Frozen<'a>(Option<&'a OwnedFd>);
    impl Drop for Frozen<'_> {
        fn drop(&mut self) {
            if let Some(Err(error)) = self.0.map(mounts::thaw) {
                tracing::error!(%error, "a disk stays frozen");
            }
        }
    }
    let (source, target) = (files::open_regular(from, false)?, files::create_new(to)?);
    let copied = with_mounted(from, |root| {
        if let Some(root) = root {
            mounts::freeze(root)?;
        }
        let _frozen = Frozen(root);
        sparse_copy(&source, &target)
    });
    copied.inspect_err(|_| {
        let _ = fs::remove_file(to);
    })
}
