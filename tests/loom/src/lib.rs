//! Loom models of the data structures through which packet threads communicate with each other and
//! with the kernel.
//!
//! The modules are source files of `datapath` and `kv-switch` that this crate compiles a second
//! time. If the models were in those crates, `--cfg loom` would rebuild all their dependencies. Run
//! the models with `RUSTFLAGS="--cfg loom" cargo test --release --package sluicegate-loom`. Without
//! `--cfg loom`, the crate is empty.

#![forbid(unsafe_code)]

#[cfg(all(test, loom))]
#[path = "../../../crates/kv-switch/src/cache/epochs.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "a model uses part of a module")]
mod epochs;
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
mod sync {
    //! Loom's atomics, which replace the standard atomics in both crates.
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
}
