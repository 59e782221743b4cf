//! Tests that the cost of reading the kernel's tables is linear in their length.

use std::collections::{BTreeSet, HashMap};
use std::hint::black_box;
use std::net::IpAddr;

use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVlan, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteNextHop, RouteType};
use steps::Case;

use crate::facts::{self, Facts, Route};
use crate::watch::{matters, table};

// Promise: linear-time
#[test]
fn kernel_tables_are_read_in_linear_time() {
    steps::check("linear::kernel_tables_are_read_in_linear_time", &CASES);
}

/// Reads messages as the resolver and the watch do, and resolves a next hop for each destination.
fn read(mut bytes: &[u8]) {
    let (mut facts, mut routes, mut gateways) = (Facts::default(), HashMap::new(), BTreeSet::new());
    while let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) {
        bytes = bytes.get(message.header.length as usize..).unwrap_or_default();
        black_box(matters(&message, &gateways));
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                facts.links.extend([facts::link(&link)]);
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) => {
                facts.neighbours.extend(facts::neighbour(&neighbour));
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                gateways.extend(facts::gateways(&route));
                let hops = Route::read(&route).and_then(|found| found.hops(Some(&route)));
                routes.insert(ip(routes.len()), hops);
            }
            _ => {}
        }
    }
    let interfaces: Vec<u32> = facts.links.keys().copied().collect();
    black_box((facts.with_vlans(&interfaces), facts.to_ask(&gateways)));
    let first = table(&routes, &gateways, &facts, None);
    black_box(table(&routes, &gateways, &facts, Some(&first)));
}

const CASES: [Case<'_>; 5] = [
    ("links", |n| all(n, link), read),
    ("neighbors", |n| all(n, neighbour), read),
    ("routes", |n| all(n, |number| route(number, 1)), read),
    ("hops of one route", |n| bytes(route(0, n)), read),
    (
        "links, neighbors and routes",
        |n| [all(n, link), all(n, neighbour), all(n, |i| route(i, 2))].concat(),
        read,
    ),
];

fn all(count: usize, message: impl Fn(usize) -> RouteNetlinkMessage) -> Vec<u8> {
    (0..count).flat_map(|number| bytes(message(number))).collect()
}

fn bytes(message: RouteNetlinkMessage) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn ip(number: usize) -> IpAddr {
    IpAddr::from([198, 18, u8::try_from(number / 256).unwrap(), u8::try_from(number % 256).unwrap()])
}

fn index(number: usize) -> u32 {
    u32::try_from(number + 1).unwrap()
}

/// Returns a VLAN device on top of the device with the previous index.
fn link(number: usize) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index(number);
    let vlan = InfoData::Vlan(vec![InfoVlan::Id(7)]);
    message.attributes = vec![
        LinkAttribute::Mtu(1_500),
        LinkAttribute::Link(index(number) - 1),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Vlan), LinkInfo::Data(vlan)]),
    ];
    RouteNetlinkMessage::NewLink(message)
}

fn neighbour(number: usize) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index(number);
    let IpAddr::V4(address) = ip(number) else { unreachable!("the address is an IPv4 address") };
    message.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
        NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 1]),
    ];
    RouteNetlinkMessage::NewNeighbour(message)
}

fn route(number: usize, hops: usize) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.kind = RouteType::Unicast;
    let gateway = |number| match ip(number) {
        IpAddr::V4(address) => RouteAttribute::Gateway(RouteAddress::Inet(address)),
        IpAddr::V6(address) => RouteAttribute::Gateway(RouteAddress::Inet6(address)),
    };
    let hop = |hop: usize| {
        let mut one = RouteNextHop::default();
        one.interface_index = index(number + hop);
        one.attributes = vec![gateway(number + hop)];
        one
    };
    message.attributes = vec![
        RouteAttribute::Oif(index(number)),
        gateway(number),
        RouteAttribute::MultiPath((0..hops).map(hop).collect()),
    ];
    RouteNetlinkMessage::NewRoute(message)
}
