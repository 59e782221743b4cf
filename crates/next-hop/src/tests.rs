//! Tests with artificial kernel tables. The tests in `tests/next_hop.rs` use the real tables of the
//! kernel and need root.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;

use packet::{Tag, Tags};
use rtnetlink::packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
    VlanProtocol,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteLwEnCapType, RouteMessage, RouteMetric, RouteNextHop, RouteType,
    RouteVia,
};

use crate::facts::{self, Facts, Link, Neighbour, Route, Vlan};
use crate::resolver::refused_route;
use crate::watch::{matters, table};
use crate::{Gateway, Hop, Hops, Resolved, Table, Unresolved};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];

const ALL_STATES: [NeighbourState; 9] = [
    NeighbourState::None,
    NeighbourState::Incomplete,
    NeighbourState::Reachable,
    NeighbourState::Stale,
    NeighbourState::Delay,
    NeighbourState::Probe,
    NeighbourState::Failed,
    NeighbourState::Noarp,
    NeighbourState::Permanent,
];

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

fn to() -> IpAddr {
    ip("198.51.100.7")
}

fn via() -> IpAddr {
    ip("192.0.2.2")
}

fn route() -> Route {
    let (interface, gateway, preferred_source) = (3, Some(via()), Some(ip("192.0.2.1")));
    Route { interface, gateway, preferred_source, mtu_bytes: None, is_encapsulated: false }
}

fn link() -> Link {
    Link { mac: Some(OURS), mtu_bytes: 1_500, is_running: true, vlan: None }
}

/// Returns interface 3 with a gateway in `state`.
fn facts(state: NeighbourState) -> Facts {
    Facts {
        links: HashMap::from([(3, link())]),
        neighbours: HashMap::from([((3, via()), Neighbour { state, mac: Some(THEIRS) })]),
    }
}

fn resolved() -> Resolved {
    Resolved {
        interface: 3,
        leaves_by: 3,
        tags: Tags::NONE,
        destination: THEIRS,
        source: OURS,
        mtu_bytes: 1_500,
        gateway: Some(via()),
        preferred_source: Some(ip("192.0.2.1")),
    }
}

fn pending() -> Unresolved {
    Unresolved::NeighbourPending { interface: 3, neighbour: via() }
}

fn failed() -> Unresolved {
    Unresolved::NeighbourFailed { interface: 3, neighbour: via() }
}

#[test]
fn a_neighbour_counts_in_every_state_but_the_unresolved_ones() {
    use NeighbourState::{Failed, Incomplete, None};
    for state in ALL_STATES {
        let expected = match state {
            None | Incomplete => Err(pending()),
            Failed => Err(failed()),
            _ => Ok(resolved()),
        };
        assert_eq!(facts(state).next_hop(to(), &route()), expected, "{state:?}");
    }
}

#[test]
fn a_next_hop_needs_the_link_its_mac_and_the_neighbours() {
    let direct = Route { gateway: None, ..route() };
    let without = Unresolved::NeighbourPending { interface: 3, neighbour: to() };
    let reachable = facts(NeighbourState::Reachable);
    assert_eq!(
        reachable.next_hop(to(), &direct),
        Err(without),
        "the entry of the gateway does not apply to the destination"
    );
    let on_link = Resolved { gateway: None, ..resolved() };
    assert_eq!(reachable.next_hop(via(), &direct), Ok(on_link));

    let other = Route { interface: 4, ..route() };
    assert_eq!(reachable.next_hop(to(), &other), Err(Unresolved::LinkDown { interface: 4 }));
    let mut changed = reachable.clone();
    changed.links.insert(3, Link { is_running: false, ..link() });
    assert_eq!(changed.next_hop(to(), &route()), Err(Unresolved::LinkDown { interface: 3 }));
    changed.links.insert(3, Link { mac: None, ..link() });
    assert_eq!(changed.next_hop(to(), &route()), Err(Unresolved::NoMac { interface: 3 }));
    changed = reachable.clone();
    changed.neighbours.insert((3, via()), Neighbour { state: NeighbourState::Noarp, mac: None });
    assert_eq!(changed.next_hop(to(), &route()), Err(pending()));
}

