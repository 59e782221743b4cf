//! Compares the fast path with the slow path under random traffic and random snapshots. The two
//! paths must produce identical verdicts, frames and counters. Each pair of pipelines keeps its
//! state over several batches and snapshots.

use std::num::NonZeroU32;
use std::sync::Arc;

use forwarder::*;
use kv_switch::{Memcached, Routes};
use packet::{Encapsulation, Family, Mac, Outer, Tag, Tags, Template};
use proptest::prelude::*;
use proptest::sample::select;

use crate::bed::*;
use crate::keyed::{PORT, framed};

/// The properties of a randomly generated slot.
#[derive(Clone, Debug)]
struct SlotKind {
    kind: Encapsulation,
    outer_v6: bool,
    dont_fragment: bool,
    source_prefix: bool,
    to_cluster: bool,
    mtu: u16,
    too_big: TooBig,
    hop: u8,
    state: SlotState,
}

fn slot_kind() -> impl Strategy<Value = SlotKind> {
    let kinds = vec![
        Encapsulation::Gre,
        Encapsulation::Gre,
        Encapsulation::Ipip,
        Encapsulation::Gue { udp_checksum: false },
        Encapsulation::Gue { udp_checksum: true },
        Encapsulation::L2,
    ];
    let state = select(vec![SlotState::Serving, SlotState::Serving, SlotState::Draining, SlotState::Down]);
    let rare = || prop::bool::weighted(0.1);
    let way = (
        select(vec![1500_u16, 1500, 140, 110, 90]),
        select(vec![TooBig::Drop, TooBig::FragmentInner]),
        0..8_u8,
    );
    ((select(kinds), any::<bool>(), any::<bool>()), (rare(), rare()), way, state).prop_map(
        |((kind, outer_v6, dont_fragment), (source_prefix, to_cluster), (mtu, too_big, hop), state)| {
            SlotKind { kind, outer_v6, dont_fragment, source_prefix, to_cluster, mtu, too_big, hop, state }
        },
    )
}

impl SlotKind {
    fn slot(&self, number: usize) -> Slot {
        let address =
            if self.outer_v6 { format!("2001:db8:18::{number}") } else { format!("198.18.1.{number}") };
        let mut slot = slot(&format!("b{number}"), &address, self.kind);
        if self.kind != Encapsulation::L2 {
            slot.forwarding = Forwarding::Tunnel {
                v4: self.template(&address, Family::V4),
                v6: self.template(&address, Family::V6),
            };
        }
        let tag = Tagging::Set(Tags::NONE.push(Tag::customer(7, 0).unwrap()).unwrap());
        let tagging = if self.hop == 1 { tag.clone() } else { Tagging::Keep };
        let plain = NextHop::plain(Mac(HOP), Mac(OURS));
        slot.next_hop = (self.hop != 0).then_some(NextHop {
            tagging,
            interface: InterfaceId(self.hop / 4),
            ..plain.clone()
        });
        if self.hop >= 6 {
            let others = [0, 1, 2].map(|number| NextHop {
                destination: Mac([2, 0, 0, 0, 9, number]),
                interface: InterfaceId(number),
                tagging: if number == 2 { tag.clone() } else { Tagging::Keep },
                ..plain.clone()
            });
            slot.spread = Some(Spread::new(others.into(), HopTable::new(&[(0, 1), (1, 2), (2, 1)])));
        }
        (slot.mtu, slot.too_big) = (self.mtu, self.too_big);
        slot
    }

    fn template(&self, address: &str, inner: Family) -> Template {
        let outer = match ip(address) {
            std::net::IpAddr::V4(destination) => {
                Outer::V4 { source: "192.0.2.1".parse().unwrap(), destination }
            }
            std::net::IpAddr::V6(destination) => {
                Outer::V6 { source: "2001:db8::1".parse().unwrap(), destination }
            }
        };
        let made = Template::new(self.kind, outer, inner, self.dont_fragment);
        let prefix = if self.outer_v6 { (ip("2001:db8:5::"), 64) } else { (ip("198.51.100.0"), 28) };
        let prefixed = made.with_source(prefix.0, prefix.1).filter(|_| self.source_prefix);
        let remote = made.to_cluster(8).filter(|_| self.to_cluster);
        prefixed.or(remote).unwrap_or(made)
    }
}

