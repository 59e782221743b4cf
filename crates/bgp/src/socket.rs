//! TCP sockets as BGP wants them: MD5, GTSM, the address to dial from, the traffic class, what has arrived.
//!
//! No safe wrapper of TCP_MD5SIG and TCP_INFO is published; `nix::sockopt_impl!` makes one from the kernel's structure, so no
//! unsafe code stands here. None of these options needs a capability; a port below 1024 does.
//! Source: Linux `include/uapi/linux/tcp.h` (structs tcp_md5sig, tcp_info), ip(7) IP_MINTTL, ipv6(7); RFC 2385; RFC 5082;
//! RFC 4271 §10.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, setsockopt};
use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::config::{Md5Key, PeerConfig};

pub(crate) async fn dial(config: &PeerConfig) -> io::Result<TcpStream> {
    let peer = config.socket_address();
    let socket = tcp(peer)?;
    if let Some(key) = &config.md5 {
        set_md5(&socket, config.address, Some(key))?;
    }
    if let Some(hops) = config.gtsm_hops {
        set_furthest(&socket, peer.is_ipv6(), Some(hops))?;
    }
    if let Some(local) = config.local_address {
        socket.bind(&SocketAddr::new(local, 0).into())?;
    }
    TcpSocket::from_std_stream(socket.into()).connect(peer).await
}

/// Listens once `prepare` has given it keys and a limit of hops: nobody gets in before.
pub(crate) fn listen(
    at: SocketAddr,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> io::Result<TcpListener> {
    let socket = tcp(at)?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    prepare(&socket)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Segments from and to `peer` are signed with `key`; `None`: no more.
pub(crate) fn set_md5(socket: &impl AsFd, peer: IpAddr, key: Option<&Md5Key>) -> io::Result<()> {
    let bytes = key.map_or(&[][..], Md5Key::bytes);
    let mut signature = Md5Signature {
        family: 0,
        address: [0; 126],
        flags: 0,
        prefix_len: 0,
        key_len: u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        ifindex: 0,
        key: [0; 80],
    };
    // Offsets of sin_addr and sin6_addr, less the family.
    let (family, from, octets) = match peer {
        IpAddr::V4(v4) => (libc::AF_INET, 2, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, 6, v6.octets().to_vec()),
    };
    signature.family = u16::try_from(family).map_err(|_| io::ErrorKind::InvalidInput)?;
    signature.address.iter_mut().skip(from).zip(octets).for_each(|(to, octet)| *to = octet);
    signature.key.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    match setsockopt(socket, TcpMd5, &signature) {
        // There was none.
        Err(nix::Error::ENOENT) if key.is_none() => Ok(()),
        done => done.map_err(io::Error::from),
    }
}

/// The kernel drops segments that have come over more than `hops`; `None`: none is dropped.
pub(crate) fn set_furthest(socket: &impl AsFd, is_v6: bool, hops: Option<u8>) -> io::Result<()> {
    let least = hops.map_or(0, |hops| 256 - i32::from(hops));
    let set =
        if is_v6 { setsockopt(socket, MinHopCount, &least) } else { setsockopt(socket, MinTtl, &least) };
    set.map_err(io::Error::from)
}

/// Whether the other end has acknowledged all that was written. What the kernel keeps back for a closed window counts as well.
pub(crate) fn has_all(socket: &impl AsFd) -> io::Result<bool> {
    let info = getsockopt(socket, TcpInfo)?;
    Ok(info.unacknowledged_segments == 0 && info.unsent_bytes == 0)
}

pub(crate) fn repeated_segments(socket: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(socket, TcpInfo)?.repeated_segments)
}

fn tcp(like: SocketAddr) -> io::Result<Socket> {
    let socket = plain(like.is_ipv6(), Type::STREAM)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// What all have: hop limit 255, which the other end may ask for, and the class of network control.
pub(crate) fn plain(is_v6: bool, kind: Type) -> io::Result<Socket> {
    let domain = if is_v6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, kind.nonblocking().cloexec(), None)?;
    if is_v6 {
        socket.set_only_v6(true)?;
        socket.set_unicast_hops_v6(255)?;
        socket.set_tclass_v6(NETWORK_CONTROL)?;
    } else {
        socket.set_ttl_v4(255)?;
        socket.set_tos_v4(NETWORK_CONTROL)?;
    }
    Ok(socket)
}

/// `struct tcp_md5sig`, with its `sockaddr_storage` as a family and bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(unreachable_pub, reason = "the macro below makes a public option of it, in this private room")]
pub struct Md5Signature {
    family: u16,
    address: [u8; 126],
    flags: u8,
    prefix_len: u8,
    key_len: u16,
    ifindex: i32,
    key: [u8; 80],
}

// 128 bytes of address, 8 of the rest, 80 of the key: no padding.
const _: () = assert!(size_of::<Md5Signature>() == 216);

/// The first bytes of `struct tcp_info`: Linux 4.6 and newer have as many.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(unreachable_pub, reason = "the macro below makes a public option of it, in this private room")]
pub struct TcpState {
    _before: [u32; 6],
    unacknowledged_segments: u32,
    _between: [u32; 18],
    repeated_segments: u32,
    _after: [u32; 10],
    unsent_bytes: u32,
}

// tcpi_unacked is at 24, tcpi_total_retrans at 100, tcpi_notsent_bytes at 144.
const _: () = assert!(size_of::<TcpState>() == 148);

sockopt_impl!(
    /// How far what was written has come.
    TcpInfo,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    TcpState
);

sockopt_impl!(
    /// A key for a peer.
    TcpMd5,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_MD5SIG,
    Md5Signature
);

sockopt_impl!(
    /// Least TTL of what is received.
    MinTtl,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MINTTL,
    libc::c_int
);

sockopt_impl!(
    /// Least hop limit of what is received.
    MinHopCount,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MINHOPCOUNT,
    libc::c_int
);

/// CS6, RFC 4594 §3.1.
const NETWORK_CONTROL: u32 = 0xc0;
const BACKLOG: i32 = 64;
