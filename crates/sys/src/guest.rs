//! What the guest's init needs from the kernel and no safe crate offers: feeding the random pool, raising an interface.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

/// `struct rand_pool_info` with room for the 64 bytes that the host sends.
#[repr(C)]
struct PoolInfo {
    entropy_bits: libc::c_int,
    bytes: libc::c_int,
    data: [u8; 64],
}

// <linux/random.h>: _IOW('R', 0x03, int[2]) and _IO('R', 0x07).
const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: libc::c_ulong = 0x5207;

/// Mixes 64 secret bytes into the kernel's pool, credits them, and makes the generator use them at once: clones of one
/// memory image would otherwise go on with the same random numbers.
///
/// # Errors
/// Whatever opening `/dev/urandom` or the two ioctls say; `EPERM` without `CAP_SYS_ADMIN`.
pub fn reseed_random(entropy: &[u8; 64]) -> io::Result<()> {
    let device = random_device()?;
    let info = PoolInfo { entropy_bits: 512, bytes: 64, data: *entropy };
    // SAFETY: the descriptor is open for the call, and `info` has the layout of rand_pool_info with `bytes` bytes of
    // data behind its header; the kernel only reads it.
    let added = unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY as _, &raw const info) };
    if added < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open for the call; this request takes no argument.
    let reseeded = unsafe { libc::ioctl(device.as_raw_fd(), RNDRESEEDCRNG as _, 0) };
    if reseeded < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Opened once: a restored guest runs cold code, and the way through the file system to a device is a long one.
fn random_device() -> io::Result<&'static File> {
    static DEVICE: OnceLock<File> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/urandom")?;
    Ok(DEVICE.get_or_init(|| device))
}

/// Raises the loopback interface of the current network namespace.
///
/// # Errors
/// Whatever the socket or the ioctl say.
pub fn raise_loopback() -> io::Result<()> {
    // SAFETY: no pointers are passed; the result is checked before use.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `raw` was just opened and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: ifreq is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_name[1] = b'o'.cast_signed();
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the socket is open for the call, and `request` is a complete ifreq with a NUL-terminated name.
    let raised = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    if raised < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

// <linux/ext4.h>: _IOW('f', 16, __u64).
const EXT4_IOC_RESIZE_FS: libc::c_ulong = 0x4008_6610;

/// Gives a mounted ext4 so many of its blocks, online. `on` is any open file or directory of it.
///
/// # Errors
/// Whatever the ioctl says: `EBUSY` beside another resize, `EINVAL` for less than it has or more than its device.
pub fn resize_ext4(on: impl AsFd, blocks: u64) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call, and the kernel reads one u64 at the pointer.
    let resized = unsafe { libc::ioctl(on.as_fd().as_raw_fd(), EXT4_IOC_RESIZE_FS as _, &raw const blocks) };
    if resized < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes standard input this file, for the caller and for everything that it starts.
///
/// # Errors
/// Whatever the system says; standard input is as it was then.
pub fn replace_stdin(with: impl AsFd) -> io::Result<()> {
    // SAFETY: takes two descriptors, of which the first is open for the call. The second belongs to the process as a whole:
    // nobody owns it who could be surprised by another file behind it.
    let replaced = unsafe { libc::dup2(with.as_fd().as_raw_fd(), libc::STDIN_FILENO) };
    if replaced < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a signal to every process that the caller may signal, itself and the kernel's own excepted. Meant for pid 1.
///
/// # Errors
/// `ESRCH` if there is nobody; refused with `EPERM` unless the caller is pid 1, since anywhere else it would be a disaster.
pub fn signal_everyone(signal: i32) -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // SAFETY: kill takes no pointers.
    let sent = unsafe { libc::kill(-1, signal) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