/// The properties of a randomly generated snapshot, including its slots.
#[derive(Clone, Debug)]
struct World {
    slots: Vec<SlotKind>,
    policies: Vec<HashPolicy>,
    guard: u8,
    excluded: bool,
    groups: bool,
    reflect: bool,
    tunnels: bool,
    traced: bool,
    narrow: bool,
}

fn world() -> impl Strategy<Value = World> {
    let policies =
        select(vec![HashPolicy::FiveTuple, HashPolicy::FiveTuple, HashPolicy::Addresses, HashPolicy::Source]);
    let rare = || prop::bool::weighted(0.2);
    let rest = (0..6_u8, rare(), rare(), rare(), rare(), rare(), any::<bool>());
    (prop::collection::vec(slot_kind(), 1..6), prop::collection::vec(policies, 3), rest).prop_map(
        |(slots, policies, (guard, excluded, groups, reflect, tunnels, traced, narrow))| World {
            slots,
            policies,
            guard,
            excluded,
            groups,
            reflect,
            tunnels,
            traced,
            narrow,
        },
    )
}

impl World {
    fn snapshot(&self) -> Snapshot {
        let slots: Vec<Slot> = (1..).zip(&self.slots).map(|(number, kind)| kind.slot(number)).collect();
        let weights = vec![1; slots.len()];
        let mut parts = parts(slots.clone(), &weights);
        parts.services.push(self.keyed(&pool(&slots, &weights)));
        parts.bindings.extend([VIP4, VIP6].map(|vip| binding(vip, 17, PORT..=PORT, 3)));
        parts.states = self.slots.iter().map(|kind| kind.state).collect();
        for (service, policy) in parts.services.iter_mut().zip(&self.policies) {
            service.policy = *policy;
            service.guard = self.guard();
            if self.excluded {
                service.excluded_slots = [SlotId(0)].into();
            }
        }
        if self.narrow {
            // The bindings have more port ranges than an entry of the VIP table can hold inline.
            for (port, service) in [(443, 0), (8000, 1), (8010, 0), (8020, 1), (8030, 2)] {
                parts.bindings.push(binding(VIP4, 6, port..=port + 3, service));
            }
        }
        if self.groups {
            let prefix = Prefix::new(ip("198.51.100.128"), 25).unwrap();
            parts.groups = vec![PrefixGroup { name: "edge".into(), prefixes: vec![prefix] }];
            let address = VipAddress::Suffix { group: 0, suffix: Suffix::new(ip("0.0.0.1"), 2).unwrap() };
            parts.bindings.push(Binding { address, protocol: 6, ports: 80..=81, service: 1 });
        }
        if self.reflect {
            parts.next_hop = NextHopMode::Reflect { gateways: [Mac(ROUTER)].into(), tagging: Box::default() };
        }
        if self.tunnels {
            parts.tunnels = vec![crate::tunnels::from("198.51.100.7", TunnelSourceKind::UpstreamTunnel)];
        }
        let receivers = PrefixSet::new([(ip("198.18.0.9"), 32)]);
        let trace = Trace { key: TraceKey::derive(&parts.hash_key), receivers, per_second: 5 };
        Snapshot::new(parts).unwrap().with_trace(self.traced.then_some(trace))
    }

    /// Returns a service that selects the backend by request key.
    fn keyed(&self, all: &Arc<PoolTable>) -> Service {
        let rules = KeyRules {
            application: Box::new(Memcached::new(3)),
            clients: PrefixSet::new([(ip("198.51.100.0"), 29), (ip("2001:db8:1::"), 48)]),
            routes: Routes::build(&[], &[]).unwrap(),
            failover: KeyFailover::Next,
            hash: KeyRules::maglev_hash(&HashKey::new([5; 16])),
            failover_ttl: Some(10),
            path: KeyPath::Direct,
            gather: None,
            cache: None,
            replicas: None,
        };
        let placements = [Placement::Maglev { all: all.table.clone() }].into();
        let keyed = Keyed { rules: Arc::new(rules), pools: [].into(), placements };
        Service { keyed: Some(Arc::new(keyed)), guard: self.guard(), ..service(3, HashPolicy::Key, all) }
    }

