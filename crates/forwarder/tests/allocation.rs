//! Checks with a counting allocator that the pipeline does not allocate or free memory. The cases
//! are packets, new flows, published snapshots and control-plane requests. These tests are a
//! separate program, because the allocator counts the allocations of all threads in the process.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests panic on unexpected values")]

use std::alloc::System;
use std::num::NonZeroU32;
use std::sync::Arc;

use forwarder::*;
use kv_switch::{Ack, CacheConfig, Epochs, Late, Lease, Memcached, Routes};
use sip_lanes::LaneHashers;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use crate::bed::*;

#[expect(dead_code, reason = "other tests use the remaining items")]
#[path = "it/bed.rs"]
mod bed;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Adds source lists and limits that cause some of the packets to be refused.
fn guard_all(parts: &mut Parts) {
    let guard = Guard {
        deny: Some(Arc::new(PrefixSet::new([(ip("198.51.100.9"), 32), (ip("2001:db8:1::"), 48)]))),
        new_flows_per_second: NonZeroU32::new(500),
        per_source: NonZeroU32::new(300).map(|new_flows_per_second| SourceLimit {
            new_flows_per_second,
            v4_prefix: 32,
            v6_prefix: 64,
        }),
        ..Guard::default()
    };
    let guard = Arc::new(guard);
    parts.services.iter_mut().for_each(|service| service.guard = Some(Arc::clone(&guard)));
}

/// Returns a packet with a valid trace mark.
fn marked(key: &TraceKey, port: u16) -> Vec<u8> {
    let flow = Flow::new((ip("198.51.100.8"), port), (ip(VIP4), 443), 17).unwrap();
    let mark = Mark { receiver: "198.18.0.9:9".parse().unwrap(), unix_seconds: 0, trace: 1, probe: 2 };
    udp("198.51.100.8", port, VIP4, 443, &mark.sign(key, &flow))
}

fn steering_allocates_and_frees_nothing() {
    let mut parts = parts(gre_slots(3), &[1, 1, 1]);
    parts.tunnels = vec![TunnelSource {
        prefix: Prefix::new(ip("198.51.100.0"), 24).unwrap(),
        carriers: TunnelProtocols::GRE,
        kind: TunnelSourceKind::UpstreamTunnel,
    }];
    let live = Live::new(Snapshot::new(parts).unwrap());
    let config =
        SteeringConfig { threads: 3, max_batch: 64, hashers: LaneHashers::PORTABLE, source_ports: None };
    let mut steering = SoftwareSteering::new(config, &live, Arc::new(ThreadCounters::new(0, 0)));
    let frames: Vec<Vec<u8>> = (0..64u16)
        .map(|n| match n % 4 {
            0 => tcp("198.51.100.7", n, VIP4, 80, "S"),
            1 => udp("2001:db8:1::7", n, VIP6, 443, b"x"),
            2 => udp("198.51.100.7", n, VIP4, 6080, &[0, 4, 0, 0]),
            _ => vec![0; usize::from(n)],
        })
        .collect();
    let mut buffers = frames.clone();
    let mut left = buffers.iter_mut();
    let mut packets: [Packet<'_>; 64] =
        std::array::from_fn(|n| Packet::new(left.next().unwrap(), 0, frames[n].len(), Origin::Wire));
    let mut verdicts = [Verdict::Tx; 64];
    let region = Region::new(ALLOCATOR);
    for _ in 0..100 {
        steering.process(Now::from_nanos(1), &mut packets, &mut verdicts);
    }
    let change = region.change();
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::ToThread(..))));
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
}

/// Returns a configuration with a keyed pool of three backends, at UDP port 11211 of the first VIP.
fn keyed(path: KeyPath, cache: Option<CacheRules>) -> Parts {
    keyed_on(path, cache, None)
}

