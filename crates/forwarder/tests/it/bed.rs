//! The test fixture, which consists of a pipeline and a snapshot. Packets are built with
//! etherparse.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use etherparse::PacketBuilder;
use forwarder::*;
use maglev_hash::{Backend, Options, Seed};
use packet::{Encapsulation, Family, Mac, Outer, Template};
use sip_lanes::LaneHashers;

pub(crate) const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const HOP: [u8; 6] = [2, 0, 0, 0, 0, 3];
pub(crate) const VIP4: &str = "203.0.113.10";
pub(crate) const VIP6: &str = "2001:db8:f::10";
pub(crate) const ROOM: usize = 1792;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns the slot of a backend. The outer source address is 192.0.2.1 or 2001:db8::1.
pub(crate) fn slot(name: &str, address: &str, kind: Encapsulation) -> Slot {
    let outer = match ip(address) {
        IpAddr::V4(destination) => Outer::V4 { source: "192.0.2.1".parse().unwrap(), destination },
        IpAddr::V6(destination) => Outer::V6 { source: "2001:db8::1".parse().unwrap(), destination },
    };
    let forwarding = match kind {
        Encapsulation::L2 => Forwarding::L2,
        _ => Forwarding::Tunnel {
            v4: Template::new(kind, outer, Family::V4, true),
            v6: Template::new(kind, outer, Family::V6, true),
        },
    };
    Slot {
        backend: name.into(),
        address: ip(address),
        forwarding,
        next_hop: Some(NextHop::plain(Mac(HOP), Mac(OURS))),
        spread: None,
        mtu: 1500,
        too_big: TooBig::Drop,
    }
}

/// Returns a pool of the first slots, with the given weights.
pub(crate) fn pool(slots: &[Slot], weights: &[u32]) -> Arc<PoolTable> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| slots[*i].backend.clone());
    let backends: Vec<Backend<'_>> =
        order.iter().map(|i| Backend { name: slots[*i].backend.as_bytes(), weight: weights[*i] }).collect();
    let mut options = Options::new(Seed::new([7; 16]));
    options.size = 1_021;
    options.allow_coarse = true;
    Arc::new(PoolTable {
        name: "web".into(),
        table: maglev_hash::build(&backends, &options).ok().map(Arc::new),
        slots: order.iter().map(|i| SlotId(*i as u32)).collect(),
        weights: order.iter().map(|i| weights[*i]).collect(),
    })
}

pub(crate) fn service(id: u32, policy: HashPolicy, pool: &Arc<PoolTable>) -> Service {
    Service {
        id: ServiceId(id),
        name: format!("s{id}").into(),
        family: None,
        policy,
        pool: Arc::clone(pool),
        excluded_slots: Arc::default(),
        guard: None,
        remotes: None,
        keyed: None,
        fragments: true,
        rejects: Rejects::default(),
    }
}

pub(crate) fn binding(address: &str, protocol: u8, ports: RangeInclusive<u16>, service: usize) -> Binding {
    Binding { address: ip(address).into(), protocol, ports, service }
}

/// Returns a configuration with two VIPs. Each VIP has four services: TCP 80 and UDP 443 hashed by
/// 5-tuple, UDP 53 hashed by addresses, and protocol 132, whose ports are ignored.
pub(crate) fn parts(slots: Vec<Slot>, weights: &[u32]) -> Parts {
    let pool = pool(&slots, weights);
    let mut bindings = Vec::new();
    for vip in [VIP4, VIP6] {
        bindings.push(binding(vip, 6, 80..=80, 0));
        bindings.push(binding(vip, 17, 443..=443, 0));
        bindings.push(binding(vip, 17, 53..=53, 1));
        bindings.push(binding(vip, 47, 0..=65535, 2));
    }
    Parts {
        generation: Generation(1),
        hash_key: HashKey::new([5; 16]),
        services: vec![
            service(0, HashPolicy::FiveTuple, &pool),
            service(1, HashPolicy::Addresses, &pool),
            service(2, HashPolicy::FiveTuple, &pool),
        ],
        bindings,
        groups: Vec::new(),
        states: vec![SlotState::Serving; slots.len()],
        slots,
        next_hop: NextHopMode::Resolve,
        own: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        tunnels: Vec::new(),
        peers: None,
    }
}

pub(crate) fn gre_slots(count: usize) -> Vec<Slot> {
    (1..=count).map(|n| slot(&format!("b{n}"), &format!("198.18.1.{n}"), Encapsulation::Gre)).collect()
}

