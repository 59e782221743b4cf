//! Every interleaving of the hand-offs between packet threads, and between them and the kernel, by loom.
//!
//! The modules are `datapath`'s own files. They are built here again since `--cfg loom` would rebuild all of `datapath`'s
//! dependencies. Run: `RUSTFLAGS="--cfg loom" cargo test --release --package sluicegate-loom`; empty without the flag.

#![forbid(unsafe_code)]

#[cfg(all(test, loom))]
#[path = "../../../crates/datapath/src/ring/indices.rs"]
#[allow(dead_code, reason = "a model uses part of a module")]
mod indices;
#[cfg(all(test, loom))]
#[path = "../../../crates/datapath/src/sleeper.rs"]
#[allow(dead_code, reason = "a model uses part of a module")]
mod sleeper;
#[cfg(all(test, loom))]
#[path = "../../../crates/datapath/src/stopping.rs"]
#[allow(dead_code, reason = "a model uses part of a module")]
mod stopping;
#[cfg(all(test, loom))]
#[path = "../../../crates/datapath/src/sync.rs"]
mod sync;
