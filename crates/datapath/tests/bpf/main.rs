//! The BPF programs in a real kernel, on veth pairs in network namespaces that each test makes for itself.
//!
//! Needs root, `ip` and `ethtool`; so it runs only when it is named: `cargo test --test bpf`.
//! A frame goes in by BPF_PROG_TEST_RUN where its exact bytes matter, by the wire where the kernel's part does.
#![allow(unsafe_code, reason = "bpf(2) and the UMEM of a test's own socket have no safe form")]
#![allow(clippy::unwrap_used, reason = "what cannot be set up is a failed test")]

mod bed;
mod cost;
mod decap;
mod ends;
mod facts;
mod filter;
mod frames;
mod packet;
mod run;
mod steer;