pub(crate) struct Bed {
    pub(crate) pipeline: Pipeline,
    pub(crate) held: Held,
    pub(crate) live: Live,
    pub(crate) counters: Arc<ThreadCounters>,
    pub(crate) port: RequestPort,
    pub(crate) now: Now,
}

/// A simulated driver with its held and originated frames.
#[derive(Default)]
pub(crate) struct Held {
    frames: HashMap<HoldSlot, (Vec<u8>, Range<usize>)>,
    pub(crate) out: Vec<(Verdict, Vec<u8>)>,
    /// The number of free frames that the pipeline can use for originated packets.
    pub(crate) free: usize,
    pub(crate) originated: Vec<(InterfaceId, Vec<u8>)>,
}

impl Outlet for Held {
    fn originate(&mut self, build: &mut dyn FnMut(&mut Packet<'_>) -> bool) -> Result<(), NotSent> {
        self.free = self.free.checked_sub(1).ok_or(NotSent::NoFrame)?;
        let mut buffer = vec![0xdd; ROOM];
        let mut packet = Packet::new(&mut buffer, 0, ROOM, Origin::Wire);
        if !build(&mut packet) {
            self.free += 1;
            return Err(NotSent::NotBuilt);
        }
        let (interface, bounds) = (packet.interface(), packet.bounds());
        self.originated.push((interface, buffer[bounds].to_vec()));
        Ok(())
    }

    fn free_frames(&self) -> usize {
        self.free
    }

    fn release(&mut self, slot: HoldSlot, decide: &mut dyn FnMut(&mut Packet<'_>) -> Verdict) {
        let Some((mut buffer, Range { start, end })) = self.frames.remove(&slot) else { return };
        let mut packet = Packet::new(&mut buffer, start, end, Origin::Wire);
        let verdict = decide(&mut packet);
        let bounds = packet.bounds();
        match verdict {
            Verdict::Hold(slot) => assert!(self.frames.insert(slot, (buffer, bounds)).is_none()),
            verdict => self.out.push((verdict, buffer[bounds].to_vec())),
        }
    }

    fn split(&mut self, slot: HoldSlot, carve: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> FragmentStep) {
        let Some((mut buffer, Range { start, end })) = self.frames.remove(&slot) else { return };
        let packet = Packet::new(&mut buffer, start, end, Origin::Wire);
        let mut room = vec![0xdd; ROOM];
        loop {
            match carve(&packet, &mut room) {
                FragmentStep::Of(length) => self.out.push((Verdict::Tx, room[..length].to_vec())),
                FragmentStep::Failed(reason) => return self.out.push((Verdict::Drop(reason), room)),
                FragmentStep::End => return,
            }
        }
    }
}

/// Returns a configuration with small limits, so that tests reach them.
pub(crate) fn config() -> PipelineConfig {
    PipelineConfig {
        thread: ThreadId(0),
        threads: 1,
        flows: 4096,
        timeouts: Timeouts::default(),
        max_batch: 256,
        icmp: IcmpRates { replies: 100, replies_per_source: 100, errors: 100, errors_per_source: 100 },
        limit_sources: 4096,
        fragments: FragmentConfig {
            buffered: 64,
            per_datagram: 8,
            per_source: 16,
            ..FragmentConfig::default()
        },
        held_of_a_pool: 64,
        hashers: LaneHashers::PORTABLE,
        upstream_requests: None,
        is_steered: false,
        advise: |_| {},
    }
}

impl Bed {
    pub(crate) fn new(parts: Parts) -> Self {
        Self::with_flows(parts, 4096)
    }

    pub(crate) fn with_flows(parts: Parts, flows: usize) -> Self {
        Self::with(parts, PipelineConfig { flows, ..config() })
    }

    pub(crate) fn with_notices(self, sink: NoticeSink) -> Self {
        Self { pipeline: self.pipeline.with_notices(sink), ..self }
    }

    pub(crate) fn with(parts: Parts, config: PipelineConfig) -> Self {
        let live = Live::new(Snapshot::new(parts).unwrap());
        let counters = Arc::new(ThreadCounters::new(64, 16));
        let (port, server) = request_ring(8);
        let pipeline = Pipeline::new(config, &live, Arc::clone(&counters), Some(server)).unwrap();
        let now = Now::from_nanos(1_000_000_000);
        Self { pipeline, held: Held::default(), live, counters, port, now }
    }

    /// Processes one packet with `head` bytes of headroom. Returns the verdict and the resulting
    /// frame.
    pub(crate) fn send(&mut self, head: usize, frame: &[u8]) -> (Verdict, Vec<u8>) {
        self.send_as(Origin::Wire, head, frame)
    }

    /// Processes one packet with the given origin. Returns the verdict and the resulting frame.
    pub(crate) fn send_as(&mut self, origin: Origin, head: usize, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let mut buffer = vec![0xee; ROOM];
        buffer[head..head + frame.len()].copy_from_slice(frame);
        let mut packets = [Packet::new(&mut buffer, head, head + frame.len(), origin)];
        let mut verdicts = [Verdict::Tx];
        self.pipeline.process(self.now, &mut packets, &mut verdicts);
        let bounds = packets[0].bounds();
        if let Verdict::Hold(slot) = verdicts[0] {
            let taken = self.held.frames.insert(slot, (buffer.clone(), bounds.clone()));
            assert!(taken.is_none(), "a hold slot is used once at a time");
        }
        (verdicts[0], buffer[bounds].to_vec())
    }

    pub(crate) fn poll(&mut self) {
        self.pipeline.poll(self.now, &mut self.held);
    }

    pub(crate) fn holding(&self) -> usize {
        self.held.frames.len()
    }

    /// Processes a frame and calls `poll`, without advancing the time. Returns the verdicts of the
    /// frame and of all released frames, each with the resulting frame.
    pub(crate) fn all(&mut self, frame: &[u8]) -> Vec<(Verdict, Vec<u8>)> {
        let first = self.send(24, frame);
        self.poll();
        let mut out = std::mem::take(&mut self.held.out);
        if !matches!(first.0, Verdict::Hold(_)) {
            out.insert(0, first);
        }
        out
    }

    pub(crate) fn advance(&mut self, seconds: u64) {
        self.now = Now::from_nanos(self.now.nanos() + seconds * 1_000_000_000);
    }

    /// Returns the number of the backend that a frame was sent to, which is the last byte of the
    /// outer destination. Returns `None` if the frame was not sent.
    pub(crate) fn backend_of(&mut self, frame: &[u8]) -> Option<u8> {
        match self.send(24, frame) {
            (Verdict::Tx, out) => Some(out[14 + 19]),
            _ => None,
        }
    }
}

pub(crate) fn tcp(source: &str, port: u16, vip: &str, vip_port: u16, flags: &str) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(ROUTER, OURS);
    let step = match (ip(source), ip(vip)) {
        (IpAddr::V4(s), IpAddr::V4(d)) => link.ipv4(s.octets(), d.octets(), 64),
        (IpAddr::V6(s), IpAddr::V6(d)) => link.ipv6(s.octets(), d.octets(), 64),
        _ => panic!("addresses of different families"),
    };
    let mut step = step.tcp(port, vip_port, 1000, 4096);
    for flag in flags.chars() {
        step = match flag {
            'S' => step.syn(),
            'A' => step.ack(2000),
            'F' => step.fin(),
            'R' => step.rst(),
            _ => panic!("unknown TCP flag"),
        };
    }
    let mut bytes = Vec::new();
    step.write(&mut bytes, b"payload").unwrap();
    bytes
}

pub(crate) fn udp(source: &str, port: u16, vip: &str, vip_port: u16, payload: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(ROUTER, OURS);
    let step = match (ip(source), ip(vip)) {
        (IpAddr::V4(s), IpAddr::V4(d)) => link.ipv4(s.octets(), d.octets(), 64),
        (IpAddr::V6(s), IpAddr::V6(d)) => link.ipv6(s.octets(), d.octets(), 64),
        _ => panic!("addresses of different families"),
    };
    let mut bytes = Vec::new();
    step.udp(port, vip_port).write(&mut bytes, payload).unwrap();
    bytes
}

/// Inserts a VLAN tag after the MAC addresses.
pub(crate) fn tagged(frame: &[u8], ethertype: u16, id: u16) -> Vec<u8> {
    let mut bytes = frame[..12].to_vec();
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend(&frame[12..]);
    bytes
}

/// Sets the TTL of an untagged IPv4 frame and updates the header checksum.
pub(crate) fn with_ttl(mut frame: Vec<u8>, ttl: u8) -> Vec<u8> {
    let (mut header, _) = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap();
    header.time_to_live = ttl;
    let mut written = Vec::new();
    header.write(&mut written).unwrap();
    frame[14..14 + written.len()].copy_from_slice(&written);
    frame
}
