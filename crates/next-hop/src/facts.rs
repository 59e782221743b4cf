//! Parses the rtnetlink messages of the kernel, and computes the next hop of a destination from
//! them.
//!
//! The functions depend only on their arguments. The functions do not use sockets or read the
//! clock.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use packet::{Tag, Tags};
use rtnetlink::packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, VlanProtocol,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteLwEnCapType, RouteMessage, RouteMetric, RouteNextHop, RouteType,
    RouteVia,
};

use crate::{Gateway, Hop, Hops, NeighbourKey, Resolved, Unresolved};

/// The result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) interface: u32,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) preferred_source: Option<IpAddr>,
    /// The MTU of the route. `None` means that the MTU of the link applies.
    pub(crate) mtu_bytes: Option<u32>,
    /// `true` if the kernel adds a header that only the kernel can write.
    pub(crate) is_encapsulated: bool,
}

/// The hops of a route with their weights. A route that is not a multipath route has one hop.
pub(crate) type RouteHops = Vec<(Route, u16)>;

/// The properties of an interface that affect a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu_bytes: u32,
    pub(crate) is_running: bool,
    pub(crate) vlan: Option<Vlan>,
}

/// The VLAN tag and the lower interface of a VLAN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vlan {
    /// The index of the lower interface.
    pub(crate) on: u32,
    /// The tag that the device adds in front of existing tags.
    pub(crate) tag: Tag,
}

/// An entry of the neighbor table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) state: NeighbourState,
    pub(crate) mac: Option<[u8; 6]>,
}

/// The links and neighbors of the kernel at one point in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) links: HashMap<u32, Link>,
    pub(crate) neighbours: HashMap<NeighbourKey, Neighbour>,
}

impl Route {
    /// Parses the response to an RTM_GETROUTE request.
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
                _ => {}
            }
        }
        let interface = interface.ok_or(Unresolved::NoRoute)?;
        let is_encapsulated = is_encapsulated(&message.attributes);
        let gateway = gateway_of(&message.attributes);
        Ok(Self { interface, gateway, preferred_source, mtu_bytes, is_encapsulated })
    }

    /// Returns all hops of the matched route, which is the response to an RTM_GETROUTE request with
    /// `RTM_F_FIB_MATCH`. The kernel reports nexthop objects in the same form. `self` is the hop
    /// that the kernel chose, and the only hop if the route is not a multipath route. Encapsulated
    /// hops are left out, even if the kernel chose one of them.
    pub(crate) fn hops(self, matched: Option<&RouteMessage>) -> Result<RouteHops, Unresolved> {
        let attributes = matched.map_or(&[][..], |message| &message.attributes);
        let multipath = attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::MultiPath(hops) => Some(hops),
            _ => None,
        });
        let hop = |hop: &RouteNextHop| {
            let (interface, gateway) = (hop.interface_index, gateway_of(&hop.attributes));
            let is_encapsulated = is_encapsulated(&hop.attributes);
            // The kernel stores the weight minus one.
            (Self { interface, gateway, is_encapsulated, ..self }, u16::from(hop.hops) + 1)
        };
        let mut hops: RouteHops = match multipath.filter(|hops| hops.len() > 1) {
            Some(multipath) => multipath.iter().map(hop).collect(),
            None => vec![(self, 1)],
        };
        hops.retain(|(route, _)| !route.is_encapsulated);
        if hops.is_empty() { Err(Unresolved::Encapsulated) } else { Ok(hops) }
    }

    /// Returns the neighbor that receives the frames for `destination`.
    pub(crate) fn neighbour(&self, destination: IpAddr) -> NeighbourKey {
        (self.interface, self.gateway.unwrap_or(destination))
    }
}

impl Neighbour {
    /// Returns the Ethernet address if the kernel itself would send frames to this neighbor now.
    fn usable_mac(&self) -> Option<[u8; 6]> {
        use NeighbourState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
        self.mac.filter(|_| matches!(self.state, Reachable | Stale | Delay | Probe | Permanent | Noarp))
    }

    /// Returns `true` if the kernel tries to resolve this entry only when the entry is used.
    pub(crate) fn is_idle(&self) -> bool {
        use NeighbourState::{Failed, None, Stale};
        matches!(self.state, None | Failed | Stale)
    }
}