#[test]
fn the_mtu_is_the_smaller_of_links_and_routes() {
    for (of_route, expected) in
        [(None, 1_500), (Some(1_280), 1_280), (Some(9_000), 1_500), (Some(1_500), 1_500)]
    {
        let next_hop = facts(NeighbourState::Stale).next_hop(to(), &Route { mtu_bytes: of_route, ..route() });
        assert_eq!(next_hop.map(|hop| hop.mtu_bytes), Ok(expected), "{of_route:?}");
    }
}

fn route_message(kind: RouteType, attributes: &[RouteAttribute]) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.kind = kind;
    message.attributes = attributes.to_vec();
    message
}

#[test]
fn the_kind_of_a_route_decides_first() {
    let oif = [RouteAttribute::Oif(3)];
    let plain = Route { gateway: None, preferred_source: None, ..route() };
    for (kind, expected) in [
        (RouteType::Unicast, Ok(plain)),
        (RouteType::Local, Err(Unresolved::Local)),
        (RouteType::Anycast, Err(Unresolved::Local)),
        (RouteType::Broadcast, Err(Unresolved::NotUnicast)),
        (RouteType::Multicast, Err(Unresolved::NotUnicast)),
        (RouteType::BlackHole, Err(Unresolved::Blackhole)),
        (RouteType::Unreachable, Err(Unresolved::Unreachable)),
        (RouteType::Prohibit, Err(Unresolved::Prohibited)),
        (RouteType::Throw, Err(Unresolved::NoRoute)),
        (RouteType::Unspec, Err(Unresolved::NoRoute)),
    ] {
        assert_eq!(Route::read(&route_message(kind, &oif)), expected, "{kind:?}");
    }
    assert_eq!(Route::read(&route_message(RouteType::Unicast, &[])), Err(Unresolved::NoRoute));
}

#[test]
fn a_routes_attributes_are_read_in_any_order() {
    let (v4, v6) = ("192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap());
    let metrics = |mtu| RouteAttribute::Metrics(vec![RouteMetric::Hoplimit(64), RouteMetric::Mtu(mtu)]);
    let rest = [
        RouteAttribute::Oif(3),
        RouteAttribute::PrefSource(RouteAddress::Inet("192.0.2.1".parse().unwrap())),
        metrics(1_400),
        RouteAttribute::EncapType(RouteLwEnCapType::None),
    ];
    for (attribute, gateway) in [
        (RouteAttribute::Gateway(RouteAddress::Inet(v4)), "192.0.2.2"),
        (RouteAttribute::Gateway(RouteAddress::Inet6(v6)), "2001:db8::2"),
        (RouteAttribute::Via(RouteVia::Inet(v4)), "192.0.2.2"),
        (RouteAttribute::Via(RouteVia::Inet6(v6)), "2001:db8::2"),
    ] {
        let expected = Route { gateway: Some(ip(gateway)), mtu_bytes: Some(1_400), ..route() };
        let mut attributes = [&[attribute], &rest[..]].concat();
        assert_eq!(Route::read(&route_message(RouteType::Unicast, &attributes)), Ok(expected));
        attributes.reverse();
        assert_eq!(Route::read(&route_message(RouteType::Unicast, &attributes)), Ok(expected));
    }
    let unset = route_message(RouteType::Unicast, &[RouteAttribute::Oif(3), metrics(0)]);
    assert_eq!(Route::read(&unset).map(|route| route.mtu_bytes), Ok(None));
    let mpls = [RouteAttribute::Oif(3), RouteAttribute::EncapType(RouteLwEnCapType::Mpls)];
    let read = Route::read(&route_message(RouteType::Unicast, &mpls)).unwrap();
    assert_eq!(read.hops(None), Err(Unresolved::Encapsulated));
}

/// Each tuple contains the type and the attributes of a route, and the expected gateways.
type GatewayCase<'a> = (RouteType, &'a [RouteAttribute], &'a [(u32, &'a str)]);

