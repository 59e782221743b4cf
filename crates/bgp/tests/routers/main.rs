//! Tests against real routers in network namespaces: bird, FRR and gobgpd.
//!
//! The tests need root and the packages of the routers: `cargo xtask test --lane bgp`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod bed;
mod bird;
mod frr;
mod gobgp;
