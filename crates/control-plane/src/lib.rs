//! The control plane: what the operator wrote becomes what the packet threads read.
//!
//! In: the TOML file of the cluster, and secrets from files or systemd credentials.
//! Out: a checked [`config::Config`]; every value in it is in range and every reference in it resolved.
//! Not here: packets of clients, the XDP program (`datapath`), the choice of a backend (`forwarder`), BGP itself (`bgp`).
//! Invariant: deterministic; the same text and the same secrets give the same result on every machine.

#![forbid(unsafe_code)]

pub mod accounts;
pub mod admin;
pub mod announce;
pub mod compile;
pub mod config;
pub mod controller;
pub mod digest;
pub mod explained;
pub mod figures;
pub mod health;
pub mod metrics;
pub mod next_hop;
pub mod path_mtu;
mod slots;
pub mod standing;
pub mod trace_report;
pub mod words;

pub use slots::SlotKey;
