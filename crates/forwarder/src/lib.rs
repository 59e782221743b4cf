//! Decides for each packet whether it is forwarded, answered, held or dropped. The forwarder
//! receives batches of packets, returns one verdict for each packet, and rewrites frames in place.
//! The forwarder decides according to the [`Snapshot`] that the control plane published. The
//! control plane publishes snapshots through [`Live`]. This crate also contains the packet counters
//! and the ring for control-plane requests. The crate `datapath` contains the kernel's rings and
//! sockets, the crate `config` reads the TOML configuration, and the crate `packet` defines header
//! formats.
//!
//! The counters of each packet thread satisfy `rx + from_threads + originated = tx + replies +
//! to_threads + taken + drops + held`. The packet path does not allocate memory, read the clock or
//! perform I/O.
//!
//! The design follows §3 of Eisenbud et al., *Maglev*, NSDI 2016.
//!
//! ```
//! use forwarder::{Decision, Flow, Generation, HashKey, Live, NextHopMode, Parts, Snapshot};
//!
//! let parts = Parts {
//!     generation: Generation(1),
//!     hash_key: HashKey::new([7; 16]),
//!     services: vec![], // services and their pools
//!     bindings: vec![], // addresses and ports of the services
//!     groups: vec![],
//!     slots: vec![],
//!     states: vec![],
//!     next_hop: NextHopMode::Resolve,
//!     own: vec![],
//!     tunnels: vec![],
//!     peers: None,
//! };
//! let live = Live::new(Snapshot::new(parts)?);
//! let (client, vip) = (([198, 51, 100, 7], 40_000), ([203, 0, 113, 10], 80));
//! let flow = Flow::new(client, vip, 6).expect("both addresses are IPv4");
//! assert_eq!(live.current().decide(&flow), Decision::NoVip);
//! # Ok::<(), forwarder::SnapshotError>(())
//! ```

#![forbid(unsafe_code)]

mod capture;
mod explain;
mod filter;
mod flows;
mod key_choice;
mod keyed;
mod live;
mod notice;
mod originate;
mod packet_buf;
mod parts;
mod pipeline;
mod rejection;
mod remote;
mod request;
mod rewrite;
mod selection;
mod slot;
mod snapshot;
mod source_ports;
mod spread;
mod thread_counters;
mod value_cache;
mod verdict;

pub use ::counters::{Counter, DropReason};
pub use capture::{
    CaptureCounts, CaptureFilter, CaptureReceiver, DropReasons, EVERY_PACKET, Record, SNAP_BYTES, Snapped,
    Tap, TapSize, VipFilter, capture_tap,
};

pub use explain::{Explanation, Outcome, Step};
pub use filter::{FILTER_PREFIXES, MAX_ENCAP_OVERHEAD, NoSocket};
pub use keyed::{
    CacheRules, GATHER_TIMEOUTS_MS, GatherRules, KeyFailover, KeyPath, KeyPlace, KeyRules, Keyed, Placement,
    ReplicaRules, Rings,
};
pub use live::{Live, Reader};
pub use notice::{Notice, NoticeSink, Notices, TraceEvent, notice_ring};
pub use originate::address_frame;
pub use packet_buf::{HandoffReason, InterfaceId, Origin, Packet, ThreadId};
pub use parts::{Binding, NextHopMode, Parts, PrefixGroup, Rejects, Service, VipAddress};
pub use pipeline::{
    IcmpRates, Pipeline, PipelineConfig, PipelineError, SoftwareSteering, SteeringConfig, UpstreamRequests,
};
pub use rejection::Rejection;
pub use remote::Remote;
pub use request::{
    ACTIVE, FlowEntry, FlowFilter, Reply, Request, RequestPort, RequestServer, WhereAnswer, Whose,
    request_ring,
};
pub use selection::{Decision, Selection};
pub use slot::{
    Forwarding, Generation, NextHop, PoolTable, ServiceId, Slot, SlotId, SlotState, Spread, THIS_MACHINE,
    TooBig,
};
pub use snapshot::{Snapshot, SnapshotError};
pub use source_ports::SourcePorts;
pub use spread::HopTable;
pub use thread_counters::{FlowTableCounters, FragmentTableCounters, PairCounter, ThreadCounters, Totals};
pub use value_cache::{AskedAt, ValueCache};
pub use verdict::{Forward, FragmentStep, HoldSlot, NotSent, Outlet, Verdict};

pub use classifier::{
    Aggregate, Flow, FlowHasher, Guard, GuardId, HashKey, HashPolicy, Now, Prefix, PrefixSet, SourceLimit,
    Suffix, TunnelProtocols, TunnelSource, TunnelSourceKind, aggregate,
};
pub use conntrack::{
    Config as FlowConfig, Cursor, FlowCursor, FlowTable, LAYOUT_VERSION as FLOW_LAYOUT, PreviousTables,
    RECORD_BYTES as FLOW_RECORD_BYTES, State as FlowState, Timeouts,
};
pub use fragment_table::Config as FragmentConfig;
pub use packet::{Tagging, Translation};
pub use trace_mark::{MARK_AGE, MARK_BYTES, Mark, Trace, TraceKey, TraceRefusal, WallClock};