    fn guard(&self) -> Option<Arc<Guard>> {
        let list = |prefixes: &[(&str, u8)]| {
            Some(Arc::new(PrefixSet::new(prefixes.iter().map(|(address, length)| (ip(address), *length)))))
        };
        let rate = NonZeroU32::new(20);
        let guard = match self.guard {
            0 => Guard { deny: list(&[("198.51.100.4", 30), ("2001:db8:1::4", 126)]), ..Guard::default() },
            1 => Guard { allow: list(&[("198.51.100.0", 29)]), ..Guard::default() },
            2 => Guard { new_flows_per_second: rate, ..Guard::default() },
            _ => return None,
        };
        Some(Arc::new(guard))
    }
}

/// A frame to send, the size of its headroom, and its origin.
type Sent = (Vec<u8>, usize, Origin);

fn sent() -> impl Strategy<Value = Sent> {
    let source = (0..10_u8, any::<bool>());
    let ports = (
        select(vec![80_u16, 80, 80, 80, 443, 81, 8001, 8012, 8024]),
        select(vec![443_u16, 443, 53, 53, 81, 6080, PORT, PORT, PORT]),
    );
    let flags = select(vec!["S", "A", "A", "A", "FA", "R", "SA", ""]);
    let shape = (0..3_u8, select(vec![0_u8, 0, 1, 2]), select(vec![64_u8, 64, 64, 2, 1, 0]), any::<u8>());
    let rare = (
        prop::option::weighted(0.08, (12..70_usize, any::<u8>())),
        prop::option::weighted(0.05, 0..70_usize),
        0..40_u8,
    );
    let head = select(vec![24_usize, 24, 24, 0, 20, 32, 44, 52, 40]);
    (source, ports, flags, shape, rare, head).prop_map(
        |((host, v6), (tcp_port, udp_port), flags, (protocol, tags, ttl, tos), (flip, cut, odd), head)| {
            let vip = match (v6, odd) {
                (true, 0) => "::ffff:203.0.113.10",
                (true, _) => VIP6,
                (false, 1) => "198.51.100.129",
                (false, _) => VIP4,
            };
            let source = if v6 { format!("2001:db8:1::{host}") } else { format!("198.51.100.{host}") };
            // The source is a VIP, as if two services replied to each other.
            let source = match odd {
                2 => vip.to_owned(),
                // The source is martian or a link-local address.
                8 if v6 => if host % 2 == 0 { "::1" } else { "fe80::7" }.to_owned(),
                8 => if host % 2 == 0 { "127.0.0.1" } else { "240.0.0.1" }.to_owned(),
                _ => source,
            };
            let from = 4000 + u16::from(host);
            let mut frame = match protocol {
                0 if udp_port == PORT => udp(&source, from, vip, udp_port, &request(host, tos)),
                0 => udp(
                    &source,
                    from,
                    vip,
                    udp_port,
                    if odd == 3 { b"\x8d\xf1SLUICE and more than that" } else { b"query" },
                ),
                _ => tcp(&source, from, vip, tcp_port, flags),
            };
            set_fields(&mut frame, v6, ttl, tos);
            for id in 0..tags {
                frame = tagged(&frame, if id == 0 { 0x8100 } else { 0x88a8 }, 5 + u16::from(id));
            }
            // The packet is a fragment, a packet with padding, or a tunnel packet to this machine.
            match odd {
                7 if tags == 0 => {
                    let kind = Encapsulation::Gue { udp_checksum: false };
                    frame = crate::tunnels::wrapped(&frame, kind, ("198.51.100.7", "192.0.2.1"), 0);
                }
                4 if !v6 && tags == 0 => frame[20] |= 0x20,
                5 => frame.extend([0; 7]),
                _ => {}
            }
            if let Some((at, value)) = flip
                && let Some(byte) = frame.get_mut(at)
            {
                *byte = value;
            }
            if let Some(cut) = cut {
                frame.truncate(cut);
            }
            let steered = HandoffReason::Steered { decapsulated_from: None };
            (frame, head, if odd == 6 { Origin::Thread(ThreadId(0), steered) } else { Origin::Wire })
        },
    )
}

