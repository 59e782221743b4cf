//! Reads the properties of an interface with one blocking rtnetlink request (RTM_GETLINK). The
//! control plane, not this module, watches for changes.
//!
//! See rtnetlink(7) and Linux `include/uapi/linux/if_link.h`.

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::net::if_::if_indextoname;

use super::{InterfaceError, Master};

/// The properties of an [`Interface`](super::Interface) that rtnetlink provides.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
    pub(super) mtu_bytes: u32,
    pub(super) is_up: bool,
    pub(super) has_carrier: bool,
    /// The number of receive queues that the device was created with.
    pub(super) queues: u32,
    pub(super) master: Option<Master>,
    pub(super) xdp_program: Option<u32>,
}

/// Reads the properties of interface `name` from the kernel.
pub(super) fn read(name: &str) -> Result<Link, InterfaceError> {
    let message = ask(name).map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => InterfaceError::Absent(name.to_owned()),
        _ => InterfaceError::Kernel { name: name.to_owned(), call: "RTM_GETLINK", source },
    })?;
    understand(&message).ok_or_else(|| InterfaceError::NotEthernet(name.to_owned()))
}

fn ask(name: &str) -> io::Result<LinkMessage> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request(name), 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
    match answer.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(message)) => Ok(message),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        other => Err(io::Error::other(format!("unexpected netlink message type {}", other.message_type()))),
    }
}

fn request(name: &str) -> Vec<u8> {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(RouteNetlinkMessage::GetLink(link)));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Converts a netlink message. Returns `None` if the interface has no Ethernet address.
fn understand(message: &LinkMessage) -> Option<Link> {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        is_up: flags.contains(LinkFlags::Up),
        has_carrier: flags.contains(LinkFlags::LowerUp),
        queues: 1,
        ..Link::default()
    };
    let (mut mac, mut above, mut kind) = (None, None, String::new());
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => mac = bytes.as_slice().try_into().ok(),
            LinkAttribute::Mtu(bytes) => link.mtu_bytes = *bytes,
            LinkAttribute::NumRxQueues(count) => link.queues = *count,
            LinkAttribute::Controller(index) => above = Some(*index),
            LinkAttribute::LinkInfo(infos) => kind = port_kind(infos),
            LinkAttribute::Xdp(xdp) => link.xdp_program = program(xdp),
            _ => {}
        }
    }
    link.mac = mac?;
    link.master = above.filter(|index| *index != 0).map(|index| Master { name: name_of(index), kind });
    Some(link)
}

fn port_kind(infos: &[LinkInfo]) -> String {
    let kind = infos.iter().find_map(|info| match info {
        LinkInfo::PortKind(kind) => Some(kind.to_string()),
        _ => None,
    });
    kind.unwrap_or_default()
}

/// Returns the ID of the attached XDP program. If programs are attached in several modes, the
/// kernel reports an ID for each mode, and the function returns the first ID.
fn program(xdp: &[LinkXdp]) -> Option<u32> {
    xdp.iter().find_map(|attribute| match attribute {
        LinkXdp::ProgId(id) | LinkXdp::DrvProgId(id) | LinkXdp::SkbProgId(id) | LinkXdp::HwProgId(id)
            if *id != 0 =>
        {
            Some(*id)
        }
        _ => None,
    })
}

fn name_of(index: u32) -> String {
    if_indextoname(index).ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| index.to_string())
}
