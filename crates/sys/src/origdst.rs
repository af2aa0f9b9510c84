//! Where a redirected connection was meant to go.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};

/// The address that the client of an accepted connection had connected to before netfilter redirected it.
///
/// # Errors
/// `ENOENT` (`NotFound`) if netfilter knows nothing of the connection, because it was not redirected.
pub fn original_destination(accepted: impl AsFd) -> io::Result<SocketAddrV4> {
    let mut address =
        libc::sockaddr_in { sin_family: 0, sin_port: 0, sin_addr: libc::in_addr { s_addr: 0 }, sin_zero: [0; 8] };
    let size = size_of::<libc::sockaddr_in>();
    let mut length = libc::socklen_t::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is borrowed for the call; `address` and `length` are live, writable and say their true
    // size, so the kernel writes no more than that.
    let result = unsafe {
        libc::getsockopt(
            accepted.as_fd().as_raw_fd(),
            libc::SOL_IP,
            libc::SO_ORIGINAL_DST,
            (&raw mut address).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size || i32::from(address.sin_family) != libc::AF_INET {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
    Ok(SocketAddrV4::new(ip, u16::from_be(address.sin_port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_that_was_not_redirected_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let _client = TcpStream::connect(listener.local_addr().expect("has an address")).expect("connects");
        let (accepted, _) = listener.accept().expect("accepts");
        // Kernels differ: without connection tracking the option itself is unknown.
        match original_destination(&accepted) {
            Ok(address) => assert_eq!(Ok(address), listener.local_addr().expect("has one").to_string().parse()),
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOPROTOOPT)), "{e}"),
        }
    }
}
