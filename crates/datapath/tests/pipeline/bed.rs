//! Three engines with the real pipeline and backends of all kinds. The rings are small, so that the
//! test reaches their limits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use datapath::{CHUNK, XDP_HEADROOM};
use engine::{Engine, MemoryDevice, MemoryFrame, Pool, mesh};
use forwarder::{
    Binding, Forwarding, FragmentConfig, Generation, HashKey, HashPolicy, IcmpRates, Live, NextHop,
    NextHopMode, Parts, Pipeline, PipelineConfig, PoolTable, Prefix, Rejects, Remote, Service, ServiceId,
    Slot, SlotId, SlotState, Snapshot, SourcePorts, Tagging, ThreadCounters, ThreadId, Timeouts, TooBig,
    Translation, TunnelProtocols, TunnelSource, TunnelSourceKind, UpstreamRequests, notice_ring,
};
use maglev_hash::{Backend, Options, Seed};
use packet::{Encapsulation, Family, Mac, Outer, Tag, Tags, Template};

use crate::random::Random;

pub(crate) const THREADS: u16 = 3;
pub(crate) const FRAMES: usize = 124;
/// The VIPs of the test. The services of the first two VIPs accept fragments, and the services of
/// the last two VIPs do not.
pub(crate) const VIPS: [IpAddr; 4] = {
    let [four, six] = both([203, 0, 113, 10], [0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10]);
    let [whole_four, whole_six] = both([203, 0, 113, 11], [0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x11]);
    [four, six, whole_four, whole_six]
};
pub(crate) const OWN: [IpAddr; 2] = both([192, 0, 2, 1], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
pub(crate) const UPSTREAM_TUNNELS: [IpAddr; 2] = both([192, 0, 2, 77], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77]);
pub(crate) const CLUSTERS: [IpAddr; 2] = both([192, 0, 2, 88], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x88]);
pub(crate) const PEERS: [IpAddr; 2] = both([192, 0, 2, 3], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 3]);
pub(crate) const RING: usize = 64;
const BATCH: usize = 32;
const MAILBOX: usize = 16;

const fn both(v4: [u8; 4], v6: [u16; 8]) -> [IpAddr; 2] {
    let ([a, b, c, d], [s, t, u, v, w, x, y, z]) = (v4, v6);
    [IpAddr::V4(Ipv4Addr::new(a, b, c, d)), IpAddr::V6(Ipv6Addr::new(s, t, u, v, w, x, y, z))]
}

pub(crate) type Thread = Engine<MemoryDevice, Pipeline>;

pub(crate) fn threads(live: &Live) -> (Vec<Thread>, Vec<Arc<ThreadCounters>>) {
    threads_with(live, |_| MemoryDevice::new(RING))
}

/// Creates the engines. Each engine has its own device.
pub(crate) fn threads_with(
    live: &Live,
    device: impl Fn(ThreadId) -> MemoryDevice,
) -> (Vec<Thread>, Vec<Arc<ThreadCounters>>) {
    let counters: Vec<_> = (0..THREADS).map(|_| Arc::new(ThreadCounters::new(64, 16))).collect();
    let engine = |mailboxes: engine::Mailboxes<MemoryFrame>| {
        let me = mailboxes.me();
        let counters = Arc::clone(&counters[usize::from(me.0)]);
        let config = PipelineConfig { thread: me, ..config() };
        let pipeline = Pipeline::new(config, live, Arc::clone(&counters), None).unwrap();
        // The notices are never read, so their ring fills up. A full notice ring must not affect
        // packets.
        let pipeline = pipeline.with_notices(notice_ring(4).0);
        let frames = (0..FRAMES).map(|_| MemoryFrame::new(me, (CHUNK - XDP_HEADROOM) as usize)).collect();
        let all = FRAMES * usize::from(THREADS);
        Engine::new(device(me), pipeline, mailboxes, Pool { frames, in_all: all }, counters)
    };
    (mesh(THREADS, MAILBOX).into_iter().map(engine).collect(), counters)
}

