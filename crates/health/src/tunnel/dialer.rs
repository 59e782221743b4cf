//! Sockets whose packets go to one backend through the tunnel.
//!
//! A socket has the mark of the tunnel and is bound to the address of this machine, so that replies
//! arrive here. The port of the socket is claimed before any packet is sent. The TCP segment size
//! is limited by the MTU toward the backend. A connection is closed with a TCP reset, because ports
//! in TIME_WAIT would soon use up all free ports.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forwarder::{Slot, SlotState};
use nix::sys::socket::{setsockopt, sockopt};
use packet::protocol;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::ports::PortKey;
use super::{CheckPath, Shared};

/// A dialer for one VIP on one backend. Clones are cheap. Sockets remain usable after the dialer is
/// dropped.
#[derive(Clone, Debug)]
pub struct TunnelDialer {
    shared: Arc<Shared>,
    path: CheckPath,
    /// The destination, which is a VIP unless the path has no slot.
    vip: IpAddr,
}

impl TunnelDialer {
    pub(super) fn new(shared: Arc<Shared>, path: CheckPath, vip: IpAddr) -> Self {
        Self { shared, path, vip }
    }

    /// Connects to the VIP on the backend, at the port of `peer`. The address of `peer` is ignored.
    /// The connection is reset when it is dropped.
    ///
    /// # Errors
    /// Returns the errors of `connect(2)`, and these errors:
    ///
    /// - `NotFound`: the slot is no longer in use.
    /// - `AddrNotAvailable`: this machine has no address in the family of the VIP.
    /// - `HostUnreachable`: the TUN device is down.
    pub async fn tcp(&self, peer: SocketAddr) -> io::Result<TcpStream> {
        let own = self.own()?;
        let mss = mss(self.mtu()?, own.is_ipv4());
        let socket = if own.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        let options = SockRef::from(&socket);
        options.set_mark(self.shared.mark)?;
        options.set_linger(Some(Duration::ZERO))?;
        options.set_tcp_mss(mss)?;
        socket.bind((own, 0).into())?;
        self.claim(socket.local_addr()?, protocol::TCP);
        socket.connect((self.vip, peer.port()).into()).await
    }

    /// Creates a UDP socket that is connected to the VIP on the backend, at the port of `peer`. The
    /// address of `peer` is ignored.
    ///
    /// # Errors
    /// Returns the errors of [`TunnelDialer::tcp`].
    pub async fn udp(&self, peer: SocketAddr) -> io::Result<UdpSocket> {
        let own = self.own()?;
        self.mtu()?; // This call only checks that the slot is in use.
        let socket = Socket::new(Domain::for_address((own, 0).into()), Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_mark(self.shared.mark)?;
        socket.bind(&SocketAddr::new(own, 0).into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        report_icmp_errors(&socket, (own, 0).into())?;
        self.claim(socket.local_addr()?, protocol::UDP);
        socket.connect((self.vip, peer.port())).await?;
        Ok(socket)
    }

    fn own(&self) -> io::Result<IpAddr> {
        self.shared.own.beside(self.vip).ok_or_else(|| {
            let what = format!("this machine has no address in the family of {}", self.vip);
            io::Error::new(io::ErrorKind::AddrNotAvailable, what)
        })
    }

    fn claim(&self, local: SocketAddr, protocol: u8) {
        let key = PortKey { is_ipv4: local.is_ipv4(), protocol, port: local.port() };
        self.shared.ports.claim(key, self.path.clone(), self.vip, Instant::now());
    }

    /// Returns the length of the longest packet that fits the MTU toward the backend, in bytes. The
    /// outer headers are not part of this length.
    pub(crate) fn mtu(&self) -> io::Result<usize> {
        let hop_mtu = self.path.hop.as_ref().map_or(u16::MAX, |hop| hop.mtu);
        let Some(slot) = self.path.slot else { return Ok(hop_mtu.into()) };
        let snapshot = self.shared.live.current();
        let state = snapshot.state(slot);
        let slot = snapshot.slots().get(slot.0 as usize).filter(|_| state != SlotState::Free);
        let gone = || io::Error::new(io::ErrorKind::NotFound, "the backend has left its pool");
        let slot: &Slot = slot.ok_or_else(gone)?;
        Ok(usize::from(slot.mtu.min(hop_mtu)).saturating_sub(slot.encap_overhead()))
    }
}

/// Makes the kernel report every ICMP error to the socket. By default, the kernel reports an
/// unreachable port, but not an unreachable host or network.
pub(crate) fn report_icmp_errors(socket: &UdpSocket, peer: SocketAddr) -> io::Result<()> {
    match peer {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &true),
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &true),
    }
    .map_err(io::Error::from)
}

/// Returns the length of the longest TCP segment in a packet of this length, in bytes.
fn mss(mtu: usize, is_ipv4: bool) -> u32 {
    let room = mtu.saturating_sub(if is_ipv4 { 40 } else { 60 });
    u32::try_from(room).unwrap_or(MAX_MSS).clamp(MIN_MSS, MAX_MSS)
}

/// The range of values that TCP_MAXSEG allows.
const MIN_MSS: u32 = 88;
const MAX_MSS: u32 = 32_767;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_fit_with_all_headers() {
        assert_eq!(mss(1_476, true), 1_436);
        assert_eq!(mss(1_476, false), 1_416);
        assert_eq!(mss(65_511, true), MAX_MSS);
        assert_eq!(mss(36, false), MIN_MSS);
    }
}
