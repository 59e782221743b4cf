//! Sends requests of full size, for checks with `probe_mtu`. Such a request is lost if the path
//! loses full-size packets without an ICMP error (a path MTU black hole).
//!
//! TCP retransmits after an ICMP error, so a TCP check only needs a request that is longer than a
//! segment. UDP does not, so this module sends a shorter datagram after an ICMP error.
//!
//! References: RFC 2923 §2.1 (black hole), ip(7) for IP_MTU and IP_MTU_DISCOVER.

use std::io;

use nix::errno::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::SockRef;
use tokio::net::{TcpStream, UdpSocket};

use super::dial::receive_failure;
use super::{Dialer, Failure, Interim};

/// Prepares a connection for a request of full size, and returns the length of a segment in bytes.
/// The request must not be shorter.
pub(super) fn segment(stream: &TcpStream) -> Result<u32, Failure> {
    // Without this option, the rest of the request would wait for the acknowledgement of the first
    // packet.
    stream.set_nodelay(true).map_err(|error| Failure::from(&error))?;
    SockRef::from(stream).tcp_mss().map_err(|error| Failure::from(&error))
}

/// Sends a datagram of full size, and waits for a response. `request` returns a datagram with the
/// given length, and `is_response` returns `true` for a response to it. After an ICMP error that
/// reports a smaller MTU, a shorter datagram is sent.
pub(super) async fn datagram(
    socket: &UdpSocket,
    dialer: &Dialer,
    interim: &Interim,
    request: impl Fn(usize) -> Vec<u8>,
    is_response: impl Fn(&[u8]) -> bool,
) -> Result<(), Failure> {
    let mut last = usize::MAX;
    loop {
        let length = longest(socket, dialer).map_err(|error| Failure::from(&error))?;
        let failure = Failure::FullSizeDatagram(length);
        if length >= last {
            return Err(failure);
        }
        last = length;
        interim.set(Err(failure));
        match exchange(socket, &request(length), &is_response).await {
            Err(error) if error.raw_os_error() == Some(Errno::EMSGSIZE as i32) => {}
            ended => return ended.map_err(|error| receive_failure(&error)),
        }
    }
}

async fn exchange(socket: &UdpSocket, request: &[u8], is_response: impl Fn(&[u8]) -> bool) -> io::Result<()> {
    socket.send(request).await?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if is_response(buffer.get(..length).unwrap_or_default()) {
            return Ok(());
        }
    }
}

/// Returns the length of the longest datagram that fits into one packet, and makes the kernel send
/// it unfragmented.
fn longest(socket: &UdpSocket, dialer: &Dialer) -> io::Result<usize> {
    let (mtu, headers) = if socket.peer_addr()?.is_ipv4() {
        set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DO)?;
        (ip_mtu(socket)?, 20 + UDP_HEADER)
    } else {
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DO)?;
        (ipv6_mtu(socket)?, 40 + UDP_HEADER)
    };
    let mtu = usize::try_from(mtu).unwrap_or(MAX_PACKET).min(MAX_PACKET);
    let mtu = dialer.mtu()?.map_or(mtu, |inner| inner.min(mtu));
    Ok(mtu.saturating_sub(headers))
}

const UDP_HEADER: usize = 8;
const MAX_PACKET: usize = u16::MAX as usize;
/// Only the first bytes of a response are needed.
const BUFFER_BYTES: usize = 512;
