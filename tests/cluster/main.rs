//! Tests of a cluster: two balancers that announce VIPs to a router with ECMP, one client and three
//! backends.
//!
//! The tests need root, a release build, BIRD and FRR. `cargo xtask test --lane bgp` runs them.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed step must fail the test")]

mod faults;
mod hostile;
mod mixed_faults;
mod next_hops;
mod routers_page;
mod scene;
mod sessions;
mod stalls;
mod traffic;
mod upgrade;
