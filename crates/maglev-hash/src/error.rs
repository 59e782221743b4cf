//! The reasons why a table cannot be built. Errors contain indexes into the caller's slice instead
//! of backend names.

use crate::SLOTS_PER_BACKEND;

/// The reason why a lookup table cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The set of backends is empty, or all weights are 0.
    #[error("no backend has a weight above 0")]
    NoBackends,
    /// The size is not a prime number, so the preferences of a backend would not include all slots.
    #[error("table size {size} is not a prime number")]
    SizeNotPrime {
        /// The requested number of slots.
        size: u32,
    },
    /// The size is above [`MAX_SIZE`](crate::MAX_SIZE).
    #[error("table size {size} exceeds the maximum of {max}")]
    SizeTooLarge {
        /// The requested number of slots.
        size: u32,
        /// The largest allowed number of slots.
        max: u32,
    },
    /// The table has fewer than [`SLOTS_PER_BACKEND`] slots per backend, and the caller did not
    /// allow a coarse table.
    #[error("table size {size} is too small for {backends} backends with {SLOTS_PER_BACKEND} slots each")]
    TableTooSmall {
        /// The requested number of slots.
        size: u32,
        /// The number of backends, including those with weight 0.
        backends: usize,
    },
    /// The table has fewer slots than backends.
    #[error("table size {size} is too small for {backends} backends")]
    MoreBackendsThanSlots {
        /// The requested number of slots.
        size: u32,
        /// The number of backends, including those with weight 0.
        backends: usize,
    },
    /// Two backends have the same name, which must be unique.
    #[error("backends {first} and {second} (counted from 0) have the same name")]
    DuplicateName {
        /// The index of one backend in the caller's slice.
        first: usize,
        /// The index of the other backend, which is greater than `first`.
        second: usize,
    },
}
