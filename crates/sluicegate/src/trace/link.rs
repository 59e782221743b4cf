//! The way out: frames to the router's Ethernet address, by a packet socket, so that any source address can be written.
//!
//! In: the router's address. Out: frames. Not here: what is in them (`frame`).
//! The kernel's own raw sockets would send by its routes, which need not lead to that router.

use std::io::IoSlice;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use control_plane::next_hop::{Resolved, Resolver, Unresolved};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendmsg, socket};
use packet::Mac;

/// Who frames go to, and by which interface.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) router: IpAddr,
    resolved: Resolved,
}

/// An open packet socket.
pub(super) struct Link {
    pub(super) way: Way,
    pub(super) interface: String,
    socket: OwnedFd,
    device: LinkAddr,
}

/// Looks up the router in the kernel's routes and neighbours; one that it does not know yet is asked for. The inner error is
/// one of usage.
pub(super) fn way(router: IpAddr) -> anyhow::Result<Result<Way, String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(look_up(router))?;
    Ok(match found {
        Ok(Resolved { gateway: Some(gateway), .. }) => {
            Err(format!("--via {router} is not on a link of this machine: it is reached by {gateway}"))
        }
        Ok(resolved) => Ok(Way { router, resolved }),
        Err(why) => Err(format!("--via {router}: {why}")),
    })
}

async fn look_up(router: IpAddr) -> anyhow::Result<Result<Resolved, Unresolved>> {
    let mut resolver = Resolver::open()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = resolver.resolve(&[router]).await.context("looking up the router")?;
        match found.into_values().next().unwrap_or(Err(Unresolved::NoRoute)) {
            Err(Unresolved::NeighbourPending { .. }) if Instant::now() < deadline => poke(router)?,
            found => return Ok(found),
        }
        tokio::time::sleep(STEP).await;
    }
}

/// A datagram that nobody awaits makes the kernel ask for its neighbour; no privilege is needed for that.
fn poke(router: IpAddr) -> anyhow::Result<()> {
    let any: IpAddr = if router.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.send_to(&[], (router, super::DISCARD)).with_context(|| format!("no way to {router}"))?;
    Ok(())
}

impl Link {
    /// Opens a packet socket on the interface of `way`.
    pub(super) fn open(way: Way) -> anyhow::Result<Self> {
        let opened = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
        let socket = match opened {
            Err(Errno::EPERM | Errno::EACCES) => anyhow::bail!(
                "packets with any source need CAP_NET_RAW: run this as root, or: setcap cap_net_raw=ep $(command -v sluicegate)"
            ),
            opened => opened.context("a packet socket")?,
        };
        let wanted = usize::try_from(way.resolved.interface)?;
        // The kernel's own list is the one place that gives such an address whole.
        let mut all = getifaddrs().context("the interfaces")?.filter_map(|entry| {
            let device = entry.address.as_ref()?.as_link_addr().copied()?;
            Some((entry.interface_name, device))
        });
        let found = all.find(|(_, device)| device.ifindex() == wanted);
        let (interface, device) = found.with_context(|| format!("interface {wanted} is gone"))?;
        Ok(Self { way, interface, socket, device })
    }

    /// Sends an IP packet.
    pub(super) fn send(&self, packet: &[u8]) -> anyhow::Result<()> {
        let Resolved { destination, source, .. } = self.way.resolved;
        let kind: [u8; 2] = if packet.first().is_some_and(|byte| byte >> 4 == 4) {
            packet::protocol::ETHERTYPE_IPV4.to_be_bytes()
        } else {
            packet::protocol::ETHERTYPE_IPV6.to_be_bytes()
        };
        let parts = [&destination[..], &source, &kind, packet].map(IoSlice::new);
        let sent = sendmsg(self.socket.as_raw_fd(), &parts, &[], MsgFlags::empty(), Some(&self.device));
        sent.with_context(|| format!("sending by {}", self.interface))?;
        Ok(())
    }

    /// The router's Ethernet address.
    pub(super) fn router_mac(&self) -> String {
        Mac(self.way.resolved.destination).to_string()
    }
}

const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);
