//! Tests of software steering. The tests build the hash messages themselves to compute the expected
//! threads.

use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;

use etherparse::PacketBuilder;
use forwarder::*;
use packet::Encapsulation;
use proptest::prelude::*;
use sip_lanes::LaneHashers;
use siphasher::sip::SipHasher13;

use crate::bed::*;
use crate::pieces::{Datagram, udp_payload};
use crate::tunnels::{from, wrapped};

#[derive(Clone, Copy, Debug)]
struct Client {
    ipv4: bool,
    host: u8,
    ports: (u16, u16),
    is_tcp: bool,
}

impl Client {
    fn ends(self) -> (String, &'static str) {
        if self.ipv4 {
            (format!("198.51.100.{}", self.host), VIP4)
        } else {
            (format!("2001:db8:9::{:x}", self.host), VIP6)
        }
    }

    fn protocol(self) -> u8 {
        if self.is_tcp { 6 } else { 17 }
    }

    fn frame(self) -> Vec<u8> {
        let ((source, vip), (from, to)) = (self.ends(), self.ports);
        if self.is_tcp { tcp(&source, from, vip, to, "A") } else { udp(&source, from, vip, to, b"payload") }
    }

    /// Returns a packet from the backend to the client, as a router would quote it.
    fn quoted(self) -> Vec<u8> {
        let ((client, vip), (from, to)) = (self.ends(), self.ports);
        let mut quote = Vec::new();
        let step = match (ip(vip), ip(&client)) {
            (IpAddr::V4(vip), IpAddr::V4(client)) => PacketBuilder::ipv4(vip.octets(), client.octets(), 60),
            (IpAddr::V6(vip), IpAddr::V6(client)) => PacketBuilder::ipv6(vip.octets(), client.octets(), 60),
            _ => panic!("addresses of different families"),
        };
        match self.is_tcp {
            true => step.tcp(to, from, 7, 8).write(&mut quote, &[0; 20]).unwrap(),
            false => step.udp(to, from).write(&mut quote, &[0; 20]).unwrap(),
        }
        let mut bytes = Vec::new();
        let link = PacketBuilder::ethernet2(ROUTER, OURS);
        match ip(vip) {
            IpAddr::V4(vip) => {
                let step = link.ipv4([192, 0, 2, 254], vip.octets(), 64);
                step.icmpv4_raw(3, 4, [0, 0, 5, 0]).write(&mut bytes, &quote).unwrap();
            }
            IpAddr::V6(vip) => {
                let router = "2001:db8:7::fe".parse::<std::net::Ipv6Addr>().unwrap();
                let step = link.ipv6(router.octets(), vip.octets(), 64);
                step.icmpv6_raw(2, 0, [0, 0, 5, 0]).write(&mut bytes, &quote).unwrap();
            }
        }
        bytes
    }

    /// Returns the fragments of a UDP datagram in this flow. Only the first fragment has ports.
    fn pieces(self) -> Vec<Vec<u8>> {
        let (source, vip) = if self.ipv4 { ("198.51.100.7", VIP4) } else { ("2001:db8:9::7", VIP6) };
        let payload = udp_payload(self.ports.0, self.ports.1, 300);
        Datagram { source, vip, protocol: 17, id: 77, payload }.cut(128)
    }
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0x20, 7], &frame[12..]].concat()
}

