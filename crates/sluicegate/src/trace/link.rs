//! The way out: frames to the router's Ethernet address, by a packet socket, so that any source address can be written.
//!
//! In: the router's address. Out: frames. Not here: what is in them (`frame`).
//! The kernel's own raw sockets would send by its routes, which need not lead to that router.

use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use next_hop::{Resolved, Resolver, Unresolved};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendmsg, socket};
use packet::Mac;

use admin_client::usage;

/// An open packet socket.
pub(super) struct Link {
    pub(super) interface: String,
    next_hop: Resolved,
    socket: OwnedFd,
    device: LinkAddr,
}

/// Looks up the router in the kernel's routes and neighbours; one that it does not know yet is asked for.
pub(super) fn resolve(router: IpAddr) -> anyhow::Result<Resolved> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(look_up(router))? {
        Ok(Resolved { gateway: Some(gateway), .. }) => {
            Err(usage(format!("--via {router} is not on a link of this machine: it is reached by {gateway}")))
        }
        Ok(resolved) => Ok(resolved),
        Err(why) => Err(usage(format!("--via {router}: {why}"))),
    }
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

/// A datagram to the discard port makes the kernel ask for its neighbour; no privilege is needed for that.
fn poke(router: IpAddr) -> anyhow::Result<()> {
    let socket = super::any_port(router)?;
    socket.send_to(&[], (router, super::DISCARD)).with_context(|| format!("no way to {router}"))?;
    Ok(())
}

impl Link {
    /// Opens a packet socket on the interface of `next_hop`.
    pub(super) fn open(next_hop: Resolved) -> anyhow::Result<Self> {
        let opened = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
        let socket = match opened {
            Err(Errno::EPERM | Errno::EACCES) => anyhow::bail!(
                "packets with any source need CAP_NET_RAW: run this as root, or: setcap cap_net_raw=ep $(command -v sluicegate)"
            ),
            opened => opened.context("a packet socket")?,
        };
        let wanted = usize::try_from(next_hop.interface)?;
        // The kernel's own list is the one place that gives such an address whole.
        let mut all = getifaddrs().context("the interfaces")?.filter_map(|entry| {
            let device = entry.address.as_ref()?.as_link_addr().copied()?;
            Some((entry.interface_name, device))
        });
        let found = all.find(|(_, device)| device.ifindex() == wanted);
        let (interface, device) = found.with_context(|| format!("interface {wanted} is gone"))?;
        Ok(Self { interface, next_hop, socket, device })
    }

    /// Sends an IP packet.
    pub(super) fn send(&self, packet: &[u8]) -> anyhow::Result<()> {
        let Resolved { destination, source, .. } = self.next_hop;
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
        Mac(self.next_hop.destination).to_string()
    }
}

const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);
