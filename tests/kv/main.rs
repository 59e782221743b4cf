//! Keyed services over the real path: real memcached servers behind a balancer, and real clients of them.
//!
//! Needs root, a release build, memcached and libmemcached-tools: `cargo xtask test --lane kv`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod clients;
mod hot_keys;
mod keys;
mod killed;
mod refused;
mod rejoin;
mod scene;
