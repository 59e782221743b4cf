//! What the kernel's messages say, and what follows from it for one destination.
//!
//! In: rtnetlink messages. Out: [`Route`], [`Link`], [`Neighbour`], and the verdict of [`Facts::next_hop`].
//! Not here: sockets, time. Invariant: every function is a function of its arguments alone.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use packet::{Tag, Tags};
use rtnetlink::packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, VlanProtocol,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteLwEnCapType, RouteMessage, RouteMetric, RouteType, RouteVia,
};

use crate::{Gateway, Resolved, Unresolved};

/// A neighbour's name: the index of the interface, and the address.
pub(crate) type NeighbourKey = (u32, IpAddr);

/// The kernel's answer to "which way to this address".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) interface: u32,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) preferred_source: Option<IpAddr>,
    /// `None`: the link's.
    pub(crate) mtu_bytes: Option<u32>,
}

/// An interface, as far as a next hop depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu_bytes: u32,
    pub(crate) is_running: bool,
    pub(crate) vlan: Option<Vlan>,
}

/// What a VLAN device does to frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vlan {
    /// Index of the interface that it hands them to.
    pub(crate) on: u32,
    /// The tag that it puts in front of those that they have.
    pub(crate) tag: Tag,
}

/// An entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) state: NeighbourState,
    pub(crate) mac: Option<[u8; 6]>,
}

/// Links and neighbours of one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) links: HashMap<u32, Link>,
    pub(crate) neighbours: HashMap<NeighbourKey, Neighbour>,
}

impl Route {
    /// Reads the answer to one RTM_GETROUTE.
    pub(crate) fn read(message: &RouteMessage) -> Result<Self, Unresolved> {
        match message.header.kind {
            RouteType::Unicast => {}
            RouteType::Local | RouteType::Anycast => return Err(Unresolved::Local),
            RouteType::BlackHole => return Err(Unresolved::Blackhole),
            RouteType::Unreachable => return Err(Unresolved::Unreachable),
            RouteType::Prohibit => return Err(Unresolved::Prohibited),
            RouteType::Broadcast | RouteType::Multicast => return Err(Unresolved::NotUnicast),
            _ => return Err(Unresolved::NoRoute),
        }
        let (mut interface, mut preferred_source, mut mtu_bytes) = (None, None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => interface = Some(*index),
                RouteAttribute::PrefSource(address) => preferred_source = ip_of(address),
                RouteAttribute::Metrics(metrics) => mtu_bytes = metrics.iter().find_map(mtu_of),
                RouteAttribute::EncapType(kind) if *kind != RouteLwEnCapType::None => {
                    return Err(Unresolved::Encapsulated);
                }
                _ => {}
            }
        }
        let interface = interface.ok_or(Unresolved::NoRoute)?;
        Ok(Self { interface, gateway: gateway_of(&message.attributes), preferred_source, mtu_bytes })
    }

    /// The neighbour that frames for `destination` are addressed to.
    pub(crate) fn neighbour(&self, destination: IpAddr) -> NeighbourKey {
        (self.interface, self.gateway.unwrap_or(destination))
    }
}

impl Neighbour {
    /// The Ethernet address, when the kernel itself would send to it now.
    fn usable_mac(&self) -> Option<[u8; 6]> {
        use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
        self.mac.filter(|_| matches!(self.state, Reachable | Stale | Delay | Probe | Permanent | Noarp))
    }

    /// The kernel does nothing for this entry until somebody uses it.
    pub(crate) fn is_idle(&self) -> bool {
        use NeighbourState::{Failed, None, Stale};
        matches!(self.state, None | Failed | Stale)
    }
}

impl Facts {
    /// What becomes of packets for `destination`, which `route` covers.
    pub(crate) fn next_hop(&self, destination: IpAddr, route: &Route) -> Result<Resolved, Unresolved> {
        let key @ (interface, neighbour) = route.neighbour(destination);
        let link = self.running(interface).ok_or(Unresolved::LinkDown { interface })?;
        let source = link.mac.ok_or(Unresolved::NoMac { interface })?;
        let entry = self.neighbours.get(&key);
        let Some(destination) = entry.and_then(Neighbour::usable_mac) else {
            return Err(match entry.map(|entry| entry.state) {
                Some(NeighbourState::Failed) => Unresolved::NeighbourFailed { interface, neighbour },
                _ => Unresolved::NeighbourPending { interface, neighbour },
            });
        };
        let mtu_bytes = route.mtu_bytes.map_or(link.mtu_bytes, |mtu| mtu.min(link.mtu_bytes));
        let (leaves_by, tags) = self.way_out(interface)?;
        let Route { gateway, preferred_source, .. } = *route;
        Ok(Resolved { interface, leaves_by, tags, destination, source, mtu_bytes, gateway, preferred_source })
    }