impl Facts {
    /// Returns the next hops for `destination`, using the hops of its route.
    pub(crate) fn next_hops(&self, destination: IpAddr, route: &Result<RouteHops, Unresolved>) -> Hops {
        let hop = |(route, weight): &(Route, u16)| Hop {
            neighbour: route.neighbour(destination),
            weight: *weight,
            found: self.next_hop(destination, route),
        };
        match route {
            Ok(hops) => Hops::new(hops.iter().map(hop).collect()),
            Err(why) => Err(*why).into(),
        }
    }

    /// Returns the next hop for `destination` through one hop of its route.
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

    /// Returns the interface that actually sends the frames of `interface`, and the VLAN tags added
    /// by the VLAN devices in between.
    fn way_out(&self, interface: u32) -> Result<(u32, Tags), Unresolved> {
        let (mut lowest, mut tags) = (interface, Tags::NONE);
        while let Some(vlan) = self.links.get(&lowest).and_then(|link| link.vlan) {
            // The loop ends after two tags, even if the VLAN devices form a cycle.
            tags = tags.push(vlan.tag).ok_or(Unresolved::TooManyTags { interface })?;
            lowest = vlan.on;
        }
        Ok((lowest, tags))
    }

    /// Returns `interfaces` and all VLAN devices that are stacked on them.
    pub(crate) fn with_vlans(&self, interfaces: &[u32]) -> Vec<u32> {
        let below: HashSet<u32> = interfaces.iter().copied().collect();
        let stands_on = |index: &u32| self.way_out(*index).is_ok_and(|(on, _)| below.contains(&on));
        let others = self.links.keys().filter(|index| !below.contains(index));
        interfaces.iter().chain(others.filter(|index| stands_on(index))).copied().collect()
    }

    /// Returns the gateways to which frames can be sent now, in the order of `gateways`.
    pub(crate) fn known_gateways(&self, gateways: &BTreeSet<NeighbourKey>) -> Vec<Gateway> {
        let known = |&(interface, address): &NeighbourKey| {
            self.running(interface)?;
            let mac = self.neighbours.get(&(interface, address))?.usable_mac()?;
            Some(Gateway { interface, address, mac })
        };
        gateways.iter().filter_map(known).collect()
    }

    /// Returns the neighbors in `needed` for which a resolution request must be sent to the kernel.
    pub(crate) fn to_ask(&self, needed: &BTreeSet<NeighbourKey>) -> Vec<NeighbourKey> {
        let can_ask = |index| self.running(index).is_some_and(|link| link.mac.is_some());
        let must_ask = |key| self.neighbours.get(key).is_none_or(Neighbour::is_idle);
        needed.iter().filter(|key| can_ask(key.0) && must_ask(key)).copied().collect()
    }

    fn running(&self, interface: u32) -> Option<&Link> {
        self.links.get(&interface).filter(|link| link.is_running)
    }
}

/// Parses one message of a link dump.
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

/// Returns the tag of a VLAN device, or `None` for other kinds of devices.
fn tag_of(info: &LinkInfo) -> Option<Tag> {
    let LinkInfo::Data(InfoData::Vlan(facts)) = info else { return None };
    let id = facts.iter().find_map(|fact| match fact {
        InfoVlan::Id(id) => Some(*id),
        _ => None,
    })?;
    let is_service = facts.contains(&InfoVlan::Protocol(VlanProtocol::Ieee8021Ad));
    if is_service { Tag::service(id, 0) } else { Tag::customer(id, 0) }
}

/// Parses one message of a neighbor dump, or a neighbor notification. Returns `None` if the entry
/// has no IP address.
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

/// Returns the gateways in one message of a route dump, with their interfaces. Local routes have no
/// gateways.
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

/// Returns `true` if the route or hop adds a header that only the kernel can write.
fn is_encapsulated(attributes: &[RouteAttribute]) -> bool {
    let adds = |kind: &RouteLwEnCapType| *kind != RouteLwEnCapType::None;
    attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::EncapType(kind) if adds(kind)))
}

/// Returns the gateway that `attributes` contains. An IPv4 route may have an IPv6 gateway (RFC
/// 5549).
fn gateway_of(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(address) => ip_of(address),
        RouteAttribute::Via(RouteVia::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}

/// Returns the MTU if `metric` contains one. An MTU of 0 means that no MTU was set.
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

/// Returns the Ethernet address if it can be the address of a single device. A valid address has
/// six bytes, is not all zero, and is not a group address.
fn mac_of(bytes: &[u8]) -> Option<[u8; 6]> {
    <[u8; 6]>::try_from(bytes).ok().filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0)
}
