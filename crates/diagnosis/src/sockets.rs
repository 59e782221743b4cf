//! What the kernel says when it is asked for sockets that BGP and BFD need.
//!
//! In: addresses. Out: the kernel's answer. Each socket is closed at once; none listens, and none sends.
//! Source: bind(2); Linux `include/uapi/linux/tcp.h` (struct tcp_md5sig): a key of no byte takes away one that is not there.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket};
use nix::{libc, setsockopt_impl, sockopt_impl};

/// Whether one could listen there for TCP.
pub(crate) fn tcp(at: SocketAddr) -> Result<(), Errno> {
    bound(at, SockType::Stream, true)
}

/// Whether one could hear UDP there.
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
        // What has just been closed is no other program.
        setsockopt(&socket, ReuseAddr, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at))
}

/// Whether the kernel signs TCP segments with MD5; `None`: it does not say.
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
    /// A key for a peer.
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
    fn a_port_that_another_has_is_in_use_and_a_free_one_is_not() {
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
            assert_eq!((udp(taken), udp(taken)), (Ok(()), Ok(())), "asking leaves nothing behind");
        }
        assert_eq!(tcp("192.0.2.77:179".parse().unwrap()), Err(Errno::EADDRNOTAVAIL));
    }

    #[test]
    fn the_kernel_says_whether_it_signs() {
        println!("this kernel signs TCP: {:?}", signs_tcp());
        assert!(signs_tcp().is_some());
    }
}