fn keyed_on(path: KeyPath, cache: Option<CacheRules>, replicas: Option<ReplicaRules>) -> Parts {
    let mut slots = gre_slots(3);
    if path != KeyPath::Direct {
        slots.iter_mut().for_each(|slot| slot.forwarding = Forwarding::L2);
    }
    let mut parts = parts(slots.clone(), &[1; 3]);
    let rules = KeyRules {
        application: Box::new(Memcached::new(32)),
        clients: PrefixSet::new([(ip("198.51.100.0"), 24)]),
        hash: KeyRules::maglev_hash(&HashKey::new([5; 16])),
        routes: Routes::build(&[], &[]).unwrap(),
        failover: KeyFailover::Next,
        failover_ttl: Some(10),
        path,
        gather: Some(GatherRules { timeout: 4, late: Late::Fails }),
        cache,
        replicas,
    };
    let pool = pool(&slots, &[1; 3]);
    let placements = [Placement::Maglev { all: pool.table.clone() }].into();
    let keyed = Some(Arc::new(Keyed { rules: Arc::new(rules), pools: [].into(), placements }));
    parts.services = vec![Service { keyed, ..service(0, HashPolicy::Key, &pool) }];
    parts.bindings = vec![binding(VIP4, 17, 11_211..=11_211, 0)];
    parts
}

/// The packets that the pipeline originated.
struct Sent {
    frames: [([u8; ROOM], usize); 8],
    count: usize,
}

