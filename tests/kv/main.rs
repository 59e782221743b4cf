//! Keyed services over the real path: real memcached servers behind a balancer, and real clients of them.
//!
//! Needs root, a release build, a C compiler and what `xtask/src/setup.rs` lists under `KV`: `cargo xtask test --lane kv`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod away;
mod cache;
mod clients;
mod crate_client;
mod gather;
mod history;
mod hot_keys;
mod keys;
mod killed;
mod load;
mod machines;
mod noisy;
mod pair;
mod php;
mod refused;
mod rejoin;
mod replicas;
mod rings;
mod rolling;
mod scene;
mod slow;
mod strict;
mod through;
mod upgrade;
