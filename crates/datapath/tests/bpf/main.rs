//! Tests of the BPF programs in the kernel. Each test creates a network namespace with a veth pair.
//! The tests need root, `ip` and `ethtool`, and run only with `cargo test --test bpf`.
//!
//! Tests that compare exact bytes use BPF_PROG_TEST_RUN. Tests that involve the network stack of
//! the kernel send frames over the veth pair.
#![allow(unsafe_code, reason = "bpf(2) and the UMEM of a test socket have no safe API")]
#![allow(clippy::unwrap_used, reason = "a failed setup fails the test")]

mod bed;
mod cost;
mod decap;
mod facts;
mod filter;
mod frames;
mod packet;
mod run;
mod steer;
mod tunnel_endpoints;