/// Returns a configuration with limits that the run reaches.
fn config() -> PipelineConfig {
    PipelineConfig {
        thread: ThreadId(0),
        threads: THREADS,
        flows: 1_024,
        timeouts: Timeouts::default(),
        max_batch: BATCH,
        icmp: IcmpRates { replies: 100, replies_per_source: 20, errors: 300, errors_per_source: 150 },
        limit_sources: 1_024,
        fragments: FragmentConfig {
            datagrams: 64,
            buffered: 48,
            per_datagram: 3,
            per_source: 8,
            lifetime: std::time::Duration::from_millis(100),
        },
        held_of_a_pool: 36,
        hashers: datapath::lane_hashers(),
        is_steered: false,
        upstream_requests: Some(UpstreamRequests {
            ports: SourcePorts::new(&(61_000..=61_005), THREADS).unwrap(),
            requests: 3,
            passing: 3,
            fetches: 4,
            writes: 3,
            seed: [1, 2],
        }),
        advise: datapath::advise_large_pages,
    }
}

/// Returns backends of all kinds, with outer headers of both IP versions and different path MTUs.
/// One backend has no next hop.
fn slots() -> Vec<Slot> {
    let kinds = [
        (Encapsulation::Gre, true, 1500, TooBig::FragmentInner),
        (Encapsulation::Gre, false, 1300, TooBig::FragmentOuter),
        (Encapsulation::Ipip, true, 1280, TooBig::FragmentOuter),
        (Encapsulation::Gue { udp_checksum: true }, true, 1400, TooBig::FragmentInner),
        (Encapsulation::Gue { udp_checksum: false }, false, 9000, TooBig::Drop),
        (Encapsulation::L2, true, 1500, TooBig::Drop),
        (Encapsulation::Gre, true, 1500, TooBig::FragmentInner),
    ];
    let mut slots: Vec<Slot> = (1u8..)
        .zip(kinds)
        .map(|(n, (kind, outer_v4, mtu, too_big))| Slot {
            backend: format!("b{n}").into(),
            address: if outer_v4 { IpAddr::from([198, 18, 1, n]) } else { backend_v6(n) },
            forwarding: forwarding(kind, outer_v4, n),
            next_hop: Some(NextHop::plain(Mac([2, 0, 0, 0, 0, 3]), Mac([2, 0, 0, 0, 0, 1]))),
            spread: None,
            mtu,
            too_big,
        })
        .collect();
    slots.last_mut().unwrap().next_hop = None;
    slots[1].next_hop.as_mut().unwrap().tagging = Tagging::Set(Tags::NONE);
    slots[2].next_hop.as_mut().unwrap().tagging = Tagging::Translate(translations().into());
    slots
}

/// Returns the slots for the other cluster, one for each IP version. The destination of a forwarded
/// packet gets the prefix of the other cluster and keeps its last bits.
fn elsewhere() -> [Slot; 2] {
    let v4 = Outer::V4 { source: [192, 0, 2, 1].into(), destination: [198, 51, 100, 10].into() };
    let v6 =
        Outer::V6 { source: "2001:db8::1".parse().unwrap(), destination: "2001:db8:e::10".parse().unwrap() };
    [(v4, 8), (v6, 64)].map(|(outer, kept)| {
        let template = |inner| {
            let plain = Template::new(Encapsulation::Gre, outer, inner, true);
            plain.to_cluster(kept).unwrap_or(plain.with_recursion(1))
        };
        let address = match outer {
            Outer::V4 { destination, .. } => IpAddr::V4(destination),
            Outer::V6 { destination, .. } => IpAddr::V6(destination),
        };
        Slot {
            backend: "elsewhere".into(),
            address,
            forwarding: Forwarding::Tunnel { v4: template(Family::V4), v6: template(Family::V6) },
            next_hop: Some(NextHop::plain(Mac([2, 0, 0, 0, 0, 3]), Mac([2, 0, 0, 0, 0, 1]))),
            spread: None,
            mtu: 1500,
            too_big: TooBig::FragmentInner,
        }
    })
}

