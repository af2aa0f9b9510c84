//! Mounts that only one thread, and what it starts, can see; disks in files; and file systems under other ids.
//!
//! A thread that has left the host's mounts builds a world of its own and starts a program in it. The world is nowhere
//! written down and has no path on the host: it goes when the last process in it does, loop devices included.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree};

use crate::pidfd;

/// How often a free loop device is looked for: another process may take the same one.
const TRIES: usize = 64;

/// Puts the calling thread, and what it starts from now on, where nothing that is mounted is seen outside, nor the other
/// way round.
///
/// # Errors
/// Without the right to.
pub fn private_mounts() -> io::Result<()> {
    crate::net::leave_mounts()?;
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?)
}

/// What is set on a mount that is nowhere yet.
pub(crate) fn set_attributes(tree: BorrowedFd<'_>, wanted: &libc::mount_attr) -> io::Result<()> {
    // SAFETY: an open descriptor, an empty path, and a structure with its length.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(wanted),
            size_of::<libc::mount_attr>(),
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a mount can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By whoever may.
    ReadWrite,
    /// By nobody.
    ReadOnly,
}

/// A mount of this directory, nowhere yet, in which the ids from zero on are those that `users` maps them to: one tree
/// serves every range of ids, and nothing is given to anybody.
///
/// # Errors
/// If there is no such directory, its file system cannot do it, or without the right to.
pub fn idmapped(path: &Path, users: BorrowedFd<'_>, access: Access) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(rustix::fs::CWD, path, flags)?;
    let read_only = if access == Access::ReadOnly { libc::MOUNT_ATTR_RDONLY } else { 0 };
    let wanted = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | libc::MOUNT_ATTR_NODEV | read_only,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: u64::try_from(users.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?,
    };
    set_attributes(tree.as_fd(), &wanted)?;
    Ok(tree)
}