#[test]
fn a_routes_gateways_are_its_own_and_those_of_its_paths() {
    let gateway = |address: &str| RouteAttribute::Gateway(ip(address).into());
    let path = |interface, attributes: &[RouteAttribute]| {
        let mut hop = RouteNextHop::default();
        hop.interface_index = interface;
        hop.attributes = attributes.to_vec();
        hop
    };
    let via6 = RouteAttribute::Via(RouteVia::Inet6("2001:db8::2".parse().unwrap()));
    let paths =
        RouteAttribute::MultiPath(vec![path(3, &[gateway("192.0.2.2")]), path(4, &[via6]), path(5, &[])]);
    let cases: [GatewayCase<'_>; 5] = [
        (RouteType::Unicast, &[gateway("192.0.2.2"), RouteAttribute::Oif(3)], &[(3, "192.0.2.2")]),
        (RouteType::Unicast, &[paths], &[(3, "192.0.2.2"), (4, "2001:db8::2")]),
        (RouteType::Unicast, &[RouteAttribute::Oif(3)], &[]),
        (RouteType::Unicast, &[gateway("192.0.2.2")], &[]),
        (RouteType::Local, &[gateway("192.0.2.2"), RouteAttribute::Oif(3)], &[]),
    ];
    for (kind, attributes, expected) in cases {
        let expected: Vec<_> =
            expected.iter().map(|&(interface, address)| (interface, ip(address))).collect();
        assert_eq!(facts::gateways(&route_message(kind, attributes)), expected);
    }
}

/// Each tuple contains the fields of a link message, and the expected Ethernet address and running
/// state.
type LinkCase<'a> = (LinkLayerType, LinkFlags, &'a [u8], Option<[u8; 6]>, bool);

#[test]
fn a_link_has_an_ethernet_address_only_if_it_is_ethernet() {
    use LinkLayerType::{Ether, Infiniband, Loopback, None};
    let running = LinkFlags::Up | LinkFlags::LowerUp;
    let long = [2, 0, 0, 0, 0, 1, 0, 0];
    let cases: [LinkCase<'_>; 8] = [
        (Ether, running, &OURS, Some(OURS), true),
        (Ether, LinkFlags::Up, &OURS, Some(OURS), false),
        (Ether, LinkFlags::LowerUp, &OURS, Some(OURS), false),
        (Ether, running, &[0; 6], Option::None, true),
        (Ether, running | LinkFlags::Loopback, &OURS, Option::None, true),
        (Loopback, running, &OURS, Option::None, true),
        (Infiniband, running, &long, Option::None, true),
        (None, running, &[], Option::None, true),
    ];
    for (kind, flags, address, mac, is_running) in cases {
        let mut message = LinkMessage::default();
        message.header.index = 3;
        message.header.link_layer_type = kind;
        message.header.flags = flags;
        message.attributes = vec![LinkAttribute::Address(address.to_vec()), LinkAttribute::Mtu(1_500)];
        assert_eq!(
            facts::link(&message),
            (3, Link { mac, mtu_bytes: 1_500, is_running, vlan: Option::None }),
            "{kind:?} {flags:?}"
        );
    }
}

/// Returns a device on interface 3 with this link info.
fn device(info: &[LinkInfo]) -> Link {
    let mut message = LinkMessage::default();
    message.header.link_layer_type = LinkLayerType::Ether;
    message.attributes = vec![LinkAttribute::Link(3), LinkAttribute::LinkInfo(info.to_vec())];
    facts::link(&message).1
}

#[test]
fn a_vlan_device_says_its_tag_and_what_it_stands_on() {
    let vlan = |facts: &[InfoVlan]| {
        device(&[LinkInfo::Kind(InfoKind::Vlan), LinkInfo::Data(InfoData::Vlan(facts.to_vec()))]).vlan
    };
    let on = |tag: Option<Tag>| tag.map(|tag| Vlan { on: 3, tag });
    let (id, protocol) = (InfoVlan::Id(100), InfoVlan::Protocol);
    assert_eq!(vlan(&[protocol(VlanProtocol::Ieee8021Q), id.clone()]), on(Tag::customer(100, 0)));
    assert_eq!(vlan(&[id.clone(), protocol(VlanProtocol::Ieee8021Ad)]), on(Tag::service(100, 0)));
    assert_eq!(vlan(&[id]), on(Tag::customer(100, 0)));
    assert_eq!((vlan(&[]), vlan(&[InfoVlan::Id(4095)])), (None, None));
    // The link attribute of a veth device contains the peer device, which may be in another network
    // namespace.
    let veth = InfoData::Veth(InfoVeth::Peer(LinkMessage::default()));
    assert_eq!(device(&[LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(veth)]).vlan, None);
}

