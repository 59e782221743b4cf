//! Opens the sockets of health checks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::errno::Errno;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::{Failure, tunnel};

/// The path that a check takes to its backend.
#[derive(Clone, Debug)]
pub enum Dialer {
    /// Packets follow the routes of this machine.
    Direct,
    /// Packets are addressed to a VIP and go through the tunnel to one backend, like client
    /// packets. Only the port of a peer address is used.
    Tunnel(tunnel::TunnelDialer),
}

impl Dialer {
    /// Connects to `peer`. The connection is reset when it is dropped. A graceful close would leave
    /// the port in TIME_WAIT for a minute, and 10,000 checks per second would use up all ports in
    /// six seconds.
    ///
    /// # Errors
    /// Returns the errors of `connect(2)`.
    ///
    /// # Cost
    /// An attempt needs the system calls `socket`, `setsockopt`, `connect`, `getsockopt` and
    /// `close`, and two changes of the epoll set of tokio.
    pub async fn tcp(&self, peer: SocketAddr) -> io::Result<TcpStream> {
        match self {
            Self::Direct => {
                let socket = if peer.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                socket.set_zero_linger()?;
                socket.connect(peer).await
            }
            Self::Tunnel(dialer) => dialer.tcp(peer).await,
        }
        .map_err(unless_prohibited)
    }

    /// Creates a UDP socket that sends to `peer` and receives only from `peer`. The kernel chooses
    /// a random source port. Receiving fails after any ICMP error about a sent datagram.
    ///
    /// # Errors
    /// Returns the errors of `socket(2)`, `bind(2)` and `connect(2)`.
    pub async fn udp(&self, peer: SocketAddr) -> io::Result<UdpSocket> {
        match self {
            Self::Direct => {
                let any: IpAddr =
                    if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                let socket = UdpSocket::bind((any, 0)).await?;
                tunnel::report_icmp_errors(&socket, peer)?;
                socket.connect(peer).await?;
                Ok(socket)
            }
            Self::Tunnel(dialer) => dialer.udp(peer).await,
        }
    }

    /// Returns the length in bytes of the longest packet that fits into the tunnel, or `None`
    /// without a tunnel.
    pub(super) fn mtu(&self) -> io::Result<Option<usize>> {
        match self {
            Self::Direct => Ok(None),
            Self::Tunnel(dialer) => dialer.mtu().map(Some),
        }
    }
}

/// Returns an error of `connect(2)` for TCP. The kernel reports the ICMPv6 error "administratively
/// prohibited" as EACCES, but its IPv4 counterpart as EHOSTUNREACH. This function replaces EACCES,
/// because a backend whose firewall rejects the port would otherwise be reported as a failure of
/// this machine.
fn unless_prohibited(error: io::Error) -> io::Error {
    let is_prohibited = error.raw_os_error() == Some(Errno::EACCES as i32);
    if is_prohibited { io::ErrorKind::HostUnreachable.into() } else { error }
}

/// Reads until a byte for which `is_end` returns `true` arrives, and returns its index in `buffer`.
/// The first `length` bytes of the buffer have been read before, and `length` then counts all bytes
/// that were read. Returns `None` if the buffer is full or the peer has closed the connection.
///
/// # Cost
/// Each byte is searched once, because a peer may send one byte at a time.
pub(super) async fn read_line(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut [u8],
    length: &mut usize,
    is_end: impl Fn(u8) -> bool,
) -> io::Result<Option<usize>> {
    let mut searched = 0;
    loop {
        let new = buffer.get(searched..*length).unwrap_or_default();
        if let Some(end) = new.iter().position(|byte| is_end(*byte)) {
            return Ok(Some(searched + end));
        }
        searched = *length;
        let Some(room) = buffer.get_mut(*length..).filter(|room| !room.is_empty()) else { return Ok(None) };
        match stream.read(room).await? {
            0 => return Ok(None),
            read => *length += read,
        }
    }
}

/// Receives a datagram. Errors that the kernel creates from ICMP errors are failures of the
/// backend: the backend or a router has sent them, or no neighbor answers.
pub(super) async fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<usize, Failure> {
    socket.recv(buffer).await.map_err(|error| receive_failure(&error))
}

/// Converts an error of a connected UDP socket as [`receive`] does.
pub(super) fn receive_failure(error: &io::Error) -> Failure {
    let is_icmp = error.raw_os_error().is_some_and(|number| FROM_ICMP.contains(&Errno::from_raw(number)));
    match Failure::from(error) {
        Failure::Refused => Failure::PortUnreachable,
        Failure::Local(_) if is_icmp => Failure::Unreachable,
        other => other,
    }
}

/// The errors that the kernel creates from ICMP errors, according to `icmp_err_convert` in
/// `net/ipv4/icmp.c` and `tab_unreach` in `net/ipv6/icmp.c`.
const FROM_ICMP: [Errno; 8] = [
    Errno::EACCES,
    Errno::EHOSTDOWN,
    Errno::EHOSTUNREACH,
    Errno::EMSGSIZE,
    Errno::ENETUNREACH,
    Errno::ENONET,
    Errno::ENOPROTOOPT,
    Errno::EPROTO,
];