/// Puts such a mount at a directory of the calling thread's.
///
/// # Errors
/// If there is no such directory, or without the right to.
pub fn attach(tree: BorrowedFd<'_>, at: &Path) -> io::Result<()> {
    Ok(move_mount(tree, "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A user namespace in which the ids from zero on are the host's from `first` on. Nobody is in it.
///
/// # Errors
/// Without the right to.
pub fn user_namespace(first: u32, count: u32) -> io::Result<OwnedFd> {
    // SAFETY: a structure of numbers, for which zeroes mean "none".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_NEWUSER as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM this is a fork. The child makes two system calls on numbers and never returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    if pid == 0 {
        // SAFETY: takes numbers. Whatever becomes of the parent, nobody is left.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64, 0u64, 0u64, 0u64) };
        loop {
            // SAFETY: takes nothing.
            unsafe { libc::pause() };
        }
    }
    let pid = u32::try_from(pid).map_err(|_| io::Error::last_os_error())?;
    let mapped = || -> io::Result<OwnedFd> {
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{pid}/{map}"), format!("0 {first} {count}\n"))?;
        }
        Ok(File::open(format!("/proc/{pid}/ns/user"))?.into())
    };
    let mapped = mapped();
    // Not reaped yet, so the number still means the child.
    let child = pidfd::open(pid)?;
    pidfd::kill(&child)?;
    pidfd::wait_ended(&child, std::time::Duration::from_secs(10))?;
    let _ = pidfd::reap(&child);
    mapped
}

/// Runs `work` as somebody who is somebody else to file systems only, with all rights that the calling thread has: in a
/// mount under other ids, the host's root is nobody. What is remembered of the caller by what it makes (an overlay acts for
/// whoever mounted it) is that one.
///
/// # Errors
/// Without the right to, or what `work` says.
pub fn as_owner<T>(id: u32, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = rustix::thread::capabilities(None)?;
    let become_owner = |id: u32| -> io::Result<()> {
        // SAFETY: takes a number; only the calling thread is changed.
        unsafe { libc::setfsgid(id) };
        // SAFETY: takes a number; only the calling thread is changed.
        unsafe { libc::setfsuid(id) };
        // The change has taken away the rights over files.
        Ok(rustix::thread::set_capabilities(None, before)?)
    };
    become_owner(id)?;
    let done = work();
    become_owner(0)?;
    done
}

/// A block device that is a file; it goes with the last who uses it.
#[derive(Debug)]
pub struct LoopDevice {
    file: File,
    path: PathBuf,
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const FIFREEZE: libc::Ioctl = 0xc004_5877;
const FITHAW: libc::Ioctl = 0xc004_5878;

/// An ioctl whose argument is a number, or a pointer that outlives the call.
fn control(file: BorrowedFd<'_>, request: libc::Ioctl, argument: usize) -> io::Result<i32> {
    // SAFETY: every caller of this private function passes a request with the argument that it is documented to take: a
    // number, or the address of a live structure of the right type.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

impl LoopDevice {
    /// Makes this file a block device.
    ///
    /// # Errors
    /// If the kernel has no loop devices, or without the right to.
    pub fn attach(backing: &File, access: Access) -> io::Result<Self> {
        let controller = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..TRIES {
            let number = control(controller.as_fd(), LOOP_CTL_GET_FREE, 0)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let file = OpenOptions::new().read(true).write(access == Access::ReadWrite).open(&path)?;
            // SAFETY: a structure of numbers, for which zeroes mean "none".
            let mut config: LoopConfig = unsafe { std::mem::zeroed() };
            config.fd = u32::try_from(backing.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
            config.info.flags = LO_FLAGS_AUTOCLEAR;
            if access == Access::ReadOnly {
                config.info.flags |= LO_FLAGS_READ_ONLY;
            }
            match control(file.as_fd(), LOOP_CONFIGURE, (&raw const config).expose_provenance()) {
                Ok(_) => return Ok(Self { file, path }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// A block device of this file that nobody can write to: the one that others use already, if there is one, so that what
    /// is read by it is in memory once. The file may have several names, and must never be written to.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn shared(backing: &File) -> io::Result<Self> {
        let meta = backing.metadata()?;
        let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let found = devices.filter_map(|device| {
            let name = device.file_name();
            let at = device.path();
            if !name.to_str()?.starts_with("loop") || !at.join("loop").exists() {
                return None;
            }
            if std::fs::read_to_string(at.join("ro")).ok()?.trim() != "1" {
                return None;
            }
            let path = Path::new("/dev").join(name);
            // Held open from here on, so it stays what it is found to be.
            let file = File::open(&path).ok()?;
            // SAFETY: a structure of numbers, for which zeroes are values.
            let mut info: LoopInfo = unsafe { std::mem::zeroed() };
            control(file.as_fd(), LOOP_GET_STATUS64, (&raw mut info).expose_provenance()).ok()?;
            (info.device == meta.dev() && info.inode == meta.ino()).then_some(Self { file, path })
        });
        match found.into_iter().next() {
            Some(device) => Ok(device),
            None => Self::attach(backing, Access::ReadOnly),
        }
    }

    /// The device that this file is at the moment, if it is one. A path may have other names; compared is the one that the
    /// kernel gives, so it should be canonical.
    ///
    /// # Errors
    /// If it cannot be opened although it is there.
    pub fn of(backing: &Path) -> io::Result<Option<Self>> {
        let Some(path) = Self::find(backing) else { return Ok(None) };
        match OpenOptions::new().read(true).write(true).open(&path) {
            // It may have gone meanwhile, or be another's by now.
            Ok(file) if Self::find(backing).as_ref() == Some(&path) => Ok(Some(Self { file, path })),
            Ok(_) => Ok(None),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether this file is a block device at the moment. Nothing is opened: a look holds nobody up.
    #[must_use]
    pub fn find(backing: &Path) -> Option<PathBuf> {
        let devices = std::fs::read_dir("/sys/block").ok()?;
        devices.flatten().find_map(|device| {
            let name = device.file_name();
            if !name.to_str()?.starts_with("loop") {
                return None;
            }
            let file = std::fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
            (Path::new(file.trim_end_matches('\n')) == backing).then(|| Path::new("/dev").join(name))
        })
    }

    /// Its device file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes note of a file that has grown.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn follow_size(&self) -> io::Result<()> {
        control(self.file.as_fd(), LOOP_SET_CAPACITY, 0).map(drop)
    }
}

/// Writes a file system out and lets nobody write to it until it is [thawed](thaw).
///
/// # Errors
/// `ResourceBusy` if it is frozen already.
pub fn freeze(mounted: impl AsFd) -> io::Result<()> {
    control(mounted.as_fd(), FIFREEZE, 0).map(drop)
}

/// The end of a [`freeze`]; fine if it is not frozen.
///
/// # Errors
/// What the kernel says.
pub fn thaw(mounted: impl AsFd) -> io::Result<()> {
    match control(mounted.as_fd(), FITHAW, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that is alone with its mounts.
    fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    private_mounts().expect("tests run as root");
                    work()
                })
                .join()
                .expect("no panic")
        })
    }

    #[test]
    fn a_file_is_a_device_for_as_long_as_it_is_used() {
        let path = std::env::temp_dir().join(format!("wakeful-loop-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("can be made");
        file.set_len(8 << 20).expect("can be resized");
        assert!(LoopDevice::find(&path).is_none());
        let device = LoopDevice::attach(&file, Access::ReadWrite).expect("tests run as root");
        assert_eq!(LoopDevice::find(&path).as_deref(), Some(device.path()));
        assert!(LoopDevice::of(&path).expect("can be opened").is_some());
        file.set_len(16 << 20).expect("can be resized");
        device.follow_size().expect("it follows");
        drop(device);
        let begun = std::time::Instant::now();
        while LoopDevice::find(&path).is_some() {
            assert!(begun.elapsed().as_secs() < 10, "it goes with its last user");
            std::thread::yield_now();
        }
        std::fs::remove_file(path).expect("is there");
    }

    #[test]
    fn one_device_serves_all_names_of_a_file() {
        let dir = std::env::temp_dir().join(format!("wakeful-shared-{}", std::process::id()));
        std::fs::create_dir(&dir).expect("can be made");
        let (one, two) = (dir.join("one"), dir.join("two"));
        std::fs::write(&one, vec![0; 1 << 20]).expect("can be written");
        std::fs::hard_link(&one, &two).expect("can be linked");
        std::fs::write(dir.join("other"), vec![0; 1 << 20]).expect("can be written");
        let open = |path: &Path| LoopDevice::shared(&File::open(path).expect("is there")).expect("tests run as root");
        let (first, second, other) = (open(&one), open(&two), open(&dir.join("other")));
        assert_eq!(first.path(), second.path());
        assert_ne!(first.path(), other.path());
        let write = |mut file: File| std::io::Write::write_all(&mut file, &[1; 4096]).and_then(|()| file.sync_all());
        assert!(OpenOptions::new().write(true).open(first.path()).and_then(write).is_err(), "read-only");
        std::fs::remove_dir_all(dir).expect("can be removed");
    }

    #[test]
    fn a_tree_is_seen_under_other_ids() {
        let dir = std::env::temp_dir().join(format!("wakeful-idmap-{}", std::process::id()));
        let (tree, at) = (dir.join("tree"), dir.join("at"));
        for path in [&dir, &tree, &at] {
            std::fs::create_dir(path).expect("can be made");
        }
        std::fs::write(tree.join("file"), "x").expect("can be written");
        apart(|| {
            let users = user_namespace(2_000_000_000, 65_536).expect("tests run as root");
            let mapped = idmapped(&tree, users.as_fd(), Access::ReadOnly).expect("can be mapped");
            attach(mapped.as_fd(), &at).expect("can be mounted");
            let meta = std::fs::metadata(at.join("file")).expect("is there");
            assert_eq!((meta.uid(), meta.gid()), (2_000_000_000, 2_000_000_000));
            assert!(std::fs::write(at.join("other"), "x").is_err(), "read-only");
        });
        assert!(!at.join("file").exists(), "nothing is mounted outside");
        std::fs::remove_dir_all(dir).expect("can be removed");
    }
}