/// Returns interface 3 with a chain of VLAN devices: device 4 with the first tag on 3, device 5
/// with the second tag on 4, and so on.
fn stacked(tags: &[Tag]) -> Facts {
    let mut facts = facts(NeighbourState::Reachable);
    for (on, &tag) in (3..).zip(tags) {
        facts.links.insert(on + 1, Link { vlan: Some(Vlan { on, tag }), ..link() });
        let known = Neighbour { state: NeighbourState::Reachable, mac: Some(THEIRS) };
        facts.neighbours.insert((on + 1, via()), known);
    }
    facts
}

#[test]
fn route_over_vlan_devices_uses_lower_device_and_tags() {
    let (outer, inner) = (Tag::service(30, 0).unwrap(), Tag::customer(7, 0).unwrap());
    let facts = stacked(&[outer, inner, inner]);
    let one = Tags::NONE.push(outer).unwrap();
    let two = Tags::NONE.push(inner).unwrap().push(outer).unwrap();
    for (interface, tags) in [(3, Tags::NONE), (4, one), (5, two)] {
        let found = facts.next_hop(to(), &Route { interface, ..route() });
        assert_eq!(found, Ok(Resolved { interface, leaves_by: 3, tags, ..resolved() }));
    }
    let three = facts.next_hop(to(), &Route { interface: 6, ..route() });
    assert_eq!(three, Err(Unresolved::TooManyTags { interface: 6 }));
    let mut round = stacked(&[outer]);
    round.links.insert(3, Link { vlan: Some(Vlan { on: 4, tag: inner }), ..link() });
    assert_eq!(round.next_hop(to(), &route()), Err(Unresolved::TooManyTags { interface: 3 }));
    let mut all = facts.with_vlans(&[3]);
    all.sort_unstable();
    assert_eq!((all, facts.with_vlans(&[9])), (vec![3, 4, 5], vec![9]));
}

#[test]
fn a_way_by_an_interface_that_is_not_ours_is_none() {
    let next_hops = HashMap::from([(to(), Ok(resolved()).into()), (via(), Err(pending()).into())]);
    let table = Table { next_hops, ..Table::default() };
    assert_eq!(table.clone().by(vec![]), table, "an empty list accepts every interface");
    let ours = table.clone().by(vec![9, 3]);
    assert_eq!((&ours.next_hops, &ours.interfaces[..]), (&table.next_hops, &[9, 3][..]));
    let strange = table.by(vec![9]);
    assert_eq!(strange.next_hops[&to()].first(), Err(Unresolved::OtherInterface { interface: 3 }));
    assert_eq!(strange.next_hops[&via()].first(), Err(pending()));
}

fn neighbour_message(address: Option<&str>, mac: &[u8]) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = 3;
    message.header.state = NeighbourState::Stale;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
    message.attributes.extend(address.map(|address| {
        NeighbourAttribute::Destination(match ip(address) {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        })
    }));
    message
}

#[test]
fn a_neighbour_has_an_address_and_perhaps_a_mac_of_one_station() {
    for address in ["192.0.2.2", "fe80::2"] {
        for (bytes, mac) in [
            (&THEIRS[..], Some(THEIRS)),
            (&[0; 6], None),
            (&[0xff; 6], None),
            (&[1, 0, 0x5e, 0, 0, 1], None),
            (&THEIRS[..5], None),
            (&[], None),
        ] {
            let expected = ((3, ip(address)), Neighbour { state: NeighbourState::Stale, mac });
            assert_eq!(facts::neighbour(&neighbour_message(Some(address), bytes)), Some(expected));
        }
    }
    assert_eq!(facts::neighbour(&neighbour_message(None, &THEIRS)), None);
}