/// Returns the remote cluster for VIPs of one IP version. This cluster receives the packets to
/// these VIPs while no local backend accepts traffic.
fn remote(place: u32, vips: [IpAddr; 2]) -> Remote {
    let table = maglev_hash::build(&[Backend { name: b"elsewhere", weight: 1 }], &options()).unwrap();
    let bits = if vips[0].is_ipv4() { 32 } else { 128 };
    Remote {
        ours: vips.map(|vip| Prefix::new(vip, bits).unwrap()).to_vec(),
        pool: Arc::new(PoolTable {
            name: "remotes".into(),
            table: Some(Arc::new(table)),
            slots: vec![SlotId(place)].into(),
            weights: vec![1].into(),
        }),
    }
}

pub(crate) fn options() -> Options {
    let mut options = Options::new(Seed::new([7; 16]));
    (options.size, options.allow_coarse) = (1_021, true);
    options
}

/// Returns VLAN translation rules. Untagged frames get two tags. Frames with two tags lose both
/// tags if the VLAN ID of the outer tag is 0. No rule exists for other frames.
fn translations() -> Vec<Translation> {
    let two =
        Tags::NONE.push(Tag::customer(7, 0).unwrap()).unwrap().push(Tag::service(9, 0).unwrap()).unwrap();
    let mut rules = vec![Translation { from: Some([None, None]), to: two }];
    let both = (0..256).map(|inner| Translation { from: Some([Some(0), Some(inner)]), to: Tags::NONE });
    rules.extend(both);
    rules
}

fn backend_v6(n: u8) -> IpAddr {
    IpAddr::from([0x2001, 0xdb8, 0x18, 0, 0, 0, 0, u16::from(n)])
}

fn forwarding(kind: Encapsulation, outer_v4: bool, n: u8) -> Forwarding {
    let outer = match (outer_v4, backend_v6(n)) {
        (false, IpAddr::V6(destination)) => Outer::V6 { source: "2001:db8::1".parse().unwrap(), destination },
        _ => Outer::V4 { source: [192, 0, 2, 1].into(), destination: [198, 18, 1, n].into() },
    };
    if kind == Encapsulation::L2 {
        return Forwarding::L2;
    }
    let template = |inner| Template::new(kind, outer, inner, true);
    Forwarding::Tunnel { v4: template(Family::V4), v6: template(Family::V6) }
}

/// Returns a backend with a next hop on the first interface. If `headers` is `None`, packets are
/// forwarded to the backend at L2.
pub(crate) fn way(address: IpAddr, headers: Option<[Template; 2]>, mtu: u16, too_big: TooBig) -> Slot {
    Slot {
        backend: address.to_string().into(),
        address,
        forwarding: headers.map_or(Forwarding::L2, |[v4, v6]| Forwarding::Tunnel { v4, v6 }),
        next_hop: Some(NextHop::plain(Mac([2, 0, 0, 0, 0, 3]), Mac([2, 0, 0, 0, 0, 1]))),
        spread: None,
        mtu,
        too_big,
    }
}

/// Returns a configuration with UDP services on port 443 of the first two VIPs. The services select
/// backends by the 5-tuple.
pub(crate) fn plain(slots: Vec<Slot>) -> Parts {
    let backends: Vec<Backend<'_>> =
        slots.iter().map(|slot| Backend { name: slot.backend.as_bytes(), weight: 1 }).collect();
    let pool = PoolTable {
        name: "web".into(),
        table: Some(Arc::new(maglev_hash::build(&backends, &options()).unwrap())),
        slots: (0..slots.len() as u32).map(SlotId).collect(),
        weights: slots.iter().map(|_| 1).collect(),
    };
    let service = Service {
        id: ServiceId(0),
        name: "udp".into(),
        family: None,
        policy: HashPolicy::FiveTuple,
        pool: Arc::new(pool),
        excluded_slots: Arc::default(),
        guard: None,
        remotes: None,
        keyed: None,
        fragments: true,
        rejects: Rejects::default(),
    };
    let binding =
        |vip: &IpAddr| Binding { address: (*vip).into(), protocol: 17, ports: 443..=443, service: 0 };
    Parts {
        generation: Generation(1),
        hash_key: HashKey::new([5; 16]),
        services: vec![service],
        bindings: VIPS[..2].iter().map(binding).collect(),
        groups: vec![],
        states: vec![SlotState::Serving; slots.len()],
        slots,
        next_hop: NextHopMode::Resolve,
        own: OWN.to_vec(),
        tunnels: vec![],
        peers: None,
    }
}

