//! The forwarder: one batch of packets in, one verdict for each out.
//!
//! In: frames with writable room in front, the [`Snapshot`] that the control plane published, the time. Out:
//! [`Verdict`]s, and frames rewritten in place. Also here: [`Live`], the one type at which the planes meet, the
//! counters, and the request ring by which the control plane asks a packet thread.
//! Not here: rings and sockets (`datapath`), TOML (`config`), bytes of headers (`packet`).
//! Invariant, of each thread: rx + from threads + originated = tx + replies + to threads + taken + drops + held. Nothing here
//! allocates per packet, reads a clock or does I/O.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §3.
//!
//! ```
//! use forwarder::{Decision, Flow, Generation, HashKey, Live, NextHopMode, Parts, Snapshot};
//!
//! let parts = Parts {
//!     generation: Generation(1),
//!     hash_key: HashKey::new([7; 16]),
//!     services: vec![], // and which addresses and ports lead to them:
//!     bindings: vec![],
//!     groups: vec![],
//!     slots: vec![],
//!     states: vec![],
//!     next_hop: NextHopMode::Resolve,
//!     own: vec![],
//!     tunnels: vec![],
//!     peers: None,
//! };
//! let live = Live::new(Snapshot::new(parts)?);
//! let flow = Flow::new(([198, 51, 100, 7], 40_000), ([203, 0, 113, 10], 80), 6).expect("one family");
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
mod own_ports;
mod packet_buf;
mod parts;
mod pipeline;
mod remote;
mod request;
mod rewrite;
mod selection;
mod slot;
mod snapshot;
mod thread_counters;
mod value_cache;
mod verdict;

pub use ::counters::{Counter, DropReason};
pub use capture::{
    CaptureCounts, CaptureFilter, CaptureReceiver, DropReasons, EVERY_PACKET, Record, SNAP_BYTES, Snapped,
    Tap, TapSize, VipFilter, capture_tap,
};

pub use explain::{Explanation, Outcome, Step};
pub use filter::{FILTER_PREFIXES, NoSocket};
pub use keyed::{
    CacheRules, GATHER_TIMEOUTS_MS, GatherRules, KeyFailover, KeyPath, KeyPlace, KeyRules, Keyed, Placement,
    ReplicaRules, Rings,
};
pub use live::{Live, Reader};
pub use notice::{Notice, NoticeSink, Notices, TraceEvent, notice_ring};
pub use own_ports::OwnPorts;
pub use packet_buf::{HandoffReason, InterfaceId, Origin, Packet, ThreadId};
pub use parts::{Binding, NextHopMode, Parts, PrefixGroup, Service, VipAddress};
pub use pipeline::{
    IcmpRates, OwnRequests, Pipeline, PipelineConfig, PipelineError, SoftwareSteering, SteeringConfig,
};
pub use remote::Remote;
pub use request::{
    FlowEntry, FlowFilter, Reply, Request, RequestPort, RequestServer, WhereAnswer, Whose, request_ring,
};
pub use selection::{Decision, Selection};
pub use slot::{
    Forwarding, Generation, NextHop, PoolTable, ServiceId, Slot, SlotId, SlotState, THIS_MACHINE, TooBig,
};
pub use snapshot::{Snapshot, SnapshotError};
pub use thread_counters::{FlowTableCounters, FragmentTableCounters, PairCounter, ThreadCounters, Totals};
pub use value_cache::{AskedAt, ValueCache};
pub use verdict::{Forward, HoldSlot, NotSent, Outlet, Piece, Verdict};

pub use classifier::{
    Aggregate, Flow, FlowHasher, Guard, GuardId, HashKey, HashPolicy, Now, Prefix, PrefixSet, SourceLimit,
    Suffix, TunnelProtocols, TunnelSource, TunnelSourceKind, aggregate,
};
pub use conntrack::{
    Config as FlowConfig, Cursor, FlowCursor, FlowTable, Former, LAYOUT_VERSION as FLOW_LAYOUT,
    RECORD_BYTES as FLOW_RECORD_BYTES, State as FlowState, Timeouts,
};
pub use fragment_table::Config as FragmentConfig;
pub use packet::{Tagging, Translation};
pub use trace_mark::{MARK_AGE, MARK_BYTES, Mark, Trace, TraceKey, TraceRefusal, WallClock};
