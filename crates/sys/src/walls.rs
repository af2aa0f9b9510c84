//! Namespaces of its own for a child: what is in them, and what is not.
//!
//! ```text
//!   /         one directory of the host, read-only: a detached mount that the parent made
//!   /proc     its own process table, in which it is alone
//!   (paths)   the devices that it was given, by name
//! ```
//!
//! The network has no interface that is up, the System V objects and the host name are its own. The host's mounts are
//! gone: the old root is left by `pivot_root` and unmounted, so that there is nothing to go back to. A detached mount
//! also ends `..`: a descriptor of the directory itself would lead out of it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr;

use rustix::mount::{OpenTreeFlags, open_tree};

use crate::mounts;
use crate::spawn::{Failed, Step, check, check_long};

/// The namespaces, for `clone3`.
pub(crate) const NAMESPACES: u64 =
    (libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) as u64;

/// What a walled child has.
#[derive(Clone, Copy, Debug)]
pub struct Walls<'a> {
    /// The mount that becomes its root, from [`detached`]. It has a directory `proc`.
    pub root: BorrowedFd<'a>,
    /// Mounts of device files, and where they go: a path below the root, where a file must be.
    pub devices: &'a [(BorrowedFd<'a>, &'a CStr)],
}

/// How much a mount allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Reading and running programs.
    ReadOnly,
    /// Using the device that it is.
    Device,
}

/// A mount of this directory or device that is nowhere yet; it goes away with its descriptor, unless a child has taken it.
///
/// # Errors
/// If there is no such path, or the right to mount is missing.
pub fn detached(path: &Path, rights: Rights) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(rustix::fs::CWD, path, flags)?;
    let attributes = match rights {
        Rights::ReadOnly => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        Rights::Device => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
    };
    let wanted = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    mounts::set_attributes(tree.as_fd(), &wanted)?;
    Ok(tree)
}

impl Walls<'_> {
    /// Goes inside, in a child that has the namespaces. Makes system calls and nothing else.
    pub(crate) fn enter(&self) -> Result<(), Failed> {
        let here = c".".as_ptr();
        // Nothing that happens here is seen outside, nor the other way round.
        // SAFETY: paths that end with a zero, or are absent.
        let private = unsafe {
            libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), libc::MS_REC | libc::MS_PRIVATE, ptr::null())
        };
        check(Step::Root, private)?;
        attach(self.root, c"/").map_err(|errno| Failed(Step::Root, errno))?;
        // SAFETY: takes a number.
        check(Step::Root, unsafe { libc::fchdir(self.root.as_raw_fd()) })?;
        mount_proc()?;
        for (device, path) in self.devices {
            attach(*device, path).map_err(|errno| Failed(Step::Device, errno))?;
        }
        // The new root lies on top of the old one; afterwards the old one lies on top, and is taken away.
        // SAFETY: paths that end with a zero.
        check_long(Step::Pivot, unsafe { libc::syscall(libc::SYS_pivot_root, here, here) })?;
        // SAFETY: a path that ends with a zero.
        check(Step::Pivot, unsafe { libc::umount2(here, libc::MNT_DETACH) })?;
        // SAFETY: a path that ends with a zero.
        check(Step::Pivot, unsafe { libc::chdir(c"/".as_ptr()) })?;
        let name = c"wakeful";
        // SAFETY: pointer and length belong to one text.
        check(Step::Pivot, unsafe { libc::sethostname(name.as_ptr(), name.count_bytes()) })
    }
}

/// A table with nobody in it but the child; and only processes, where the kernel can leave out the rest.
fn mount_proc() -> Result<(), Failed> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let name = c"proc".as_ptr();
    let mount = |options: &CStr| {
        // SAFETY: texts that end with a zero; the path is below the working directory.
        unsafe { libc::mount(name, name, name, flags, options.as_ptr().cast()) }
    };
    match check(Step::Proc, mount(c"hidepid=2,subset=pid")) {
        // Before 5.8.
        Err(Failed(_, libc::EINVAL)) => check(Step::Proc, mount(c"hidepid=2")),
        other => other,
    }
}

fn attach(tree: BorrowedFd<'_>, at: &CStr) -> Result<(), i32> {
    const FROM_DESCRIPTOR: u32 = 0x4;
    let (tree, nothing) = (tree.as_raw_fd(), c"".as_ptr());
    // SAFETY: an open descriptor, and paths that end with a zero.
    let moved =
        unsafe { libc::syscall(libc::SYS_move_mount, tree, nothing, libc::AT_FDCWD, at.as_ptr(), FROM_DESCRIPTOR) };
    check_long(Step::Root, moved).map_err(|Failed(_, errno)| errno)
}