/// Returns a snapshot with services for TCP port 80 and UDP port 443 (selection by 5-tuple), UDP
/// port 53 (selection by addresses), and GRE.
pub(crate) fn snapshot() -> Snapshot {
    let slots = slots();
    let backends: Vec<Backend<'_>> =
        slots.iter().map(|slot| Backend { name: slot.backend.as_bytes(), weight: 1 }).collect();
    let pool = Arc::new(PoolTable {
        name: "web".into(),
        table: Some(Arc::new(maglev_hash::build(&backends, &options()).unwrap())),
        slots: (0..slots.len() as u32).map(SlotId).collect(),
        weights: slots.iter().map(|_| 1).collect(),
    });
    let policies =
        [HashPolicy::FiveTuple, HashPolicy::FiveTuple, HashPolicy::Addresses, HashPolicy::FiveTuple];
    let remotes =
        (0..2).map(|family| remote((slots.len() + family) as u32, [VIPS[family], VIPS[family + 2]]));
    let remotes: Arc<Vec<Remote>> = Arc::new(remotes.collect());
    let fragments = [true, false].into_iter().flat_map(|fragments| [fragments; 4]);
    let services = (0u32..).zip(policies.into_iter().cycle()).zip(fragments);
    let services = services.map(|((id, policy), fragments)| Service {
        id: ServiceId(id),
        name: format!("s{id}").into(),
        family: None,
        policy,
        pool: Arc::clone(&pool),
        excluded_slots: Arc::default(),
        guard: None,
        remotes: Some(Arc::clone(&remotes)),
        keyed: None,
        fragments,
        rejects: Rejects::default(),
    });
    let ports = [(6, 80..=80), (17, 443..=443), (17, 53..=53), (47, 0..=65535)];
    let bindings = VIPS.iter().enumerate().flat_map(|(place, &vip)| {
        let first = place / 2 * ports.len();
        ports.iter().cloned().enumerate().map(move |(service, (protocol, ports))| Binding {
            address: vip.into(),
            protocol,
            ports,
            service: first + service,
        })
    });
    let slots: Vec<Slot> = slots.into_iter().chain(elsewhere()).collect();
    Snapshot::new(Parts {
        generation: Generation(1),
        hash_key: HashKey::new([5; 16]),
        services: services.collect(),
        bindings: bindings.collect(),
        groups: vec![],
        states: vec![SlotState::Serving; slots.len()],
        slots,
        next_hop: NextHopMode::Resolve,
        own: OWN.to_vec(),
        tunnels: tunnels(),
        peers: None,
    })
    .unwrap()
}

/// Returns the allowed tunnel sources, for both IP versions: an upstream tunnel, another machine of
/// this cluster, and a machine of another cluster.
fn tunnels() -> Vec<TunnelSource> {
    let senders = [
        (UPSTREAM_TUNNELS, TunnelSourceKind::UpstreamTunnel),
        (PEERS, TunnelSourceKind::Peer),
        (CLUSTERS, TunnelSourceKind::Cluster),
    ];
    senders
        .into_iter()
        .flat_map(|(addresses, sender)| addresses.map(|address| (address, sender)))
        .map(|(address, sender)| TunnelSource {
            prefix: Prefix::new(address, if address.is_ipv4() { 32 } else { 128 }).unwrap(),
            carriers: TunnelProtocols::GRE.and(TunnelProtocols::IPIP).and(TunnelProtocols::GUE),
            kind: sender,
        })
        .collect()
}

/// Returns random states for the backends. In some cases no local backend accepts traffic.
pub(crate) fn states(random: &mut Random) -> Vec<SlotState> {
    let none = random.once_in(4);
    let mut states = |count: usize, none: bool| -> Vec<SlotState> {
        let state = |_| if none || random.once_in(4) { SlotState::Down } else { random.of(&STATES) };
        (0..count).map(state).collect()
    };
    let (here, elsewhere) = (states(slots().len(), none), states(elsewhere().len(), false));
    [here, elsewhere].concat()
}

const STATES: [SlotState; 3] = [SlotState::Serving, SlotState::Serving, SlotState::Draining];
