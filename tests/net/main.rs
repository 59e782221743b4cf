//! Tests in namespaces: real kernels' TCP and UDP, real processes. They need root and a release build of the balancer.
//!
//! `cargo xtask test --lane net` runs them; `--long` with as many connections and packets as the promises name.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod af_packet;
mod announce;
mod arrivals;
mod bed;
mod busy_poll;
mod capture;
mod cluster;
mod control;
mod dead;
mod deaf;
mod doctor;
mod drops;
mod encapsulation;
mod events;
mod fragments;
mod groups;
mod guards;
mod interfaces;
mod jumbo;
mod lifecycle;
mod links;
mod liveness;
mod log_level;
mod next_hop;
mod offline;
mod operations;
mod own_traffic;
mod path;
mod path_mtu;
mod probe;
mod queues;
mod quick_start;
mod refusals;
mod reload;
mod remote;
mod scene;
mod secrets;
mod service;
mod soak;
mod steering;
mod storm;
mod traceroute;
mod tracing;
mod upgrade;
mod vlan;
mod way_back;
