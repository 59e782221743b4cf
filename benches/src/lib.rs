//! Shared code of the pipeline benchmarks and their tests, which creates a snapshot like the
//! snapshot of a running load balancer, and 64-byte frames.

#![forbid(unsafe_code)]

mod batch;
mod cases;
mod copies;
mod groups;
mod previous;
mod rows;
mod traffic;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use forwarder::{
    Binding, Forwarding, FragmentConfig, Generation, HashKey, HashPolicy, IcmpRates, Live, NextHop,
    NextHopMode, Parts, Pipeline, PipelineConfig, PoolTable, Rejects, RequestServer, Service, ServiceId,
    Slot, SlotId, SlotState, Snapshot, ThreadCounters, ThreadId, Timeouts, TooBig,
};
use maglev_hash::{Backend, Options, Seed};
use packet::{Encapsulation, Family, Mac, Outer, Template};

pub use self::batch::Batch;
pub use self::groups::{VIP6, exact_v6, frame_v6, grouped};
pub use self::rows::Row;
pub use self::traffic::{Flaw, Flood, Next, Traffic};

/// The destination address of all IPv4 frames.
pub const VIP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// The number of backends of the VIP.
pub const BACKENDS: u8 = 100;
/// The number of flows that the default configuration allows.
pub const DEFAULT_FLOWS: usize = 1_000_000;
/// The batch size in the default configuration.
pub const DEFAULT_BATCH: usize = 64;
/// The buffer size of each packet in bytes, as in the UMEM.
pub const FRAME_ROOM: usize = 2048 - 256;

/// Returns a snapshot with one VIP, TCP ports 80 and 443, and [`BACKENDS`] backends that are
/// reached with GRE over IPv4.
///
/// # Panics
/// Does not panic, because all parts of the snapshot are valid.
#[must_use]
pub fn snapshot() -> Snapshot {
    Snapshot::new(parts()).expect("the parts are valid")
}

fn parts() -> Parts {
    let slots: Vec<Slot> = (0..BACKENDS).map(slot).collect();
    let service = Service {
        id: ServiceId(0),
        name: "www tcp 80".into(),
        family: None,
        policy: HashPolicy::FiveTuple,
        pool: Arc::new(pool(&slots)),
        excluded_slots: Arc::default(),
        guard: None,
        remotes: None,
        keyed: None,
        fragments: true,
        rejects: Rejects::default(),
    };
    Parts {
        generation: Generation(1),
        hash_key: HashKey::new([5; 16]),
        services: vec![service],
        bindings: [80, 443].map(|port| binding(IpAddr::V4(VIP), port)).into(),
        groups: Vec::new(),
        states: vec![SlotState::Serving; slots.len()],
        slots,
        next_hop: NextHopMode::Resolve,
        own: vec![Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()],
        tunnels: Vec::new(),
        peers: None,
    }
}

/// Returns a binding for a TCP port of this address.
fn binding(address: IpAddr, port: u16) -> Binding {
    Binding { address: address.into(), protocol: 6, ports: port..=port, service: 0 }
}

fn pool(slots: &[Slot]) -> PoolTable {
    let backends: Vec<Backend<'_>> =
        slots.iter().map(|slot| Backend { name: slot.backend.as_bytes(), weight: 1 }).collect();
    let table = maglev_hash::build(&backends, &Options::new(Seed::new([7; 16]))).expect("the size is prime");
    PoolTable {
        name: "web".into(),
        table: Some(Arc::new(table)),
        slots: (0..u32::from(BACKENDS)).map(SlotId).collect(),
        weights: vec![1; usize::from(BACKENDS)].into(),
    }
}

fn slot(number: u8) -> Slot {
    let destination = Ipv4Addr::new(198, 18, 1, number);
    let outer = Outer::V4 { source: Ipv4Addr::new(192, 0, 2, 1), destination };
    let template = |inner| Template::new(Encapsulation::Gre, outer, inner, true);
    Slot {
        backend: format!("b{number:03}").into(),
        address: destination.into(),
        forwarding: Forwarding::Tunnel { v4: template(Family::V4), v6: template(Family::V6) },
        next_hop: Some(NextHop::plain(Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]))),
        spread: None,
        mtu: 1500,
        too_big: TooBig::Drop,
    }
}

/// Returns the pipeline of a packet thread with the default settings, and its counters. The
/// pipeline reads its snapshot from `live`.
///
/// # Panics
/// Does not panic, because the default settings are in range.
#[must_use]
pub fn pipeline(live: &Live) -> (Pipeline, Arc<ThreadCounters>) {
    pipeline_with(live, None)
}

/// Returns a pipeline like [`pipeline`] that can also process requests of the control plane.
///
/// # Panics
/// Does not panic, because the default settings are in range.
#[must_use]
pub fn pipeline_with(live: &Live, requests: Option<RequestServer>) -> (Pipeline, Arc<ThreadCounters>) {
    pipeline_of(live, requests, DEFAULT_FLOWS)
}

/// Returns a pipeline like [`pipeline_with`] whose connection table is sized for a different number
/// of flows.
///
/// # Panics
/// Panics if there is not enough memory.
#[must_use]
pub fn pipeline_of(
    live: &Live,
    requests: Option<RequestServer>,
    flows: usize,
) -> (Pipeline, Arc<ThreadCounters>) {
    let counters = Arc::new(ThreadCounters::new(65_536, 65_536));
    let config = PipelineConfig {
        thread: ThreadId(0),
        threads: 1,
        flows,
        timeouts: Timeouts::default(),
        max_batch: DEFAULT_BATCH,
        icmp: IcmpRates { replies: 1_000, replies_per_source: 100, errors: 10_000, errors_per_source: 1_000 },
        fragments: FragmentConfig { per_source: 512, ..FragmentConfig::default() },
        held_of_a_pool: 1_024,
        hashers: datapath::lane_hashers(),
        advise: datapath::advise_large_pages,
        limit_sources: 65_536,
        is_steered: false,
        upstream_requests: None,
    };
    let pipeline =
        Pipeline::new(config, live, Arc::clone(&counters), requests).expect("the defaults are in range");
    (pipeline, counters)
}

/// Returns a 64-byte TCP frame to the VIP (60 bytes without FCS), for flow number `flow` and with
/// these TCP flags.
#[must_use]
pub fn frame(flow: u32, flags: u8) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
    frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0x00]);
    frame[16..18].copy_from_slice(&46u16.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    let [a, b, c, d] = flow.to_be_bytes();
    frame[26..30].copy_from_slice(&[198, 18 | (a & 1), b, c]);
    frame[30..34].copy_from_slice(&VIP.octets());
    frame[34..36].copy_from_slice(&[0x40 | (a >> 1), d]);
    frame[36..38].copy_from_slice(&(if flow & 1 == 0 { 80u16 } else { 443 }).to_be_bytes());
    frame[46..48].copy_from_slice(&[0x50, flags]);
    frame
}
