//! Real routers in network namespaces: bird, FRR, gobgpd.
//!
//! Needs root and their packages: `cargo xtask test --lane bgp`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bed;
mod bird;
mod frr;
mod gobgp;
