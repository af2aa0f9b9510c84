//! Network namespaces of single threads, and TAP devices.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Puts the calling thread, and what it starts from now on, into a network namespace of its own.
///
/// # Errors
/// Without the right to.
pub fn leave_network() -> io::Result<()> {
    // SAFETY: descriptors, file system state and memory stay shared with the other threads; only the thread's view of
    // the network is new.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Puts the calling thread, and what it starts from now on, into a mount namespace of its own. Its working directory
/// and umask become its own too.
///
/// # Errors
/// Without the right to.
pub fn leave_mounts() -> io::Result<()> {
    // SAFETY: descriptors and memory stay shared with the other threads; only the thread's view of files is new.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?)
}

/// Puts the calling thread, and what it starts from now on, into a network namespace.
///
/// # Errors
/// If it is none, or without the right to.
pub fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// The calling thread's network namespace.
///
/// # Errors
/// Without a `/proc`.
pub fn current_network() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
}

/// Makes a TAP device in the calling thread's network namespace. It is there as long as the descriptor is: whole
/// Ethernet frames are read and written, with nothing before them.
///
/// # Errors
/// If the kernel has no TUN/TAP driver, the name is taken or longer than 15 bytes, or without the right to.
pub fn open_tap(name: &str) -> io::Result<OwnedFd> {
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    const IFF_TAP: u16 = 0x0002;
    const IFF_NO_PI: u16 = 0x1000;
    const IFF_TUN_EXCL: u16 = 0x8000;
    if name.len() >= libc::IFNAMSIZ || name.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let tun = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: the structure is plain data, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL).cast_signed();
    // SAFETY: the descriptor is open and `request` is the whole structure that this call reads and writes.
    let done = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(tun.into()) }
}