#[test]
fn only_idle_neighbours_on_working_links_are_asked_for() {
    use NeighbourState::{Failed, None, Stale};
    let needed = BTreeSet::from([(3, via())]);
    for state in ALL_STATES {
        let expected: &[_] = if matches!(state, None | Failed | Stale) { &[(3, via())] } else { &[] };
        assert_eq!(facts(state).to_ask(&needed), expected, "{state:?}");
        assert_eq!(facts(state).to_ask(&BTreeSet::new()), []);
    }
    let missing = BTreeSet::from([(3, to()), (4, via())]);
    assert_eq!(facts(Stale).to_ask(&missing), [(3, to())], "interface 4 does not exist");
    for broken in [Link { mac: Option::None, ..link() }, Link { is_running: false, ..link() }] {
        let facts = Facts { links: HashMap::from([(3, broken)]), ..facts(Failed) };
        assert_eq!(facts.to_ask(&needed), []);
    }
}

#[test]
fn only_gateways_that_can_be_sent_to_are_known() {
    let keys = BTreeSet::from([(3, via()), (3, to()), (4, via())]);
    let known = Gateway { interface: 3, address: via(), mac: THEIRS };
    assert_eq!(facts(NeighbourState::Delay).known_gateways(&keys), [known]);
    assert_eq!(facts(NeighbourState::Failed).known_gateways(&keys), []);
}

#[test]
fn a_failed_neighbour_stays_failed_while_it_is_asked_again() {
    let incomplete = facts(NeighbourState::Incomplete);
    let routes = HashMap::from([(to(), Ok(vec![(route(), 1)]))]);
    let before = |was| Table { next_hops: HashMap::from([(to(), Hops::from(was))]), ..Table::default() };
    let elsewhere = Unresolved::NeighbourFailed { interface: 3, neighbour: ip("192.0.2.3") };
    for (was, expected) in [
        (Err(failed()), failed()),
        (Err(elsewhere), pending()),
        (Err(Unresolved::NoRoute), pending()),
        (Ok(resolved()), pending()),
    ] {
        let now = table(&routes, &BTreeSet::new(), &incomplete, Some(&before(was)));
        assert_eq!(now.next_hops[&to()].first(), Err(expected), "{was:?}");
    }
    assert_eq!(table(&routes, &BTreeSet::new(), &incomplete, None).next_hops[&to()].first(), Err(pending()));
    let back =
        table(&routes, &BTreeSet::new(), &facts(NeighbourState::Reachable), Some(&before(Err(failed()))));
    assert_eq!(back.next_hops[&to()].first(), Ok(resolved()));
}

#[test]
fn every_notification_matters_but_of_strange_neighbours() {
    let needed = BTreeSet::from([(3, via())]);
    let message = |payload| NetlinkMessage::new(NetlinkHeader::default(), payload);
    let of = |address| neighbour_message(Some(address), &THEIRS);
    for (inner, expected) in [
        (RouteNetlinkMessage::NewNeighbour(of("192.0.2.2")), true),
        (RouteNetlinkMessage::DelNeighbour(of("192.0.2.2")), true),
        (RouteNetlinkMessage::NewNeighbour(of("192.0.2.3")), false),
        (RouteNetlinkMessage::DelNeighbour(of("192.0.2.3")), false),
        (RouteNetlinkMessage::NewRoute(RouteMessage::default()), true),
        (RouteNetlinkMessage::DelRoute(RouteMessage::default()), true),
        (RouteNetlinkMessage::NewLink(LinkMessage::default()), true),
    ] {
        let message = message(NetlinkPayload::InnerMessage(inner));
        assert_eq!(matters(&message, &needed), expected, "{message:?}");
    }
    assert!(matters(&message(NetlinkPayload::Overrun(Vec::new())), &needed), "notifications were lost");
}

#[test]
fn the_kernels_errors_become_words() {
    for (errno, expected, words) in [
        (101, Unresolved::NoRoute, "no route"),
        (113, Unresolved::Unreachable, "the route has type unreachable"),
        (13, Unresolved::Prohibited, "the route has type prohibit"),
        (22, Unresolved::Blackhole, "the route is a blackhole"),
        (
            105,
            Unresolved::Refused { errno: 105 },
            "the kernel refused the route lookup: No buffer space available (os error 105)",
        ),
    ] {
        let why = refused_route(&io::Error::from_raw_os_error(errno));
        assert_eq!(why, expected);
        assert_eq!(why.to_string(), words);
    }
    assert_eq!(failed().to_string(), "neighbour 192.0.2.2 on interface 3 does not respond");
}

