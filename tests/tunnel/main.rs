//! Tests of health checks that use the encapsulation of the pool. The tests use the real kernel,
//! `decap` on the backends, and a balancer as the reference for packet formats.
//!
//! The tests need root and a release build of the balancer. `cargo xtask test --lane net` runs
//! them.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a failed step must fail the test")]

mod carried;
mod cost;
mod faults;
mod full_size;
mod leftovers;
mod scene;
