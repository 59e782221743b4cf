//! A cluster of two behind a router: client, router with ECMP in its kernel, two balancers that announce, three backends.
//!
//! Needs root, a release build, bird and FRR: `cargo xtask test --lane bgp`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod hostile;
mod next_hops;
mod routers_page;
mod scene;
mod sessions;
mod traffic;
mod upgrade;
