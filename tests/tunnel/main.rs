//! Health checks through the pool's own encapsulation, on the bed: real kernels, the backends' `decap`, and a balancer
//! beside them as the judge of what a packet must look like.
//!
//! `cargo xtask test --lane net` runs them. They need root, and a release build of the program.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod carried;
mod cost;
mod faults;
mod leftovers;
mod scene;
