//! TCP sockets with the options that BGP needs: MD5 signatures, GTSM, the source address, the
//! traffic class and TCP_INFO.
//!
//! No crate has a safe wrapper for TCP_MD5SIG and TCP_INFO. The macro `nix::sockopt_impl!` creates
//! wrappers from the kernel's structures, so this module needs no unsafe code. The options need no
//! capability. A capability is needed only to bind to a port below 1024.
//!
//! See Linux `include/uapi/linux/tcp.h` (structs tcp_md5sig and tcp_info), ip(7) for IP_MINTTL,
//! ipv6(7), RFC 2385, RFC 5082 and RFC 4271 §10.

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

/// Listens on an address. `prepare` sets MD5 keys and the minimum TTL before the socket accepts
/// connections.
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

/// Sets the MD5 key for segments to and from `peer`, or removes it if `key` is `None`.
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
    // `from` is the offset of `sin_addr` or `sin6_addr`, minus the size of the family field.
    let (family, from, octets) = match peer {
        IpAddr::V4(v4) => (libc::AF_INET, 2, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, 6, v6.octets().to_vec()),
    };
    signature.family = u16::try_from(family).map_err(|_| io::ErrorKind::InvalidInput)?;
    signature.address.iter_mut().skip(from).zip(octets).for_each(|(to, octet)| *to = octet);
    signature.key.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    match setsockopt(socket, TcpMd5, &signature) {
        // ENOENT means that there was no key to remove.
        Err(nix::Error::ENOENT) if key.is_none() => Ok(()),
        done => done.map_err(io::Error::from),
    }
}

/// Makes the kernel drop segments from more than `hops` hops away, or removes the limit if `hops`
/// is `None`.
pub(crate) fn set_furthest(socket: &impl AsFd, is_v6: bool, hops: Option<u8>) -> io::Result<()> {
    let least = hops.map_or(0, |hops| 256 - i32::from(hops));
    let set =
        if is_v6 { setsockopt(socket, MinHopCount, &least) } else { setsockopt(socket, MinTtl, &least) };
    set.map_err(io::Error::from)
}

/// Returns `true` if the peer has acknowledged all written data. Data that the kernel cannot send
/// because the TCP window is closed is not acknowledged.
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

/// Creates a socket with hop limit 255, which GTSM at the peer requires, and traffic class CS6
/// (network control).
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

/// The kernel's `struct tcp_md5sig`. The `sockaddr_storage` field of the structure is split into
/// the address family and the remaining bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(
    unreachable_pub,
    reason = "the macro below uses it in a public socket option of this private module"
)]
pub struct Md5Signature {
    family: u16,
    address: [u8; 126],
    flags: u8,
    prefix_len: u8,
    key_len: u16,
    ifindex: i32,
    key: [u8; 80],
}

// The address takes 128 bytes, the key 80 and the other fields 8, so there is no padding.
const _: () = assert!(size_of::<Md5Signature>() == 216);

/// The first bytes of `struct tcp_info`, as in Linux 4.6 and newer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(
    unreachable_pub,
    reason = "the macro below uses it in a public socket option of this private module"
)]
pub struct TcpState {
    _before: [u32; 6],
    unacknowledged_segments: u32,
    _between: [u32; 18],
    repeated_segments: u32,
    _after: [u32; 10],
    unsent_bytes: u32,
}

// The fields are at these offsets: tcpi_unacked 24, tcpi_total_retrans 100, tcpi_notsent_bytes 144.
const _: () = assert!(size_of::<TcpState>() == 148);

sockopt_impl!(
    /// The state of the TCP connection.
    TcpInfo,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    TcpState
);

sockopt_impl!(
    /// The MD5 key of a peer.
    TcpMd5,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_MD5SIG,
    Md5Signature
);

sockopt_impl!(
    /// The minimum TTL of received packets.
    MinTtl,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MINTTL,
    libc::c_int
);

sockopt_impl!(
    /// The minimum hop limit of received packets.
    MinHopCount,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MINHOPCOUNT,
    libc::c_int
);

/// The traffic class CS6 (RFC 4594 §3.1).
const NETWORK_CONTROL: u32 = 0xc0;
const BACKLOG: i32 = 64;
