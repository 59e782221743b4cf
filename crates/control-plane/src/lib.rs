//! The control plane: what the operator wrote becomes what the packet threads read.
//!
//! In: a checked configuration (`config`), verdicts of checks (`health`), an operator's orders (`admin`), routes and neighbours.
//! Out: snapshots for packet threads, routes for routers (`bgp`), rows for the admin API.
//! Not here: packets of clients, the XDP program (`datapath`), the choice of a backend (`forwarder`), BGP itself (`bgp`).
//! Invariant: deterministic; the same text, secrets and verdicts give the same snapshot on every machine.

#![forbid(unsafe_code)]

pub mod announce;
pub mod compile;
pub mod controller;
pub mod digest;
pub mod drain;
pub mod next_hop;
pub mod orders;
pub mod path_mtu;
pub mod paths;
pub mod publisher;
pub mod questions;
mod refused;
pub mod reload;
mod rows;
pub mod runtime_state;
mod slots;
pub mod unable;
pub mod verdict_log;

pub use refused::Refused;
pub use rows::{
    CaptureBegun, explained, problem_row, services_seen, shown, stage_shown, trace_report, where_backend,
};
pub use slots::SlotKey;