/// Adds an option to an IPv4 packet, so that its header does not have the usual length.
fn with_option(frame: &[u8]) -> Vec<u8> {
    let mut bytes = [&frame[..34], &[1, 1, 1, 0], &frame[34..]].concat();
    bytes[14] = 0x46;
    let total = u16::from_be_bytes([bytes[16], bytes[17]]) + 4;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    bytes
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn hashed(message: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(&[5; 16]);
    hasher.write(message);
    hasher.finish()
}

/// Computes the thread for a hash by counting the thresholds that the hash reaches.
fn share(hash: u64, threads: u16) -> u16 {
    (1..threads).filter(|n| u128::from(hash) * u128::from(threads) >= u128::from(*n) << 64).count() as u16
}

/// Computes the thread from the 5-tuple. For IPv4, the message contains the address bytes in
/// reverse order, the destination first.
fn thread_of_flow(client: Client, threads: u16) -> u16 {
    let (source, vip) = client.ends();
    let ((sport, dport), protocol) = (client.ports, client.protocol());
    let ports = [dport.to_le_bytes(), sport.to_le_bytes()].concat();
    let message = match (ip(&source), ip(vip)) {
        (IpAddr::V4(source), IpAddr::V4(vip)) => {
            let mut ends = [source.octets(), vip.octets()].concat();
            ends.reverse();
            [&ends[..], &[1, protocol, 1, 0], &ports].concat()
        }
        (source, vip) => [&mapped(source)[..], &mapped(vip), &[1, protocol, 0, 0], &ports].concat(),
    };
    let hash = hashed(&message);
    share(hash.rotate_right(32), threads)
}

/// Computes the thread from the 3-tuple.
fn thread_of_pieces(client: Client, threads: u16) -> u16 {
    let (source, vip) = if client.ipv4 { ("198.51.100.7", VIP4) } else { ("2001:db8:9::7", VIP6) };
    let protocol = if client.ipv4 { 17 } else { 44 };
    let message = [&mapped(ip(source))[..], &mapped(ip(vip)), &[4, protocol, 0, 0, 0, 0, 0, 0]].concat();
    share(hashed(&message), threads)
}

/// Returns the verdicts for a batch, and checks that the frames are unchanged.
fn steered(steering: &mut SoftwareSteering, frames: &[Vec<u8>]) -> Vec<Verdict> {
    let mut buffers: Vec<Vec<u8>> = frames.iter().map(|frame| [&[0; 24], &frame[..]].concat()).collect();
    let mut packets: Vec<Packet<'_>> = buffers
        .iter_mut()
        .map(|buffer| {
            let end = buffer.len();
            Packet::new(buffer, 24, end, Origin::Wire)
        })
        .collect();
    let mut verdicts = vec![Verdict::Tx; frames.len()];
    steering.process(Now::from_nanos(9), &mut packets, &mut verdicts);
    assert!(
        packets.iter().zip(frames).all(|(packet, frame)| packet.start() == 24 && packet.frame() == frame)
    );
    verdicts
}

fn steering(tunnels: Vec<TunnelSource>, threads: u16) -> SoftwareSteering {
    let parts = Parts { tunnels, ..parts(gre_slots(2), &[1, 1]) };
    let live = Live::new(Snapshot::new(parts).unwrap());
    let config =
        SteeringConfig { threads, max_batch: 64, hashers: LaneHashers::PORTABLE, source_ports: None };
    SoftwareSteering::new(config, &live, Arc::new(ThreadCounters::new(0, 0)))
}

const KINDS: [Encapsulation; 3] =
    [Encapsulation::Gre, Encapsulation::Ipip, Encapsulation::Gue { udp_checksum: false }];
const OUTER: [(&str, &str); 2] = [("192.0.2.77", "192.0.2.1"), ("2001:db8::77", "2001:db8::1")];

fn to_flow(thread: u16) -> Verdict {
    Verdict::ToThread(ThreadId(thread), HandoffReason::Steered { decapsulated_from: None })
}

fn to_gatherer(thread: u16) -> Verdict {
    Verdict::ToThread(ThreadId(thread), HandoffReason::Fragment { decapsulated_from: None })
}

fn clients() -> impl Strategy<Value = Vec<Client>> {
    let one = (any::<bool>(), any::<u8>(), any::<(u16, u16)>(), any::<bool>());
    let one = one.prop_map(|(ipv4, host, ports, is_tcp)| Client { ipv4, host, ports, is_tcp });
    prop::collection::vec(one, 1..4)
}

proptest! {
    // Promise: steering-order
    /// All packets of a flow go to one thread, even if they are tagged, tunneled, have IP options,
    /// or are quoted in ICMP errors. Fragments, tunneled or not, go to the thread of their 3-tuple.
    #[test]
    fn a_flow_has_one_thread_whatever_carries_it(clients in clients(), threads in 1u16..9, peer in any::<bool>()) {
        let kind = if peer { TunnelSourceKind::Peer } else { TunnelSourceKind::UpstreamTunnel };
        let mut steering = steering(OUTER.map(|outer| from(outer.0, kind)).to_vec(), threads);
        let (mut frames, mut expected) = (Vec::new(), Vec::new());
        for client in clients {
            let own = to_flow(thread_of_flow(client, threads));
            let mut flow = vec![client.frame(), tagged(&client.frame()), client.quoted()];
            flow.extend(client.ipv4.then(|| with_option(&client.frame())));
            let mut pieces = client.pieces();
            let recursion = u8::from(peer);
            for (kind, outer) in KINDS.into_iter().flat_map(|kind| OUTER.map(|outer| (kind, outer))) {
                if peer && kind != Encapsulation::Gre {
                    continue; // Only tunnels from peers carry a mark.
                }
                flow.push(wrapped(&client.frame(), kind, outer, recursion));
                flow.push(tagged(&wrapped(&client.frame(), kind, outer, recursion)));
                flow.push(wrapped(&client.quoted(), kind, outer, recursion));
                pieces.extend(client.pieces().iter().map(|piece| wrapped(piece, kind, outer, recursion)));
            }
            expected.extend(flow.iter().map(|_| own));
            expected.extend(pieces.iter().map(|_| to_gatherer(thread_of_pieces(client, threads))));
            frames.extend(flow.into_iter().chain(pieces));
        }
        let verdicts: Vec<Verdict> = frames.chunks(64).flat_map(|some| steered(&mut steering, some)).collect();
        prop_assert_eq!(verdicts, expected);
    }
}

#[test]
fn a_tunnel_that_is_not_opened_here_is_a_flow_of_its_own() {
    let (threads, frame) = (64, tcp("198.51.100.7", 9, VIP4, 80, "A"));
    let mut opened = steering(vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)], threads);
    let mut never = steering(vec![], threads);
    for outer in [("192.0.2.78", "192.0.2.1"), ("192.0.2.77", VIP4)] {
        for (kind, recursion) in [(Encapsulation::Gre, 0), (Encapsulation::Gre, 1), (Encapsulation::Ipip, 0)]
        {
            let frame = [wrapped(&frame, kind, outer, recursion)];
            assert_eq!(steered(&mut opened, &frame), steered(&mut never, &frame), "{outer:?} {kind:?}");
        }
    }
    let own = [wrapped(&frame, Encapsulation::Gre, OUTER[0], 0)];
    assert_ne!(steered(&mut opened, &own), steered(&mut never, &own));
}

#[test]
fn what_cannot_be_read_is_for_each_thread_in_turn() {
    let mut steering = steering(vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)], 3);
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "A");
    let mut inside = wrapped(&frame, Encapsulation::Ipip, OUTER[0], 0);
    inside[34] = 0x42; // An IPv4 header of 8 bytes.
    let frames = [vec![], vec![0; 60], frame[..30].to_vec(), inside, vec![0xff; 14], vec![0; 13]];
    assert_eq!(steered(&mut steering, &frames), [1, 2, 0, 1, 2, 0].map(to_flow));
}