    /// By which interface frames for `interface` leave, and with which tags: down through VLAN devices.
    fn way_out(&self, interface: u32) -> Result<(u32, Tags), Unresolved> {
        let (mut lowest, mut tags) = (interface, Tags::NONE);
        while let Some(vlan) = self.links.get(&lowest).and_then(|link| link.vlan) {
            // Two tags at most, so that this ends whatever the kernel says.
            tags = tags.push(vlan.tag).ok_or(Unresolved::TooManyTags { interface })?;
            lowest = vlan.on;
        }
        Ok((lowest, tags))
    }

    /// `interfaces` and the VLAN devices on them.
    pub(crate) fn with_vlans(&self, interfaces: &[u32]) -> Vec<u32> {
        let stands_on = |index: &u32| self.way_out(*index).is_ok_and(|(on, _)| interfaces.contains(&on));
        let mut all = interfaces.to_vec();
        all.extend(
            self.links.keys().filter(|index| !interfaces.contains(index)).filter(|index| stands_on(index)),
        );
        all
    }

    /// Those of `gateways` that frames can be sent to now, in their order.
    pub(crate) fn known_gateways(&self, gateways: &BTreeSet<NeighbourKey>) -> Vec<Gateway> {
        let known = |&(interface, address): &NeighbourKey| {
            self.running(interface)?;
            let mac = self.neighbours.get(&(interface, address))?.usable_mac()?;
            Some(Gateway { interface, address, mac })
        };
        gateways.iter().filter_map(known).collect()
    }

    /// Of the `needed` neighbours, those that the kernel must be made to resolve.
    pub(crate) fn to_ask(&self, needed: &BTreeSet<NeighbourKey>) -> Vec<NeighbourKey> {
        let can_ask = |index| self.running(index).is_some_and(|link| link.mac.is_some());
        let must_ask = |key| self.neighbours.get(key).is_none_or(Neighbour::is_idle);
        needed.iter().filter(|key| can_ask(key.0) && must_ask(key)).copied().collect()
    }

    fn running(&self, interface: u32) -> Option<&Link> {
        self.links.get(&interface).filter(|link| link.is_running)
    }
}

/// Reads one link of a dump.
pub(crate) fn link(message: &LinkMessage) -> (u32, Link) {
    let header = &message.header;
    let has_mac =
        header.link_layer_type == LinkLayerType::Ether && !header.flags.contains(LinkFlags::Loopback);
    let mut link = Link {
        mac: None,
        mtu_bytes: 0,
        is_running: header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        vlan: None,
    };
    let (mut tag, mut on) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) if has_mac => link.mac = mac_of(bytes),
            LinkAttribute::Mtu(bytes) => link.mtu_bytes = *bytes,
            LinkAttribute::Link(index) => on = Some(*index),
            LinkAttribute::LinkInfo(infos) => tag = infos.iter().find_map(tag_of),
            _ => {}
        }
    }
    link.vlan = on.zip(tag).map(|(on, tag)| Vlan { on, tag });
    (header.index, link)
}

/// The tag of a VLAN device; `None`: it is another kind of device.
fn tag_of(info: &LinkInfo) -> Option<Tag> {
    let LinkInfo::Data(InfoData::Vlan(facts)) = info else { return None };
    let id = facts.iter().find_map(|fact| match fact {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })?;
    let is_service = facts.contains(&InfoVlan::Protocol(VlanProtocol::Ieee8021Ad));
    if is_service { Tag::service(id, 0) } else { Tag::customer(id, 0) }
}

/// Reads one neighbour of a dump or of a notification; `None` when it is no neighbour by IP address.
pub(crate) fn neighbour(message: &NeighbourMessage) -> Option<(NeighbourKey, Neighbour)> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(*v6)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = mac_of(bytes),
            _ => {}
        }
    }
    Some(((message.header.ifindex, address?), Neighbour { state: message.header.state, mac }))
}

/// The gateways of one route of a dump, with their interfaces. Local routes have none.
pub(crate) fn gateways(message: &RouteMessage) -> Vec<NeighbourKey> {
    if message.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let (mut found, mut interface) = (Vec::new(), None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::MultiPath(hops) => found.extend(
                hops.iter().filter_map(|hop| Some((hop.interface_index, gateway_of(&hop.attributes)?))),
            ),
            _ => {}
        }
    }
    found.extend(interface.zip(gateway_of(&message.attributes)));
    found
}

/// The gateway among `attributes`: of the route's own family, or an IPv6 one for IPv4 (RFC 5549).
fn gateway_of(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(address) => ip_of(address),
        RouteAttribute::Via(RouteVia::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}

/// A metric of 0 means that it was never set.
fn mtu_of(metric: &RouteMetric) -> Option<u32> {
    match metric {
        RouteMetric::Mtu(bytes) if *bytes > 0 => Some(*bytes),
        _ => None,
    }
}

fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// Six bytes that a frame may carry as one station's address: not all zero, and not of a group.
fn mac_of(bytes: &[u8]) -> Option<[u8; 6]> {
    <[u8; 6]>::try_from(bytes).ok().filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0)
}