fn multipath(hops: &[(u32, u8, &str)]) -> RouteMessage {
    let hop = |&(interface, weight_minus_one, gateway): &(u32, u8, &str)| {
        let mut hop = RouteNextHop::default();
        (hop.interface_index, hop.hops) = (interface, weight_minus_one);
        hop.attributes = vec![RouteAttribute::Gateway(ip(gateway).into())];
        hop
    };
    route_message(RouteType::Unicast, &[RouteAttribute::MultiPath(hops.iter().map(hop).collect())])
}

#[test]
fn hops_of_a_route_are_those_of_the_matched_route() {
    let other = Route { interface: 4, gateway: Some(ip("192.0.2.4")), ..route() };
    let two = multipath(&[(3, 1, "192.0.2.2"), (4, 255, "192.0.2.4")]);
    assert_eq!(route().hops(Some(&two)), Ok(vec![(route(), 2), (other, 256)]));
    // Without a multipath route, the chosen hop is the only one.
    for one in [multipath(&[(4, 0, "192.0.2.4")]), route_message(RouteType::Unicast, &[])] {
        assert_eq!(route().hops(Some(&one)), Ok(vec![(route(), 1)]));
    }
    assert_eq!(route().hops(None), Ok(vec![(route(), 1)]));
}

#[test]
fn encapsulated_hop_does_not_affect_the_others() {
    let mpls = RouteAttribute::EncapType(RouteLwEnCapType::Mpls);
    let mut two = multipath(&[(3, 0, "192.0.2.2"), (4, 0, "192.0.2.4")]);
    let RouteAttribute::MultiPath(hops) = &mut two.attributes[0] else { panic!("no multipath route") };
    hops[0].attributes.push(mpls.clone());
    let attributes = [RouteAttribute::Oif(3), RouteAttribute::Gateway(via().into()), mpls.clone()];
    let chosen = Route::read(&route_message(RouteType::Unicast, &attributes)).unwrap();
    let other = Route { interface: 4, gateway: Some(ip("192.0.2.4")), preferred_source: None, ..route() };
    assert_eq!(chosen.hops(Some(&two)), Ok(vec![(other, 1)]), "the kernel chose the encapsulated hop");
    let whole = Route { preferred_source: route().preferred_source, ..other };
    assert_eq!(route().hops(Some(&two)), Ok(vec![(whole, 1)]));
    let RouteAttribute::MultiPath(hops) = &mut two.attributes[0] else { panic!("no multipath route") };
    hops[1].attributes.push(mpls);
    assert_eq!(chosen.hops(Some(&two)), Err(Unresolved::Encapsulated));
}

#[test]
fn hop_that_fails_does_not_affect_the_others() {
    let other = Route { interface: 4, gateway: Some(ip("192.0.2.4")), ..route() };
    let routes = HashMap::from([(to(), Ok(vec![(other, 1), (route(), 3)]))]);
    let mut facts = facts(NeighbourState::Reachable);
    let key = (4, ip("192.0.2.4"));
    facts.links.insert(4, link());
    facts.neighbours.insert(key, Neighbour { state: NeighbourState::Failed, mac: None });
    let first = table(&routes, &BTreeSet::new(), &facts, None);
    let failed = Unresolved::NeighbourFailed { interface: 4, neighbour: key.1 };
    let hops = [
        Hop { neighbour: key, weight: 1, found: Err(failed) },
        Hop { neighbour: (3, via()), weight: 3, found: Ok(resolved()) },
    ];
    let found = &first.next_hops[&to()];
    assert_eq!((found.several(), found.first()), (&hops[..], Ok(resolved())));
    // The hop stays failed while the kernel resolves its neighbor again.
    facts.neighbours.insert(key, Neighbour { state: NeighbourState::Incomplete, mac: None });
    assert_eq!(table(&routes, &BTreeSet::new(), &facts, Some(&first)).next_hops, first.next_hops);
    // A hop on an interface that the load balancer does not use is skipped as well.
    let strange = first.by(vec![4]);
    let reasons: Vec<_> = strange.next_hops[&to()].results().collect();
    assert_eq!(reasons, [Err(failed), Err(Unresolved::OtherInterface { interface: 3 })]);
}
