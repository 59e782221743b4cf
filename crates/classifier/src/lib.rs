//! Classification of packets before a backend is selected.
//!
//! The crate computes the flow of a packet and its keyed hash ([`FlowHasher`]), and finds the
//! service for a VIP and port ([`VipTable`]). The crate also checks access lists and limits on new
//! flows ([`Guard`], [`Limits`]), and determines the role of a tunneled packet's sender
//! ([`source_kind`]).
//!
//! Lookups allocate no memory. The running time of a lookup does not depend on addresses that a
//! client chooses. See §3.3 and §4.2 of Eisenbud et al., *Maglev*, NSDI 2016.
//!
//! ```
//! use classifier::{Claim, Flow, FlowHasher, HashKey, HashPolicy, VipKey, VipTable, mapped};
//!
//! let vip = VipKey::Exact(mapped("203.0.113.10".parse()?));
//! let claim = Claim { vip, protocol: 6, ports: 80..=89, service: 7 };
//! let table = VipTable::build(&[claim], [].into_iter()).expect("the claims do not overlap");
//!
//! let (client, server) = (([198, 51, 100, 7], 40_000), ([203, 0, 113, 10], 80));
//! let flow = Flow::new(client, server, 6).expect("both addresses are IPv4");
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
