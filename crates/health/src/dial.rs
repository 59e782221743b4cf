//! How the connections of checks are made.
//!
//! In: an address and a port. Out: a connected socket, closed when it is dropped.
//! Not here: what is said over it (`attempt`), time-outs (the caller's).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::tunnel;

/// How connections are made.
#[derive(Clone, Debug)]
pub enum Dialer {
    /// Straight from this machine, by its own routes.
    Direct,
    /// As clients' packets go, to one VIP on one backend; of a peer the port alone counts.
    Tunnel(tunnel::TunnelDialer),
}

impl Dialer {
    /// Connects to `peer`. The connection is reset when it is dropped: a check that closed in order would leave a port in
    /// TIME_WAIT for a minute, and 10,000 checks a second would run out of ports in six seconds.
    ///
    /// # Errors
    /// As `connect(2)`.
    /// # Cost
    /// `socket`, `setsockopt`, `connect`, `getsockopt`, `close`, and an entry into and out of tokio's epoll set.
    pub async fn tcp(&self, peer: SocketAddr) -> io::Result<TcpStream> {
        match self {
            Self::Direct => {
                let socket = if peer.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                socket.set_zero_linger()?;
                socket.connect(peer).await
            }
            Self::Tunnel(dialer) => dialer.tcp(peer).await,
        }
    }

    /// A socket that sends to `peer` and receives from no other peer, from a port that the kernel chooses at random.
    ///
    /// # Errors
    /// As `socket(2)`, `bind(2)` and `connect(2)`.
    pub async fn udp(&self, peer: SocketAddr) -> io::Result<UdpSocket> {
        match self {
            Self::Direct => {
                let any: IpAddr =
                    if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                let socket = UdpSocket::bind((any, 0)).await?;
                socket.connect(peer).await?;
                Ok(socket)
            }
            Self::Tunnel(dialer) => dialer.udp(peer).await,
        }
    }
}