/// Returns a read, a write, a command for several keys, or an invalid request.
fn request(key: u8, kind: u8) -> Vec<u8> {
    let command = match kind % 8 {
        0 => format!("set key{key} 0 0 2\r\nab\r\n"),
        1 => format!("delete key{key}\r\n"),
        2 => format!("get key{key} key{}\r\n", key + 1),
        3 => "version\r\n".into(),
        4 => "flush_all\r\n".into(),
        _ => format!("get key{key}\r\n"),
    };
    framed(command.as_bytes())
}

fn set_fields(frame: &mut Vec<u8>, v6: bool, ttl: u8, tos: u8) {
    if v6 {
        frame[21] = ttl;
        (frame[14], frame[15]) = (0x60 | tos >> 4, tos << 4);
    } else {
        frame[15] = tos;
        *frame = with_ttl(std::mem::take(frame), ttl);
    }
}

/// One of the two pipelines that are compared.
struct Side {
    bed: Bed,
}

impl Side {
    fn new(snapshot: &Snapshot, has_fast_path: bool) -> Self {
        let mut bed = Bed::with(parts(gre_slots(1), &[1]), PipelineConfig { flows: 128, ..config() });
        bed.live.publish(snapshot.clone());
        if !has_fast_path {
            bed.pipeline = bed.pipeline.without_fast_path();
        }
        Self { bed }
    }

    fn run(&mut self, sent: &[Sent], now: Now) -> Vec<(Verdict, InterfaceId, Vec<u8>)> {
        self.bed.now = now;
        let mut buffers: Vec<Vec<u8>> = sent
            .iter()
            .map(|(frame, head, _)| {
                let mut buffer = vec![0xee; ROOM];
                buffer[*head..head + frame.len()].copy_from_slice(frame);
                buffer
            })
            .collect();
        let mut packets: Vec<Packet<'_>> = buffers
            .iter_mut()
            .zip(sent)
            .map(|(buffer, (frame, head, origin))| Packet::new(buffer, *head, head + frame.len(), *origin))
            .collect();
        let mut verdicts = vec![Verdict::Reply; packets.len()];
        self.bed.pipeline.process(now, &mut packets, &mut verdicts);
        let seen = packets.iter().zip(verdicts);
        // The content of a dropped frame is undefined.
        seen.map(|(packet, verdict)| {
            let frame =
                if matches!(verdict, Verdict::Drop(_)) { Vec::new() } else { packet.frame().to_vec() };
            (verdict, packet.interface(), frame)
        })
        .collect()
    }

    /// Returns the fast-path counter, and all other counters as text.
    fn counters(&mut self) -> (String, u64) {
        self.bed.poll();
        let plain = self.bed.counters.fast_path.read();
        let all = format!("{:?}", self.bed.counters);
        (all.replace(&format!("fast_path: {:?}", self.bed.counters.fast_path), ""), plain)
    }
}

