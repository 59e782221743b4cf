//! Tests of upstream tunnels. The balancer must forward a packet from a tunnel like a packet that
//! arrives without a tunnel.
//!
//! The tests write the outer headers themselves, because the kernel on a test machine might not
//! support tunnel devices.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use testbed::{Bed, BedSpec, LbConfig, Received, UdpInbox, digest, send_at};

use crate::fragments::{INBOX_PORT, have_had, inboxes, with_inbox};
use crate::scene::{SILENCE, Scene, count};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Gre,
    Ipip,
    Gue,
}

/// The source addresses of the upstream tunnels, which belong to the router on the first balancer's
/// link.
const UPSTREAM_TUNNEL: [&str; 2] = ["192.0.2.0", "2001:db8:0:1::ff"];

/// Encapsulates the IP packet in `frame`. The outer addresses are `from` and `to`.
fn tunnelled(frame: &[u8], kind: Kind, from: IpAddr, to: IpAddr) -> Vec<u8> {
    let inner = &frame[14..];
    let (ethertype, number): ([u8; 2], u8) =
        if inner[0] >> 4 == 4 { ([8, 0], 4) } else { ([0x86, 0xdd], 41) };
    let length = |more: usize| u16::try_from(inner.len() + more).unwrap().to_be_bytes();
    let (protocol, header) = match kind {
        Kind::Gre => (47, [&[0, 0], &ethertype[..]].concat()),
        Kind::Ipip => (number, vec![]),
        // The UDP header has the destination port 6080 and no checksum. The GUE header has variant
        // 0 and neither flags nor options.
        Kind::Gue => (17, [&[0xd0, 0x01, 0x17, 0xc0], &length(12)[..], &[0, 0, 0, number, 0, 0]].concat()),
    };
    let mut bytes = frame[..12].to_vec();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip =
                [&[0x45, 0], &length(20 + header.len())[..], &[0, 0, 0x40, 0, 64, protocol, 0, 0]].concat();
            ip.extend([from.octets(), to.octets()].concat());
            let sum: u32 = ip.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
            let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
            ip[10..12].copy_from_slice(&(!folded).to_be_bytes());
            bytes.extend([&[8, 0], &ip[..]].concat());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend([&length(header.len())[..], &[protocol, 64]].concat());
            bytes.extend([from.octets(), to.octets()].concat());
        }
        _ => panic!("the address families differ"),
    }
    bytes.extend([&header[..], inner].concat());
    bytes
}

/// Returns encapsulated datagrams to the inbox port, one per flow, and the datagrams that backends
/// should receive.
fn datagrams(
    scene: &Scene,
    (ipv4, kind, from): (bool, Kind, IpAddr),
    many: usize,
) -> (Vec<Vec<u8>>, BTreeSet<Received>) {
    let to = scene.bed.balancers[0].address(from);
    let one = |n: usize| {
        let mut spec = scene.frame(ipv4, INBOX_PORT);
        spec.source = SocketAddr::new(spec.source.ip(), 2_000 + u16::try_from(n).unwrap());
        spec.payload = [&[kind as u8, u8::from(from.is_ipv4())], &vec![7; n % 900][..]].concat();
        let received = Received { from: spec.source, len: spec.payload.len(), digest: digest(&spec.payload) };
        (tunnelled(&spec.bytes(), kind, from, to), received)
    };
    (0..many).map(one).unzip()
}

fn arrivals(bed: &Bed, sources: &[&str], kinds: &str) -> LbConfig {
    let mut config = with_inbox(bed);
    let keys = format!("[cluster.upstream_tunnels]\nsources = {sources:?}\nkinds = [{kinds}]");
    config.cluster = format!("{}\n{keys}", config.cluster);
    config
}

#[test]
fn upstream_tunnels_are_served_by_all_threads() {
    let spec = BedSpec { queues: 4, ..BedSpec::default() };
    let scene = Scene::new(&spec, |bed| arrivals(bed, &UPSTREAM_TUNNEL, "\"gre\", \"ipip\", \"gue\""));
    let many = count(400, 4_000);
    for ipv4 in [true, false] {
        let inboxes = inboxes(&scene, ipv4);
        let mut all = 0;
        for (kind, from) in [Kind::Gre, Kind::Ipip, Kind::Gue]
            .into_iter()
            .flat_map(|kind| UPSTREAM_TUNNEL.map(|from| (kind, from)))
        {
            let before = scene.settled();
            let (frames, expected) = datagrams(&scene, (ipv4, kind, from.parse().unwrap()), many);
            // Packets are sent in small groups, so that the packets in flight fit into a ring.
            for some in frames.chunks(400) {
                send_at(&scene.bed.router, &scene.bed.balancers[0].port, some.to_vec(), 20_000.0).unwrap();
                all += some.len();
                assert!(have_had(&inboxes, all), "{kind:?} from {from}\n{}", scene.diagnosis());
            }
            let counts = scene.settled();
            let grown = |path: &[&str]| counts.over_threads(path) - before.over_threads(path);
            let (opened, crossed) = (grown(&["decapsulated"]), grown(&["to_threads"]));
            println!(
                "{kind:?} from {from}, IPv{}: {opened} opened, {crossed} crossed",
                if ipv4 { 4 } else { 6 }
            );
            assert_eq!(opened, many as u64);
            // All packets have the same outer addresses and ports, so they arrive on one queue.
            // Three of four flows belong to other threads.
            assert!(crossed > opened / 2 && crossed < opened, "{crossed}");
            let seen: BTreeSet<Received> = inboxes.iter().flat_map(UdpInbox::seen).collect();
            assert!(seen.is_superset(&expected));
            let shares = inboxes.iter().filter(|inbox| inbox.count() > 0).count();
            assert_eq!(shares, inboxes.len(), "a backend received no packets");
        }
    }
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn other_tunnels_are_left_to_the_kernel() {
    let scene = Scene::with(|bed| arrivals(bed, &UPSTREAM_TUNNEL[..1], "\"gre\""));
    let inboxes = inboxes(&scene, true);
    let mut frames = vec![];
    let [allowed, other] = UPSTREAM_TUNNEL.map(|from| from.parse::<IpAddr>().unwrap());
    for (kind, from) in [
        (Kind::Ipip, allowed),
        (Kind::Gue, allowed),
        (Kind::Gre, other),
        (Kind::Gre, scene.bed.client.v4.into()),
    ] {
        frames.extend(datagrams(&scene, (true, kind, from), 20).0);
    }
    send_at(&scene.bed.router, &scene.bed.balancers[0].port, frames, 20_000.0).unwrap();
    // An accepted packet after the rejected packets shows that the balancer has processed all
    // rejected packets.
    let (frames, expected) = datagrams(&scene, (true, Kind::Gre, allowed), 1);
    send_at(&scene.bed.router, &scene.bed.balancers[0].port, frames, 20_000.0).unwrap();
    assert!(have_had(&inboxes, 1), "{}", scene.diagnosis());
    std::thread::sleep(SILENCE);
    let counts = scene.settled();
    assert_eq!((counts.received(), counts.over_threads(&["decapsulated"])), (1, 1), "{}", scene.diagnosis());
    let seen: BTreeSet<Received> = inboxes.iter().flat_map(UdpInbox::seen).collect();
    assert_eq!(seen, expected);
}
