//! The control plane: what the operator wrote becomes what the packet threads read.
//!
//! In: a checked configuration (`config`), verdicts of checks (`health`), an operator's orders (`admin`), routes and neighbours.
//! Out: snapshots for packet threads, routes for routers (`bgp`), rows for the admin API.
//! Not here: packets of clients, the XDP program (`datapath`), the choice of a backend (`forwarder`), BGP itself (`bgp`).
//! Invariant: machines with the same text, secrets, verdicts and orders choose the same backend for every flow (`digest`); numbers of
//! slots and next hops are each machine's own.
//!
//! ```
//! # use std::net::SocketAddr;
//! # let text = r#"
//! # [cluster]
//! # name = "c"
//! # hash_key_file = "hash.key"
//! # [machine.lb1]
//! # addresses = ["192.0.2.1"]
//! # interfaces = ["eth0"]
//! # [pool.web]
//! # backends = [{ name = "b1", address = "198.18.0.1" }]
//! # [vip.www]
//! # addresses = ["203.0.113.10"]
//! # services = [{ ports = [80], protocol = "tcp", pool = "web" }]"#;
//! let key = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
//! let (config, _) = config::parse(text, "sluicegate.toml".as_ref(), &key).expect("no problems");
//! let snapshot = compile::compile_file(&config, "lb1")?.snapshot;
//! let (client, vip): (SocketAddr, SocketAddr) = ("198.51.100.7:40000".parse()?, "203.0.113.10:80".parse()?);
//! let flow = forwarder::Flow::new(client, vip, packet::protocol::TCP).expect("one family");
//! let explained = control_plane::explained(&snapshot.explain(&flow, None), &snapshot);
//! assert_eq!(explained.backend.expect("one serves").name, "b1");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

// Name spaces: `announce::Rules`, `digest::hex`, `publisher::Filter`, `questions::Threads`, `reload::Host` say little without them.
pub mod announce;
mod capture;
mod controller;
pub mod digest;
mod drain;
mod flow_counts;
mod handover;
mod hot_keys;
mod log_orders;
mod orders;
mod paths;
pub mod publisher;
pub mod questions;
mod refused;
pub mod reload;
mod rows;
mod unable;
mod value_caches;
mod verdict_log;

pub use capture::{Captured, Captures, Tapped};
pub use controller::{
    Affected, Changes, Controller, Done, Flushing, HeldPool, Job, MovedTable, Running, Side, changes,
    moved_tables,
};
pub use drain::{Departure, Observed, Shutdown};
pub use flow_counts::FlowCounts;
pub use handover::HandedState;
pub use hot_keys::counters as hot_key_counters;
pub use log_orders::{LogOrder, LogOrders};
pub use orders::{BackendOrder, Ordered, Orders};
pub use paths::Paths;
pub use refused::Refused;
pub use rows::{
    CaptureBegun, count_vips, explained, explained_by_key, hot_keys_view, locate_key, problem_row,
    services_seen, shown, stage_shown, texts, trace_report, where_backend,
};
pub use unable::Unable;
pub use value_caches::value_caches;
pub use verdict_log::{log_changes, log_flushed, log_flushes};
