//! The UDP sockets for BFD: one receive socket for each address family, and one send socket for
//! each session.
//!
//! See RFC 5881 §4 (each session has a source port of at least 49152) and §5 (hop limit 255).

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::cmsg_space;
use nix::sys::socket::sockopt::{Ipv4RecvTtl, Ipv6RecvHopLimit};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockaddrIn, SockaddrIn6, SockaddrLike, recvmmsg,
    setsockopt,
};
use socket2::{Protocol, Socket, Type};

use crate::socket::plain;

/// A received datagram: its source address, hop limit and first bytes.
pub(crate) struct Datagram<'a> {
    pub(crate) from: IpAddr,
    pub(crate) scope: u32,
    pub(crate) hop_limit: i32,
    pub(crate) bytes: &'a [u8],
}

#[derive(Debug)]
pub(crate) struct Ear {
    pub(crate) socket: UdpSocket,
    buffers: Vec<[u8; BUFFER_BYTES]>,
}

impl Ear {
    pub(crate) fn new(is_v4: bool, port: u16) -> io::Result<Self> {
        let socket = plain(!is_v4, Type::DGRAM)?;
        let any: IpAddr = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        if is_v4 {
            setsockopt(&socket, Ipv4RecvTtl, &true)?;
        } else {
            setsockopt(&socket, Ipv6RecvHopLimit, &true)?;
        }
        // The buffer should be able to hold a burst of a thousand packets. If the kernel does not
        // allow this size, the buffer is smaller.
        drop(socket.set_recv_buffer_size(RECEIVE_BYTES));
        socket.bind(&SocketAddr::new(any, port).into())?;
        Ok(Self { socket: socket.into(), buffers: vec![[0; BUFFER_BYTES]; BATCH] })
    }

    /// Wraps the receive socket that another process handed over.
    pub(crate) fn of(socket: OwnedFd, is_v4: bool, port: u16) -> io::Result<Self> {
        let socket = datagrams(socket)?;
        let at = socket.local_addr()?;
        if at.is_ipv4() != is_v4 || at.port() != port || !at.ip().is_unspecified() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a socket at {at} is not the BFD receive socket"),
            ));
        }
        Ok(Self { socket, buffers: vec![[0; BUFFER_BYTES]; BATCH] })
    }

    /// Receives up to one batch of packets and passes each packet to `heard`. Returns `true` if
    /// more packets may be waiting.
    pub(crate) fn hear(&mut self, is_v4: bool, heard: impl FnMut(Datagram<'_>)) -> io::Result<bool> {
        let fd = self.socket.as_raw_fd();
        if is_v4 {
            receive(fd, &mut self.buffers, |from: SockaddrIn| (from.ip().into(), 0), heard)
        } else {
            let address = |from: SockaddrIn6| {
                let local = from.ip().is_unicast_link_local();
                (from.ip().into(), if local { from.scope_id() } else { 0 })
            };
            receive(fd, &mut self.buffers, address, heard)
        }
    }
}

fn receive<S: SockaddrLike + Copy>(
    fd: i32,
    buffers: &mut [[u8; BUFFER_BYTES]],
    address: impl Fn(S) -> (IpAddr, u32),
    mut heard: impl FnMut(Datagram<'_>),
) -> io::Result<bool> {
    // The headers are recreated for each batch, because the kernel overwrites their length fields,
    // which `nix` does not reset.
    let mut headers = MultiHeaders::<S>::preallocate(buffers.len(), Some(cmsg_space!(i32)));
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
    let messages = match recvmmsg(fd, &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
        Ok(messages) => messages,
        Err(nix::Error::EAGAIN) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let mut count = 0;
    for message in messages {
        count += 1;
        let Some((from, scope)) = message.address.map(&address) else { continue };
        let hop_limit = hop_limit(&message);
        let bytes = message.iovs().next().unwrap_or_default();
        heard(Datagram { from, scope, hop_limit, bytes });
    }
    Ok(count == BATCH)
}

/// Returns the hop limit of a received packet, or 0 if the kernel does not report it.
fn hop_limit<S>(message: &RecvMsg<'_, '_, S>) -> i32 {
    let mut found = message.cmsgs().into_iter().flatten().filter_map(|cmsg| match cmsg {
        ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => Some(ttl),
        _ => None,
    });
    found.next().unwrap_or(0)
}

/// Creates the send socket of a session. `number` selects the first source port to try, so that
/// sessions are spread over the ports.
pub(crate) fn mouth(
    local: Option<IpAddr>,
    peer: IpAddr,
    scope: u32,
    port: u16,
    number: u32,
) -> io::Result<UdpSocket> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = plain(peer.is_ipv6(), Type::DGRAM)?;
    let ports = u32::from(u16::MAX - FIRST_SOURCE_PORT) + 1;
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for n in 0..ports {
        let offset = u16::try_from(number.wrapping_add(n) % ports).unwrap_or(0);
        let at = scoped(local.unwrap_or(any), FIRST_SOURCE_PORT + offset, scope);
        match socket.bind(&at.into()) {
            Ok(()) => {
                socket.connect(&scoped(peer, port, scope).into())?;
                return Ok(socket.into());
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Wraps the send socket of a session that another process handed over. The source port stays the
/// same.
pub(crate) fn handed_mouth(socket: OwnedFd, peer: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let socket = datagrams(socket)?;
    let to = socket.peer_addr()?;
    if (to.ip(), to.port()) != (peer, port) {
        let why = format!("a socket to {to} does not belong to the session with {peer}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(socket)
}

fn datagrams(socket: OwnedFd) -> io::Result<UdpSocket> {
    let socket = Socket::from(socket);
    if socket.r#type()? != Type::DGRAM || socket.protocol()? != Some(Protocol::UDP) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a BFD socket must be a UDP socket"));
    }
    Ok(socket.into())
}

fn scoped(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, scope).into(),
        address => SocketAddr::new(address, port),
    }
}

const FIRST_SOURCE_PORT: u16 = 49_152;
const BATCH: usize = 64;
/// The size of a receive buffer. The buffer is larger than the longest control packet with
/// authentication.
const BUFFER_BYTES: usize = 64;
const RECEIVE_BYTES: usize = 1 << 20;
