//! Tests of health checks that use the pool's encapsulation. The test sends each inner packet of a
//! check to the balancer as a client packet. The balancer must produce the same bytes as the check.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};

use config::{CheckKind, DnsCheck, DnsRecord, Payload, TcpCheck, UdpCheck};
use health::{self, Dialer};
use testbed::{Balancer, Capture, Encapsulation, Frame, Ip, Kind, eventually, inject, mac_of};

use crate::scene::{BOUND, Scene};

/// Checks that HTTP and UDP checks of both VIPs succeed, and that their packets are identical to
/// the packets that the balancer sends for clients.
fn carries(kind: Encapsulation, outer_v4: bool, keys: &str, from: &[&str]) -> Vec<Frame> {
    let scene = Scene::new(1, kind, outer_v4, keys, from);
    let balancer = Balancer::start(&scene.bed, 0, &scene.config).unwrap();
    let outside = watch(&scene);
    let vips = [scene.bed.vip(true, 80), scene.bed.vip(false, 80)];
    let counts = scene.with_tunnel(async move |checks| {
        for vip in vips {
            for _ in 0..4 {
                let answer = checks.http("b1", vip).await.unwrap();
                assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("b1"), "{answer}");
                let answer = checks.udp("b1", vip.ip()).await.unwrap();
                assert!(answer.starts_with("b1 ") && answer.ends_with(" query"), "{answer}");
            }
        }
        checks.tunnel.counts()
    });
    assert_eq!(
        (counts.no_port, counts.no_next_hop, counts.too_big, counts.errors),
        (0, 0, 0, 0),
        "{counts:?}"
    );
    let sent = usize::try_from(counts.sent).unwrap();
    // The RST of the last connection may still be in flight.
    let all = eventually(BOUND, || Some(arrived(&outside)).filter(|frames| frames.len() >= sent));
    let frames: Vec<Frame> = all.unwrap().iter().map(|bytes| Frame::parse(bytes).unwrap()).collect();
    let kinds: BTreeSet<_> = frames.iter().map(inner).map(|i| (i.source.is_ipv4(), i.protocol)).collect();
    assert_eq!(kinds, BTreeSet::from([(true, 6), (true, 17), (false, 6), (false, 17)]));
    same_as_clients(&scene, &outside, &frames);
    // The kernel of the balancer's host rejects late UDP answers with ICMP errors, which reach the
    // balancer.
    let drops = balancer.counters().unwrap().drops();
    assert!(drops.iter().all(|(reason, _)| *reason == "icmp"), "{drops:?}");
    frames
}

/// Captures frames for a VIP at the router, with or without encapsulation. Packets that the host's
/// kernel sent itself, such as rejections of repeated answers, are excluded by their TTL.
fn watch(scene: &Scene) -> Capture {
    let vips = scene.bed.spec.vips.clone();
    let wanted = move |bytes: &[u8]| {
        let ip = Frame::parse(bytes).map(|frame| inner(&frame));
        ip.is_some_and(|ip| vips.contains(&ip.destination) && ip.ttl == 63)
    };
    let host = &scene.bed.balancers[0];
    Capture::start(&scene.bed.router, &host.port, 10_000, wanted).unwrap()
}

/// Returns the frames that came from the balancer's host. Frames in the other direction go to the
/// kernel of that host, which rejects segments that arrive after the end of a check.
fn arrived(outside: &Capture) -> Vec<Vec<u8>> {
    outside.frames().into_iter().filter(|frame| !frame.outgoing).map(|frame| frame.bytes).collect()
}

fn inner(frame: &Frame) -> Ip {
    frame.outer().map_or_else(|| frame.ip.clone(), |outer| outer.inner)
}

/// Sends each packet to the balancer as a client packet, with a TTL that is higher by one.
fn same_as_clients(scene: &Scene, outside: &Capture, frames: &[Frame]) {
    let host = &scene.bed.balancers[0];
    let (from, to) = (mac_of(&scene.bed.router, &host.port).unwrap(), mac_of(&host.ns, host.device).unwrap());
    let mine = arrived(outside);
    for (n, frame) in frames.iter().enumerate() {
        let ip = inner(frame);
        let ethertype = if ip.source.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
        let as_client = [&to[..], &from, &ethertype, &one_hop_more(&ip)].concat();
        inject(&scene.bed.router, &host.port, &as_client).unwrap();
        let seen = eventually(BOUND, || Some(arrived(outside)).filter(|seen| seen.len() > mine.len() + n));
        let seen = seen.unwrap();
        assert_eq!(testbed::hex(&seen[mine.len() + n]), testbed::hex(&mine[n]), "packet {n}: {}", ip.words());
    }
}

fn one_hop_more(ip: &Ip) -> Vec<u8> {
    let mut bytes = ip.bytes.clone();
    if ip.source.is_ipv4() {
        bytes[8] += 1;
        bytes[10..12].fill(0);
        let words = bytes[..ip.header_bytes].chunks_exact(2);
        let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
        bytes[10..12].copy_from_slice(&(!folded).to_be_bytes());
    } else {
        bytes[7] += 1;
    }
    bytes
}

