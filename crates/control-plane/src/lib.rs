//! The control plane: turns the configuration, health states and overrides into the state that
//! packet threads and routers use.
//!
//! The inputs are a checked configuration (`config`), results of health checks (`health`), operator
//! commands (`admin`), and the kernel's routes and neighbors (`next_hop`). The outputs are
//! snapshots for packet threads, routes for routers (`bgp`) and responses for the admin API.
//! Packets are handled in `datapath` and `forwarder`.
//!
//! Invariant: machines with the same configuration, secrets, health states and overrides choose the
//! same backend for every flow. `digest` compares machines. Slot IDs and next hops differ between
//! machines.
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
//! let client: SocketAddr = "198.51.100.7:40000".parse()?;
//! let vip: SocketAddr = "203.0.113.10:80".parse()?;
//! let flow = forwarder::Flow::new(client, vip, packet::protocol::TCP).expect("one family");
//! let explained = control_plane::explained(&snapshot.explain(&flow, None), &snapshot);
//! assert_eq!(explained.backend.expect("one serves").name, "b1");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

// These modules are public, because names such as `announce::Rules` and `digest::hex` are only
// clear together with the module name.
pub mod announce;
mod capture;
mod controller;
pub mod digest;
mod drain;
mod flow_counts;
mod handover;
mod health_log;
mod hot_keys;
#[cfg(test)]
mod linear;
mod log_fields;
mod log_level_overrides;
mod overrides;
mod paths;
pub mod publisher;
pub mod questions;
mod refused;
pub mod reload;
mod rows;
mod unable;
mod value_caches;

pub use capture::{Captured, Captures, Tapped};
pub use controller::{
    Affected, Changes, Controller, Done, Flushing, HeldPool, Job, MovedTable, Running, Side, Version,
    changes, moved_tables,
};
pub use drain::{Departure, Observed, Shutdown};
pub use flow_counts::FlowCounts;
pub use handover::HandedState;
pub use health_log::{log_advice, log_changes, log_flushed, log_flushes};
pub use hot_keys::counters as hot_key_counters;
pub use log_level_overrides::{LogLevelOverride, LogLevelOverrides};
pub use overrides::{Applied, BackendOverride, Overrides};
pub use paths::Paths;
pub use refused::Refused;
pub use rows::{
    CaptureBegun, count_vips, explained, explained_by_key, hot_keys_view, locate_key, problem_row,
    services_seen, shown, stage_shown, texts, trace_report, where_backend,
};
pub use unable::Unable;
pub use value_caches::value_caches;
