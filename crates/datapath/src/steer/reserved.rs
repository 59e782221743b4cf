//! Ports that packet threads ask from, kept from every other program of the machine.
//!
//! In: a range of ports. Out: a socket on each, in both families, which nobody reads: what comes to them is a packet thread's.
//! Not here: who asks from which of them (`forwarder::OwnPorts`), what of it is taken from the kernel (`ends`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::ops::RangeInclusive;

use super::SteerError;

/// Reserved until it is dropped.
#[derive(Debug)]
pub struct ReservedPorts {
    _sockets: Vec<UdpSocket>,
}

impl ReservedPorts {
    /// Reserves all of them, or none.
    ///
    /// # Errors
    /// [`SteerError::OwnPort`]: another program has one, or the process has too few descriptors.
    /// # Cost
    /// A descriptor for each port.
    pub fn new(ports: &RangeInclusive<u16>) -> Result<Self, SteerError> {
        let reserve =
            |port: u16| reserve(port).map_err(|cause| SteerError::OwnPort { port, cause: cause.to_string() });
        Ok(Self { _sockets: ports.clone().map(reserve).collect::<Result<_, _>>()? })
    }
}

/// A socket of IPv6 has the port in both families, where the machine has IPv6.
fn reserve(port: u16) -> io::Result<UdpSocket> {
    let is_absent = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable)
            || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
    };
    match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Err(error) if is_absent(&error) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)),
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_nobody_elses_until_it_is_let_go() {
        let free = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let reserved = ReservedPorts::new(&(free..=free)).unwrap();
        assert!(UdpSocket::bind((Ipv4Addr::LOCALHOST, free)).is_err());
        assert!(UdpSocket::bind((Ipv6Addr::LOCALHOST, free)).is_err());
        let again = ReservedPorts::new(&(free..=free)).unwrap_err().to_string();
        assert!(
            again.starts_with(&format!("UDP port {free}, of io.own_ports, cannot be reserved: ")),
            "{again}"
        );
        drop(reserved);
        assert!(UdpSocket::bind((Ipv4Addr::LOCALHOST, free)).is_ok());
    }
}