fn wrapped(kind: Encapsulation, expected: Kind, outer_v4: bool) {
    let frames = carries(kind, outer_v4, "", &[]);
    for frame in &frames {
        let outer = frame.outer().unwrap();
        let source: IpAddr = if outer_v4 { "192.0.2.1" } else { "2001:db8:0:1::1" }.parse().unwrap();
        let backend: IpAddr = if outer_v4 { "198.18.1.1" } else { "2001:db8:18::1" }.parse().unwrap();
        assert_eq!((outer.kind, outer.outer.source, outer.outer.destination), (expected, source, backend));
        assert_eq!((outer.outer.ttl, outer.inner.ttl), (64, 63), "the TTL was not decremented once");
        assert!(outer.outer.checksum_ok && outer.inner.checksum_ok && outer.outer.dont_fragment);
        assert_eq!(outer.inner.transport_checksum_ok(), Some(true));
        assert_eq!(outer.outer.tos, outer.inner.tos);
    }
}

#[test]
fn gre_over_ipv4() {
    wrapped(Encapsulation::Gre, Kind::Gre, true);
}

#[test]
fn gre_over_ipv6() {
    wrapped(Encapsulation::Gre, Kind::Gre, false);
}

#[test]
fn ipip_over_ipv4() {
    wrapped(Encapsulation::Ipip, Kind::Ipip, true);
}

#[test]
fn ipip_over_ipv6() {
    wrapped(Encapsulation::Ipip, Kind::Ipip, false);
}

#[test]
fn gue_over_ipv4() {
    wrapped(Encapsulation::Gue, Kind::Gue, true);
}

#[test]
fn gue_over_ipv6() {
    wrapped(Encapsulation::Gue, Kind::Gue, false);
}

#[test]
fn l2_to_the_backends_own_mac() {
    let frames = carries(Encapsulation::L2, true, "", &[]);
    assert!(frames.iter().all(|frame| frame.outer().is_none() && frame.ip.ttl == 63));
    assert_eq!(frames.iter().map(|frame| frame.to).collect::<BTreeSet<_>>().len(), 1);
}

#[test]
fn outer_sources_come_from_pool_prefixes() {
    let keys = "source_prefixes = [\"198.18.4.0/24\"]";
    let frames = carries(Encapsulation::Gre, true, keys, &["198.18.4.0/24"]);
    let sources: BTreeSet<_> = frames.iter().map(|frame| frame.ip.source).collect();
    assert!(sources.len() > 4, "too few outer source addresses, {sources:?}");
    assert!(sources.iter().all(|source| source.to_string().starts_with("198.18.4.")), "{sources:?}");
}

#[test]
fn configured_checks_use_the_tunnel() {
    let scene = Scene::new(1, Encapsulation::Gre, false, "", &[]);
    let vip = scene.bed.vip(true, DNS_PORT);
    let socket = scene.bed.backends[0].ns.run(move || UdpSocket::bind(vip)).unwrap();
    let server = std::thread::spawn(move || answer_dns(&socket));
    let backend = scene.bed.backends[0].v6.into();
    let results = scene.with_tunnel(async move |checks| {
        let dialer = Dialer::Tunnel(checks.dialer("b1", vip.ip()));
        let dns = DnsCheck {
            port: DNS_PORT,
            name: "www.example.com".into(),
            record: DnsRecord::A,
            probe_mtu: false,
        };
        let mut results = Vec::new();
        for kind in [
            CheckKind::Dns(dns),
            CheckKind::Tcp(TcpCheck { port: 80, send: None, expect: None }),
            CheckKind::Tcp(TcpCheck { port: 81, send: None, expect: None }),
            CheckKind::Udp(UdpCheck { port: 81, send: Payload::Text("?".into()), expect: None }),
        ] {
            // The check targets the backend's own address, as a direct check does.
            let interim = health::Interim::default();
            let attempt = health::attempt(&kind, backend, &dialer, &interim);
            results.push(tokio::time::timeout(BOUND, attempt).await.unwrap().map_err(|f| f.to_string()));
        }
        results
    });
    server.join().unwrap();
    assert!(results[0].is_ok() && results[1].is_ok(), "{results:?}");
    assert!(
        results[2].as_ref().is_err_and(|why| why.contains("refused")),
        "the check of a closed port succeeded, {results:?}"
    );
    assert!(
        results[3].as_ref().is_err_and(|why| why == "ICMP port unreachable"),
        "the check of a closed UDP port succeeded, {results:?}"
    );
}

/// Answers a DNS query with one address.
fn answer_dns(socket: &UdpSocket) {
    let mut room = [0; 512];
    socket.set_read_timeout(Some(BOUND)).unwrap();
    let (len, client) = socket.recv_from(&mut room).unwrap();
    socket.send_to(&dns_reply(&room[..len]), client).unwrap();
}

/// Returns a DNS reply with one address.
pub(crate) fn dns_reply(query: &[u8]) -> Vec<u8> {
    // The reply contains the header, the name, the type and the class of the question. The reply
    // omits the additional records of the query.
    let name = query[12..].iter().position(|&byte| byte == 0).unwrap();
    let mut reply = query[..12 + name + 5].to_vec();
    reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 80]);
    reply
}

const DNS_PORT: u16 = 5300;
