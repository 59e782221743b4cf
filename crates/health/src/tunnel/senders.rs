//! The raw sockets that send encapsulated packets.
//!
//! IP packets are passed to the kernel with their outer header. The kernel routes these packets by
//! their destination, keeps their source address and never fragments them. Packets to backends on
//! the same link are sent as complete Ethernet frames.
//!
//! Sending never blocks, and the sockets never receive packets. The IP sockets use a send-only
//! protocol, and the packet sockets are not bound to a protocol.
//!
//! References: raw(7), ipv6(7), packet(7).

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use forwarder::InterfaceId;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, bind};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// The sockets for each kind of outer header.
#[derive(Debug)]
pub(super) struct Senders {
    v4: Socket,
    v6: Option<Socket>, // `None` if the kernel has no IPv6.
    /// The packet sockets, indexed by interface.
    links: Vec<Socket>,
}

impl Senders {
    /// Opens the sockets. Frames can be sent on each of `interfaces`.
    pub(super) fn open(interfaces: &[String]) -> io::Result<Self> {
        let raw = |domain| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(IPPROTO_RAW)))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let link = |interface: &String| -> io::Result<Socket> {
            let link = Socket::new(Domain::PACKET, Type::RAW, None)?;
            link.set_nonblocking(true)?;
            bind(link.as_raw_fd(), &link_address(interface)?)?;
            Ok(link)
        };
        let links = interfaces.iter().map(link).collect::<io::Result<_>>()?;
        Ok(Self { v4: raw(Domain::IPV4)?, v6: raw(Domain::IPV6).ok(), links })
    }

    /// Sends an IP packet to `destination`, which must be the destination in its header.
    pub(super) fn send_packet(&self, packet: &[u8], destination: IpAddr) -> io::Result<()> {
        let socket = match destination {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        let to = SockAddr::from(std::net::SocketAddr::new(destination, 0));
        socket.send_to(packet, &to).map(drop)
    }

    /// Sends an Ethernet frame on an interface.
    pub(super) fn send_frame(&self, frame: &[u8], interface: InterfaceId) -> io::Result<()> {
        let link = self.links.get(usize::from(interface.0)).ok_or(io::ErrorKind::NotFound)?;
        link.send(frame).map(drop)
    }
}

/// Returns the link-layer address of an interface, which is needed to bind a packet socket.
fn link_address(interface: &str) -> io::Result<LinkAddr> {
    let mut all = getifaddrs()?;
    let found = all.find_map(|entry| {
        (entry.interface_name == interface).then_some(entry.address?.as_link_addr().copied()).flatten()
    });
    found.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("there is no interface `{interface}`"))
    })
}

const IPPROTO_RAW: i32 = 255;
