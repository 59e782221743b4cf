//! Every interleaving of the hand-offs between packet threads, and between them and the kernel, by loom.
//!
//! The modules are `datapath`'s own files, and `kv-switch`'s. They are built here again since `--cfg loom` would rebuild all of their
//! dependencies. Run: `RUSTFLAGS="--cfg loom" cargo test --release --package sluicegate-loom`; empty without the flag.

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
    //! Loom's atomics, in the place of both crates' own module.
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
}