impl Outlet for Sent {
    fn originate(&mut self, build: &mut dyn FnMut(&mut Packet<'_>) -> bool) -> Result<(), NotSent> {
        let (bytes, end) = self.frames.get_mut(self.count).ok_or(NotSent::NoFrame)?;
        let mut packet = Packet::new(bytes, 0, ROOM, Origin::Wire);
        if !build(&mut packet) {
            return Err(NotSent::NotBuilt);
        }
        let bounds = packet.bounds();
        *end = bounds.len();
        bytes.copy_within(bounds, 0);
        self.count += 1;
        Ok(())
    }

    fn free_frames(&self) -> usize {
        self.frames.len() - self.count
    }

    fn release(&mut self, _: HoldSlot, _: &mut dyn FnMut(&mut Packet<'_>) -> Verdict) {}

    fn split(&mut self, _: HoldSlot, _: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> FragmentStep) {}
}

/// Writes a backend's reply to a fetch: the value `hi`, or a miss. Returns the length of the frame.
fn answer(asked: &[u8], has_it: bool, out: &mut [u8; ROOM]) -> usize {
    let line = &asked[UDP + 16..];
    let key = line[3..].split(|byte| *byte == b' ').next().unwrap();
    let nonce = line.windows(2).position(|pair| pair == b" O").unwrap();
    let nonce = &line[nonce..nonce + 18];
    let [status, flags, value]: [&[u8]; 3] =
        if has_it { [b"VA 2 k", b" t-1 c3 f7", b"hi\r\n"] } else { [b"EN k", b"", b""] };
    answer_of(asked, &[status, key, flags, nonce, b"\r\n", value], out)
}

/// Writes a backend's reply from the VIP to an upstream request. Returns the length of the frame.
fn answer_of(asked: &[u8], parts: &[&[u8]], out: &mut [u8; ROOM]) -> usize {
    let udp = &asked[UDP..];
    let port = u16::from_be_bytes([udp[0], udp[1]]);
    let frame = [&udp[8..10], &[0, 0, 0, 1, 0, 0]];
    let mut end = 42;
    for part in frame.iter().chain(parts) {
        out[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    out[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    let (from, to) = ((ip(VIP4), 11_211).into(), (ip("192.0.2.1"), port).into());
    assert!(packet::write_udp(&mut out[14..end], from, to));
    end
}

/// The offset of the inner UDP header in an upstream request. The preceding headers are Ethernet,
/// GRE over IPv4, and the inner IPv4 header.
const UDP: usize = 14 + 24 + 20;

fn asking() -> PipelineConfig {
    let ports = SourcePorts::new(&(61_000..=61_003), 1).unwrap();
    PipelineConfig {
        upstream_requests: Some(UpstreamRequests {
            ports,
            requests: 8,
            passing: 8,
            fetches: 0,
            writes: 8,
            seed: [1, 2],
        }),
        ..config()
    }
}

/// Proxies requests. Two of three requests receive a reply, and the others time out.
fn passing_through_allocates_and_frees_nothing() {
    let mut bed = Bed::with(keyed(KeyPath::Through { timeout: 4 }, None), asking());
    let get = udp("198.51.100.7", 40_000, VIP4, 11_211, b"\0\x01\0\0\0\x01\0\0get key\r\n");
    let mut sent = Sent { frames: [([0; ROOM], 0); 8], count: 0 };
    let (mut buffer, mut verdicts) = ([0; ROOM], [Verdict::Tx]);
    let region = Region::new(ALLOCATOR);
    for round in 0..300 {
        bed.now = Now::from_nanos(bed.now.nanos() + 30_000_000);
        bed.pipeline.poll(bed.now, &mut sent);
        buffer[..get.len()].copy_from_slice(&get);
        let mut packets = [Packet::new(&mut buffer, 0, get.len(), Origin::Wire)];
        bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
        assert_eq!(verdicts, [Verdict::Tx]);
        if round % 3 > 0 {
            // The reply is the request with source and destination swapped.
            let ([source, destination], udp) = (buffer[26..34].as_chunks::<4>().0, &buffer[34..38]) else {
                unreachable!("two addresses")
            };
            let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
            let (from, to) = ((*destination, port(2)).into(), (*source, port(0)).into());
            assert!(packet::write_udp(&mut buffer[14..get.len()], from, to));
            let mut packets = [Packet::new(&mut buffer, 0, get.len(), Origin::Wire)];
            bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
            assert_eq!(verdicts, [Verdict::Tx], "{round}");
        }
    }
    bed.now = Now::from_nanos(bed.now.nanos() + 30_000_000);
    bed.pipeline.poll(bed.now, &mut sent);
    let change = region.change();
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
    let counters = [&bed.counters.proxied_answers, &bed.counters.proxied_unanswered].map(Counter::read);
    assert_eq!(counters, [200, 100]);
}

fn gathering_allocates_and_frees_nothing() {
    let bed = || Bed::with(keyed(KeyPath::Direct, None), asking());
    let get = |other: usize| {
        let command = format!("\0\x01\0\0\0\x01\0\0get key0 key{other}\r\n");
        udp("198.51.100.7", 40_000, VIP4, 11_211, command.as_bytes())
    };
    // The frame requests two keys that are stored on different backends.
    let frame = (1..).map(get).find(|frame| bed().send(0, frame).0 == Verdict::Taken).unwrap();
    let mut bed = bed();
    let mut sent = Sent { frames: [([0; ROOM], 0); 8], count: 0 };
    let (mut buffer, mut verdicts) = ([0; ROOM], [Verdict::Tx]);
    let region = Region::new(ALLOCATOR);
    for round in 0..300 {
        sent.count = 0;
        bed.now = Now::from_nanos(bed.now.nanos() + 30_000_000);
        bed.pipeline.poll(bed.now, &mut sent);
        buffer[..frame.len()].copy_from_slice(&frame);
        let mut packets = [Packet::new(&mut buffer, 0, frame.len(), Origin::Wire)];
        bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
        assert_eq!(verdicts, [Verdict::Taken]);
        bed.pipeline.poll(bed.now, &mut sent);
        assert_eq!(sent.count, 2);
        // Every third request receives only one of its two replies and times out.
        for place in 0..if round % 3 == 0 { 1 } else { 2 } {
            let (bytes, end) = &sent.frames[place];
            let end = answer(&bytes[..*end], false, &mut buffer);
            let mut packets = [Packet::new(&mut buffer, 0, end, Origin::Wire)];
            bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
            assert_eq!(verdicts, [Verdict::Taken], "{round}");
        }
        bed.pipeline.poll(bed.now, &mut sent);
    }
    let change = region.change();
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
    assert_eq!(bed.counters.gathers_begun.read(), 300);
    let ended = [&bed.counters.gathers_answered, &bed.counters.gathers_timed_out].map(Counter::read);
    assert_eq!(ended, [200, 100]);
}

/// Processes a frame. Returns the verdict and the position of the resulting frame in the buffer.
fn take(bed: &mut Bed, buffer: &mut [u8; ROOM], frame: &[u8]) -> (Verdict, std::ops::Range<usize>) {
    let mut verdicts = [Verdict::Tx];
    buffer[..frame.len()].copy_from_slice(frame);
    let mut packets = [Packet::new(buffer, 0, frame.len(), Origin::Wire)];
    bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
    (verdicts[0], packets[0].bounds())
}

/// Sends writes to two replicas, reads, and requests that are not supported with replicas. Every
/// third write receives only one of its two replies.
fn writing_to_replicas_allocates_and_frees_nothing() {
    let rules = ReplicaRules { count: 2, ack: Ack::All, timeout: 4 };
    let mut bed = Bed::with(keyed_on(KeyPath::Direct, None, Some(rules)), asking());
    let [set, get, incr] = [
        &b"\0\x01\0\0\0\x01\0\0set key 0 0 1\r\nx\r\n"[..],
        b"\0\x01\0\0\0\x01\0\0get key\r\n",
        b"\0\x01\0\0\0\x01\0\0incr key 1\r\n",
    ]
    .map(|payload| udp("198.51.100.7", 40_000, VIP4, 11_211, payload));
    let mut sent = Sent { frames: [([0; ROOM], 0); 8], count: 0 };
    let mut buffer = [0; ROOM];
    let region = Region::new(ALLOCATOR);
    for round in 0..300 {
        sent.count = 0;
        bed.now = Now::from_nanos(bed.now.nanos() + 30_000_000);
        bed.pipeline.poll(bed.now, &mut sent);
        assert_eq!(take(&mut bed, &mut buffer, &get).0, Verdict::Tx);
        assert_eq!(take(&mut bed, &mut buffer, &incr).0, Verdict::Reply);
        assert_eq!(take(&mut bed, &mut buffer, &set).0, Verdict::Taken);
        bed.pipeline.poll(bed.now, &mut sent);
        assert_eq!(sent.count, 2);
        for place in 0..if round % 3 == 0 { 1 } else { 2 } {
            let (asked, end) = &sent.frames[place];
            let mut answer = [0; ROOM];
            let end = outcome(&asked[..*end], &mut answer);
            assert_eq!(take(&mut bed, &mut buffer, &answer[..end]).0, Verdict::Taken, "{round}");
        }
        bed.pipeline.poll(bed.now, &mut sent);
    }
    bed.now = Now::from_nanos(bed.now.nanos() + 30_000_000);
    bed.pipeline.poll(bed.now, &mut sent);
    let change = region.change();
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
    let ended = [&bed.counters.replicas_acknowledged, &bed.counters.replicas_unanswered].map(Counter::read);
    assert_eq!(ended, [200, 100]);
}

/// Writes a backend's success reply to a write. Returns the length of the frame.
fn outcome(asked: &[u8], out: &mut [u8; ROOM]) -> usize {
    let udp = &asked[UDP..];
    let nonce = udp.windows(2).position(|pair| pair == b" O").unwrap();
    answer_of(asked, &[b"HD", &udp[nonce..nonce + 18], b"\r\n"], out)
}

/// Repeatedly fetches a value, serves it from the cache, and writes it.
fn answering_from_copies_allocates_and_frees_nothing(strict: bool) {
    let (epochs, hash) = (Arc::new(Epochs::new()), KeyRules::maglev_hash(&HashKey::new([5; 16])));
    let rules = CacheRules {
        memory: 100_000,
        lease: Lease::from_nanos(10_000_000),
        fills_per_server: 8,
        source_bytes: 1 << 20,
        strict,
        hash,
        is_own_hash: true,
        epochs: Arc::clone(&epochs),
    };
    let bed = Bed::with(keyed(KeyPath::Direct, Some(rules)), asking());
    let cache = Box::new(ValueCache::new(&CacheConfig {
        memory: 100_000,
        epochs,
        seed: [1, 2],
        advise: |_| {},
        sum: packet::checksum::folded_sum,
    }));
    let mut bed = Bed { pipeline: bed.pipeline.with_cache(cache), ..bed };
    let [get, set] = [&b"\0\x01\0\0\0\x01\0\0get key\r\n"[..], b"\0\x01\0\0\0\x01\0\0set key 0 0 1\r\nx\r\n"]
        .map(|payload| udp("198.51.100.7", 40_000, VIP4, 11_211, payload));
    let mut sent = Sent { frames: [([0; ROOM], 0); 8], count: 0 };
    let mut buffer = [0; ROOM];
    let region = Region::new(ALLOCATOR);
    for _ in 0..100 {
        bed.now = Now::from_nanos(bed.now.nanos() + 2_000_000_000);
        sent.count = 0;
        while sent.count == 0 {
            assert_eq!(take(&mut bed, &mut buffer, &get).0, Verdict::Tx);
            bed.pipeline.poll(bed.now, &mut sent);
        }
        let (bytes, end) = &sent.frames[0];
        let mut said = [0; ROOM];
        let end = answer(&bytes[..*end], true, &mut said);
        assert_eq!(take(&mut bed, &mut buffer, &said[..end]).0, Verdict::Taken);
        assert_eq!(take(&mut bed, &mut buffer, &get).0, Verdict::Reply);
        let (verdict, at) = take(&mut bed, &mut buffer, &set);
        assert_eq!(verdict, Verdict::Tx);
        if strict {
            let end = answer_of(&buffer[at], &[b"STORED\r\n"], &mut said);
            assert_eq!(take(&mut bed, &mut buffer, &said[..end]).0, Verdict::Tx);
        }
        assert_eq!(take(&mut bed, &mut buffer, &get).0, Verdict::Tx);
    }
    assert_eq!(bed.counters.proxied_answers.read(), if strict { 100 } else { 0 });
    let change = region.change();
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
}

/// Returns an IPv4 frame from a client to the first VIP, with this protocol and payload.
fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let step = etherparse::PacketBuilder::ethernet2(ROUTER, OURS).ipv4(source, destination, 64);
    step.write(&mut frame, protocol.into(), payload).unwrap();
    frame
}

/// Turns a UDP packet into a fragment that starts at this offset, in units of 8 bytes.
fn fragment(mut frame: Vec<u8>, offset: u8, has_more: bool) -> Vec<u8> {
    frame[14 + 6..14 + 8].copy_from_slice(&[if has_more { 0x20 } else { 0 }, offset]);
    with_ttl(frame, 64) // updates the header checksum
}

/// Processes packets that need the slow path: pings, ICMP errors in both directions, fragments and
/// tunneled packets.
fn slow_path_allocates_and_frees_nothing() {
    let (client, vip) = ([198, 51, 100, 7], [203, 0, 113, 10]);
    let mut parts = parts(gre_slots(3), &[1, 1, 1]);
    parts.tunnels = vec![TunnelSource {
        prefix: Prefix::new(ip("192.0.2.77"), 32).unwrap(),
        carriers: TunnelProtocols::GRE,
        kind: TunnelSourceKind::UpstreamTunnel,
    }];
    let icmp =
        IcmpRates { replies: 9_999, replies_per_source: 9_999, errors: 9_999, errors_per_source: 9_999 };
    let mut bed = Bed::with(parts, PipelineConfig { icmp, ..config() });
    let request = tcp("198.51.100.7", 9, VIP4, 80, "S");
    let mut quote = ipv4(vip, client, 6, &request[34..])[14..].to_vec();
    quote[20..24].rotate_left(2); // swaps the ports
    let mut ping = vec![8, 0, 0, 0, 0, 1, 0, 1];
    let sum = packet::checksum::Sum::new().add_bytes(&ping).finish();
    ping[2..4].copy_from_slice(&sum.to_be_bytes());
    let datagram = udp("198.51.100.7", 9, VIP4, 443, &[7; 64]);
    let frames = [
        (Verdict::Reply, ipv4(client, vip, 1, &ping)),
        (Verdict::Reply, with_ttl(request.clone(), 1)),
        (Verdict::Reply, udp("198.51.100.7", 9, VIP4, 443, &[7; 1_460])),
        (Verdict::Tx, ipv4([192, 0, 2, 254], vip, 1, &[&[3, 1, 0, 0, 0, 0, 0, 0], &quote[..]].concat())),
        (Verdict::Tx, fragment(datagram.clone(), 0, true)),
        (Verdict::Tx, fragment(datagram, 9, false)),
        (Verdict::Tx, ipv4([192, 0, 2, 77], [192, 0, 2, 1], 47, &[&[0, 0, 8, 0], &request[14..]].concat())),
    ];
    let (mut buffer, mut sent) = ([0; ROOM], Sent { frames: [([0; ROOM], 0); 8], count: 0 });
    let region = Region::new(ALLOCATOR);
    for _ in 0..100 {
        for (expected, frame) in &frames {
            assert_eq!(take(&mut bed, &mut buffer, frame).0, *expected, "{frame:02x?}");
        }
        bed.pipeline.poll(bed.now, &mut sent);
    }
    let change = region.change();
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
    assert_eq!(bed.counters.decapsulated.read(), 100);
}

// Promise: no-allocation
#[test]
fn a_running_pipeline_allocates_and_frees_nothing() {
    let slots = gre_slots(3);
    let mut parts = parts(slots, &[1, 1, 1]);
    guard_all(&mut parts);
    let key = TraceKey::derive(&parts.hash_key);
    let (sink, _notices) = notice_ring(16);
    let mut bed = Bed::with_flows(parts, 1024).with_notices(sink);
    let receivers = PrefixSet::new([(ip("198.18.0.9"), 32)]);
    let traced =
        bed.live.current().as_ref().clone().with_trace(Some(Trace { key, receivers, per_second: 20 }));
    bed.live.publish(traced);
    let mut buffers: Vec<Vec<u8>> = vec![vec![0; ROOM]; 64];
    let frames: Vec<Vec<u8>> = (0..4096u16)
        .map(|n| match n % 4 {
            0 => tcp("198.51.100.7", n, VIP4, 80, "S"),
            1 => udp("2001:db8:1::7", n, VIP6, 443, b"x"),
            2 if n % 8 == 2 => marked(&key, n),
            2 => udp("198.51.100.7", n, VIP4, 9, b"no such port"),
            _ => vec![0; usize::from(n % 60)],
        })
        .collect();
    let changed = vec![SlotState::Down, SlotState::Serving, SlotState::Serving];
    let next = bed.live.current().with_states(changed).unwrap();
    // The snapshot is published outside the measured region, and loaded by the pipeline inside it.
    bed.live.publish(next);
    let flow = Flow::new((ip("198.51.100.7"), 5), (ip(VIP4), 80), 6).unwrap();
    bed.port.ask(Request::Where(flow)).unwrap();
    let list =
        Request::List { filter: FlowFilter::All, from: Default::default(), buffer: Vec::with_capacity(512) };
    bed.port.ask(list).unwrap();
    bed.port.ask(Request::Count { from: Default::default(), buffer: Vec::with_capacity(512) }).unwrap();
    // The tap has fewer records than the number of captured packets. The tap is removed inside the
    // measured region and freed outside.
    let size = TapSize { snap: 256, records: 100, batch: 64 };
    let (tap, mut catch) = capture_tap(CaptureFilter::default(), size);
    bed.port.ask(Request::Capture(Some(tap))).unwrap();
    let mut verdicts = [Verdict::Tx; 64];
    let mut caught = Vec::with_capacity(200);
    let region = Region::new(ALLOCATOR);
    for (number, batch) in frames.chunks(64).enumerate() {
        let mut left = buffers.iter_mut().zip(batch);
        let mut packets: [Packet<'_>; 64] = std::array::from_fn(|_| {
            let (buffer, frame) = left.next().unwrap();
            buffer[24..24 + frame.len()].copy_from_slice(frame);
            Packet::new(buffer, 24, 24 + frame.len(), Origin::Wire)
        });
        bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
        bed.poll();
        if number == 30 {
            for _ in 0..50 {
                catch.pop().into_iter().for_each(|record| catch.give_back(record));
            }
        }
        if number == 40 {
            caught.extend(std::iter::from_fn(|| catch.pop()));
            bed.port.ask(Request::Capture(None)).unwrap();
        }
    }
    let change = region.change();
    let refused =
        [DropReason::Denied, DropReason::SourceFlowRate].map(|reason| bed.counters.drops(reason) > 0);
    assert_eq!(refused, [true, true], "lists and limits refused packets");
    let refused =
        [TraceRefusal::Rate, TraceRefusal::RingFull].map(|why| bed.counters.trace_refusals(why) > 0);
    assert_eq!(
        (bed.counters.trace_reports.read(), refused),
        (16, [true, true]),
        "the tracer reported packets"
    );
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
    let served = [bed.port.answer(), bed.port.answer(), bed.port.answer()];
    assert!(served.iter().all(Option::is_some), "all requests were served in the measured region");
    let home = [bed.port.answer(), bed.port.answer()];
    assert!(matches!(home, [Some(Reply::Capture(None)), Some(Reply::Capture(Some(_)))]), "{home:?}");
    assert_eq!((caught.len(), bed.counters.captured.read()), (100, 150));
    steering_allocates_and_frees_nothing();
    slow_path_allocates_and_frees_nothing();
    gathering_allocates_and_frees_nothing();
    [false, true].into_iter().for_each(answering_from_copies_allocates_and_frees_nothing);
    writing_to_replicas_allocates_and_frees_nothing();
    passing_through_allocates_and_frees_nothing();
    assert!(bed.counters.capture_lost.read() > 0, "the ring was full");
}
