//! Tests in network namespaces with real processes and the kernel's TCP and UDP. The tests need
//! root and a release build of the balancer.
//!
//! `cargo xtask test --lane net` runs them. With `--long`, the tests use the connection and packet
//! counts of docs/promises.md.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a failed step must fail the test")]

mod af_packet;
mod announce;
mod backend_down;
mod bed;
mod busy_poll;
mod capture;
mod cluster;
mod combined_faults;
mod control;
mod doctor;
mod draining;
mod drops;
mod encapsulation;
mod events;
mod exec;
mod fragments;
mod groups;
mod guards;
mod how_to_pages;
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
mod readiness;
mod refusals;
mod reject;
mod reload;
mod remote;
mod rollback;
mod scene;
mod secrets;
mod service;
mod soak;
mod steering;
mod traceroute;
mod tracing;
mod udp_lite;
mod unresponsive_router;
mod upgrade;
mod uplinks;
mod upstream_tunnels;
mod vlan;
