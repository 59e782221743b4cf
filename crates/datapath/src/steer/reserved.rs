//! Reserves the source ports for upstream requests, so that no other program on the machine uses
//! them. A UDP socket is bound to each port for IPv4 and IPv6. No code reads these sockets, because
//! the packets to these ports go to packet threads.
//!
//! During a handover, the old and the new process both reserve the ports. The old process calls
//! [`ReservedPorts::share`], and the new process calls [`ReservedPorts::beside`]. At the end of the
//! handover, both processes call [`ReservedPorts::keep`], because any process of the same user can
//! bind a port that is still shared.
//!
//! See socket(7) for `SO_REUSEPORT`. With this option, two sockets of the same user can use one
//! port, if both sockets had the option when the second socket was bound.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReusePort;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket};

use super::SteerError;

/// Reserved ports. Dropping the value releases the ports.
#[derive(Debug)]
pub struct ReservedPorts {
    sockets: Vec<OwnedFd>,
}

impl ReservedPorts {
    /// Reserves all of `ports`. If an error occurs, no port is reserved.
    ///
    /// # Errors
    /// [`SteerError::SourcePort`] if another process uses a port, or if this process has too many
    /// open descriptors.
    ///
    /// # Cost
    /// One descriptor for each port.
    pub fn new(ports: &RangeInclusive<u16>) -> Result<Self, SteerError> {
        Self::reserve(ports, false)
    }

    /// Reserves ports that another process of the same user [shares](Self::share). After this call,
    /// this process also shares the ports.
    ///
    /// # Errors
    /// The errors are the same as for [`Self::new`].
    pub fn beside(ports: &RangeInclusive<u16>) -> Result<Self, SteerError> {
        Self::reserve(ports, true)
    }

    fn reserve(ports: &RangeInclusive<u16>, is_shared: bool) -> Result<Self, SteerError> {
        let reserve = |port: u16| {
            reserve(port, is_shared)
                .map_err(|cause| SteerError::SourcePort { port, cause: io::Error::from(cause).to_string() })
        };
        Ok(Self { sockets: ports.clone().map(reserve).collect::<Result<_, _>>()? })
    }

    /// Allows another process of the same user to reserve the same ports with [`Self::beside`].
    ///
    /// # Errors
    /// The call fails if the kernel refuses the socket option.
    pub fn share(&self) -> io::Result<()> {
        self.set_shared(true)
    }

    /// Stops sharing the ports with other processes (`SO_REUSEPORT`). After this call, no further
    /// process can bind the ports, unless another process that holds the ports still
    /// [shares](Self::share) them.
    pub fn keep(&self) -> io::Result<()> {
        self.set_shared(false)
    }

    fn set_shared(&self, is_shared: bool) -> io::Result<()> {
        Ok(self.sockets.iter().try_for_each(|socket| setsockopt(socket, ReusePort, &is_shared))?)
    }
}

/// Binds a UDP socket to `port`. The IPv6 socket also covers IPv4. On machines without IPv6, an
/// IPv4 socket is bound.
fn reserve(port: u16, is_shared: bool) -> Result<OwnedFd, Errno> {
    match bound((Ipv6Addr::UNSPECIFIED, port).into(), is_shared) {
        Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL | Errno::EOPNOTSUPP) => {
            bound((Ipv4Addr::UNSPECIFIED, port).into(), is_shared)
        }
        bound => bound,
    }
}

fn bound(at: SocketAddr, is_shared: bool) -> Result<OwnedFd, Errno> {
    let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, ReusePort, &is_shared)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn free() -> RangeInclusive<u16> {
        let free = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        free..=free
    }

    fn is_anybodys(ports: &RangeInclusive<u16>) -> bool {
        let port = *ports.start();
        let plainly = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
            || UdpSocket::bind((Ipv6Addr::LOCALHOST, port)).is_ok();
        plainly || ReservedPorts::new(ports).is_ok()
    }

    #[test]
    fn reserved_ports_are_unavailable_until_dropped() {
        let ports = free();
        let reserved = ReservedPorts::new(&ports).unwrap();
        assert!(!is_anybodys(&ports));
        let again = ReservedPorts::new(&ports).unwrap_err().to_string();
        let words = format!("cannot reserve UDP port {} of io.source_ports: ", ports.start());
        assert!(again.starts_with(&words), "{again}");
        drop(reserved);
        assert!(is_anybodys(&ports));
    }

    #[test]
    fn reserved_ports_move_between_processes_without_a_gap() {
        let ports = free();
        let mut old = ReservedPorts::new(&ports).unwrap();
        for _ in 0..3 {
            assert!(ReservedPorts::beside(&ports).is_err(), "the port is not shared");
            old.share().unwrap();
            let new = ReservedPorts::beside(&ports).unwrap();
            assert!(!is_anybodys(&ports), "both have the port");
            new.keep().unwrap();
            old.keep().unwrap();
            assert!(ReservedPorts::beside(&ports).is_err(), "both processes have stopped sharing the port");
            drop(old);
            assert!(!is_anybodys(&ports) && ReservedPorts::beside(&ports).is_err());
            old = new;
        }
    }

    #[test]
    fn reserved_ports_are_exclusive_again_after_keep() {
        let ports = free();
        let old = ReservedPorts::new(&ports).unwrap();
        old.share().unwrap();
        drop(ReservedPorts::beside(&ports).unwrap());
        old.keep().unwrap();
        assert!(ReservedPorts::beside(&ports).is_err() && !is_anybodys(&ports));
    }
}
