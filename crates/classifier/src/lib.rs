//! What a packet is for, and who sent it: everything that is asked before a backend is chosen.
//!
//! In: addresses, ports and protocol of a packet. Out: the flow and its keyed hash ([`FlowHasher`]), the service whose VIP and port
//! it has ([`VipTable`]), what lists of sources and limits on new flows say of it ([`Guard`], [`Limits`]), what a sender of
//! tunnelled packets is to this machine ([`source_kind`]).
//! Not here: bytes of headers (`packet`), backends, what becomes of a packet (`forwarder`), TOML (`config`).
//! Invariant: nothing here allocates once it is built, and no time depends on an address that a client chooses.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §3.3, §4.2.
//!
//! ```
//! use classifier::{Claim, Flow, FlowHasher, HashKey, HashPolicy, VipKey, VipTable, mapped};
//!
//! let vip = VipKey::Exact(mapped("203.0.113.10".parse()?));
//! let claim = Claim { vip, protocol: 6, ports: 80..=89, service: 7 };
//! let table = VipTable::build(&[claim], [].into_iter()).expect("no two claims on one port");
//!
//! let flow = Flow::new(([198, 51, 100, 7], 40_000), ([203, 0, 113, 10], 80), 6).expect("one family");
//! assert_eq!(table.find(&flow.destination, flow.protocol, flow.destination_port), Some(7));
//! let hasher = FlowHasher::new(&HashKey::new([7; 16]));
//! assert_ne!(hasher.hash(HashPolicy::FiveTuple, &flow), hasher.hash(HashPolicy::Source, &flow));
//! # Ok::<(), std::net::AddrParseError>(())
//! ```

#![forbid(unsafe_code)]

mod aggregate;
mod flow;
mod guard;
mod now;
mod prefix;
mod tunnels;
mod vip_table;

pub use aggregate::{Aggregate, aggregate};
pub use flow::{Ends, Flow, FlowHasher, HashKey, HashPolicy, is_v4, mapped};
pub use guard::{Guard, GuardId, Limits, Meter, PrefixSet, SourceLimit};
pub use now::Now;
pub use prefix::{Prefix, Suffix, width};
pub use tunnels::{TunnelProtocols, TunnelSource, TunnelSourceKind, source_kind};
pub use vip_table::{BatchLookup, Claim, VipKey, VipTable};