/// Runs the same batches through both pipelines and compares the results. Returns the number of
/// packets on the fast path.
fn compare(worlds: &[World], batches: &[(Vec<Sent>, u64)]) -> Result<u64, TestCaseError> {
    let first = worlds[0].snapshot();
    let (mut plain, mut general) = (Side::new(&first, true), Side::new(&first, false));
    let mut now = Now::from_nanos(1_000_000_000);
    for (number, (sent, passed)) in batches.iter().enumerate() {
        let snapshot = worlds[number % worlds.len()].snapshot();
        plain.bed.live.publish(snapshot.clone());
        general.bed.live.publish(snapshot);
        now = Now::from_nanos(now.nanos() + passed * 1_000_000);
        let (found, expected) = (plain.run(sent, now), general.run(sent, now));
        for ((found, expected), sent) in found.iter().zip(&expected).zip(sent) {
            prop_assert_eq!(found, expected, "{:x?}", sent);
        }
        prop_assert_eq!(plain.counters().0, general.counters().0);
    }
    prop_assert_eq!(general.counters().1, 0, "only the general path was used");
    Ok(plain.counters().1)
}

fn history() -> impl Strategy<Value = (Vec<World>, Vec<(Vec<Sent>, u64)>)> {
    let passed = select(vec![0_u64, 1, 250, 1_000, 20_000, 100_000]);
    let batches = prop::collection::vec((prop::collection::vec(sent(), 1..80), passed), 1..6);
    (prop::collection::vec(world(), 1..3), batches)
}

// Promise: fast-path-equality
/// More than a quarter of the packets must take the fast path. Otherwise, the comparison would not
/// be meaningful.
#[test]
fn both_paths_do_the_same_with_any_traffic() {
    let cases = if std::env::var_os("SLUICEGATE_LONG").is_some() { 20_000 } else { 400 };
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    });
    let (plain, all) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let run = runner.run(&history(), |(worlds, batches)| {
        plain.set(plain.get() + compare(&worlds, &batches)?);
        all.set(all.get() + batches.iter().map(|(sent, _)| sent.len() as u64).sum::<u64>());
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    println!("{} of {} packets on the fast path", plain.get(), all.get());
    assert!(plain.get() * 4 > all.get(), "{} of {} packets on the fast path", plain.get(), all.get());
}

/// A SYN that reuses a 5-tuple can move the flow to another backend. Later packets of the same
/// batch must follow the flow.
#[test]
fn reused_five_tuple_moves_later_packets_of_its_batch() {
    let snapshot = |states: [SlotState; 2], is_redirect: bool| {
        let mut slots = gre_slots(2);
        if is_redirect && let Forwarding::Tunnel { v4, v6 } = &mut slots[1].forwarding {
            for template in [v4, v6] {
                *template = (*template).with_recursion(1);
            }
        }
        Snapshot::new(Parts { states: states.into(), ..parts(slots, &[1; 2]) }).unwrap()
    };
    for (state, is_redirect) in [(SlotState::Draining, false), (SlotState::Serving, true)] {
        let first = snapshot([SlotState::Down, SlotState::Serving], is_redirect);
        let (mut plain, mut general) = (Side::new(&first, true), Side::new(&first, false));
        let mut now = Now::from_nanos(1_000_000_000);
        let packets = |flags: &[&str]| -> Vec<Sent> {
            let flow = |port| {
                let packet =
                    move |flags: &&str| (tcp("198.51.100.7", port, VIP4, 80, flags), 24, Origin::Wire);
                flags.iter().map(packet)
            };
            (4000..4020).flat_map(flow).collect()
        };
        for flags in ["S", "A", "A"] {
            now = Now::from_nanos(now.nanos() + 300_000_000);
            assert_eq!(plain.run(&packets(&[flags]), now), general.run(&packets(&[flags]), now));
        }
        for side in [&plain, &general] {
            side.bed.live.publish(snapshot([SlotState::Serving, state], is_redirect));
        }
        let reused = packets(&["FA", "S", "A"]);
        let (found, expected) = (plain.run(&reused, now), general.run(&reused, now));
        assert_eq!(found, expected, "{state:?}");
        let sent_to = |(_, _, frame): &(Verdict, InterfaceId, Vec<u8>)| frame[14 + 19];
        let moved = expected.chunks(3).filter(|flow| sent_to(&flow[0]) != sent_to(&flow[2])).count();
        assert!(moved > 0, "{state:?}: no flow has moved");
        assert_eq!(plain.counters().0, general.counters().0, "{state:?}");
    }
}
