//! Sends frames to the MAC address of a router over a packet socket.
//!
//! A packet socket can send packets with any source address. Raw IP sockets would use the kernel's
//! routes, which may lead through a different router. The submodule `frame` builds the packets.

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

pub(super) struct Link {
    pub(super) interface: String,
    next_hop: Resolved,
    socket: OwnedFd,
    device: LinkAddr,
}

/// Looks up the route and the MAC address of the router. First makes the kernel resolve the
/// neighbor if the kernel does not know it yet.
pub(super) fn resolve(router: IpAddr) -> anyhow::Result<Resolved> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(look_up(router))? {
        Ok(Resolved { gateway: Some(gateway), .. }) => Err(usage(format!(
            "--via {router} is not on a link of this machine, the route goes through {gateway}"
        ))),
        Ok(resolved) => Ok(resolved),
        Err(why) => Err(usage(format!("--via {router}: {why}"))),
    }
}

async fn look_up(router: IpAddr) -> anyhow::Result<Result<Resolved, Unresolved>> {
    let mut resolver = Resolver::open()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = resolver.resolve(&[router]).await.context("cannot look up the router")?;
        match found.into_values().next().map_or(Err(Unresolved::NoRoute), |hops| hops.first()) {
            Err(Unresolved::NeighbourPending { .. }) if Instant::now() < deadline => poke(router)?,
            found => return Ok(found),
        }
        tokio::time::sleep(STEP).await;
    }
}

/// Makes the kernel resolve the neighbor by sending a datagram to the discard port, which needs no
/// privileges.
fn poke(router: IpAddr) -> anyhow::Result<()> {
    let socket = super::any_port(router)?;
    socket.send_to(&[], (router, super::DISCARD)).with_context(|| format!("no route to {router}"))?;
    Ok(())
}

impl Link {
    /// Opens a packet socket on the interface of `next_hop`.
    pub(super) fn open(next_hop: Resolved) -> anyhow::Result<Self> {
        let opened = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
        let socket = match opened {
            Err(Errno::EPERM | Errno::EACCES) => anyhow::bail!(
                "sending packets with any source address needs CAP_NET_RAW; run as root, or run `setcap cap_net_raw=ep $(command -v sluicegate)`"
            ),
            opened => opened.context("cannot open a packet socket")?,
        };
        let wanted = usize::try_from(next_hop.interface)?;
        // The packet socket needs the complete link-layer address of the interface, which only the
        // kernel's interface list contains.
        let mut all = getifaddrs().context("cannot list the interfaces")?.filter_map(|entry| {
            let device = entry.address.as_ref()?.as_link_addr().copied()?;
            Some((entry.interface_name, device))
        });
        let found = all.find(|(_, device)| device.ifindex() == wanted);
        let (interface, device) = found.with_context(|| format!("interface {wanted} no longer exists"))?;
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
        sent.with_context(|| format!("cannot send on {}", self.interface))?;
        Ok(())
    }

    pub(super) fn router_mac(&self) -> String {
        Mac(self.next_hop.destination).to_string()
    }
}

const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(20);
