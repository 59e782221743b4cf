//! Ports that packet threads ask from, kept from every other program of the machine.
//!
//! In: a range of ports. Out: a socket on each, in both families, which nobody reads: what comes to them is a packet thread's.
//! Two processes have them while one hands over to the other: the one that leaves calls [`ReservedPorts::share`], the one that comes
//! reserves [beside](ReservedPorts::beside) it, and at the end both call [`ReservedPorts::keep`], since one of them that shares a port lets others in.
//! Not here: who asks from which of them (`forwarder::OwnPorts`), what of it is taken from the kernel (`ends`).
//! Source: socket(7), `SO_REUSEPORT`: two sockets have one port where both say so, at the bind of the second, and one user made both.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReusePort;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket};

use super::SteerError;

/// Reserved until it is dropped.
#[derive(Debug)]
pub struct ReservedPorts {
    sockets: Vec<OwnedFd>,
}

impl ReservedPorts {
    /// Reserves all of them, or none.
    ///
    /// # Errors
    /// [`SteerError::OwnPort`]: another program has one, or the process has too few descriptors.
    /// # Cost
    /// A descriptor for each port.
    pub fn new(ports: &RangeInclusive<u16>) -> Result<Self, SteerError> {
        Self::reserve(ports, false)
    }

    /// The same beside a process of the same user that [shares](Self::share) them; shared from then on too.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn beside(ports: &RangeInclusive<u16>) -> Result<Self, SteerError> {
        Self::reserve(ports, true)
    }

    fn reserve(ports: &RangeInclusive<u16>, is_shared: bool) -> Result<Self, SteerError> {
        let reserve = |port: u16| {
            reserve(port, is_shared)
                .map_err(|cause| SteerError::OwnPort { port, cause: io::Error::from(cause).to_string() })
        };
        Ok(Self { sockets: ports.clone().map(reserve).collect::<Result<_, _>>()? })
    }

    /// Lets another process of the same user reserve them [beside](Self::beside) this one.
    ///
    /// # Errors
    /// The kernel refuses the option.
    pub fn share(&self) -> io::Result<()> {
        self.set_shared(true)
    }

    /// Lets nobody in any more, where no other process that has them [shares](Self::share) them still.
    ///
    /// # Errors
    /// The kernel refuses the option.
    pub fn keep(&self) -> io::Result<()> {
        self.set_shared(false)
    }

    fn set_shared(&self, is_shared: bool) -> io::Result<()> {
        Ok(self.sockets.iter().try_for_each(|socket| setsockopt(socket, ReusePort, &is_shared))?)
    }
}

/// A socket of IPv6 has the port in both families, where the machine has IPv6.
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
    fn a_reserved_port_is_nobody_elses_until_it_is_let_go() {
        let ports = free();
        let reserved = ReservedPorts::new(&ports).unwrap();
        assert!(!is_anybodys(&ports));
        let again = ReservedPorts::new(&ports).unwrap_err().to_string();
        let words = format!("UDP port {}, of io.own_ports, cannot be reserved: ", ports.start());
        assert!(again.starts_with(&words), "{again}");
        drop(reserved);
        assert!(is_anybodys(&ports));
    }

    #[test]
    fn a_port_is_handed_from_one_to_the_next_and_nobody_else_gets_in() {
        let ports = free();
        let mut old = ReservedPorts::new(&ports).unwrap();
        for _ in 0..3 {
            assert!(ReservedPorts::beside(&ports).is_err(), "it is not shared");
            old.share().unwrap();
            let new = ReservedPorts::beside(&ports).unwrap();
            assert!(!is_anybodys(&ports), "both have it");
            new.keep().unwrap();
            old.keep().unwrap();
            assert!(ReservedPorts::beside(&ports).is_err(), "there are two, and neither shares it any more");
            drop(old);
            assert!(!is_anybodys(&ports) && ReservedPorts::beside(&ports).is_err());
            old = new;
        }
    }

    #[test]
    fn a_port_that_was_shared_in_vain_is_its_owners_alone_again() {
        let ports = free();
        let old = ReservedPorts::new(&ports).unwrap();
        old.share().unwrap();
        drop(ReservedPorts::beside(&ports).unwrap());
        old.keep().unwrap();
        assert!(ReservedPorts::beside(&ports).is_err() && !is_anybodys(&ports));
    }
}
