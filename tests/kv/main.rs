//! Tests of keyed services with a balancer, real memcached servers and real clients.
//!
//! The tests need root, a release build, a C compiler and the packages that `xtask/src/setup.rs`
//! lists under `KV`. `cargo xtask test --lane kv` runs them.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed step must fail the test")]

mod backend_unavailable;
mod cache;
mod clients;
mod crate_client;
mod gather;
mod history;
mod hot_keys;
mod keys;
mod killed;
mod load;
mod lossy_network;
mod machines;
mod pair;
mod php;
mod proxied;
mod refused;
mod rejoin;
mod replicas;
mod rings;
mod rolling;
mod scene;
mod slow_backends;
mod strict;
mod upgrade;
