//! Tests whether the kernel provides the sockets that BGP and BFD need.
//!
//! Each test opens a socket, binds it if necessary, and closes it. The sockets neither listen nor
//! send.
//!
//! References: bind(2); Linux `include/uapi/linux/tcp.h` (struct tcp_md5sig). The option TCP_MD5SIG
//! with an empty key deletes the key of a peer. The kernel returns ENOENT if the peer has no key.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket};
use nix::{libc, setsockopt_impl, sockopt_impl};

/// Tests whether a TCP socket can be bound to the address.
pub(crate) fn tcp(at: SocketAddr) -> Result<(), Errno> {
    bound(at, SockType::Stream, true)
}

/// Tests whether a UDP socket can be bound to the address.
pub(crate) fn udp(at: SocketAddr) -> Result<(), Errno> {
    bound(at, SockType::Datagram, false)
}

fn bound(at: SocketAddr, kind: SockType, again: bool) -> Result<(), Errno> {
    let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    if at.is_ipv6() {
        setsockopt(&socket, Ipv6V6Only, &true)?;
    }
    if again {
        // Allows an address that a recently closed connection still uses (TIME_WAIT).
        setsockopt(&socket, ReuseAddr, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at))
}

/// Returns `true` if the kernel supports TCP MD5 signatures, or `None` if the kernel returns an
/// unexpected error.
pub(crate) fn signs_tcp() -> Option<bool> {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
    let mut none: Signature = [0; SIGNATURE_BYTES];
    let family = u16::try_from(libc::AF_INET).ok()?.to_ne_bytes();
    none.iter_mut().zip(family).for_each(|(to, byte)| *to = byte);
    match setsockopt(&socket, TcpMd5, &none) {
        Ok(()) | Err(Errno::ENOENT) => Some(true),
        Err(Errno::ENOPROTOOPT) => Some(false),
        Err(_) => None,
    }
}

type Signature = [u8; SIGNATURE_BYTES];
const SIGNATURE_BYTES: usize = 216;

sockopt_impl!(
    /// The MD5 key for a peer.
    TcpMd5,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_MD5SIG,
    Signature
);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_port_in_use_is_reported_and_a_free_port_is_not() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let taken = listener.local_addr().unwrap();
            assert_eq!(tcp(taken), Err(Errno::EADDRINUSE));
            drop(listener);
            assert_eq!(tcp(taken), Ok(()));
            let ear = UdpSocket::bind(any).unwrap();
            let taken = ear.local_addr().unwrap();
            assert_eq!(udp(taken), Err(Errno::EADDRINUSE));
            drop(ear);
            assert_eq!((udp(taken), udp(taken)), (Ok(()), Ok(())), "a test leaves no socket open");
        }
        assert_eq!(tcp("192.0.2.77:179".parse().unwrap()), Err(Errno::EADDRNOTAVAIL));
    }

    #[test]
    fn tcp_md5_support_is_known() {
        println!("this kernel signs TCP: {:?}", signs_tcp());
        assert!(signs_tcp().is_some());
    }
}
